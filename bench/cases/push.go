package cases

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"fabrique/bench/demo"
	"fabrique/bench/platform"
)

// commit is a commit to the source that changes the page of one app.
type commit struct {
	app, revision string
	greeting      string    // what the app's pods say when they run it
	pushed        time.Time // zero until it is
}

// path is a file of an app in the working copy of the source.
func (w *World) path(app, file string) string {
	return filepath.Join(w.Work.Dir(platform.SourceRepo), "web", app, file)
}

// commit gives an app's page a greeting of its own, and commits that with all else
// that has changed in the working copy. The message is the greeting.
func (w *World) commit(ctx context.Context, app, what string) (commit, error) {
	return w.commitAs(ctx, app, what, "")
}

// commitAs is [World.commit] with another message; empty for the greeting.
func (w *World) commitAs(ctx context.Context, app, what, message string) (commit, error) {
	c := commit{app: app, greeting: what + " " + nonce()}
	if message == "" {
		message = c.greeting
	}
	if err := w.Work.Greet(app, c.greeting); err != nil {
		return c, err
	}
	var err error
	c.revision, err = w.Work.Commit(ctx, platform.SourceRepo, message)
	return c, err
}

// send pushes the commit, which is the working copy's newest, to main.
func (w *World) send(ctx context.Context, c *commit) error {
	c.pushed = time.Now()
	return w.Work.Push(ctx, platform.SourceRepo, "HEAD:refs/heads/main")
}

// follow waits until the app's pods run the commit by the digest that its record
// names.
func (w *World) follow(ctx context.Context, c commit) (demo.Push, error) {
	return w.Follow(ctx, w.Out, c.pushed, c.app, c.revision, c.greeting)
}

// deploy commits, pushes and follows.
func (w *World) deploy(ctx context.Context, app, what string) (commit, error) {
	c, err := w.commit(ctx, app, what)
	if err != nil {
		return c, err
	}
	if err := w.send(ctx, &c); err != nil {
		return c, err
	}
	_, err = w.follow(ctx, c)
	return c, err
}

// head is the newest commit of the working copy of the source.
func (w *World) head(ctx context.Context) (string, error) {
	return w.Work.Git(ctx, platform.SourceRepo, "rev-parse", "HEAD")
}

// dockerfile replaces the first app's Dockerfile in the working copy.
func (w *World) dockerfile(text string) error {
	return os.WriteFile(w.path(first, "Dockerfile"), []byte(text), 0o644)
}

// restore pushes the first app's own Dockerfile unless main has it. It is for
// cleaning up, and leaves it to [World.settle] to wait for the build.
func (w *World) restore(ctx context.Context) error {
	original, err := original()
	if err != nil {
		return err
	}
	if now, err := os.ReadFile(w.path(first, "Dockerfile")); err == nil && string(now) == original {
		return nil
	}
	if err := w.dockerfile(original); err != nil {
		return err
	}
	c, err := w.commit(ctx, first, "The Dockerfile as it was")
	if err != nil {
		return err
	}
	if err := w.send(ctx, &c); err != nil {
		return err
	}
	return w.appears(ctx, pushName(c.revision))
}

// heal pushes the first app's own Dockerfile, follows it to its pods, and checks
// that the commit says success.
func (w *World) heal(ctx context.Context) error {
	original, err := original()
	if err != nil {
		return err
	}
	if err := w.dockerfile(original); err != nil {
		return err
	}
	c, err := w.deploy(ctx, first, "Healed")
	if err == nil {
		err = w.says(ctx, c.revision, "success", "", whole, whole+"/"+c.app)
	}
	if err != nil {
		return fmt.Errorf("healing by a good push: %w", err)
	}
	return nil
}
