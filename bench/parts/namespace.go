package parts

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"fabrique/bench/cgroup"
)

// The process passes through these stages; each is the same program:
//
//	outer   makes the namespaces and the instance's folder, waits, cleans up
//	init    PID 1 inside: mounts, starts the next stage, collects orphans
//	inside  the tests or the demo; the parts are its children
//	exec    a part that gets a PID namespace of its own, before it is that part
const (
	envStage = "FABRIQUE_BENCH_STAGE"
	envDir   = "FABRIQUE_BENCH_INSTANCE"
	envAddr  = "FABRIQUE_BENCH_ADDRESS"

	stageInit   = "init"
	stageInside = "inside"
	stageNested = "nested" // started by the inside process from its own binary
	stageExec   = "exec"

	dirPrefix = "fabrique-bench-"
)

func outer() int {
	// Pdeathsig follows the thread that started the child, not the process.
	runtime.LockOSThread()
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "bench: must run as root: it makes mount and PID namespaces")
		return 1
	}
	sweep(os.TempDir())
	instance, err := newInstance()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: making the instance's folder:", err)
		return 1
	}
	defer instance.remove()

	cmd := exec.Command("/proc/self/exe")
	cmd.Args = os.Args
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), envStage+"="+stageInit, envDir+"="+instance.dir, envAddr+"="+instance.addr)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "bench: starting inside new namespaces:", err)
		return 1
	}
	go func() {
		for s := range signals {
			// A terminal sends ^C and ^\ to the whole foreground group, the
			// inner process included.
			if (s == syscall.SIGINT || s == syscall.SIGQUIT) && foreground() {
				continue
			}
			cmd.Process.Signal(s)
		}
	}()
	err = cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	if err != nil && cmd.ProcessState.ExitCode() < 0 {
		fmt.Fprintln(os.Stderr, "bench: waiting for the inner process:", err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

// foreground reports whether this process's group has the terminal.
func foreground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|syscall.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	return foregroundGroup(tty) == syscall.Getpgrp()
}

// initProcess is PID 1 inside. It waits with wait4 for every child, which would
// take the exit codes away from os/exec; so it starts one process only and the
// parts are that one's children.
func initProcess() int {
	runtime.LockOSThread() // the cgroup namespace is the thread's, and its children's
	if err := isolate(); err != nil {
		fmt.Fprintln(os.Stderr, "bench: isolating the mounts:", err)
		return 1
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	main, err := syscall.ForkExec("/proc/self/exe", os.Args, &syscall.ProcAttr{
		Env:   withStage(stageInside),
		Files: []uintptr{0, 1, 2},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: starting the inner process:", err)
		return 1
	}
	go func() {
		for s := range signals {
			if (s == syscall.SIGINT || s == syscall.SIGQUIT) && foreground() {
				continue
			}
			syscall.Kill(main, s.(syscall.Signal))
		}
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			fmt.Fprintln(os.Stderr, "bench: waiting for the inner process:", err)
			return 1
		case pid == main && status.Signaled():
			return 128 + int(status.Signal())
		case pid == main && status.Exited():
			return status.ExitStatus()
		}
	}
}

// isolate gives this process mounts that nobody else sees: a /proc that fits
// the PID namespace and an /etc/hosts that knows this instance's parts.
func isolate() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making the mounts private: %w", err)
	}
	if err := mountProc(); err != nil {
		return err
	}
	if err := cgroup.Isolate(filepath.Base(Dir())); err != nil {
		return fmt.Errorf("isolating the control groups: %w", err)
	}
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	ours := filepath.Join(Dir(), "hosts")
	if err := os.WriteFile(ours, []byte(withParts(string(hosts), os.Getenv(envAddr))), 0o644); err != nil {
		return err
	}
	if err := syscall.Mount(ours, "/etc/hosts", "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting over /etc/hosts: %w", err)
	}
	return nil
}

