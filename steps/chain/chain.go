// Package chain runs the five steps in one process, on one node and without a
// cluster: reconcile-head, and for each due app clone-at-sha, buildkit-build,
// digest-inspect and gitea-writeback (adr-0095 §1.a).
//
// One app's failure does not stop the others. Killed at any moment and run
// again, it ends in the same state: an image that was pushed is reused, a record
// that was written is unchanged.
package chain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"fabrique/steps/build"
	"fabrique/steps/buildarg"
	"fabrique/steps/clone"
	"fabrique/steps/config"
	"fabrique/steps/digest"
	"fabrique/steps/git"
	"fabrique/steps/gitea"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/reconcile"
	"fabrique/steps/secret"
	"fabrique/steps/step"
	"fabrique/steps/workspace"
	"fabrique/steps/writeback"
)

// Options says what to build.
type Options struct {
	Apps     []string        // none means all that are due
	Revision gitref.Revision // empty means the head of the source branch
	DryRun   bool            // stop after reconcile-head
	Progress io.Writer       // gets BuildKit's display; nil shows nothing
	// Stage, when set, is told what begins now.
	Stage func(app, stage string)
}

// Outcomes of an app, beside those of a write-back.
const (
	WouldBuild = "would build"
	Failed     = "failed"
	Broken     = "broken"
	NotDue     = "not due"
	NotReached = "not reached" // due, but the run was cut off before
)

// Stages of an app, in their order.
var Stages = []string{"clone", "build", "inspect", "write-back"}

// App is what became of one app.
type App struct {
	App      string             `json:"app"`
	Result   string             `json:"result"` // writeback.Created … Held, or one of the outcomes above
	Reason   string             `json:"reason,omitempty"`
	Revision gitref.Revision    `json:"revision,omitempty"`
	Digest   image.Digest       `json:"digest,omitempty"`
	Image    string             `json:"image,omitempty"` // registry:80/name@sha256:…
	Reused   bool               `json:"reused"`          // the image was in the registry already
	Cached   int                `json:"cached"`
	Total    int                `json:"total"`
	Commit   string             `json:"commit,omitempty"` // in the apps repository
	Seconds  map[string]float64 `json:"seconds,omitempty"`
	Error    string             `json:"error,omitempty"`
	ExitCode int                `json:"exitCode,omitempty"`
	err      error
}

// Report is the outcome of a run.
type Report struct {
	Changed    bool            `json:"changed"` // a commit was made in the apps repository (or would be, in a dry run)
	Head       gitref.Revision `json:"head"`
	Revision   gitref.Revision `json:"revision"`
	Superseded bool            `json:"superseded"`
	Seconds    float64         `json:"reconcileSeconds"`
	Apps       []App           `json:"apps"`
}

// Run builds what is due. The error joins those of the apps that failed; the
// report is whole all the same.
func Run(ctx context.Context, log *slog.Logger, c config.Config, o Options) (Report, error) {
	started := time.Now()
	plan, err := Plan(ctx, log, c, o.Revision, o.Apps)
	if err != nil {
		return Report{Apps: []App{}}, err
	}
	report := Report{
		Head: plan.Head, Revision: plan.Revision, Superseded: plan.Superseded,
		Seconds: time.Since(started).Seconds(), Apps: []App{},
	}
	for _, b := range plan.Broken {
		name := b.App
		if name == "" {
			name = b.Record
		}
		err := step.WithCode(b.ExitCode, fmt.Errorf("%s: %s", b.Record, b.Error))
		report.Apps = append(report.Apps, App{App: name, Result: Broken, Error: b.Error, ExitCode: b.ExitCode, err: err})
	}
	dir := ""
	for _, a := range plan.Apps {
		switch {
		case !a.Due:
			report.Apps = append(report.Apps, App{App: a.App, Result: NotDue, Reason: a.Reason, Revision: a.DeployedRevision, Digest: a.DeployedDigest})
			continue
		case o.DryRun:
			report.Changed = true
			report.Apps = append(report.Apps, App{App: a.App, Result: WouldBuild, Reason: a.Reason, Revision: a.Revision})
			continue
		}
		if ctx.Err() != nil {
			report.Apps = append(report.Apps, App{App: a.App, Result: NotReached, Reason: a.Reason, Revision: a.Revision})
			continue
		}
		if dir == "" {
			var remove func() error
			if dir, remove, err = workspace.Make("build"); err != nil {
				return report, err
			}
			defer remove()
		}
		r := runApp(ctx, log, c, o, dir, a)
		report.Changed = report.Changed || r.Commit != ""
		report.Apps = append(report.Apps, r)
	}
	return report, report.failure()
}

