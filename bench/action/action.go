// Package action runs the small steps of a long work in order, and shows each
// with its time.
package action

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"fabrique/bench/cache"
)

// Action is one step. Do brings about one state, or finds it there already and
// changes nothing; what it did goes to log, which is kept in a file and shown when
// it fails.
type Action struct {
	Name string
	Do   func(ctx context.Context, log io.Writer) (changed bool, err error)
}

// Failure is an error that brings along what a component said, and how to see
// more of it.
type Failure struct {
	Err   error
	Lines string // the last ones of its log
	More  string // a file with all of it; empty for the action's own log
}

// Error implements error.
func (f *Failure) Error() string {
	return fmt.Sprintf("%v\n%s\nsee more: %s", f.Err, indent(f.Lines), cache.Shell("less", f.More))
}

// Unwrap gives the error without the log.
func (f *Failure) Unwrap() error { return f.Err }

func indent(lines string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(lines, "\n"), "\n", "\n    ")
}

// LogLines is how many lines of a component's log a failure shows.
const LogLines = 15

// FileFailure makes a [Failure] of the end of a log file.
func FileFailure(err error, file string) error {
	return &Failure{err, Tail(file, LogLines), file}
}

// Tail gives the last lines of a file, or why it cannot be read.
func Tail(file string, lines int) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// All runs all actions, also after one that failed, and gives all errors.
func All(ctx context.Context, progress io.Writer, logs string, actions ...Action) (changed int, err error) {
	for _, a := range actions {
		did, failed := Run(ctx, progress, logs, a)
		changed += did
		err = errors.Join(err, failed)
	}
	return changed, err
}

// beat is how often a long action shows that it goes on.
const beat = 15 * time.Second

// Run runs the actions until one fails, and writes a line for each to progress
// and a log for each into the folder logs. It tells how many changed something.
func Run(ctx context.Context, progress io.Writer, logs string, actions ...Action) (changed int, err error) {
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return 0, err
	}
	for _, a := range actions {
		if ctx.Err() != nil {
			return changed, context.Cause(ctx)
		}
		did, err := a.run(ctx, progress, filepath.Join(logs, strings.ReplaceAll(a.Name, " ", "-")+".log"))
		if did {
			changed++
		}
		if err != nil {
			return changed, fmt.Errorf("%s: %w", a.Name, err)
		}
	}
	return changed, nil
}

func (a Action) run(ctx context.Context, progress io.Writer, file string) (changed bool, err error) {
	log, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return false, err
	}
	defer log.Close()
	start := time.Now()
	fmt.Fprintf(log, "# %s %s\n", start.Format(time.RFC3339), a.Name)
	done := make(chan struct{})
	go func() {
		defer close(done)
		changed, err = a.Do(ctx, log)
	}()
	ticks := time.NewTicker(beat)
	defer ticks.Stop()
	for running := true; running; {
		select {
		case <-ticks.C:
			fmt.Fprintf(progress, "%-26s … %s\n", a.Name, time.Since(start).Round(time.Second))
		case <-done:
			running = false
		}
	}
	took := time.Since(start).Round(100 * time.Millisecond)
	var shown *Failure
	switch {
	case err == nil && changed:
		fmt.Fprintf(progress, "%-26s %s\n", a.Name, took)
	case err == nil:
		fmt.Fprintf(progress, "%-26s unchanged (%s)\n", a.Name, took)
	default:
		fmt.Fprintf(progress, "%-26s FAILED after %s\n", a.Name, took)
		brought := errors.As(err, &shown)
		if brought && shown.More == "" {
			shown.More = file
		}
		fmt.Fprintf(log, "failed: %v\n", err)
		if !brought && ctx.Err() == nil {
			err = FileFailure(err, file)
		}
	}
	return changed, err
}

// Poll calls probe until it succeeds, and gives its last error when the time is
// over or ctx ends. A probe that gives a [Final] error ends it at once.
func Poll(ctx context.Context, limit time.Duration, probe func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var last error
	for {
		err := probe(ctx)
		var final *Final
		switch {
		case err == nil:
			return nil
		case errors.As(err, &final):
			return err
		case ctx.Err() == nil || last == nil:
			last = err
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("not so after %s: %w", limit, last)
			}
			return context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Final is an error that waiting does not mend.
type Final struct{ Err error }

// Error implements error.
func (f *Final) Error() string { return f.Err.Error() }

// Unwrap gives the error itself.
func (f *Final) Unwrap() error { return f.Err }
