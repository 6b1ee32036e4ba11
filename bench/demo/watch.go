package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"fabrique/bench/giteaadmin"
	"fabrique/bench/platform"
	"fabrique/bench/sample"
	"fabrique/manifests/zone"
)

// Push is one push to the source and what became of it.
type Push struct {
	Revision string
	Stages   []Stage
}

// Stage is a moment that a push reached, measured from its beginning.
type Stage struct {
	Name  string
	After time.Duration
}

// Run pushes the sample and shows it come to life, then pushes a change of one
// app, and fails when anything else than that happens.
func (d Demo) Run(ctx context.Context, out io.Writer) error {
	admin, stop, err := d.Admin(ctx)
	if err != nil {
		return err
	}
	defer stop()
	work := clones{ctx, admin, d.Dir}
	if err := work.fill(platform.SourceRepo, sample.Atlas(), nil); err != nil {
		return err
	}
	// The records name Gitea as this cluster knows it.
	if err := work.fill(platform.AppsRepo, sample.Apps(), strings.NewReplacer("http://gitea:3000", platform.GiteaURL)); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nThe two apps are declared in %s. Pushes to %s from here on:\n", platform.AppsRepo, platform.SourceRepo)
	var pushes []Push
	for i := range 2 {
		greeting := fmt.Sprintf("Push %d at %s", i+1, time.Now().Format("15:04:05"))
		p, err := d.push(ctx, out, work, "hello", greeting)
		if err != nil {
			return err
		}
		pushes = append(pushes, p)
	}
	return table(out, pushes)
}

