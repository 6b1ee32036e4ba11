package speed

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fabrique/bench/cache"
)

// program is a command line to measure.
type program struct {
	args  []string
	dir   string   // working folder
	env   []string // added to this process's, for all but secrets shown in errors
	stdin string
	// secretEnv is added too and never shown.
	secretEnv []string
}

// run is one measured execution.
type run struct {
	took   time.Duration
	cpu    time.Duration // of the process and its children
	peak   int64         // bytes, see [sampleMemory]
	stdout []byte
}

// run executes the program to its end. The error shows the command line and the
// end of what it printed.
func (p program) run(ctx context.Context) (run, error) {
	cmd := exec.CommandContext(ctx, p.args[0], p.args[1:]...)
	cmd.Dir = p.dir
	cmd.Env = slices.Concat(os.Environ(), p.env, p.secretEnv)
	cmd.Stdin = strings.NewReader(p.stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = 10 * time.Second
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return run{}, fmt.Errorf("starting %s: %w", cache.Shell(p.args...), err)
	}
	stop := sampleMemory(cmd.Process.Pid)
	err := cmd.Wait()
	took := time.Since(start)
	peak := stop()
	if err != nil {
		return run{}, fmt.Errorf("running %s: %w\n%s", cache.Shell(slices.Concat(p.env, p.args)...), err, tail(stderr.Bytes(), 2000))
	}
	// The kernel keeps the peak of the largest single process by itself.
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		peak = max(peak, usage.Maxrss*1024)
	}
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return run{took, cpu, peak, stdout.Bytes()}, nil
}

func tail(b []byte, n int) []byte { return bytes.TrimSpace(b[max(0, len(b)-n):]) }

// sampleInterval is short against the phases of the programs measured, and long
// enough to cost them nothing.
const sampleInterval = 10 * time.Millisecond

// sampleMemory follows the memory of a process and everything below it, and
// gives the peak when stopped: the sum of their resident memory at one moment.
// Memory that several of them share counts for each, and mapped files count, so
// the figure is too high rather than too low.
func sampleMemory(pid int) (stop func() int64) {
	quit := make(chan struct{})
	peak := make(chan int64, 1)
	go func() {
		tick := time.NewTicker(sampleInterval)
		defer tick.Stop()
		var most int64
		for {
			select {
			case <-quit:
				peak <- most
				return
			case <-tick.C:
				most = max(most, residentTree(pid))
			}
		}
	}()
	return func() int64 { close(quit); return <-peak }
}

// residentTree sums the resident memory of a process and its descendants. The
// kernel lists the children of each thread.
func residentTree(pid int) int64 {
	proc := "/proc/" + strconv.Itoa(pid)
	// proc(5): the second field is the resident set in pages.
	statm, err := os.ReadFile(proc + "/statm")
	if err != nil {
		return 0 // it has ended
	}
	var sum int64
	if fields := strings.Fields(string(statm)); len(fields) > 1 {
		pages, _ := strconv.ParseInt(fields[1], 10, 64)
		sum = pages * int64(os.Getpagesize())
	}
	threads, _ := os.ReadDir(proc + "/task")
	for _, thread := range threads {
		children, _ := os.ReadFile(proc + "/task/" + thread.Name() + "/children")
		for _, child := range strings.Fields(string(children)) {
			if id, err := strconv.Atoi(child); err == nil {
				sum += residentTree(id)
			}
		}
	}
	return sum
}

// contender is one side of a comparison. Its function prepares a round, which is
// not measured, and gives the program to measure.
type contender struct {
	name    string
	prepare func(ctx context.Context, round int) (program, error)
	// check, if set, sees what the measured run left behind.
	check func(ctx context.Context, round int, r run) error
}

// compete measures all contenders in turn, rounds times, each round in another
// order, so that what one leaves behind (caches, dirty pages) meets all of them
// alike. A round before the first warms up and does not count.
func compete(ctx context.Context, progress io.Writer, what string, rounds int, contenders ...contender) ([][]run, error) {
	runs := make([][]run, len(contenders))
	for round := range rounds + 1 {
		for i := range contenders {
			at := (i + round) % len(contenders)
			c := contenders[at]
			fail := func(err error) error { return fmt.Errorf("%s, round %d of %s: %w", what, round, c.name, err) }
			p, err := c.prepare(ctx, round)
			if err != nil {
				return nil, fail(err)
			}
			r, err := p.run(ctx)
			if err != nil {
				return nil, fail(err)
			}
			if c.check != nil {
				if err := c.check(ctx, round, r); err != nil {
					return nil, fail(err)
				}
			}
			if round > 0 {
				runs[at] = append(runs[at], r)
			}
			fmt.Fprintf(progress, "%-17s round %d/%d %-44s %7.3f s, CPU %7.3f s\n", what, round, rounds, c.name, r.took.Seconds(), r.cpu.Seconds())
		}
	}
	return runs, nil
}

// median of the values, which may not be empty.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func seconds(runs []run) []float64 {
	var out []float64
	for _, r := range runs {
		out = append(out, r.took.Seconds())
	}
	return out
}

// mebibytes gives the peaks.
func mebibytes(runs []run) []float64 {
	var out []float64
	for _, r := range runs {
		out = append(out, float64(r.peak)/(1<<20))
	}
	return out
}
