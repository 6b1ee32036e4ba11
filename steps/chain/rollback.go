package chain

import (
	"context"
	"fmt"
	"log/slog"

	"fabrique/steps/config"
	"fabrique/steps/gitref"
	"fabrique/steps/reconcile"
	"fabrique/steps/step"
	"fabrique/steps/workspace"
	"fabrique/steps/writeback"
)

// Rollback sets an app back to an older revision and holds back the source that
// it had. The older image is reused, or built again if the registry has it no
// more.
func Rollback(ctx context.Context, log *slog.Logger, c config.Config, o Options, app string, to gitref.Revision) (writeback.Result, error) {
	at, err := plan(ctx, log, c, reconcile.Options{Revision: to, Pinned: true, Only: []string{app}})
	if err != nil {
		return writeback.Result{App: app}, err
	}
	target, err := at.Find(app)
	if err != nil {
		return writeback.Result{App: app}, err
	}
	w, err := WriteBack(c, app, target.Record)
	if err != nil {
		return writeback.Result{App: app}, err
	}
	d := writeback.Deployment{Revision: to, SourceKey: target.SourceKey, Repository: c.Repository(target.Image)}
	if checked, err := writeback.CheckRollback(ctx, log, w, d); err != nil || checked.Result != writeback.Updated {
		return checked, err
	}
	dir, remove, err := workspace.Make("build")
	if err != nil {
		return writeback.Result{App: app}, err
	}
	defer remove()
	r := App{App: app, Seconds: map[string]float64{}}
	if err := buildImage(ctx, log, c, o, dir, target, &r); err != nil {
		return writeback.Result{App: app}, fmt.Errorf("providing the image of %s: %w", to.Short(), err)
	}
	d.Digest = r.Digest
	ctx, cancel := deadline(ctx, "write-back", c.Timeouts.WriteBack)
	defer cancel()
	result, err := writeback.Rollback(ctx, log, w, d)
	return result, step.WithCause(ctx, err)
}

// Hold keeps everything of an app from being deployed.
func Hold(ctx context.Context, log *slog.Logger, c config.Config, app, reason string) (writeback.Result, error) {
	return change(ctx, log, c, app, func(ctx context.Context, w writeback.Options) (writeback.Result, error) {
		return writeback.Hold(ctx, log, w, reason)
	})
}

// Release ends an app's hold and rollback.
func Release(ctx context.Context, log *slog.Logger, c config.Config, app string) (writeback.Result, error) {
	return change(ctx, log, c, app, func(ctx context.Context, w writeback.Options) (writeback.Result, error) {
		return writeback.Release(ctx, log, w)
	})
}

// change finds the app's record and changes it.
func change(ctx context.Context, log *slog.Logger, c config.Config, app string, run func(context.Context, writeback.Options) (writeback.Result, error)) (writeback.Result, error) {
	now, err := plan(ctx, log, c, reconcile.Options{Only: []string{app}})
	if err != nil {
		return writeback.Result{App: app}, err
	}
	file, err := now.RecordOf(app)
	if err != nil {
		return writeback.Result{App: app}, err
	}
	w, err := WriteBack(c, app, file)
	if err != nil {
		return writeback.Result{App: app}, err
	}
	ctx, cancel := deadline(ctx, "write-back", c.Timeouts.WriteBack)
	defer cancel()
	result, err := run(ctx, w)
	return result, step.WithCause(ctx, err)
}
