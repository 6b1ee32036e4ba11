package demo

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
	Revision string  `json:"revision"`
	Stages   []Stage `json:"stages"`
}

// Stage is a moment that a push reached, measured from its beginning.
type Stage struct {
	Name  string
	After time.Duration
}

// Run pushes the sample and shows it come to life, then pushes a change of one
// app, and fails when anything else than that happens.
// It gives the newest commit.
func (d Demo) Run(ctx context.Context, out io.Writer) (revision string, err error) {
	admin, stop, err := d.Admin(ctx)
	if err != nil {
		return "", err
	}
	defer stop()
	work := Clones{admin, d.Dir}
	if err := d.Declare(ctx, work); err != nil {
		return "", err
	}
	fmt.Fprintf(out, "\nThe two apps are declared in %s. Pushes to %s from here on:\n", platform.AppsRepo, platform.SourceRepo)
	var pushes []Push
	for i := range 2 {
		greeting := fmt.Sprintf("Push %d at %s", i+1, time.Now().Format("15:04:05"))
		p, err := d.Push(ctx, out, work, "hello", greeting)
		if err != nil {
			return "", err
		}
		pushes, revision = append(pushes, p), p.Revision
	}
	return revision, Table(out, pushes)
}

// Declare clones both repositories anew and pushes the sample into them where it
// is not there.
func (d Demo) Declare(ctx context.Context, work Clones) error {
	if err := work.fill(ctx, platform.SourceRepo, sample.Atlas(), nil); err != nil {
		return err
	}
	return work.fill(ctx, platform.AppsRepo, sample.Apps(), GiteaInCluster)
}

// GiteaInCluster makes a record of the sample name Gitea as this cluster knows it.
var GiteaInCluster = strings.NewReplacer("http://gitea:3000", platform.GiteaURL)

// Push commits another greeting for an app that serves a page, pushes it, and
// follows it until its pods say it.
func (d Demo) Push(ctx context.Context, out io.Writer, work Clones, app, greeting string) (Push, error) {
	if err := work.Greet(app, greeting); err != nil {
		return Push{}, err
	}
	revision, err := work.Commit(ctx, platform.SourceRepo, greeting)
	if err != nil {
		return Push{}, err
	}
	start := time.Now()
	if err := work.Push(ctx, platform.SourceRepo, "HEAD:refs/heads/main"); err != nil {
		return Push{}, err
	}
	return d.Follow(ctx, out, start, app, revision, greeting)
}

// Follow waits until an app's pods say the greeting that was pushed with revision,
// writes each stage to out as it is reached, counted from start, and checks that
// the pods run what the record names. When the push's own Workflow fails without
// publishing the app, it gives the reason.
func (d Demo) Follow(ctx context.Context, out io.Writer, start time.Time, app, revision, greeting string) (Push, error) {
	p := Push{Revision: revision}
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
			return p, fmt.Errorf("the push %s did not come to life: %w; %s", revision[:12], context.Cause(ctx), w.last)
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// Deployed gives the revision of an app's record and its images, as Argo CD knows
// them; nothing for an app that it does not know.
func (d Demo) Deployed(ctx context.Context, app string) (string, error) {
	return d.Kubectl.Run(ctx, nil, "get", "application", app, "-n", "argocd", "--ignore-not-found", "-o", `jsonpath={.metadata.annotations.fabrique/revision} {.spec.source.kustomize.images}`)
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

// next gives what was reached since the last call. A Workflow that has failed
// without publishing the app is an error.
func (w *watch) next(ctx context.Context) ([]string, error) {
	workflow, there, err := w.d.Workflow(ctx, w.name)
	if err != nil || !there {
		w.last = "no Workflow came of it"
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
	published, failed := false, ""
	for _, step := range []struct{ template, name string }{
		{"plan", "planned: what is due is known"}, {"build", "built and pushed"}, {"publish", "checked, and written into the record"},
	} {
		for _, n := range workflow.Pods(step.template) {
			switch {
			case step.template != "plan" && n.Inputs.Get("app") != w.app:
			case n.Phase == "Succeeded":
				once(step.name)
				published = published || step.template == "publish"
			case n.Phase == "Failed" || n.Phase == "Error":
				failed += "\n" + n.DisplayName + ": " + n.Message
			}
		}
	}
	w.last = "the Workflow is " + workflow.Status.Phase
	// Another app's failure, or a broken record, is not this one's; and a step may
	// have succeeded when it was tried again.
	if workflow.Over() && workflow.Status.Phase != "Succeeded" && !published {
		return reached, fmt.Errorf("the Workflow %s failed: %s%s", w.name, workflow.Status.Message, failed)
	}
	return reached, nil
}

// Workflow is what the chain's scenarios read of one.
type Workflow struct {
	Metadata struct {
		Name              string
		Labels            map[string]string
		CreationTimestamp time.Time
	}
	Spec   struct{ Arguments Values }
	Status struct {
		Phase, Message string
		Nodes          map[string]Node
	}
}

// Node is one node of a Workflow as its status tells it. A step that is tried again
// has one of type Pod for each try.
type Node struct {
	ID, DisplayName, TemplateName, Type, Phase, Message string
	StartedAt                                           time.Time
	Inputs, Outputs                                     Values
}

// Values are parameters with their values; of a step's outputs also how it ended.
type Values struct {
	Parameters []struct{ Name, Value string }
	ExitCode   string
}

// Get gives a parameter's value, empty when there is none of the name.
func (v Values) Get(name string) string {
	for _, p := range v.Parameters {
		if p.Name == name {
			return p.Value
		}
	}
	return ""
}

// Over tells whether nothing of the Workflow runs any more.
func (w Workflow) Over() bool {
	return w.Status.Phase == "Succeeded" || w.Status.Phase == "Failed" || w.Status.Phase == "Error"
}

// Pods gives the pods, all tries, that were made of a template, in the order in
// which they began.
func (w Workflow) Pods(template string) []Node {
	var pods []Node
	for _, n := range w.Status.Nodes {
		if n.Type == "Pod" && n.TemplateName == template {
			pods = append(pods, n)
		}
	}
	slices.SortFunc(pods, func(a, b Node) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), strings.Compare(a.ID, b.ID))
	})
	return pods
}