// Failed counts the apps that failed, are broken or were not reached.
func (r Report) Failed() int {
	n := 0
	for _, a := range r.Apps {
		if a.Result == Failed || a.Result == Broken || a.Result == NotReached {
			n++
		}
	}
	return n
}

// failure joins what went wrong with the apps. Its exit code is 1 when a retry
// may mend one of them, else 3 when a source is at fault, else 2.
func (r Report) failure() error {
	var errs []error
	codes := map[int]bool{}
	for _, a := range r.Apps {
		if a.err != nil {
			errs = append(errs, a.err)
			codes[a.ExitCode] = true
		}
	}
	for _, code := range []int{step.ExitRetry, step.ExitSource, step.ExitInvalid} {
		if codes[code] {
			return step.WithCode(code, errors.Join(errs...))
		}
	}
	return nil
}

// Plan compares, with the configuration's repositories and deadline.
func Plan(ctx context.Context, log *slog.Logger, c config.Config, revision gitref.Revision, apps []string) (reconcile.Plan, error) {
	return plan(ctx, log, c, reconcile.Options{Revision: revision, Only: apps})
}

func plan(ctx context.Context, log *slog.Logger, c config.Config, o reconcile.Options) (reconcile.Plan, error) {
	source, appsRemote, err := remotes(c)
	if err != nil {
		return reconcile.Plan{}, err
	}
	ctx, cancel := deadline(ctx, "reconcile-head", c.Timeouts.Reconcile)
	defer cancel()
	o.Source, o.SourceBranch = source, c.Source.Branch
	o.Apps, o.AppsBranch, o.AppsPath = appsRemote, c.Apps.Branch, c.Apps.Path
	outcome, err := reconcile.Run(ctx, log, o)
	return outcome, step.WithCause(ctx, err)
}

func remotes(c config.Config) (source, apps git.Remote, err error) {
	token, err := c.ReaderToken()
	if err != nil {
		return source, apps, err
	}
	if source, err = git.NewRemote(c.SourceURL(), token); err != nil {
		return source, apps, err
	}
	apps, err = git.NewRemote(c.AppsURL(), token)
	return source, apps, err
}

// runApp takes one app through the four steps that follow the plan.
func runApp(ctx context.Context, log *slog.Logger, c config.Config, o Options, dir string, a reconcile.App) App {
	r := App{App: a.App, Reason: a.Reason, Revision: a.Revision, Seconds: map[string]float64{}}
	err := buildImage(ctx, log, c, o, dir, a, &r)
	if err == nil {
		err = r.stage(ctx, o, "write-back", c.Timeouts.WriteBack, func(ctx context.Context) error {
			w, err := WriteBack(c, a.App, a.Record)
			if err != nil {
				return err
			}
			written, err := writeback.Deploy(ctx, log, w, writeback.Deployment{
				Revision: a.Revision, SourceKey: a.SourceKey, Repository: c.Repository(a.Image), Digest: r.Digest,
			})
			r.Result, r.Commit = written.Result, written.Commit
			if written.Reason != "" {
				r.Reason = written.Reason
			}
			return err
		})
	}
	if err != nil {
		r.Result, r.Error, r.ExitCode = Failed, err.Error(), step.ExitCode(err)
		r.err = fmt.Errorf("%s: %w", a.App, err)
	}
	return r
}