// withParts gives a hosts file in which the parts' names mean addr only: one
// that already maps them is this machine's, or an instance's around this one.
func withParts(hosts, addr string) string {
	var b strings.Builder
	for line := range strings.Lines(hosts) {
		entry, _, _ := strings.Cut(line, "#")
		names := strings.Fields(entry)
		kept := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "registry" || name == "gitea" })
		if len(kept) == len(names) {
			b.WriteString(strings.TrimRight(line, "\n") + "\n")
		} else if len(kept) > 1 {
			b.WriteString(strings.Join(kept, " ") + "\n")
		}
	}
	return b.String() + addr + " registry gitea\n"
}

// withStage gives this process's environment with the stage replaced.
func withStage(stage string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, envStage+"=") })
	return append(env, envStage+"="+stage)
}

func mountProc() error {
	if err := syscall.Mount("proc", "/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	return nil
}

// execProcess becomes the command in its arguments, as PID 1 of a PID namespace
// that the caller made together with a mount namespace. When that command dies,
// so do all that it started, and its mounts go.
func execProcess() int {
	err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
	if err == nil {
		err = mountProc()
	}
	if err == nil {
		err = syscall.Exec(os.Args[1], os.Args[1:], withStage(stageNested))
	}
	fmt.Fprintf(os.Stderr, "bench: starting %q in its own PID namespace: %v\n", os.Args[1], err)
	return 1
}

// instance is what a run leaves on the machine while it lives: one folder and
// control groups of the same name. The lock tells the living from the killed.
type instance struct {
	dir  string
	addr string
	lock *os.File
}

func newInstance() (_ *instance, err error) {
	dir, err := os.MkdirTemp("", dirPrefix+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return nil, err
	}
	in := &instance{dir: dir}
	defer func() {
		if err != nil {
			in.remove()
		}
	}()
	if in.lock, err = os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644); err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(in.lock.Fd()), syscall.LOCK_EX); err != nil {
		return nil, err
	}
	// A sweep that took the lock first saw a killed run's folder.
	if _, err := os.Stat(in.lock.Name()); err != nil {
		return nil, fmt.Errorf("another run removed it at once: %w; try again", err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(dir, "log"), 0o755); err != nil {
		return nil, err
	}
	in.addr, err = freeAddress()
	return in, err
}

// freeAddress picks a loopback address on which the parts' ports are free.
func freeAddress() (string, error) {
	var last error
	for range 20 {
		var b [3]byte
		rand.Read(b[:])
		addr := fmt.Sprintf("127.%d.%d.%d", 1+b[0]%254, b[1], 1+b[2]%254)
		last = nil
		for _, port := range []string{registryPort, giteaPort} {
			l, err := net.Listen("tcp4", net.JoinHostPort(addr, port))
			if err != nil {
				last = err
				break
			}
			l.Close()
		}
		if last == nil {
			return addr, nil
		}
	}
	return "", fmt.Errorf("finding a free loopback address: %w", last)
}

func (in *instance) remove() {
	cgroup.Remove(filepath.Base(in.dir))
	if err := os.RemoveAll(in.dir); err != nil {
		fmt.Fprintln(os.Stderr, "bench: removing the instance's folder:", err)
	}
	if in.lock != nil {
		in.lock.Close()
	}
}

// sweep removes what killed runs left: their folders' locks are free, their
// control groups empty.
func sweep(tmp string) {
	dirs, _ := filepath.Glob(filepath.Join(tmp, dirPrefix+"*"))
	for _, dir := range dirs {
		f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			// Either half removed or not locked yet by its owner.
			if info, err := os.Stat(dir); err == nil && time.Since(info.ModTime()) > time.Minute {
				(&instance{dir: dir}).remove()
			}
			continue
		}
		if err != nil {
			continue
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			(&instance{dir: dir, lock: f}).remove()
			continue
		}
		f.Close()
	}
	cgroup.Sweep(dirPrefix)
}

// foregroundGroup gives the process group that has the terminal.
func foregroundGroup(tty *os.File) int {
	var group int32
	if _, _, err := syscall.Syscall(syscall.SYS_IOCTL, tty.Fd(), syscall.TIOCGPGRP, uintptr(unsafe.Pointer(&group))); err != 0 {
		return -1
	}
	return int(group)
}
