package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"fabrique/bench/cgroup"
)

// Intercept ends the process here if it is one that [Node.Up] started from the
// program's own binary.
func Intercept() {
	switch os.Args[0] {
	case argInit:
		fmt.Fprintln(os.Stderr, "node:", initProcess(os.Args[1], os.Args[2], os.Args[3:]))
		os.Exit(1)
	case argAgent:
		fmt.Fprintln(os.Stderr, "node agent:", serve(os.Args[1]))
		os.Exit(1)
	}
}

// initProcess is PID 1 of a node. It collects orphans, which would take exit
// codes away from os/exec; so it starts one process only, the agent, which starts
// all others.
func initProcess(name, dir string, keep []string) error {
	runtime.LockOSThread() // the cgroup namespace is the thread's, and its children's
	if err := isolate(name, dir, keep); err != nil {
		return err
	}
	// A node has no use for what it inherited.
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/var/lib", "LANG=C.UTF-8"}
	agent, err := syscall.ForkExec("/proc/self/exe", []string{argAgent, dir}, &syscall.ProcAttr{
		Dir: "/", Env: env, Files: []uintptr{0, 1, 2},
	})
	if err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return err
		}
		if pid == agent {
			return fmt.Errorf("the agent ended: %v", status)
		}
	}
}

func isolate(name, dir string, keep []string) error {
	if err := cgroup.Isolate(Prefix + name); err != nil {
		return fmt.Errorf("isolating the control groups: %w", err)
	}
	mount := func(source, target, kind string, flags uintptr, data string) error {
		if err := syscall.Mount(source, target, kind, flags, data); err != nil {
			return fmt.Errorf("mounting %s on %s: %w", source, target, err)
		}
		return nil
	}
	if err := mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	// The kubelet hands mounts on to pods.
	if err := mount("", "/", "", syscall.MS_REC|syscall.MS_SHARED, ""); err != nil {
		return err
	}
	if err := mount("proc", "/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""); err != nil {
		return err
	}
	if !slices.ContainsFunc(keep, func(path string) bool { return strings.HasPrefix(dir, path+"/") }) {
		keep = append(keep, dir)
	}
	for _, path := range keep {
		// The rest of this machine's files is seen as it is.
		if !strings.HasPrefix(path, "/var/") && !strings.HasPrefix(path, "/tmp/") {
			continue
		}
		inside := filepath.Join(dir, path)
		if err := os.MkdirAll(inside, 0o755); err != nil {
			return err
		}
		if err := mount(path, inside, "", syscall.MS_BIND, ""); err != nil {
			return err
		}
	}
	// The last one may hide dir itself.
	for _, m := range [][2]string{{"hosts", "/etc/hosts"}, {"resolv.conf", "/etc/resolv.conf"}, {"var", "/var"}, {"tmp", "/tmp"}} {
		if err := mount(filepath.Join(dir, m[0]), m[1], "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
			return err
		}
	}
	if err := mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	if err := os.Mkdir("/run/lock", 0o1777); err != nil {
		return err
	}
	return syscall.Sethostname([]byte(name))
}

// Service is a program that runs until the node is destroyed; when it ends it is
// started again after a second.
type Service struct {
	Name string
	Args []string // the program's path first
	Env  []string // in addition to the node's own
}

// State tells how a service does.
type State struct {
	PID      int // inside the node; 0 between two starts
	Restarts int
	Last     string // why it ended the last time
}

// Command is a program that runs once.
type Command struct {
	Args  []string
	Stdin []byte
}

// Result is what a [Command] wrote and how it ended.
type Result struct {
	Output []byte // stdout and stderr
	Failed string // empty when it ended with 0
}

// Start starts the service unless it runs with these arguments already; one
// that runs with others is ended first.
func (n Node) Start(s Service) (changed bool, err error) {
	client, err := n.dial()
	if err != nil {
		return false, err
	}
	defer client.Close()
	if err := client.Call("Agent.Start", s, &changed); err != nil {
		return false, fmt.Errorf("starting %s on %s: %w", s.Name, n.Name, err)
	}
	return changed, nil
}