// push commits another greeting for an app that serves a page and waits until its
// pods say it.
func (d Demo) push(ctx context.Context, out io.Writer, work clones, app, greeting string) (Push, error) {
	dir := work.dir(platform.SourceRepo)
	page := "<!doctype html>\n<title>" + app + "</title>\n<p>" + greeting + "</p>\n"
	if err := os.WriteFile(filepath.Join(dir, "web", app, "index.html"), []byte(page), 0o644); err != nil {
		return Push{}, err
	}
	if err := work.commit(dir, greeting); err != nil {
		return Push{}, err
	}
	revision, err := work.git(dir, "rev-parse", "HEAD")
	if err != nil {
		return Push{}, err
	}
	p := Push{Revision: revision}
	start := time.Now()
	if _, err := work.git(dir, "push", "--quiet", work.url(platform.SourceRepo), "HEAD:refs/heads/main"); err != nil {
		return p, err
	}
	reached := func(name string) {
		s := Stage{name, time.Since(start).Round(100 * time.Millisecond)}
		p.Stages = append(p.Stages, s)
		fmt.Fprintf(out, "  %7s  %s\n", s.After, s.Name)
	}
	fmt.Fprintf(out, "\ngit push %s %q\n", revision[:12], greeting)
	reached("pushed")
	w := watch{d: d, name: "push-" + revision, app: app, seen: map[string]bool{}}
	for deadline := time.Now().Add(20 * time.Minute); ; {
		if time.Now().After(deadline) {
			return p, fmt.Errorf("the push %s did not come to life within 20 minutes: %s", revision[:12], w.last)
		}
		stages, err := w.next(ctx)
		if err != nil {
			return p, err
		}
		for _, s := range stages {
			reached(s)
		}
		answer, err := d.answer(ctx, "web", app, "/")
		if err == nil && strings.Contains(answer, greeting) {
			reached("its pod answers")
			return p, d.runs(ctx, app, revision)
		}
		if err != nil {
			w.last += "; its service: " + err.Error()
		}
		select {
		case <-ctx.Done():
			return p, context.Cause(ctx)
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// runs checks that the record and the pods name one digest, and the commit.
func (d Demo) runs(ctx context.Context, name, revision string) error {
	var app struct {
		Metadata struct{ Annotations map[string]string }
		Spec     struct {
			Source struct {
				TargetRevision string
				Kustomize      struct{ Images []string }
			}
		}
	}
	if err := d.Kubectl.Get(ctx, &app, "application", name, "-n", "argocd"); err != nil {
		return err
	}
	if got := app.Metadata.Annotations["fabrique/revision"]; got != revision || app.Spec.Source.TargetRevision != revision {
		return fmt.Errorf("the pod answers, but the record is at %q and %q, not at %s", got, app.Spec.Source.TargetRevision, revision)
	}
	images, err := d.Kubectl.Run(ctx, nil, "get", "pods", "-n", "web", "-l", "app.kubernetes.io/name="+name, "-o", "jsonpath={.items[*].spec.containers[*].image}")
	if err != nil {
		return err
	}
	for _, want := range app.Spec.Source.Kustomize.Images {
		_, image, _ := strings.Cut(want, "=")
		if !strings.Contains(images, image) {
			return fmt.Errorf("the record names %s, the pods run %s", image, images)
		}
	}
	return nil
}

// watch follows one Workflow.
type watch struct {
	d         Demo
	name, app string
	seen      map[string]bool
	last      string
}

// next gives what was reached since the last call. A failed Workflow is an error.
func (w *watch) next(ctx context.Context) ([]string, error) {
	var workflow struct {
		Status struct {
			Phase, Message string
			Nodes          map[string]node
		}
	}
	out, err := w.d.Kubectl.Run(ctx, nil, "get", "workflow", "-n", zone.Workflows, w.name, "--ignore-not-found", "-o", "json")
	if err != nil || out == "" {
		w.last = "no Workflow came of it"
		return nil, err
	}
	if err := json.Unmarshal([]byte(out), &workflow); err != nil {
		return nil, err
	}
	var reached []string
	once := func(name string) {
		if !w.seen[name] {
			w.seen[name] = true
			reached = append(reached, name)
		}
	}
	once("received: a Workflow is there")
	for _, step := range []struct{ template, name string }{
		{"plan", "planned: what is due is known"}, {"build", "built and pushed"}, {"inspect", "digest read from the registry"}, {"publish", "written into the record"},
	} {
		for _, n := range workflow.Status.Nodes {
			if n.TemplateName == step.template && n.Type == "Pod" && n.Phase == "Succeeded" && (step.template == "plan" || n.app() == w.app) {
				once(step.name)
			}
		}
	}
	w.last = "the Workflow is " + workflow.Status.Phase
	// Another app's failure is not this one's.
	failed := ""
	for _, n := range workflow.Status.Nodes {
		if n.Type == "Pod" && (n.Phase == "Failed" || n.Phase == "Error") && (n.TemplateName == "plan" || n.app() == w.app) {
			failed += "\n" + n.DisplayName + ": " + n.Message
		}
	}
	if failed != "" && (workflow.Status.Phase == "Failed" || workflow.Status.Phase == "Error") {
		return reached, errors.New("the Workflow failed: " + workflow.Status.Message + failed)
	}
	return reached, nil
}

// node is one step of a Workflow as its status tells it.
type node struct {
	DisplayName, TemplateName, Type, Phase, Message string
	Inputs                                          struct {
		Parameters []struct{ Name, Value string }
	}
}

// app gives the app that the step was for.
func (n node) app() string {
	for _, p := range n.Inputs.Parameters {
		if p.Name == "app" {
			return p.Value
		}
	}
	return ""
}

func table(out io.Writer, pushes []Push) error {
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, p := range pushes {
		fmt.Fprintf(w, "%s\t", p.Revision[:12])
	}
	fmt.Fprintln(w, "  stage, seconds after git push")
	for i, s := range pushes[0].Stages {
		for _, p := range pushes {
			if i < len(p.Stages) {
				fmt.Fprintf(w, "%.1f\t", p.Stages[i].After.Seconds())
			}
		}
		fmt.Fprintf(w, "  %s\n", s.Name)
	}
	return w.Flush()
}

// clones are a person's working copies.
type clones struct {
	ctx   context.Context
	admin giteaadmin.Admin
	root  string
}

func (c clones) url(repo string) string { return c.admin.URL + "/" + repo + ".git" }

func (c clones) dir(repo string) string {
	return filepath.Join(c.root, strings.ReplaceAll(repo, "/", "-"))
}

// fill clones the repository anew and pushes the files into it unless they are
// there.
func (c clones) fill(repo string, files fs.FS, replace *strings.Replacer) error {
	dir := c.dir(repo)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if _, err := c.git(c.root, "clone", "--quiet", c.url(repo), dir); err != nil {
		return err
	}
	err := fs.WalkDir(files, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		target := filepath.Join(dir, path)
		// What the factory has written stays.
		if _, there := os.Stat(target); there == nil && path != "README.md" {
			return nil
		}
		text, err := fs.ReadFile(files, path)
		if err != nil {
			return err
		}
		if replace != nil {
			text = []byte(replace.Replace(string(text)))
		}
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		return os.WriteFile(target, text, 0o644)
	})
	if err != nil {
		return err
	}
	if status, err := c.git(dir, "status", "--porcelain"); err != nil || status == "" {
		return err
	}
	if err := c.commit(dir, "Begin"); err != nil {
		return err
	}
	_, err = c.git(dir, "push", "--quiet", c.url(repo), "HEAD:refs/heads/main")
	return err
}

func (c clones) commit(dir, message string) error {
	if _, err := c.git(dir, "add", "--all"); err != nil {
		return err
	}
	_, err := c.git(dir, "commit", "--quiet", "--message", message)
	return err
}

func (c clones) git(dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(c.ctx, "git", args...)
	cmd.Dir, cmd.Env = dir, giteaadmin.GitEnv(c.admin.URL, c.admin.Token)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("running git %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}
