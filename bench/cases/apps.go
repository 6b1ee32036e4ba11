package cases

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"fabrique/bench/action"
	"fabrique/bench/demo"
	"fabrique/bench/platform"
	"fabrique/bench/sample"
)

// ensureSecond adds the second app unless it is there.
func (w *World) ensureSecond(ctx context.Context) (added bool, err error) {
	if _, err := os.Stat(filepath.Join(w.Work.Dir(platform.AppsRepo), second+".yaml")); err == nil {
		return false, nil
	}
	return true, w.addApp(ctx, second)
}

// addApp pushes an app's record, which starts nothing, and then its folder, both
// made of the sample's first app, and follows it to its pods.
func (w *World) addApp(ctx context.Context, app string) error {
	rename := strings.NewReplacer(first, app)
	original, err := fs.ReadFile(sample.Apps(), first+".yaml")
	if err != nil {
		return err
	}
	text := demo.GiteaInCluster.Replace(rename.Replace(string(original)))
	if err := w.changeRecords(ctx, "Declare "+app, func(dir string) error {
		return os.WriteFile(filepath.Join(dir, app+".yaml"), []byte(text), 0o644)
	}); err != nil {
		return err
	}
	if err := fs.WalkDir(sample.Atlas(), "web/"+first, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := fs.ReadFile(sample.Atlas(), name)
		if err != nil {
			return err
		}
		target := filepath.Join(w.Work.Dir(platform.SourceRepo), rename.Replace(name))
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		return os.WriteFile(target, []byte(rename.Replace(string(content))), 0o644)
	}); err != nil {
		return err
	}
	_, err = w.deploy(ctx, app, "The first page")
	return err
}

// removeApp removes what addApp added: the record, what Argo CD made of it, and the
// folder.
func (w *World) removeApp(ctx context.Context, app string) error {
	if err := w.changeRecords(ctx, "Remove "+app, func(dir string) error {
		return os.RemoveAll(filepath.Join(dir, app+".yaml"))
	}); err != nil {
		return err
	}
	if err := action.Poll(ctx, 3*time.Minute, func(ctx context.Context) error {
		out, err := w.Kubectl.Run(ctx, nil, "get", "application", app, "-n", "argocd", "--ignore-not-found", "-o", "name")
		if err == nil && out != "" {
			err = errors.New("Argo CD still has the Application " + app)
		}
		return err
	}); err != nil {
		return err
	}
	// The record has no finalizer, so its objects stay.
	if _, err := w.Kubectl.Run(ctx, nil, "delete", "deployments,services", "-n", "web", "-l", "app.kubernetes.io/name="+app); err != nil {
		return err
	}
	if err := os.RemoveAll(w.path(app, "")); err != nil {
		return err
	}
	if status, err := w.Work.Git(ctx, platform.SourceRepo, "status", "--porcelain"); err != nil || status == "" {
		return err
	}
	revision, err := w.Work.Commit(ctx, platform.SourceRepo, "Remove "+app)
	if err != nil {
		return err
	}
	if err := w.Work.Push(ctx, platform.SourceRepo, "HEAD:"+mainRef); err != nil {
		return err
	}
	return w.appears(ctx, pushName(revision))
}

// longName is a new name for an app, of 50 characters.
func longName() string {
	word := nonce()
	return fmt.Sprintf("%.*s-%s", 50-len(word)-1, "an-app-whose-name-has-fifty-characters-in-all", word)
}