// WriteBack gives the options of a write-back with the configuration's
// repositories, tokens and deadline.
func WriteBack(c config.Config, app, file string) (writeback.Options, error) {
	reader, err := client(c, c.ReaderToken, secret.EnvReaderToken, "gitea.reader.tokenFile")
	if err != nil {
		return writeback.Options{}, err
	}
	writer, err := client(c, c.WriterToken, secret.EnvWriterToken, "gitea.writer.tokenFile")
	if err != nil {
		return writeback.Options{}, err
	}
	return writeback.Options{
		Writer: writer, Reader: reader,
		Apps: c.Apps.Repository, AppsBranch: c.Apps.Branch, Record: gitref.Path(file), App: app,
		Source: c.Source.Repository, SourceBranch: c.Source.Branch,
		Author: gitea.Author{Name: c.Author.Name, Email: c.Author.Email}, MaxWait: c.Timeouts.WriteBack,
	}, nil
}

func client(c config.Config, load func() (secret.Secret, error), env, field string) (*gitea.Client, error) {
	token, err := load()
	if err != nil {
		return nil, err
	}
	if token.IsZero() {
		return nil, step.Invalidf("loading a token: there is none; set %s in the configuration, or the environment variable %s", field, env)
	}
	return gitea.New(c.Gitea.URL, token)
}

// buildImage makes sure that the registry has the app's image of a.Revision: it
// clones into dir, builds or reuses, and inspects. It fills in r.
func buildImage(ctx context.Context, log *slog.Logger, c config.Config, o Options, dir string, a reconcile.App, r *App) error {
	source, _, err := remotes(c)
	if err != nil {
		return err
	}
	arguments, err := buildarg.Parse(a.BuildArgs)
	if err != nil {
		return err
	}
	repository := c.Repository(a.Image)
	var tree string
	if err := r.stage(ctx, o, "clone", c.Timeouts.Clone, func(ctx context.Context) error {
		cloned, err := clone.Run(ctx, log, clone.Options{
			Remote: source, Revision: a.Revision, Dir: dir, Paths: append([]gitref.Path{a.Context}, a.Inputs...),
		})
		tree = cloned.Path
		return err
	}); err != nil {
		return err
	}
	var expect image.Digest
	if err := r.stage(ctx, o, "build", c.Builder.Timeout, func(ctx context.Context) error {
		built, err := build.Run(ctx, log, build.Options{
			Addresses: []string{c.Builder.Address}, Dir: tree, Context: a.Context, Dockerfile: a.Dockerfile,
			BuildArgs: arguments, Target: a.Target,
			Repository: repository, Revision: a.Revision, SourceKey: a.SourceKey,
			Platform: c.Builder.Platform, PlainHTTP: c.Registry.PlainHTTP,
			Cache: build.Cache(c.Builder.Cache), Frontends: c.Builder.Frontends,
			Secrets: c.SecretFiles(a.App), Progress: o.Progress,
		})
		expect, r.Reused, r.Cached, r.Total = built.Digest, built.Reused, built.Cached, built.Total
		return err
	}); err != nil {
		return err
	}
	return r.stage(ctx, o, "inspect", c.Timeouts.Inspect, func(ctx context.Context) error {
		found, err := digest.Inspect(ctx, log, digest.Options{
			Repository: repository, Revision: a.Revision, SourceKey: a.SourceKey,
			Platform: c.Builder.Platform, PlainHTTP: c.Registry.PlainHTTP, Expect: expect,
		})
		r.Digest, r.Image = found.Digest, found.Image
		return err
	})
}

// stage runs one step with its deadline and notes how long it took.
func (r *App) stage(ctx context.Context, o Options, name string, limit time.Duration, run func(context.Context) error) error {
	if o.Stage != nil {
		o.Stage(r.App, name)
	}
	ctx, cancel := deadline(ctx, name, limit)
	defer cancel()
	started := time.Now()
	err := step.WithCause(ctx, run(ctx))
	r.Seconds[name] = time.Since(started).Seconds()
	return err
}

func deadline(ctx context.Context, what string, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("the deadline of %s for %s passed", limit, what))
}
