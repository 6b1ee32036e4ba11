package gc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fabrique/bench/fault"
	"fabrique/bench/parts"
	"fabrique/bench/tools"
	"fabrique/steps/git"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/secret"
	"fabrique/steps/step"
)

func TestMain(m *testing.M) { parts.Main(m) }

var quiet = slog.New(slog.DiscardHandler)

const day = 24 * time.Hour

// world is a project with its images, all below one prefix of the shared registry.
type world struct {
	t        *testing.T
	gitea    *parts.GiteaServer
	project  parts.Project
	name     string
	registry string
	now      time.Time
	records  fstest.MapFS
}

func newWorld(t *testing.T, name string) *world {
	t.Helper()
	parts.Registry(t)
	w := &world{t: t, gitea: parts.Gitea(t), name: name, registry: parts.RegistryAddress, now: time.Now(), records: fstest.MapFS{}}
	var err error
	if w.project, err = w.gitea.NewProject(t.Context(), name+"/atlas", name+"-cluster/apps"); err != nil {
		t.Fatal(err)
	}
	return w
}

func remoteOf(t *testing.T, url string, token secret.Secret) git.Remote {
	t.Helper()
	r, err := git.NewRemote(url, token)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (w *world) options() Options {
	w.t.Helper()
	return Options{
		Source: remoteOf(w.t, w.project.SourceURL(), w.project.Reader), SourceBranch: "main",
		Apps: remoteOf(w.t, w.project.AppsURL(), w.project.Reader), AppsBranch: "main",
		Registry: image.Registry(w.registry), PlainHTTP: true,
		Keep: 30 * day, Grace: day, Now: w.now,
	}
}

// commit pushes a tree, as one who does it so long before now.
func (w *world) commit(repo string, tree fs.FS, before time.Duration) gitref.Revision {
	w.t.Helper()
	w.t.Setenv("GIT_COMMITTER_DATE", w.now.Add(-before).Format(time.RFC3339))
	head, err := w.gitea.PushTree(w.t.Context(), repo, "main", tree, "Change it")
	if err != nil {
		w.t.Fatal(err)
	}
	return gitref.Revision(head)
}

// source pushes a commit to the source.
func (w *world) source(content string, before time.Duration) gitref.Revision {
	w.t.Helper()
	return w.commit(w.project.Source, fstest.MapFS{"f": {Data: []byte(content)}}, before)
}

// apps pushes the records as they are now.
func (w *world) apps(before time.Duration) {
	w.t.Helper()
	w.commit(w.project.Apps, w.records, before)
}

// record changes an app's record; extra are lines of annotations.
func (w *world) record(app string, revision gitref.Revision, digest image.Digest, extra ...string) {
	annotations := ""
	for _, line := range extra {
		annotations += "\n    " + line
	}
	w.records[app+".yaml"] = &fstest.MapFile{Data: fmt.Appendf(nil, `apiVersion: argoproj.io/v1alpha1
kind: Application
metadata:
  name: %s
  annotations:
    fabrique/context: %s
    fabrique/image: %s/%s
    fabrique/revision: "%s"
    fabrique/source-key: "%s"%s
spec:
  source:
    repoURL: %s
    targetRevision: "%s"
    kustomize:
      images:
        - %s/%s=registry:80/%s/%s@%s
`, app, app, w.name, app, revision, keyOf(revision), annotations, w.project.SourceURL(), revision, w.name, app, w.name, app, digest)}
}

// made gives a revision that is in no repository.
func made(digits string) gitref.Revision { return gitref.Revision(strings.Repeat(digits, 20)) }

// keyOf gives the source key of what was built from a revision.
func keyOf(r gitref.Revision) gitref.SourceKey {
	return gitref.SourceKey(strings.Repeat(string(r[1:2]+r[:1]), 32))
}

// build makes an image as buildkit-build does.
func (w *world) build(revision gitref.Revision, before time.Duration) v1.Image {
	w.t.Helper()
	layer, err := random.Layer(1000, types.OCILayer)
	if err != nil {
		w.t.Fatal(err)
	}
	img, err := mutate.AppendLayers(mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1), layer)
	if err != nil {
		w.t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		w.t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", "amd64", v1.Time{Time: w.now.Add(-before)}
	config.Config.Labels = map[string]string{image.LabelRevision: string(revision), image.LabelSourceKey: string(keyOf(revision))}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		w.t.Fatal(err)
	}
	return img
}

