package reconcile

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"fabrique/bench/fault"
	"fabrique/bench/parts"
	"fabrique/steps/git"
	"fabrique/steps/gitea"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/record"
	"fabrique/steps/secret"
	"fabrique/steps/step"
	"fabrique/steps/writeback"
)

func TestMain(m *testing.M) { parts.Main(m) }

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// files are a repository's content by path.
type files map[string]string

func (f files) fs() fs.FS {
	m := fstest.MapFS{}
	for name, text := range f {
		m[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o644}
	}
	return m
}

// with gives the files with others put over them; "" removes one.
func (f files) with(other files) files {
	all := maps.Clone(f)
	for name, text := range other {
		all[name] = text
		if text == "" {
			delete(all, name)
		}
	}
	return all
}

// application gives a record with these annotations.
func application(name string, annotations ...string) string {
	return fmt.Sprintf(`apiVersion: argoproj.io/v1alpha1
kind: Application
metadata:
  name: %s
  annotations:
    %s
spec:
  source:
    path: %s
    targetRevision: main
    kustomize: {}
`, name, strings.Join(annotations, "\n    "), name)
}

// world is a source and an apps repository in Gitea.
type world struct {
	t       *testing.T
	gitea   *parts.GiteaServer
	project parts.Project
}

func newWorld(t *testing.T, name string) *world {
	t.Helper()
	g := parts.Gitea(t)
	project, err := g.NewProject(t.Context(), name+"/source", name+"/apps")
	if err != nil {
		t.Fatal(err)
	}
	return &world{t, g, project}
}

func (w *world) push(repo, branch string, tree files) gitref.Revision {
	w.t.Helper()
	id, err := w.gitea.PushTree(w.t.Context(), repo, branch, tree.fs(), "one more")
	if err != nil {
		w.t.Fatal(err)
	}
	return gitref.Revision(id)
}

func (w *world) pushSource(tree files) gitref.Revision {
	w.t.Helper()
	return w.push(w.project.Source, "main", tree)
}

func (w *world) pushApps(tree files) {
	w.t.Helper()
	w.push(w.project.Apps, "main", tree)
}

// plain is a source and an apps repository on git's own server, which takes a
// push many times faster than Gitea.
type plain struct {
	t            *testing.T
	source, apps *checkout
	options      Options
}

// checkout is a folder that is pushed to a bare repository.
type checkout struct{ work, bare string }

func newPlain(t *testing.T) *plain {
	t.Helper()
	return newPlainOf(t, "sha1")
}