// Workflow reads a Workflow of the factory and tells whether there is one of the
// name.
func (d Demo) Workflow(ctx context.Context, name string) (w Workflow, there bool, err error) {
	out, err := d.Kubectl.Run(ctx, nil, "get", "workflow", "-n", zone.Workflows, name, "--ignore-not-found", "-o", "json")
	if err != nil || out == "" {
		return w, false, err
	}
	return w, true, json.Unmarshal([]byte(out), &w)
}

// Table shows when each push reached each stage.
func Table(out io.Writer, pushes []Push) error {
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, p := range pushes {
		fmt.Fprintf(w, "%s\t", p.Revision[:12])
	}
	fmt.Fprintln(w, "  stage, seconds after git push")
	for _, s := range pushes[0].Stages {
		for _, p := range pushes {
			text := "-"
			for _, other := range p.Stages {
				if other.Name == s.Name {
					text = fmt.Sprintf("%.1f", other.After.Seconds())
				}
			}
			fmt.Fprintf(w, "%s\t", text)
		}
		fmt.Fprintf(w, "  %s\n", s.Name)
	}
	return w.Flush()
}

// MarshalJSON gives the time in seconds.
func (s Stage) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]any{"stage": s.Name, "seconds": s.After.Seconds()})
}

// Clones are a person's working copies of both repositories, below Root.
type Clones struct {
	Admin giteaadmin.Admin
	Root  string
}

// URL is where this machine reaches a repository ("owner/name").
func (c Clones) URL(repo string) string { return c.Admin.URL + "/" + repo + ".git" }

// Dir is a repository's working copy.
func (c Clones) Dir(repo string) string {
	return filepath.Join(c.Root, strings.ReplaceAll(repo, "/", "-"))
}

// fill clones the repository anew and pushes the files into it unless they are
// there.
func (c Clones) fill(ctx context.Context, repo string, files fs.FS, replace *strings.Replacer) error {
	dir := c.Dir(repo)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if _, err := c.git(ctx, c.Root, "clone", "--quiet", c.URL(repo), dir); err != nil {
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
	if status, err := c.Git(ctx, repo, "status", "--porcelain"); err != nil || status == "" {
		return err
	}
	if _, err := c.Commit(ctx, repo, "Begin"); err != nil {
		return err
	}
	return c.Push(ctx, repo, "HEAD:refs/heads/main")
}

// Sync makes a working copy what the branch main of its repository is.
func (c Clones) Sync(ctx context.Context, repo string) error {
	for _, args := range [][]string{
		{"fetch", "--quiet", "--no-tags", c.URL(repo), "refs/heads/main"},
		{"reset", "--quiet", "--hard", "FETCH_HEAD"},
		{"clean", "--quiet", "-d", "--force"},
	} {
		if _, err := c.Git(ctx, repo, args...); err != nil {
			return err
		}
	}
	return nil
}

// Greet gives an app's page, in the working copy, another greeting.
func (c Clones) Greet(app, greeting string) error {
	page := "<!doctype html>\n<title>" + app + "</title>\n<p>" + greeting + "</p>\n"
	return os.WriteFile(filepath.Join(c.Dir(platform.SourceRepo), "web", app, "index.html"), []byte(page), 0o644)
}

// Commit commits all that has changed in a working copy and gives the commit's id.
func (c Clones) Commit(ctx context.Context, repo, message string) (revision string, err error) {
	if _, err := c.Git(ctx, repo, "add", "--all"); err != nil {
		return "", err
	}
	if _, err := c.Git(ctx, repo, "commit", "--quiet", "--message", message); err != nil {
		return "", err
	}
	return c.Git(ctx, repo, "rev-parse", "HEAD")
}

// Push pushes refspecs ("HEAD:refs/heads/main") to a repository.
func (c Clones) Push(ctx context.Context, repo string, refspecs ...string) error {
	_, err := c.Git(ctx, repo, append([]string{"push", "--quiet", c.URL(repo)}, refspecs...)...)
	return err
}

// Git runs git in a working copy and gives its trimmed output.
func (c Clones) Git(ctx context.Context, repo string, args ...string) (string, error) {
	return c.git(ctx, c.Dir(repo), args...)
}

func (c Clones) git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Env = dir, giteaadmin.GitEnv(c.Admin.URL, c.Admin.Token)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("running git %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}