// State tells how the services do, by name.
func (n Node) State() (map[string]State, error) {
	client, err := n.dial()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var states map[string]State
	return states, client.Call("Agent.State", 0, &states)
}

// Run runs a program inside the node with stdin (may be nil) and writes it and
// its output to log.
func (n Node) Run(ctx context.Context, log io.Writer, stdin []byte, args ...string) error {
	client, err := n.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	fmt.Fprintf(log, "%s$ %s\n", n.Name, strings.Join(args, " "))
	var result Result
	call := client.Go("Agent.Run", Command{args, stdin}, &result, make(chan *rpc.Call, 1))
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-call.Done:
	}
	if call.Error != nil {
		return fmt.Errorf("running %s on %s: %w", args[0], n.Name, call.Error)
	}
	log.Write(result.Output)
	if result.Failed != "" {
		return fmt.Errorf("running %s on %s: %s\n%s", strings.Join(args, " "), n.Name, result.Failed, bytes.TrimSpace(result.Output))
	}
	return nil
}

// agent starts programs inside the node on request.
type agent struct {
	dir string

	mu       sync.Mutex
	services map[string]*service
}

type service struct {
	Service
	mu    sync.Mutex
	state State
	cmd   *exec.Cmd
	done  chan struct{} // closed when cmd has ended
	ended bool
}

func serve(dir string) error {
	socket := Node{Dir: dir}.socket()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	// Who reaches it is root in the node.
	if err := os.Chmod(socket, 0o600); err != nil {
		return err
	}
	server := rpc.NewServer()
	if err := server.RegisterName("Agent", &agent{dir: dir, services: map[string]*service{}}); err != nil {
		return err
	}
	server.Accept(listener)
	return nil
}

// Start implements [Node.Start].
func (a *agent) Start(s Service, changed *bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if old := a.services[s.Name]; old != nil {
		if strings.Join(old.Args, "\x00") == strings.Join(s.Args, "\x00") && strings.Join(old.Env, "\x00") == strings.Join(s.Env, "\x00") {
			return nil
		}
		old.stop()
	}
	*changed = true
	started := &service{Service: s}
	a.services[s.Name] = started
	if err := started.start(a.dir); err != nil {
		delete(a.services, s.Name)
		return err
	}
	return nil
}

func (s *service) start(dir string) error {
	log, err := os.OpenFile(Node{Dir: dir}.LogFile(s.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.Args[0], s.Args[1:]...)
	cmd.Dir, cmd.Env = "/", append(os.Environ(), s.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	s.cmd, s.done, s.state.PID = cmd, done, cmd.Process.Pid
	go func() {
		err := cmd.Wait()
		close(done)
		s.mu.Lock()
		s.state.PID, s.state.Last = 0, fmt.Sprint(err)
		again := !s.ended
		if again {
			s.state.Restarts++
		}
		s.mu.Unlock()
		for again {
			time.Sleep(time.Second)
			again = s.start(dir) != nil
		}
	}()
	return nil
}

// stop ends the service and waits until it has ended, so that what it holds, a
// port or a lock, is free.
func (s *service) stop() {
	s.mu.Lock()
	s.ended = true
	cmd, done := s.cmd, s.done
	s.mu.Unlock()
	cmd.Process.Kill()
	<-done
}

// State implements [Node.State].
func (a *agent) State(_ int, states *map[string]State) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	*states = map[string]State{}
	for name, s := range a.services {
		s.mu.Lock()
		(*states)[name] = s.state
		s.mu.Unlock()
	}
	return nil
}

// Run implements [Node.Run].
func (a *agent) Run(c Command, result *Result) error {
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Dir, cmd.Stdin = "/", bytes.NewReader(c.Stdin)
	out, err := cmd.CombinedOutput()
	result.Output = out
	if err != nil {
		result.Failed = err.Error()
	}
	return nil
}