// newPlainOf makes repositories whose ids have the format's length.
func newPlainOf(t *testing.T, format string) *plain {
	t.Helper()
	server := fault.NewGitServer(t, false)
	p := &plain{t: t, options: Options{SourceBranch: "main", AppsBranch: "main", AppsPath: "."}}
	for _, repo := range []struct {
		name     string
		checkout **checkout
		remote   *git.Remote
	}{{"source.git", &p.source, &p.options.Source}, {"apps.git", &p.apps, &p.options.Apps}} {
		url, bare := server.Create(repo.name, "--object-format="+format)
		*repo.checkout = &checkout{t.TempDir(), bare}
		fault.Git(t, (*repo.checkout).work, "init", "--quiet", "--object-format="+format)
		var err error
		if *repo.remote, err = git.NewRemote(url, secret.Secret{}); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// push makes tree the whole content of the repository.
func (p *plain) push(c *checkout, tree files) {
	p.t.Helper()
	fault.Git(p.t, c.work, "rm", "-r", "--quiet", "--ignore-unmatch", ".")
	for name, text := range tree {
		file := filepath.Join(c.work, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			p.t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			p.t.Fatal(err)
		}
	}
	fault.Git(p.t, c.work, "add", "--all")
	fault.Git(p.t, c.work, "commit", "--quiet", "--allow-empty", "--message", "one more")
	fault.Git(p.t, c.work, "push", "--quiet", c.bare, "HEAD:main")
}

func (p *plain) run() Plan {
	p.t.Helper()
	plan, err := Run(p.t.Context(), quiet, p.options)
	if err != nil {
		p.t.Fatal(err)
	}
	return plan
}

// options compares through the server at base.
func (w *world) options(base string, token secret.Secret) Options {
	w.t.Helper()
	remote := func(url string) git.Remote {
		r, err := git.NewRemote(base+strings.TrimPrefix(url, w.gitea.URL), token)
		if err != nil {
			w.t.Fatal(err)
		}
		return r
	}
	return Options{
		Source: remote(w.project.SourceURL()), SourceBranch: "main",
		Apps: remote(w.project.AppsURL()), AppsBranch: "main", AppsPath: ".",
	}
}

func (w *world) run() Plan {
	w.t.Helper()
	plan, err := Run(w.t.Context(), quiet, w.options(w.gitea.URL, w.project.Reader))
	if err != nil {
		w.t.Fatal(err)
	}
	return plan
}

// verdicts gives "due: reason" or the reason, by app.
func verdicts(p Plan) map[string]string {
	all := map[string]string{}
	for _, a := range p.Apps {
		all[a.App] = a.Reason
		if a.Due {
			all[a.App] = "due: " + a.Reason
		}
	}
	return all
}

// problems gives the errors by app, or by record where the app is unknown.
func problems(p Plan) map[string]string {
	all := map[string]string{}
	for _, b := range p.Broken {
		name := b.App
		if name == "" {
			name = b.Record
		}
		if all[name] != "" {
			all[name] += " | "
		}
		all[name] += regexp.MustCompile(`\b[0-9a-f]{12}\b`).ReplaceAllString(b.Error, "SHA12")
	}
	return all
}

func find(t *testing.T, p Plan, app string) App {
	t.Helper()
	i := slices.IndexFunc(p.Apps, func(a App) bool { return a.App == app })
	if i < 0 {
		t.Fatalf("the plan has no app %q: %+v", app, p)
	}
	return p.Apps[i]
}

// deployed marks the app of a record as deployed from what the plan says.
func deployed(t *testing.T, text string, a App, change record.Change) string {
	t.Helper()
	change.Deploy = &record.Deployment{
		Revision: a.Revision, SourceKey: a.SourceKey, Digest: image.Digest("sha256:" + strings.Repeat("ab", 32)),
		Repository: image.Repository{Registry: "registry:80", Name: a.Image},
	}
	edited, err := record.Apply(a.Record, []byte(text), a.App, change)
	if err != nil {
		t.Fatal(err)
	}
	return string(edited)
}

func fails(t *testing.T, err error, code int, want string) {
	t.Helper()
	got := regexp.MustCompile(`\b[0-9a-f]{40}\b`).ReplaceAllString(fmt.Sprint(err), "ID")
	got = regexp.MustCompile(`127\.0\.0\.1:[0-9]+`).ReplaceAllString(got, "HOST")
	if step.ExitCode(err) != code {
		t.Errorf("exit code %d, want %d", step.ExitCode(err), code)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The life of an app, and every reason for and against a build, side by side.
func TestReasons(t *testing.T) {
	w := newWorld(t, "reasons")
	source := files{"apps/one/Dockerfile": "FROM scratch\n", "apps/two/Dockerfile": "FROM scratch\nLABEL two=2\n", "lib/x": "x"}
	first := w.pushSource(source)
	apps := files{"README.md": "no record\n", "sub/ignored.yaml": "kind: ConfigMap\n"}
	for _, name := range []string{"current", "stale", "held", "rolled-back", "undigested", "retargeted", "never"} {
		apps["sub/"+name+".yaml"] = application(name, "fabrique/context: apps/one")
	}
	w.pushApps(apps)

	plan := w.run()
	if plan.Head != first || plan.Revision != first || plan.Superseded {
		t.Errorf("head %s, revision %s, superseded %v: want %s", plan.Head, plan.Revision, plan.Superseded, first)
	}
	for app, verdict := range verdicts(plan) {
		if verdict != "due: never built" {
			t.Errorf("%s: %s", app, verdict)
		}
	}
	key := find(t, plan, "never").SourceKey
	want := App{
		App: "never", Record: "sub/never.yaml", Revision: first, Context: "apps/one", Dockerfile: "Dockerfile",
		Image: "never", SourceKey: key, Due: true, Reason: NeverBuilt,
	}
	if diff := cmp.Diff(want, find(t, plan, "never")); diff != "" {
		t.Error(diff)
	}

	hold := "a freeze"
	edit := func(name string, change record.Change) {
		apps["sub/"+name+".yaml"] = deployed(t, apps["sub/"+name+".yaml"], find(t, plan, name), change)
	}
	edit("current", record.Change{})
	edit("stale", record.Change{})
	apps["sub/stale.yaml"] = strings.Replace(apps["sub/stale.yaml"], string(key), strings.Repeat("0", 63)+"1", 1)
	edit("held", record.Change{Hold: &hold})
	edit("rolled-back", record.Change{RollbackOf: &key})
	edit("undigested", record.Change{})
	edit("retargeted", record.Change{})
	apps["sub/retargeted.yaml"] = regexp.MustCompile(`targetRevision: .*`).ReplaceAllString(apps["sub/retargeted.yaml"], "targetRevision: main")
	apps["sub/undigested.yaml"] = regexp.MustCompile(`(?m)^.*@sha256:.*\n`).ReplaceAllString(apps["sub/undigested.yaml"], "")
	apps["sub/undigested.yaml"] = regexp.MustCompile(`(?m)^.*images:.*\n`).ReplaceAllString(apps["sub/undigested.yaml"], "")
	w.pushApps(apps)
	plan = w.run()
	if diff := cmp.Diff(map[string]string{
		"current": "up to date", "stale": "due: source changed", "held": "held: a freeze",
		"rolled-back": "held: rolled back, until the source changes", "undigested": "due: the record has no digest",
		"retargeted": "due: targetRevision is not the deployed revision", "never": "due: never built",
	}, verdicts(plan)); diff != "" {
		t.Error(diff)
	}
	if a := find(t, plan, "current"); a.DeployedRevision != first || a.DeployedSourceKey != key || a.DeployedDigest == "" {
		t.Errorf("what is deployed of %+v", a)
	}
	if got := len(plan.Due()); got != 4 {
		t.Errorf("%d apps are due", got)
	}

	// Another app's change and a file of no app: nothing. The same content in
	// another commit: nothing.
	source = source.with(files{"apps/two/Dockerfile": "FROM scratch\n", "README": "hi"})
	w.pushSource(source)
	if got := verdicts(w.run())["current"]; got != "up to date" {
		t.Errorf("after another app's change: %s", got)
	}
	// A change: due, the rolled back one too; the held one not.
	source = source.with(files{"apps/one/main": "x"})
	second := w.pushSource(source)
	plan = w.run()
	if diff := cmp.Diff(map[string]string{
		"current": "due: source changed", "stale": "due: source changed", "held": "held: a freeze",
		"rolled-back": "due: source changed", "undigested": "due: source changed",
		"retargeted": "due: source changed", "never": "due: never built",
	}, verdicts(plan)); diff != "" {
		t.Error(diff)
	}
	if a := find(t, plan, "current"); a.Revision != second || a.DeployedRevision != first {
		t.Errorf("revisions of %+v", a)
	}

	// The older revision, told by a late event: superseded, and nothing is due.
	o := w.options(w.gitea.URL, w.project.Reader)
	o.Revision = first
	result, err := Decide(t.Context(), quiet, o, 0)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Result{Head: second, Revision: first, Superseded: true, Due: []App{}, Items: []Item{}, Idle: []App{}, Broken: []Broken{}, Apps: 7}, result); diff != "" {
		t.Error(diff)
	}
	if plan, err = Run(t.Context(), quiet, o); err != nil || verdicts(plan)["current"] != "superseded by "+string(second) {
		t.Error(err, verdicts(plan))
	}
	// Exactly the head, told by an event.
	o.Revision = second
	if result, err = Decide(t.Context(), quiet, o, 0); err != nil || result.Superseded || len(result.Due) != 6 {
		t.Error(result, err)
	}
	// A part of what is due, by chance; the rest is counted.
	if result, err = Decide(t.Context(), quiet, o, 4); err != nil || len(result.Due) != 4 || result.Count != 4 || result.Left != 2 || len(result.Items) != 4 || result.Items[0].App != result.Due[0].App {
		t.Error(result, err)
	}
	// One app only, which is told of though it is not due.
	o.Only = []string{"held"}
	if result, err = Decide(t.Context(), quiet, o, 0); err != nil || result.Apps != 1 || len(result.Due) != 0 || len(result.Idle) != 1 || result.Idle[0].App != "held" {
		t.Error(result, err)
	}
	o.Only = []string{"nobody"}
	_, err = Decide(t.Context(), quiet, o, 0)
	fails(t, err, step.ExitInvalid, `looking for the app "nobody": it is not declared; declared are: current, held, never, retargeted, rolled-back, stale, undigested`)
	o.Only = nil
	// R7: force push to what was there before.
	if _, err := w.gitea.Git(t.Context(), t.TempDir(), "init", "--quiet", "--bare", "."); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, args := range [][]string{{"clone", "--quiet", w.project.SourceURL(), "."}, {"push", "--quiet", "--force", w.project.SourceURL(), string(first) + ":refs/heads/main"}} {
		if _, err := w.gitea.Git(t.Context(), dir, args...); err != nil {
			t.Fatal(err)
		}
	}
	o.Revision = ""
	if plan, err = Run(t.Context(), quiet, o); err != nil || plan.Head != first || verdicts(plan)["current"] != "up to date" {
		t.Error(err, plan.Head, verdicts(plan))
	}
	// A revision that never was.
	o.Revision = "7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210"
	_, err = Run(t.Context(), quiet, o)
	fails(t, err, step.ExitInvalid, "fetching commit ID from http://gitea:3000/reasons/source.git: the commit does not exist there, or the server does not give it by its id (git: fatal: remote error: upload-pack: not our ref ID)")
}

// What is due ends with its deployment: a plan, the deployment of what is due
// and a second plan, which has nothing to do, for everything that a person may
// do to a deployed record.
func TestDeployedIsNotDueAgain(t *testing.T) {
	w := newWorld(t, "again")
	source := files{"app/Dockerfile": "FROM scratch\n"}
	w.pushSource(source)
	const file = "one.yaml"
	apps := files{file: application("one", "fabrique/context: app")}
	w.pushApps(apps)
	client := func(token secret.Secret) *gitea.Client {
		c, err := gitea.New(w.gitea.URL, token)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	o := writeback.Options{
		Writer: client(w.project.Writer), Reader: client(w.project.Reader),
		Apps: gitea.Repository(w.project.Apps), AppsBranch: "main", Record: file, App: "one",
		Source: gitea.Repository(w.project.Source), SourceBranch: "main",
		Author: gitea.Author{Name: "Fabrique", Email: "fabrique@example.org"}, MaxWait: time.Minute,
	}
	// settle deploys what is due for the reason and checks that nothing is left.
	settle := func(reason string) {
		t.Helper()
		a := find(t, w.run(), "one")
		if !a.Due || a.Reason != reason {
			t.Fatalf("due %v, %q, want %q", a.Due, a.Reason, reason)
		}
		result, err := writeback.Deploy(t.Context(), quiet, o, writeback.Deployment{
			Revision: a.Revision, SourceKey: a.SourceKey,
			Repository: image.Repository{Registry: "registry:80", Name: a.Image}, Digest: image.Digest("sha256:" + strings.Repeat("ab", 32)),
		})
		if err != nil || result.Result != writeback.Updated {
			t.Fatalf("%s: %+v, %v", reason, result, err)
		}
		if a = find(t, w.run(), "one"); a.Due || a.Reason != UpToDate {
			t.Fatalf("after the deployment: due %v, %q", a.Due, a.Reason)
		}
	}
	// edit changes the record by hand.
	edit := func(pattern, with string) {
		t.Helper()
		content, err := o.Writer.File(t.Context(), o.Apps, "main", file)
		if err != nil {
			t.Fatal(err)
		}
		changed := regexp.MustCompile(pattern).ReplaceAllString(string(content.Content), with)
		if changed == string(content.Content) {
			t.Fatalf("%q changes nothing in\n%s", pattern, changed)
		}
		w.pushApps(files{file: changed})
	}
	settle(NeverBuilt)
	edit(`targetRevision: .*`, "targetRevision: main")
	settle(OtherTarget)
	edit(`(?m)^.*targetRevision: .*\n`, "")
	settle(OtherTarget)
	edit(`@sha256:[0-9a-f]+`, ":latest")
	settle(NoDigest)
	edit(`targetRevision: .*`, "targetRevision: "+strings.Repeat("1", 40))
	w.pushSource(source.with(files{"README": "the head moves, the app does not"}))
	settle(OtherTarget)
	w.pushSource(source.with(files{"app/new": "x"}))
	settle(SourceChanged)
}

// W10: repositories whose ids have 64 digits, from the first build to what comes
// after it.
func TestSHA256(t *testing.T) {
	p := newPlainOf(t, "sha256")
	source := files{"app/Dockerfile": "FROM scratch\n", "lib/x": "x"}
	p.push(p.source, source)
	const file = "one.yaml"
	text := application("one", "fabrique/context: app", "fabrique/inputs: lib")
	p.push(p.apps, files{file: text})
	first := p.run()
	a := find(t, first, "one")
	if len(first.Head) != 64 || a.Revision != first.Head || !a.Due || a.Reason != NeverBuilt {
		t.Fatalf("head %s, app %+v", first.Head, a)
	}
	if got, want := (image.Repository{Registry: "registry:80", Name: a.Image}).Tag(a.Revision), "registry:80/one:"+string(first.Head[:12]); got != want {
		t.Errorf("tag %s, want %s", got, want)
	}
	p.push(p.apps, files{file: deployed(t, text, a, record.Change{})})
	if a := find(t, p.run(), "one"); a.Due || a.Reason != UpToDate || a.DeployedRevision != first.Head {
		t.Errorf("after the deployment: %+v", a)
	}
	p.push(p.source, source.with(files{"lib/x": "2"}))
	if a := find(t, p.run(), "one"); !a.Due || a.Reason != SourceChanged {
		t.Errorf("after a change: %+v", a)
	}
	p.options.Revision = first.Head
	if plan := p.run(); !plan.Superseded || plan.Revision != first.Head || len(plan.Due()) != 0 {
		t.Errorf("a late event: %+v", plan)
	}
	p.options.Revision = first.Head[:40]
	_, err := Run(t.Context(), quiet, p.options)
	if step.ExitCode(err) != step.ExitInvalid {
		t.Errorf("an id of the other length: %v", err)
	}
}

// Broken records are told by name and stop nobody else.
func TestBroken(t *testing.T) {
	w := newWorld(t, "broken")
	w.pushSource(files{"app/Dockerfile": "FROM scratch\n", "app/other.Dockerfile": "FROM scratch\n", "nodocker/x": "x", "app/folder/x": "x"})
	w.pushApps(files{
		"good.yaml":            application("good", "fabrique/context: app"),
		"syntax.yaml":          "kind: Application\n  bad: [\n" + application("x", "fabrique/context: app"),
		"two-faults.yaml":      application("two-faults", "fabrique/context: ../app", "fabrique/dockerfile: /etc/passwd"),
		"twice-a.yaml":         application("twice", "fabrique/context: app"),
		"twice-b.yml":          application("twice", "fabrique/context: app", "fabrique/image: twice-b"),
		"image-a.yaml":         application("image-a", "fabrique/context: app", "fabrique/image: shared"),
		"image-b.yaml":         application("image-b", "fabrique/context: app", "fabrique/image: shared"),
		"missing-context.yaml": application("missing-context", "fabrique/context: nothing/here"),
		"file-context.yaml":    application("file-context", "fabrique/context: nodocker/x"),
		"no-dockerfile.yaml":   application("no-dockerfile", "fabrique/context: nodocker"),
		"folder.yaml":          application("folder", "fabrique/context: app", "fabrique/dockerfile: folder"),
		"elsewhere.yaml":       strings.Replace(application("elsewhere", "fabrique/context: app"), "  source:\n", "  source:\n    repoURL: http://gitea:3000/other/source.git\n", 1),
		"same-repo.yaml":       strings.Replace(application("same-repo", "fabrique/context: app"), "  source:\n", "  source:\n    repoURL: https://gitea.example/Broken/source\n", 1),
		"no-app.yaml":          application("no-app", "other: x"),
		"secret.yaml":          application("secret", "fabrique/context: app", "fabrique/build-args: API_TOKEN=hunter2"),
		"text.txt":             application("text", "fabrique/context: app"),
	})
	plan := w.run()
	if diff := cmp.Diff(map[string]string{"good": "due: never built", "same-repo": "due: never built"}, verdicts(plan)); diff != "" {
		t.Error(diff)
	}
	got := problems(plan)
	for name, want := range map[string]string{
		"two-faults.yaml": `reading the record "two-faults.yaml": line 6, column 23: annotation fabrique/context: parsing the path "../app": it must not leave the repository with ".."; reading the record "two-faults.yaml": line 7, column 26: annotation fabrique/dockerfile: parsing the path "/etc/passwd": want a path relative to the repository's root`,
		"twice":           `the app "twice" is declared in several files: twice-a.yaml, twice-b.yml; keep one | the app "twice" is declared in several files: twice-a.yaml, twice-b.yml; keep one`,
		"image-a":         `the image "shared" belongs to several apps: image-a, image-b; give each its own with fabrique/image`,
		"image-b":         `the image "shared" belongs to several apps: image-a, image-b; give each its own with fabrique/image`,
		"missing-context": `the context "nothing/here" does not exist at revision SHA12; push it, or correct fabrique/context in missing-context.yaml`,
		"file-context":    `the context "nodocker/x" is not a folder at revision SHA12 (symbolic links are not followed); correct fabrique/context in file-context.yaml`,
		"no-dockerfile":   `the Dockerfile "nodocker/Dockerfile" does not exist at revision SHA12; push it, or name another with fabrique/dockerfile in no-dockerfile.yaml`,
		"folder":          `the Dockerfile "app/folder" is not a file at revision SHA12`,
		"elsewhere":       `spec.source.repoURL is "http://gitea:3000/other/source.git", but the image comes from http://gitea:3000/broken/source.git: one revision cannot name both`,
	} {
		if diff := cmp.Diff(want, got[name]); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		delete(got, name)
	}
	for _, name := range []string{"syntax.yaml", "secret.yaml"} { // the words are the record package's
		if !strings.HasPrefix(got[name], "reading the record ") || strings.ContainsAny(got[name], "\n") || strings.Contains(got[name], "hunter2") {
			t.Errorf("%s: %q", name, got[name])
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("more is broken: %v", got)
	}

	// Asked for by name, a broken app is in the answer and is no error.
	o := w.options(w.gitea.URL, w.project.Reader)
	o.Only = []string{"twice"}
	result, err := Decide(t.Context(), quiet, o, 0)
	if err != nil || len(result.Broken) != 2 || result.Apps != 0 {
		t.Error(result, err)
	}
}

// A file that is too large is not read, and a name that no step would take is
// told at once, in a form that a terminal may print.
func TestFilesThatAreNotTaken(t *testing.T) {
	p := newPlain(t)
	p.push(p.source, files{"app/Dockerfile": "FROM scratch\n"})
	good := application("good", "fabrique/context: app")
	fill := func(text string, size int) string { return text + strings.Repeat("#", size-len(text)) }
	p.push(p.apps, files{
		"good.yaml":        fill(good, record.MaxSize),
		"large.yaml":       fill(application("large", "fabrique/context: app"), record.MaxSize+1),
		"large.txt":        fill("", record.MaxSize+1),
		"a,b.yaml":         application("comma", "fabrique/context: app"),
		"x/\x1b[31m.yaml":  application("escape", "fabrique/context: app"),
		"\u009b31m.yaml":   application("c1", "fabrique/context: app"),
		"\u202elmay.yaml":  application("turned", "fabrique/context: app"),
		"a\\b.yaml":        application("back-slash", "fabrique/context: app"),
		"\n.yaml":          application("line-end", "fabrique/context: app"),
		"\xff.yaml":        application("not-utf-8", "fabrique/context: app"),
		"wrong,\x1b[.yaml": application("wrong", "fabrique/context: ../app"),
		"no,record.yaml":   "kind: ConfigMap\n",
	})
	plan := p.run()
	if diff := cmp.Diff(map[string]string{"good": "due: never built"}, verdicts(plan)); diff != "" {
		t.Error(diff)
	}
	const not = `: what cannot be printed, back slashes and commas are not allowed; rename the file`
	if diff := cmp.Diff(map[string]string{
		"large.yaml":         "it has 1048577 bytes, at most 1048576 are allowed; split the file, or move what is no record to another folder",
		"comma":              `parsing the path "a,b.yaml"` + not,
		"escape":             `parsing the path "x/\x1b[31m.yaml"` + not,
		"c1":                 `parsing the path "\u009b31m.yaml"` + not,
		"turned":             `parsing the path "\u202elmay.yaml"` + not,
		"back-slash":         `parsing the path "a\\b.yaml"` + not,
		"line-end":           `parsing the path "\n.yaml"` + not,
		"not-utf-8":          `parsing the path "\xff.yaml"` + not,
		`"wrong,\x1b[.yaml"`: `reading the record "wrong,\x1b[.yaml": line 6, column 23: annotation fabrique/context: parsing the path "../app": it must not leave the repository with ".."`,
	}, problems(plan)); diff != "" {
		t.Error(diff)
	}
	for _, b := range plan.Broken {
		if text := fmt.Sprint(b); strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) || b.ExitCode != step.ExitInvalid {
			t.Errorf("%q (exit code %d)", text, b.ExitCode)
		}
	}
}

// C2: an input whose changes could not be seen is the source's fault. A revision to
// go back to may be from before it.
func TestInputs(t *testing.T) {
	p := newPlain(t)
	p.push(p.source, files{"app/Dockerfile": "FROM scratch\n"})
	before := gitref.Revision(fault.Git(t, p.source.work, "rev-parse", "HEAD"))
	for link, target := range map[string]string{"file": "app/Dockerfile", "folder": "app", "nowhere": "/etc/passwd"} {
		if err := os.Symlink(target, filepath.Join(p.source.work, link)); err != nil {
			t.Fatal(err)
		}
	}
	fault.Git(t, p.source.work, "add", "--all")
	fault.Git(t, p.source.work, "commit", "--quiet", "--message", "links")
	fault.Git(t, p.source.work, "push", "--quiet", p.source.bare, "HEAD:main")
	apps := files{}
	for app, inputs := range map[string]string{
		"file": "file", "folder": "app, folder", "nowhere": "nowhere", "below-link": "folder/Dockerfile", "missing": "app/missing", "good": "app/Dockerfile,app",
	} {
		apps[app+".yaml"] = application(app, "fabrique/context: app", "fabrique/inputs: "+inputs)
	}
	p.push(p.apps, apps)
	plan := p.run()
	link := func(path, app string) string {
		return `the input "` + path + `" is a symbolic link at revision SHA12, and changes of what it points to could not be seen; name that in fabrique/inputs in ` + app + `.yaml instead`
	}
	missing := func(path, app string) string {
		return `the input "` + path + `" does not exist at revision SHA12; push it, or correct fabrique/inputs in ` + app + `.yaml`
	}
	if diff := cmp.Diff(map[string]string{
		"file": link("file", "file"), "folder": link("folder", "folder"), "nowhere": link("nowhere", "nowhere"),
		"below-link": missing("folder/Dockerfile", "below-link"), "missing": missing("app/missing", "missing"),
	}, problems(plan)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"good": "due: never built"}, verdicts(plan)); diff != "" {
		t.Error(diff)
	}
	for _, b := range plan.Broken {
		if b.ExitCode != step.ExitSource {
			t.Errorf("%s: exit code %d", b.App, b.ExitCode)
		}
	}
	p.options.Revision, p.options.Pinned = before, true
	if plan := p.run(); len(plan.Broken) > 0 {
		t.Errorf("before the inputs were there: %+v", plan.Broken)
	}
}

// No app is declared, and somebody asks for one.
func TestNothingIsDeclared(t *testing.T) {
	p := newPlain(t)
	p.push(p.source, files{"app/Dockerfile": "FROM scratch\n"})
	p.options.Only = []string{"nobody"}
	const none = `looking for the app "nobody": it is not declared; none is; declare it by pushing an Argo CD Application with the annotation fabrique/context to http://HOST/apps.git`
	for _, test := range []struct {
		apps files
		want string
	}{
		{nil, none},
		{files{"README.md": "no record\n"}, none},
		{files{"broken.yaml": application("x", "fabrique/context: ../app")}, none + "; 1 records are broken, it may be one of them"},
		{files{"one.yaml": application("one", "fabrique/context: app")}, `looking for the app "nobody": it is not declared; declared are: one`},
	} {
		if test.apps != nil {
			p.push(p.apps, test.apps)
		}
		_, err := Run(t.Context(), quiet, p.options)
		fails(t, err, step.ExitInvalid, test.want)
	}
}

// C3, R4: repositories without commits, branches and folders that are not there.
func TestEmptyAndMissing(t *testing.T) {
	w := newWorld(t, "empty")
	nothing := Result{Due: []App{}, Items: []Item{}, Idle: []App{}, Broken: []Broken{}}
	decide := func(change func(*Options)) (Result, error) {
		o := w.options(w.gitea.URL, w.project.Reader)
		change(&o)
		return Decide(t.Context(), quiet, o, 0)
	}
	same := func(*Options) {}
	if result, err := decide(same); err != nil || cmp.Diff(nothing, result) != "" {
		t.Error(err, cmp.Diff(nothing, result))
	}
	_, err := decide(func(o *Options) { o.Revision = "7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210" })
	fails(t, err, step.ExitInvalid, "reading revision ID: the repository http://gitea:3000/empty/source.git has no commit")

	// Records without a source, and a source without records.
	w.pushApps(files{"apps/one.yaml": application("one", "fabrique/context: app")})
	if result, err := decide(same); err != nil || cmp.Diff(nothing, result) != "" {
		t.Error(err, cmp.Diff(nothing, result))
	}
	head := w.pushSource(files{"app/Dockerfile": "FROM scratch\n"})
	if result, err := decide(same); err != nil || len(result.Due) != 1 || result.Head != head {
		t.Error(result, err)
	}
	other := newWorld(t, "empty-apps")
	head = other.pushSource(files{"app/Dockerfile": "FROM scratch\n"})
	w = other
	if result, err := decide(same); err != nil || cmp.Diff(Result{Head: head, Revision: head, Due: []App{}, Items: []Item{}, Idle: []App{}, Broken: []Broken{}}, result) != "" {
		t.Error(result, err)
	}

	w.pushApps(files{"apps/one.yaml": application("one", "fabrique/context: app"), "apps2/two.yaml": application("two", "fabrique/context: app"), "file": "x"})
	result, err := decide(func(o *Options) { o.AppsPath = "apps" })
	if err != nil || len(result.Due) != 1 || result.Due[0].Record != "apps/one.yaml" {
		t.Error(result, err)
	}
	for _, path := range []gitref.Path{"app", "file", "apps/one.yaml"} {
		_, err = decide(func(o *Options) { o.AppsPath = path })
		fails(t, err, step.ExitInvalid, `reading the records of http://gitea:3000/empty-apps/apps.git: there is no folder "`+string(path)+`" on the branch "main"; push it, or correct the folder's name`)
	}
	_, err = decide(func(o *Options) { o.SourceBranch = "maintenance" })
	fails(t, err, step.ExitInvalid, `reading the branches of http://gitea:3000/empty-apps/source.git: there is no branch "maintenance"; push it or correct the branch's name`)
	_, err = decide(func(o *Options) { o.AppsBranch = "release" })
	fails(t, err, step.ExitInvalid, `reading the branches of http://gitea:3000/empty-apps/apps.git: there is no branch "release"; push it or correct the branch's name`)
}

// Bad access and faults on the way, for each of the two repositories.
func TestServerFaults(t *testing.T) {
	w := newWorld(t, "faults")
	w.pushSource(files{"app/Dockerfile": "FROM scratch\n"})
	w.pushApps(files{"one.yaml": application("one", "fabrique/context: app")})
	proxy := fault.New(t, w.gitea.URL)
	for name, test := range map[string]struct {
		handler fault.Handler
		token   secret.Secret
		code    int
	}{
		"no fault":           {nil, w.project.Reader, step.ExitOK},
		"wrong token":        {nil, secret.New("0123456789abcdef0123456789abcdef01234567"), step.ExitInvalid},
		"no token":           {nil, secret.Secret{}, step.ExitInvalid},
		"may not see source": {nil, w.project.Writer, step.ExitInvalid},
		"source answers 502": {fault.Status(502, under("/source.git/")), w.project.Reader, step.ExitRetry},
		"apps answer 500":    {fault.Status(500, under("/apps.git/")), w.project.Reader, step.ExitRetry},
		"fetch answers 503":  {fault.Status(503, under("/git-upload-pack")), w.project.Reader, step.ExitRetry},
	} {
		t.Run(name, func(t *testing.T) {
			proxy.Handle(test.handler)
			result, err := Decide(t.Context(), quiet, w.options(proxy.URL, test.token), 0)
			if step.ExitCode(err) != test.code {
				t.Errorf("exit code %d, want %d: %v", step.ExitCode(err), test.code, err)
			}
			if err == nil && len(result.Due) != 1 {
				t.Error(result)
			}
			if err != nil && (strings.Contains(err.Error(), "\n") || !test.token.IsZero() && strings.Contains(err.Error(), test.token.Reveal())) {
				t.Errorf("the error: %v", err)
			}
		})
	}
	_, err := Decide(t.Context(), quiet, w.options("http://127.0.0.1:1", w.project.Reader), 0)
	if step.ExitCode(err) != step.ExitRetry {
		t.Errorf("nobody listens: exit code %d: %v", step.ExitCode(err), err)
	}

	handler, stalled := fault.Stall("/git-upload-pack", 30)
	proxy.Handle(handler)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error)
	go func() {
		_, err := Decide(ctx, quiet, w.options(proxy.URL, w.project.Reader), 0)
		done <- err
	}()
	<-stalled
	cancel()
	select {
	case err := <-done:
		if step.ExitCode(err) != step.ExitRetry {
			t.Errorf("cancelled: exit code %d: %v", step.ExitCode(err), err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the call does not end")
	}
}

func under(part string) func(*http.Request) bool {
	return func(r *http.Request) bool { return strings.Contains(r.URL.Path, part) }
}

// What changes an app's source key, and what does not.
func TestSourceKey(t *testing.T) {
	p := newPlain(t)
	source := files{"app/Dockerfile": "FROM scratch\n", "app/debug.Dockerfile": "FROM scratch\n", "app/main": "x", "lib/x": "x", "shared/y": "y", "more": "m", "other/z": "z"}
	annotations := []string{"fabrique/context: app", "fabrique/inputs: lib, shared/y, more", `fabrique/build-args: "A=1,B=2"`, "fabrique/target: final"}
	key := func(source files, annotations []string) gitref.SourceKey {
		t.Helper()
		p.push(p.source, source)
		p.push(p.apps, files{"one.yaml": application("one", annotations...)})
		return find(t, p.run(), "one").SourceKey
	}
	replace := func(i int, with string) []string {
		changed := slices.Clone(annotations)
		changed[i] = with
		return changed
	}
	before := key(source, annotations)
	for name, test := range map[string]struct {
		source      files
		annotations []string
		same        bool
	}{
		"nothing":                   {source, annotations, true},
		"another app's file":        {source.with(files{"other/z": "2"}), annotations, true},
		"beside an input":           {source.with(files{"shared/new": "2"}), annotations, true},
		"order of inputs":           {source, replace(1, "fabrique/inputs: more,shared/y,lib"), true},
		"order of build arguments":  {source, replace(2, `fabrique/build-args: " B=2, A=1"`), true},
		"other annotation":          {source, append(slices.Clone(annotations), "note: x"), true},
		"file in the context":       {source.with(files{"app/main": "2"}), annotations, false},
		"new file in the context":   {source.with(files{"app/deep/new": "2"}), annotations, false},
		"file gone":                 {source.with(files{"app/main": ""}), annotations, false},
		"Dockerfile":                {source.with(files{"app/Dockerfile": "FROM scratch\nUSER 1\n"}), annotations, false},
		"input folder":              {source.with(files{"lib/x": "2"}), annotations, false},
		"input file":                {source.with(files{"shared/y": "2"}), annotations, false},
		"input becomes a folder":    {source.with(files{"shared/y": "", "shared/y/y": "y"}), annotations, false},
		"one input less":            {source, replace(1, "fabrique/inputs: lib"), false},
		"build argument":            {source, replace(2, `fabrique/build-args: "A=1,B=3"`), false},
		"one build argument less":   {source, replace(2, `fabrique/build-args: "A=1"`), false},
		"target":                    {source, replace(3, "fabrique/target: debug"), false},
		"another, equal Dockerfile": {source, append(slices.Clone(annotations), "fabrique/dockerfile: debug.Dockerfile"), false},
	} {
		t.Run(name, func(t *testing.T) {
			if after := key(test.source, test.annotations); (after == before) != test.same {
				t.Errorf("same key: %v, want %v", after == before, test.same)
			}
		})
	}
	// The whole repository as the context.
	root := key(source.with(files{"Dockerfile": "FROM scratch\n"}), []string{"fabrique/context: ."})
	if changed := key(source.with(files{"Dockerfile": "FROM scratch\n", "other/z": "2"}), []string{"fabrique/context: ."}); changed == root {
		t.Error("a change did not change the key of the root")
	}
}

// The requests to Gitea are as many for one app as for a hundred.
func TestConstantRequests(t *testing.T) {
	w := newWorld(t, "requests")
	proxy := fault.New(t, w.gitea.URL)
	var first gitref.Revision
	counts := map[string][]int64{}
	for _, n := range []int{1, 100} {
		source, apps := files{"top": "x"}, files{}
		for i := range n {
			name := fmt.Sprintf("app-%d", i)
			source["apps/"+name+"/Dockerfile"] = "FROM scratch\nLABEL app=" + name + "\n"
			apps["apps/"+name+".yaml"] = application(name, "fabrique/context: apps/"+name, "fabrique/inputs: top")
		}
		head := w.pushSource(source)
		if first == "" {
			first = head
			head = w.pushSource(source.with(files{"top": "y"}))
		}
		w.pushApps(apps)
		for name, revision := range map[string]gitref.Revision{"head": "", "superseded": first} {
			o := w.options(proxy.URL, w.project.Reader)
			o.Revision = revision
			before := proxy.Requests()
			result, err := Decide(t.Context(), quiet, o, 0)
			if err != nil || result.Apps != n {
				t.Fatal(result.Apps, err)
			}
			counts[name] = append(counts[name], proxy.Requests()-before)
		}
	}
	for name, c := range counts {
		if len(slices.Compact(slices.Clone(c))) != 1 || c[0] > 12 {
			t.Errorf("%s: requests %v", name, c)
		}
	}
	t.Logf("requests: %v", counts)
}

// A thousand apps are compared in one go.
func TestManyApps(t *testing.T) {
	p := newPlain(t)
	source, apps := files{}, files{}
	for i := range 1000 {
		name := fmt.Sprintf("app-%d", i)
		source[fmt.Sprintf("teams/%d/%s/Dockerfile", i%30, name)] = "FROM scratch\nLABEL app=" + name + "\n"
		apps[name+".yaml"] = application(name, fmt.Sprintf("fabrique/context: teams/%d/%s", i%30, name))
	}
	p.push(p.source, source)
	p.push(p.apps, apps)
	start := time.Now()
	plan := p.run()
	t.Logf("1,000 apps in %v", time.Since(start).Round(time.Millisecond))
	if len(plan.Due()) != 1000 || len(plan.Broken) != 0 {
		t.Errorf("%d are due, %d broken", len(plan.Due()), len(plan.Broken))
	}
	keys := map[gitref.SourceKey]bool{}
	for _, a := range plan.Apps {
		keys[a.SourceKey] = true
	}
	if len(keys) != 1000 {
		t.Errorf("%d different source keys", len(keys))
	}
}

func TestSameRepository(t *testing.T) {
	const here = "http://gitea:3000/atlas/atlas.git"
	for other, want := range map[string]bool{
		here: true, "https://git.example/Atlas/atlas": true, "git@gitea:atlas/atlas.git": true, "ssh://git@gitea/atlas/atlas/": true,
		"http://gitea:3000/atlas/atlas2.git": false, "http://gitea:3000/other/atlas.git": false, "atlas": false, "": false,
	} {
		if got := sameRepository(other, here); got != want {
			t.Errorf("%q: %v, want %v", other, got, want)
		}
	}
}
