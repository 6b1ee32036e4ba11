package cases

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"fabrique/bench/action"
	"fabrique/bench/demo"
	"fabrique/bench/giteaadmin"
	"fabrique/bench/platform"
	"fabrique/manifests/zone"
)

// The apps that the scenarios push to. The first is the sample's, the second is
// added by [ensureSecond].
const (
	first  = "hello"
	second = "news"
)

// World is what one scenario works with.
type World struct {
	demo.Demo
	Gitea giteaadmin.Admin
	Work  demo.Clones // both are what main is when a scenario begins
	Out   io.Writer   // for progress

	measured *Measured
	costs    []Cost
}

// enter reaches Gitea and brings the working copies to what main is. The way to
// Gitea outlives ctx, as a scenario cleans up after its end; leave closes it.
func enter(ctx context.Context, out io.Writer, d demo.Demo) (w *World, leave func(), err error) {
	admin, leave, err := d.Admin(context.WithoutCancel(ctx))
	if err != nil {
		return nil, nil, err
	}
	w = &World{Demo: d, Gitea: admin, Work: demo.Clones{Admin: admin, Root: d.Dir}, Out: out}
	for _, repo := range []string{platform.SourceRepo, platform.AppsRepo} {
		if err := w.Work.Sync(ctx, repo); err != nil {
			leave()
			return nil, nil, err
		}
	}
	return w, leave, nil
}

// settleLimit is for what the last scenario may have left to build.
const settleLimit = 10 * time.Minute

// settle waits until no Workflow runs. Those that do not end are removed, so that
// one scenario that went wrong does not disturb all that come after it.
func (w *World) settle(ctx context.Context) error {
	const running = "workflows.argoproj.io/completed!=true"
	list := func(ctx context.Context) (string, error) {
		return w.Kubectl.Run(ctx, nil, "get", "workflows", "-n", zone.Workflows, "-l", running, "-o", "jsonpath={.items[*].metadata.name}")
	}
	told := false
	err := action.Poll(ctx, settleLimit, func(ctx context.Context) error {
		names, err := list(ctx)
		if err == nil && names != "" {
			if !told {
				told = true
				fmt.Fprintln(w.Out, "waiting for the Workflows that still run:", names)
			}
			err = errors.New("there still run: " + names)
		}
		return err
	})
	if err == nil || ctx.Err() != nil {
		return err
	}
	names, err := list(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(w.Out, "these do not end and are removed:", names)
	_, err = w.Kubectl.Run(ctx, nil, append([]string{"delete", "workflow", "-n", zone.Workflows, "--ignore-not-found"}, strings.Fields(names)...)...)
	return err
}

// undoLimit is for cleaning up after one scenario.
const undoLimit = 10 * time.Minute

// finally runs undo, also when ctx has ended, and adds its error to err.
func finally(ctx context.Context, err *error, undo func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	if failed := undo(ctx); failed != nil {
		*err = errors.Join(*err, fmt.Errorf("cleaning up: %w", failed))
	}
}

// anew makes an undo that needs repositories: with working copies as main is, and
// a way to Gitea of its own, as an interrupt ends the scenario's.
func (w *World) anew(undo func(context.Context, *World) error) func(context.Context) error {
	return func(ctx context.Context) error {
		fresh, leave, err := enter(ctx, w.Out, w.Demo)
		if err != nil {
			return err
		}
		defer leave()
		return undo(ctx, fresh)
	}
}

// note writes a line of progress.
func (w *World) note(format string, args ...any) { fmt.Fprintf(w.Out, "  "+format+"\n", args...) }

// pause waits, or until ctx ends.
func pause(ctx context.Context, span time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(span):
		return nil
	}
}

// nonce gives a word that no earlier run has used.
func nonce() string { return strconv.FormatInt(time.Now().UnixNano(), 36) }
