package cases

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"fabrique/bench/platform"
	"fabrique/steps/record"
)

// once checks that Fabrique brought the app to the commit by exactly one commit in
// the apps repository; its trailers say so.
func (w *World) once(ctx context.Context, c commit) error {
	if err := w.Work.Sync(ctx, platform.AppsRepo); err != nil {
		return err
	}
	out, err := w.Work.Git(ctx, platform.AppsRepo, "log", "--format=%H", "--all-match",
		"--grep=^Fabrique-App: "+c.app+"$", "--grep=^Fabrique-Revision: "+c.revision+"$")
	if err != nil {
		return err
	}
	if made := strings.Fields(out); len(made) != 1 {
		return fmt.Errorf("there should be one commit that brings %s to %s; there are %d: %s", c.app, c.revision, len(made), strings.Join(made, ", "))
	}
	return nil
}

// recordsHead gives the newest commit of the apps repository.
func (w *World) recordsHead(ctx context.Context) (string, error) {
	if err := w.Work.Sync(ctx, platform.AppsRepo); err != nil {
		return "", err
	}
	return w.Work.Git(ctx, platform.AppsRepo, "rev-parse", "HEAD")
}

// unwritten checks that nothing was committed to the apps repository since head.
func (w *World) unwritten(ctx context.Context, head string) error {
	now, err := w.recordsHead(ctx)
	if err == nil && now != head {
		err = fmt.Errorf("nothing should be written to %s; it went from %s to %s", platform.AppsRepo, head, now)
	}
	return err
}

// recorded gives the revision that an app's record names.
func (w *World) recorded(ctx context.Context, app string) (string, error) {
	if err := w.Work.Sync(ctx, platform.AppsRepo); err != nil {
		return "", err
	}
	file := app + ".yaml"
	text, err := os.ReadFile(filepath.Join(w.Work.Dir(platform.AppsRepo), file))
	if err != nil {
		return "", err
	}
	records, err := record.ParseFile(file, text)
	if err != nil {
		return "", err
	}
	for _, r := range records {
		if r.App == app {
			return string(r.Revision), nil
		}
	}
	return "", errors.New("there is no record of " + app + " in " + file)
}

// changeRecords changes files of the apps repository and pushes that, again if the
// factory was faster.
func (w *World) changeRecords(ctx context.Context, message string, change func(dir string) error) error {
	var err error
	for range 5 {
		if err := w.Work.Sync(ctx, platform.AppsRepo); err != nil {
			return err
		}
		if err := change(w.Work.Dir(platform.AppsRepo)); err != nil {
			return err
		}
		if status, err := w.Work.Git(ctx, platform.AppsRepo, "status", "--porcelain"); err != nil || status == "" {
			return err
		}
		if _, err := w.Work.Commit(ctx, platform.AppsRepo, message); err != nil {
			return err
		}
		if err = w.Work.Push(ctx, platform.AppsRepo, "HEAD:refs/heads/main"); err == nil {
			return nil
		}
	}
	return err
}
