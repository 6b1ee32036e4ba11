// Package node makes machines out of this one: a node is a process tree with
// PID, mount, network, UTS and IPC namespaces and control groups of its own, in
// which programs find an empty /var, /run and /tmp and the rest of this machine's
// files. Nothing of a node outlives its first process but its folder and its
// control groups, which [Destroy] removes.
package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fabrique/bench/cgroup"
)

// Node is one machine. Its name is unique on this one; its files are in Dir.
type Node struct {
	Name string // its host name: "worker"
	Dir  string // absolute; holds var/, tmp/, log/, hosts and resolv.conf
	// Keep are folders under /var that stay visible inside.
	Keep []string
}

// The names under which a node's two processes appear in the process list.
const (
	argInit  = "fabrique-bench-node"
	argAgent = "fabrique-bench-agent"
)

// Prefix begins the names of all control groups of nodes.
const Prefix = "fabrique-bench-node-"

func (n Node) group() string  { return Prefix + n.Name }
func (n Node) socket() string { return filepath.Join(n.Dir, "agent.sock") }

// LogFile gives the path of the log of a service or, with the name "node", of
// the node's own processes.
func (n Node) LogFile(service string) string { return filepath.Join(n.LogDir(), service+".log") }

// LogDir gives the folder with the node's logs.
func (n Node) LogDir() string { return filepath.Join(n.Dir, "log") }

// Up starts the node if it does not run. hosts and resolv become its /etc/hosts
// and /etc/resolv.conf.
func (n Node) Up(ctx context.Context, hosts, resolv string) (changed bool, err error) {
	if n.answers() {
		return false, nil
	}
	// One that does not answer was interrupted while it started.
	if err := n.Destroy(ctx); err != nil {
		return false, err
	}
	for dir, mode := range map[string]os.FileMode{"": 0o755, "var": 0o755, "var/lib": 0o755, "var/log": 0o755, "tmp": 0o777 | os.ModeSticky, "log": 0o755} {
		path := filepath.Join(n.Dir, dir)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return false, err
		}
		if err := os.Chmod(path, mode); err != nil {
			return false, err
		}
	}
	for name, text := range map[string]string{"hosts": hosts, "resolv.conf": resolv} {
		if err := os.WriteFile(filepath.Join(n.Dir, name), []byte(text), 0o644); err != nil {
			return false, err
		}
	}
	log, err := os.OpenFile(n.LogFile("node"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return false, err
	}
	defer log.Close()
	if err := keepToMyself(); err != nil {
		return false, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = append([]string{argInit, n.Name, n.Dir}, n.Keep...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true, // it outlives this program and its terminal
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	if err := cmd.Start(); err != nil {
		return false, fmt.Errorf("starting the node %s: %w", n.Name, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for deadline := time.After(20 * time.Second); !n.answers(); {
		select {
		case <-ctx.Done():
			return true, context.Cause(ctx)
		case err := <-ended:
			return true, fmt.Errorf("starting the node %s: its first process ended: %v\n%s", n.Name, err, tail(n.LogFile("node"), 5))
		case <-deadline:
			return true, fmt.Errorf("starting the node %s: it does not answer after 20 s\n%s", n.Name, tail(n.LogFile("node"), 5))
		case <-time.After(20 * time.Millisecond):
		}
	}
	return true, nil
}

// keepToMyself makes sure that the node does not hold on to files that this
// program inherited: somebody may wait for the end of a pipe, or for a lock.
func keepToMyself() error {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, f := range open {
		if fd, err := strconv.Atoi(f.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
	return nil
}

func tail(file string, lines int) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

func (n Node) answers() bool {
	client, err := n.dial()
	if err != nil {
		return false
	}
	client.Close()
	return true
}

func (n Node) dial() (*rpc.Client, error) {
	if n.PID() == 0 {
		return nil, fmt.Errorf("the node %s does not run", n.Name)
	}
	client, err := rpc.Dial("unix", n.socket())
	if err != nil {
		return nil, fmt.Errorf("reaching the node %s: %w", n.Name, err)
	}
	return client, nil
}

// PID gives the process id of the node's first process as this program sees it,
// 0 when there is none.
func (n Node) PID() int {
	for _, pid := range processes(argInit, n.Name, n.Dir) {
		return pid
	}
	return 0
}

// processes gives the ids of the processes whose arguments begin with these.
func processes(args ...string) []int {
	want := strings.Join(args, "\x00") + "\x00"
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && strings.HasPrefix(string(text), want) && pid != os.Getpid() {
			found = append(found, pid)
		}
	}
	return found
}

// namesake gives the folder of a running node that has the same name, and so the
// same control groups, but another folder.
func (n Node) namesake() string {
	for _, pid := range processes(argInit, n.Name) {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended
		if args := strings.Split(string(text), "\x00"); len(args) > 2 && args[2] != n.Dir {
			return args[2]
		}
	}
	return ""
}

// Destroy ends every process of the node and removes its control groups and its
// folder. A node that is not there is not an error; one of the same name with
// another folder is.
func (n Node) Destroy(ctx context.Context) error {
	if dir := n.namesake(); dir != "" {
		return fmt.Errorf("ending the node %s: one of that name runs with its files in %s; a machine has one", n.Name, dir)
	}
	for _, pid := range processes(argInit, n.Name, n.Dir) {
		// The kernel ends the others with the first one of their PID namespace.
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("ending the node %s: %w", n.Name, err)
		}
	}
	for deadline := time.Now().Add(30 * time.Second); len(processes(argInit, n.Name, n.Dir)) > 0 || len(n.Processes()) > 0; {
		if time.Now().After(deadline) {
			return fmt.Errorf("ending the node %s: processes are left after 30 s: %v", n.Name, n.Processes())
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
	cgroup.Remove(n.group())
	if len(cgroup.Named(n.group())) > 0 {
		return fmt.Errorf("removing the control groups %s: some are still in use", n.group())
	}
	if err := os.RemoveAll(n.Dir); err != nil {
		return fmt.Errorf("removing the files of the node %s: %w", n.Name, err)
	}
	return nil
}

// Processes gives the ids of all processes in the node's control groups.
func (n Node) Processes() []string {
	seen := map[string]bool{}
	for _, group := range cgroup.Named(n.group()) {
		filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Name() == "cgroup.procs" {
				text, _ := os.ReadFile(path)
				for _, pid := range strings.Fields(string(text)) {
					seen[pid] = true
				}
			}
			return nil
		})
	}
	var pids []string
	for pid := range seen {
		pids = append(pids, pid)
	}
	return pids
}

// Memory gives the bytes that all processes and pods of the node use, without
// the page cache that the kernel may drop at any time.
func (n Node) Memory() int64 {
	for _, group := range cgroup.Named(n.group()) {
		text, err := os.ReadFile(filepath.Join(group, "memory.stat"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if value, ok := strings.CutPrefix(line, "total_rss "); ok {
				bytes, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
				return bytes
			}
		}
	}
	return 0
}
