package parts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"fabrique/bench/cache"
)

const (
	startTimeout = 60 * time.Second
	stopTimeout  = 5 * time.Second
)

// Process is a part that runs, or ran and may be started again.
type Process struct {
	name  string
	args  []string
	env   []string
	attr  func() *syscall.SysProcAttr
	probe func(context.Context) error
	// ownPIDs gives it PID and mount namespaces of its own, in which it is PID 1.
	ownPIDs bool

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
}

var (
	startedMu sync.Mutex
	started   []*Process
)

// start starts the process for the first time; [stopAll] will stop it.
func (p *Process) start(ctx context.Context) error {
	startedMu.Lock()
	started = append(started, p)
	startedMu.Unlock()
	return p.Start(ctx)
}

// stopAll stops all parts, the last started first, and gives what went wrong.
func stopAll() []error {
	startedMu.Lock()
	defer startedMu.Unlock()
	var errs []error
	for i := len(started) - 1; i >= 0; i-- {
		if err := started[i].Stop(); err != nil {
			errs = append(errs, err)
		}
	}
	started = nil
	return errs
}

// LogFile gives the path of the part's log. A restart appends to it.
func (p *Process) LogFile() string { return filepath.Join(LogDir(), p.name+".log") }

// PID gives the process id, 0 when it does not run.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return 0
	}
	return p.cmd.Process.Pid
}

func (p *Process) running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Start starts the part, again after [Process.Stop] or [Process.Kill], with
// the data that it had, and waits until it answers. The error holds the end of
// its log.
func (p *Process) Start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running() {
		return nil
	}
	log, err := os.OpenFile(p.LogFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("opening the log of %s: %w", p.name, err)
	}
	defer log.Close()
	// Not bound to ctx: the part outlives the test that asked for it first.
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = p.attr()
	if p.ownPIDs {
		cmd.Path, cmd.Args = "/proc/self/exe", append([]string{os.Args[0]}, p.args...)
		cmd.Env = append(cmd.Env, envStage+"="+stageExec)
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS
	}
	// A terminal's ^C is for the inner process, which stops the parts in order.
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", p.name, err)
	}
	done := make(chan struct{})
	go func() { cmd.Wait(); close(done) }()
	p.cmd, p.done = cmd, done

	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := p.ready(ctx); err != nil {
		p.end(syscall.SIGKILL)
		return fmt.Errorf("starting %s: %w\n$ %s\n%s", p.name, err, cache.Shell(append(append([]string{}, p.env...), p.args...)...), p.logTail(30))
	}
	return nil
}

func (p *Process) ready(ctx context.Context) error {
	for {
		probe, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := p.probe(probe)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("it ended with %v", p.cmd.ProcessState)
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w (%w)", err, context.Cause(ctx))
		case <-time.After(30 * time.Millisecond):
		}
	}
}

// Stop ends the part with SIGTERM, after five seconds with SIGKILL: buildkitd
// waits for its builds, however long they take. Stopping one that does not run is
// fine.
func (p *Process) Stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.end(syscall.SIGTERM)
}

// Kill ends the part with SIGKILL, as a node that loses power does, and waits
// until it is gone.
func (p *Process) Kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.end(syscall.SIGKILL)
}

func (p *Process) end(s syscall.Signal) error {
	if !p.running() {
		return nil
	}
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping %s: %w", p.name, err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(stopTimeout):
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing %s: %w", p.name, err)
	}
	<-p.done
	return nil
}

// Restart stops the part and starts it again.
func (p *Process) Restart(ctx context.Context) error {
	if err := p.Stop(); err != nil {
		return err
	}
	return p.Start(ctx)
}

func (p *Process) logTail(lines int) []byte {
	log, err := os.ReadFile(p.LogFile())
	if err != nil {
		return []byte(err.Error())
	}
	all := bytes.Split(bytes.TrimRight(log, "\n"), []byte("\n"))
	return bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))
}