func (w *world) tag(app, tag string) name.Tag {
	w.t.Helper()
	ref, err := name.NewTag(w.registry+"/"+w.name+"/"+app+":"+tag, name.Insecure)
	if err != nil {
		w.t.Fatal(err)
	}
	return ref
}

// push pushes an image under a tag.
func (w *world) push(app, tag string, img v1.Image) image.Digest {
	w.t.Helper()
	if err := remote.Write(w.tag(app, tag), img, remote.WithContext(w.t.Context())); err != nil {
		w.t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		w.t.Fatal(err)
	}
	return image.Digest(digest.String())
}

// image pushes an image of a revision, built so long before now.
func (w *world) image(app string, revision gitref.Revision, before time.Duration) image.Digest {
	w.t.Helper()
	return w.push(app, revision.Short(), w.build(revision, before))
}

// run runs, and gives its results by "app:tag" for those revisions that have a name.
func (w *world) run(o Options) (map[string]string, Report, error) {
	w.t.Helper()
	report, err := Run(w.t.Context(), quiet, o)
	results := map[string]string{}
	for _, t := range report.Tags {
		app := strings.TrimPrefix(string(t.Image), w.name+"/")
		results[app+":"+t.Tag] = t.Result + ": " + t.Reason
	}
	return results, report, err
}

