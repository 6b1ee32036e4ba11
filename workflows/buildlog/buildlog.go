// Package buildlog shows the log of an app's build in the cluster, while it is
// written or afterwards.
//
// A build is one step of a run: a pod with the containers clone and main. What they
// write is hostile text (the output of strangers' Dockerfiles); every line passes
// [step.Printable] before anybody sees it. A connection that breaks is made again,
// and no line comes twice.
package buildlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"fabrique/manifests/zone"
	"fabrique/steps/step"
	"fabrique/workflows/run"
)

// Cluster is where runs are and their pods.
type Cluster struct {
	runs *run.Client
	core kubernetes.Interface
}

// NewCluster makes clients without any request. Exit code 2 for a configuration
// without meaning.
func NewCluster(config *rest.Config) (Cluster, error) {
	runs, err := run.NewClient(config)
	if err != nil {
		return Cluster{}, err
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return Cluster{}, step.Invalidf("making a client for the cluster: %w", err)
	}
	return Cluster{runs, core}, nil
}

// Options says what to show and where.
type Options struct {
	Target Target
	Follow bool          // wait for what is in flight
	Wait   time.Duration // how long a run may take to appear
	Poll   time.Duration // how often to look; 0 for every second
	Out    io.Writer     // gets the log
	Notes  io.Writer     // gets what is to be said about it
}

// Show shows the builds that the target means: of an app its newest one, of a commit
// those of all apps, each line with the app before it when there are several. It
// returns when they are over.
//
// The error is the builds' failure, with the step's own exit code (of several: 1 if
// a retry may mend one, else 3, else 2). Others: 2 when there is nothing of that
// name or the API server refuses to tell, 1 when it cannot be reached.
func Show(ctx context.Context, c Cluster, o Options) error {
	o.Poll = cmp.Or(o.Poll, time.Second)
	s := &shower{Cluster: c, Options: o}
	found, err := s.find(ctx)
	if err != nil {
		return err
	}
	if len(found.builds) == 0 {
		return s.nothing(found)
	}
	s.named = len(found.builds) > 1
	errs := make([]error, len(found.builds))
	var group errgroup.Group
	if !o.Follow || !slices.ContainsFunc(found.builds, func(b build) bool { return !b.run.Over() }) {
		group.SetLimit(1) // one after the other
	}
	for i, b := range found.builds {
		group.Go(func() error {
			errs[i] = s.build(ctx, b)
			return nil
		})
	}
	_ = group.Wait()
	return join(errs)
}

// join gives the failures one exit code, as fabrique build does.
func join(errs []error) error {
	err := errors.Join(errs...)
	for _, code := range []int{step.ExitRetry, step.ExitSource, step.ExitInvalid} {
		for _, e := range errs {
			if e != nil && step.ExitCode(e) == code {
				return step.WithCode(code, err)
			}
		}
	}
	return err
}

type shower struct {
	Cluster
	Options
	named bool // lines have their app before them
	mu    sync.Mutex
	said  map[string]string
}

// find waits until it is known what the newest run builds.
func (s *shower) find(ctx context.Context) (choice, error) {
	patient := time.Now().Add(s.Wait)
	for {
		runs, err := s.runs.List(ctx, zone.Workflows)
		if err != nil {
			return choice{}, err
		}
		found, err := s.Target.choose(runs)
		switch {
		case errors.Is(err, errNothing) && time.Now().Before(patient):
			s.note("", "no run of %s is there yet", s.Target.text)
		case err != nil:
			return choice{}, err
		case found.undecided == nil || !s.Follow && len(found.builds)+len(found.runs) > 0:
			return found, nil
		case !s.Follow:
			return choice{}, step.Retryf("looking for a build of %s: the run %s is still looking for what is due; ask again, or with --follow", s.Target.text, found.undecided.Name)
		default:
			s.note("", "the run %s is looking for what is due", found.undecided.Name)
		}
		if err := s.pause(ctx); err != nil {
			return choice{}, err
		}
	}
}

func (s *shower) pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return step.Retryf("waiting for the build: %w", context.Cause(ctx))
	case <-time.After(s.Poll):
		return nil
	}
}

// nothing tells of runs in which nothing was due.
func (s *shower) nothing(found choice) error {
	r := found.runs[0]
	v := r.Verdict(r.Over())
	if v.Outcome == run.Failure {
		return step.WithCode(v.ExitCode, fmt.Errorf("%s: %s", r.Name, v.Text))
	}
	s.note("", "%s: %s", r.Name, v.Text)
	return nil
}

// build shows one build, all its tries from here on, and then how it ended.
func (s *shower) build(ctx context.Context, b build) error {
	shown := "" // the try
	lost := false
	for {
		a := b.in()
		if try := a.Build; try.Pod != "" && try.Pod != shown {
			if try.Tries > 1 {
				s.note(b.app, "try %d", try.Tries)
			}
			found, err := s.pod(ctx, b, try)
			if err != nil {
				return fmt.Errorf("%s: %w", b.app, err)
			}
			if found || try.State.Over() {
				shown = try.Pod
			}
			lost = !found && try.State.Over()
		}
		if end := b.run.Over() || a.Build.State.Over() && !a.Build.Again || a.Verdict(false).Outcome != run.Pending; end || !s.Follow {
			return s.outcome(b, end, lost)
		}
		if v := a.Verdict(false); shown != a.Build.Pod || a.Build.Again {
			s.note(b.app, "%s", v.Text)
		}
		if err := s.pause(ctx); err != nil {
			return err
		}
		var err error
		if b.run, err = s.runs.Get(ctx, zone.Workflows, b.run.Name); err != nil {
			return fmt.Errorf("%s: %w", b.app, err)
		}
	}
}

// outcome tells how a build ended, or how far it is. lost tells that there was no
// pod any more whose log could be shown.
func (s *shower) outcome(b build, end, lost bool) error {
	a := b.in()
	at := a.Build.Finished.Local().Format(time.RFC3339)
	v := a.Verdict(end)
	switch {
	case a.Build.State == run.Succeeded:
		how := fmt.Sprintf("built in %s, %d of %d build steps cached", a.Build.Finished.Sub(a.Build.Started), a.Cached, a.Total)
		if a.Reused {
			how = "not built again, the registry had it"
		}
		if lost {
			how = fmt.Sprintf("the log is gone, as the pod of a step that succeeded is removed after a minute; at %s, by %s, it was %s", at, b.run.Name, how)
		}
		s.note(b.app, "%s: %s@%s", how, a.Image, a.Digest)
		s.note(b.app, "%s", a.Verdict(b.run.Over()).Text)
	case v.Outcome == run.Failure:
		if lost && a.Build.State == run.Failed {
			s.note(b.app, "the pod of the build that failed at %s is gone; this is what %s has kept of it:", at, b.run.Name)
		}
		return step.WithCode(v.ExitCode, fmt.Errorf("%s: %s", b.app, v.Text))
	default:
		s.note(b.app, "%s", v.Text)
	}
	return nil
}

// note says something about an app's build, unless that was said last.
func (s *shower) note(app, format string, args ...any) {
	text := step.Printable(fmt.Sprintf(format, args...))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.said == nil {
		s.said = map[string]string{}
	}
	if s.said[app] == text {
		return
	}
	s.said[app] = text
	if app != "" {
		text = app + ": " + text
	}
	fmt.Fprintln(s.Notes, text)
}

// print writes one line of a log.
func (s *shower) print(app, line string) error {
	line = step.Printable(line)
	if s.named {
		line = "[" + app + "] " + line
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := io.WriteString(s.Out, line+"\n")
	return err
}