// pulls wants exactly these tags in the registry, each whole.
func (w *world) pulls(want []string) {
	w.t.Helper()
	var got []string
	apps := map[string]bool{}
	for _, item := range want {
		app, _, _ := strings.Cut(item, ":")
		apps[app] = true
	}
	for app := range apps {
		tags, err := remote.List(w.tag(app, "x").Context())
		if err != nil {
			w.t.Fatal(err)
		}
		for _, tag := range tags {
			got = append(got, app+":"+tag)
			descriptor, err := remote.Get(w.tag(app, tag))
			if err != nil {
				w.t.Fatal(err)
			}
			if descriptor.MediaType.IsIndex() {
				index, _ := descriptor.ImageIndex()
				manifest, err := index.IndexManifest()
				if err != nil {
					w.t.Fatal(err)
				}
				for _, m := range manifest.Manifests {
					if _, err := index.Image(m.Digest); err != nil {
						w.t.Errorf("%s:%s has lost %s: %v", app, tag, m.Digest, err)
					}
				}
				continue
			}
			if img, err := descriptor.Image(); err != nil {
				w.t.Error(err)
			} else if _, err := img.ConfigFile(); err != nil {
				w.t.Errorf("%s:%s: %v", app, tag, err)
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("the registry's tags (-want +got):\n%s", diff)
	}
}

// stored lists all that the registry stores.
func stored(t *testing.T) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(filepath.Join(parts.Dir(), "registry"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			var content []byte
			content, err = os.ReadFile(path)
			found = append(found, fmt.Sprintf("%s %x", path, content))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// What is kept and why, what is removed, and that a dry run does nothing, a second
// run finds nothing and a killed one is finished by the next.
func TestRun(t *testing.T) {
	w := newWorld(t, "gc")
	want := map[string]string{}
	expect := func(app, tag, result string) { want[app+":"+tag] = result }
	const named, gone = "kept: a record names it", "would remove: no record names it"

	head := w.source("old head", 90*day)
	moved := w.source("then", 80*day)
	w.source("now", 40*day)
	current := w.source("newest", 2*day)
	// The apps' records, from the oldest commit to the newest.
	digests := map[string]image.Digest{}
	for _, r := range []string{"1a", "2a", "3a", "4a"} {
		digests[r] = w.image("shop", made(r), 60*day)
	}
	w.record("shop", made("1a"), digests["1a"])
	w.record("held", made("1b"), w.image("held", made("1b"), 300*day), "fabrique/hold: wait")
	w.image("held", made("2b"), 300*day)
	w.record("rolled", made("2c"), w.image("rolled", made("2c"), 70*day))
	w.record("gone", made("1d"), w.image("gone", made("1d"), 100*day))
	w.apps(100 * day)
	w.record("shop", made("2a"), digests["2a"])
	w.record("rolled", made("1c"), w.image("rolled", made("1c"), 200*day), `fabrique/rollback-of: "`+string(keyOf(made("2c")))+`"`)
	w.image("rolled", made("3c"), 65*day)
	delete(w.records, "gone.yaml")
	w.apps(60 * day)
	w.record("shop", made("3a"), digests["3a"])
	w.apps(40 * day)
	w.record("shop", made("4a"), digests["4a"])
	w.apps(10 * day)
	expect("shop", made("1a").Short(), gone)
	expect("shop", made("2a").Short(), gone)
	expect("shop", made("3a").Short(), named) // the head when the window began
	expect("shop", made("4a").Short(), named)
	expect("held", made("1b").Short(), named)
	expect("held", made("2b").Short(), gone)
	expect("rolled", made("1c").Short(), named)
	expect("rolled", made("2c").Short(), "kept: a record names its source key")
	expect("rolled", made("3c").Short(), gone)
	expect("gone", made("1d").Short(), gone)

	// In flight, or about to be.
	w.image("shop", head, 60*day)
	w.image("shop", moved, 60*day)
	w.image("shop", current, 60*day)
	w.image("shop", made("5a"), time.Hour)
	w.image("shop", made("6a"), 25*time.Hour)
	expect("shop", head.Short(), gone)
	expect("shop", moved.Short(), gone)
	expect("shop", current.Short(), "kept: its commit was the source's head within the window")
	expect("shop", made("5a").Short(), "kept: built less than 24h0m0s ago")
	expect("shop", made("6a").Short(), gone)

	// What others made, and what they share with us.
	w.push("shop", "v1", w.build(made("7a"), 60*day))
	w.push("shop", "buildcache", w.build(made("7a"), 60*day))
	w.push("shop", "0123456789ab", w.build(made("7a"), 60*day))
	shared := w.build(made("8a"), 60*day)
	w.push("shop", made("8a").Short(), shared)
	w.push("shop", "stable", shared)
	child := w.build(made("9a"), 60*day)
	w.push("shop", made("9a").Short(), child)
	if err := remote.WriteIndex(w.tag("shop", "multi"), mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: child})); err != nil {
		t.Fatal(err)
	}
	expect("shop", "v1", "kept: not ours: the tag is no revision")
	expect("shop", "buildcache", "kept: not ours: the tag is no revision")
	expect("shop", "0123456789ab", "kept: not ours: its label org.opencontainers.image.revision does not fit the tag")
	expect("shop", "stable", "kept: not ours: the tag is no revision")
	expect("shop", made("8a").Short(), "kept: the tag stable means the same image")
	expect("shop", "multi", "kept: not ours: it is an index")
	expect("shop", made("9a").Short(), "kept: the tag multi lists it")
	w.image("shop", made("ba"), 60*day)
	expect("shop", made("ba").Short(), "kept: it is in use")
	running, err := remote.Head(w.tag("shop", made("ba").Short()))
	if err != nil {
		t.Fatal(err)
	}
	w.image("stranger", made("1e"), 300*day) // no record ever named it

	o := w.options()
	o.Protected = []string{`{"image": "registry:80/gc/shop@` + running.Digest.String() + `"}`}
	before := stored(t)
	got, report, err := w.run(o)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !report.Changed || report.Removed+report.Kept != len(want) || report.Images != 4 {
		t.Errorf("the report: %+v", report)
	}
	if diff := cmp.Diff(before, stored(t)); diff != "" {
		t.Errorf("a dry run changed the registry:\n%s", diff)
	}

	// Cut off after the first removal.
	o.Delete = true
	ctx, cancel := context.WithCancel(t.Context())
	o.Decided = func(t Tag) {
		if t.Result == Removed {
			cancel()
		}
	}
	if _, err := Run(ctx, quiet, o); !errors.Is(err, context.Canceled) {
		t.Errorf("cut off: %v", err)
	}
	o.Decided = nil
	if _, _, err := w.run(o); err != nil {
		t.Fatal(err)
	}
	left := []string{"stranger:" + made("1e").Short()}
	for tag, result := range want {
		if strings.HasPrefix(result, Kept) {
			left = append(left, tag)
		}
	}
	w.pulls(left)
	_, report, err = w.run(o)
	if err != nil || report.Changed || report.Removed != 0 {
		t.Errorf("the second run: %v, %+v", err, report)
	}
}

// small is a world with one image that is to be removed and one that is deployed.
func small(t *testing.T, name string) (w *world, old, deployed gitref.Revision) {
	t.Helper()
	w = newWorld(t, name)
	w.source("a", 90*day)
	w.source("b", 80*day)
	w.record("app", made("1a"), w.image("app", made("1a"), 90*day))
	w.apps(90 * day)
	w.record("app", made("2a"), w.image("app", made("2a"), 80*day))
	w.apps(80 * day)
	return w, made("1a"), made("2a")
}

// A record that comes to name an image again while a run is under way keeps it, and so
// does a force push of the source.
func TestNamedMeanwhile(t *testing.T) {
	for name, change := range map[string]func(w *world, old gitref.Revision){
		"record": func(w *world, old gitref.Revision) {
			digest, err := remote.Head(w.tag("app", old.Short()))
			if err != nil {
				w.t.Fatal(err)
			}
			w.record("app", old, image.Digest(digest.Digest.String()))
			w.apps(0)
		},
		"tag": func(w *world, old gitref.Revision) { w.image("app", old, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			w, old, deployed := small(t, "meanwhile-"+name)
			w.push("app", "000-first", w.build(made("3a"), 90*day))
			o := w.options()
			o.Delete = true
			o.Decided = func(tag Tag) {
				if tag.Tag == "000-first" {
					change(w, old)
				}
			}
			if got, _, err := w.run(o); err != nil || !strings.HasPrefix(got["app:"+old.Short()], Kept) {
				t.Errorf("%v, %v", err, got)
			}
			w.pulls([]string{"app:000-first", "app:" + old.Short(), "app:" + deployed.Short()})
		})
	}
}

// A build of the source's head, which may be reused by a write-back on its way, is kept
// also when the head came to it after the beginning.
func TestSourceMovesMeanwhile(t *testing.T) {
	w := newWorld(t, "moves")
	old := w.source("a", 90*day)
	w.source("b", 80*day)
	w.record("app", made("2a"), w.image("app", made("2a"), 80*day))
	w.apps(80 * day)
	w.image("app", old, 90*day)
	w.push("app", "000-first", w.build(made("3a"), 90*day))
	o := w.options()
	o.Delete = true
	o.Decided = func(tag Tag) {
		if tag.Tag != "000-first" {
			return
		}
		dir := t.TempDir()
		for _, args := range [][]string{
			{"clone", "--quiet", w.project.SourceURL(), "."},
			{"push", "--quiet", "--force", w.project.SourceURL(), string(old) + ":refs/heads/main"},
		} {
			if _, err := w.gitea.Git(t.Context(), dir, args...); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, _, err := w.run(o); err != nil || got["app:"+old.Short()] != "kept: its commit was the source's head within the window" {
		t.Errorf("%v, %v", err, got)
	}
}

// A broken record in the window keeps what its text names, and every tag of an image
// that it may be about.
func TestBrokenRecord(t *testing.T) {
	w, old, deployed := small(t, "broken")
	w.record("other", made("1b"), w.image("other", made("1b"), 90*day))
	w.apps(70 * day)
	w.record("other", made("2b"), w.image("other", made("2b"), 70*day))
	w.records["broken.yaml"] = &fstest.MapFile{Data: []byte("fabrique/context: [\nfabrique/image: broken/app\n")}
	w.apps(60 * day)
	o := w.options()
	o.Delete = true
	got, _, err := w.run(o)
	want := map[string]string{
		"app:" + old.Short():          "kept: a broken record names the image",
		"app:" + deployed.Short():     "kept: a record names it",
		"other:" + made("1b").Short(): "removed: no record names it",
		"other:" + made("2b").Short(): "kept: a record names it",
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	// Once it is out of the window it keeps nothing.
	delete(w.records, "broken.yaml")
	w.apps(50 * day)
	got, _, err = w.run(o)
	if err != nil || got["app:"+old.Short()] != "removed: no record names it" {
		t.Errorf("%v, %v", err, got)
	}
}

// What cannot be read ends a run with nothing removed, and with the right exit code.
func TestNothingOnPartKnowledge(t *testing.T) {
	w, old, deployed := small(t, "partly")
	proxy := fault.New(t, "http://"+parts.RegistryAddress)
	forge := fault.New(t, parts.GiteaURL)
	through := func(part string) fault.Handler {
		return func(rw http.ResponseWriter, r *http.Request, next http.Handler) {
			if strings.Contains(r.URL.Path, part) {
				http.Error(rw, "no", http.StatusInternalServerError)
				return
			}
			next.ServeHTTP(rw, r)
		}
	}
	for name, c := range map[string]struct {
		change func(o *Options)
		code   int
		says   string
	}{
		"the registry lists nothing": {func(o *Options) { proxy.Handle(through("/tags/list")); o.Registry = image.Registry(proxy.Address) }, 1, "listing the tags of"},
		"the registry keeps a manifest to itself": {func(o *Options) {
			proxy.Handle(through("/manifests/" + deployed.Short()))
			o.Registry = image.Registry(proxy.Address)
		}, 1, "looking at"},
		"the registry keeps a configuration to itself": {func(o *Options) { proxy.Handle(through("/blobs/")); o.Registry = image.Registry(proxy.Address) }, 1, "looking at"},
		"no registry": {func(o *Options) { o.Registry = "127.0.0.1:1" }, 1, "cannot be reached"},
		"no Gitea": {func(o *Options) {
			o.Apps = remoteOf(t, "http://127.0.0.1:1/x/y.git", secret.Secret{})
		}, 1, "reading the branches of"},
		"Gitea keeps the history to itself": {func(o *Options) {
			forge.Handle(func(rw http.ResponseWriter, r *http.Request, next http.Handler) {
				body, _ := io.ReadAll(r.Body)
				if strings.Contains(string(body), "command=fetch") {
					http.Error(rw, "no", http.StatusInternalServerError)
					return
				}
				r.Body, r.ContentLength = io.NopCloser(strings.NewReader(string(body))), int64(len(body))
				next.ServeHTTP(rw, r)
			})
			o.Source = remoteOf(t, forge.URL+"/"+w.project.Source+".git", w.project.Reader)
		}, 1, "fetching the history of"},
		"a wrong token": {func(o *Options) {
			o.Source = remoteOf(t, w.project.SourceURL(), secret.New("wrong"))
		}, 2, "the token is missing, wrong"},
		"no such branch": {func(o *Options) { o.AppsBranch = "trunk" }, 2, `there is no branch "trunk"`},
	} {
		o := w.options()
		o.Delete = true
		c.change(&o)
		report, err := Run(t.Context(), quiet, o)
		if step.ExitCode(err) != c.code || err == nil || !strings.Contains(err.Error(), c.says) || report.Changed {
			t.Errorf("%s: exit code %d, %v, %+v; want %d and %q", name, step.ExitCode(err), err, report, c.code, c.says)
		}
	}
	w.pulls([]string{"app:" + old.Short(), "app:" + deployed.Short()})
}

// A registry that forbids deletion is named with the setting that allows it.
func TestDeletionForbidden(t *testing.T) {
	w, _, _ := small(t, "forbidden")
	kit, err := tools.Ensure(t.Context(), os.Stderr, false)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	w.registry = parts.Address() + ":5080"
	config := filepath.Join(dir, "config.yml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "version: 0.1\nstorage:\n  filesystem: {rootdirectory: %s}\nhttp: {addr: %s}\n", dir, w.registry), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(kit.Registry, "serve", config)
	cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	for range 200 {
		if answer, err := http.Get("http://" + w.registry + "/v2/"); err == nil {
			answer.Body.Close()
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	w.image("app", made("1a"), 90*day)
	o := w.options()
	o.Delete = true
	_, err = Run(t.Context(), quiet, o)
	if step.ExitCode(err) != 2 || !strings.Contains(err.Error(), "the registry does not allow it; set storage.delete.enabled: true") {
		t.Errorf("exit code %d, %v", step.ExitCode(err), err)
	}
	w.pulls([]string{"app:" + made("1a").Short()})
}

// Empty repositories, and an app that was never built: nothing to do.
func TestNothingThere(t *testing.T) {
	w := newWorld(t, "empty")
	if _, report, err := w.run(w.options()); err != nil || report.Changed || len(report.Tags) != 0 {
		t.Errorf("%v, %+v", err, report)
	}
	w.record("app", made("1a"), image.Digest("sha256:"+strings.Repeat("0", 64)))
	w.apps(0)
	if _, report, err := w.run(w.options()); err != nil || report.Images != 1 || len(report.Tags) != 0 {
		t.Errorf("%v, %+v", err, report)
	}
}

// The images of pods are found, whatever kind of container runs them.
func TestPods(t *testing.T) {
	cluster := parts.KubeAPI(t).Client
	at := func(digit string) string { return "registry:80/app@sha256:" + strings.Repeat(digit, 64) }
	if _, err := cluster.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod"},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "init", Image: at("1")}},
			Containers:     []corev1.Container{{Name: "main", Image: at("2")}, {Name: "tagged", Image: "registry:80/app:x"}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	texts, err := Pods(t.Context(), cluster)
	if err != nil {
		t.Fatal(err)
	}
	n := newNeeded()
	for _, text := range texts {
		n.addDigests([]byte(text))
	}
	want := []image.Digest{image.Digest(at("1")[len("registry:80/app@"):]), image.Digest(at("2")[len("registry:80/app@"):])}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(n.digests))); diff != "" {
		t.Error(diff)
	}
}

// Whatever a file holds, a digest and a revision that stand in it are kept.
func FuzzAdd(f *testing.F) {
	f.Add([]byte("fabrique/context: [\n"), []byte(""))
	f.Add([]byte("apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata:\n  name: app\n  annotations:\n    fabrique/context: a\n# "), []byte("\n"))
	f.Fuzz(func(t *testing.T, before, after []byte) {
		digest := "sha256:" + strings.Repeat("5", 64)
		n := newNeeded()
		n.add(slices.Concat(before, []byte("\""+digest+"\" \""+string(made("7c"))+"\""), after))
		for _, tag := range []Tag{{Image: "app", Tag: "x", Digest: image.Digest(digest)}} {
			if n.reason(tag) == "" {
				t.Errorf("%q in %q and %q is not kept", tag.Digest, before, after)
			}
		}
		kept := false
		for _, revisions := range n.revisions {
			kept = kept || revisions[made("7c").Short()] != ""
		}
		if !kept {
			t.Errorf("the revision in %q and %q is not kept", before, after)
		}
	})
}
