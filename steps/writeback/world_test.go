package writeback

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"fabrique/bench/parts"
	"fabrique/steps/gitea"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/record"
	"fabrique/steps/secret"
)

func TestMain(m *testing.M) { parts.Main(m) }

// world is a source repository and an apps repository in a real Gitea.
type world struct {
	t       *testing.T
	gitea   *parts.GiteaServer
	project parts.Project
	url     string // of Gitea, or of a proxy before it
	clone   string // of the source repository
	log     bytes.Buffer
	logMu   sync.Mutex
}

var worlds atomic.Int32

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, gitea: parts.Gitea(t), url: parts.GiteaURL}
	n := worlds.Add(1)
	var err error
	w.project, err = w.gitea.NewProject(t.Context(), fmt.Sprintf("atlas/w%d", n), fmt.Sprintf("cluster/w%d", n))
	if err != nil {
		t.Fatal(err)
	}
	w.clone = t.TempDir()
	w.git(w.clone, "init", "--quiet")
	t.Cleanup(func() {
		w.logMu.Lock()
		defer w.logMu.Unlock()
		for _, token := range []secret.Secret{w.project.Reader, w.project.Writer} {
			if strings.Contains(w.log.String(), token.Reveal()) {
				t.Errorf("a token is in the log:\n%s", token.Redact(w.log.String()))
			}
		}
		if t.Failed() {
			t.Logf("log:\n%s", w.log.String())
		}
	})
	return w
}

// Write makes a world the log's writer.
func (w *world) Write(p []byte) (int, error) {
	w.logMu.Lock()
	defer w.logMu.Unlock()
	return w.log.Write(p)
}

func (w *world) logger() *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

func (w *world) git(dir string, args ...string) string {
	w.t.Helper()
	out, err := w.gitea.Git(context.Background(), dir, args...)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// commits makes n empty commits in the source clone, on top of from if that is
// set, pushes the last one as the branch main and gives them, oldest first.
func (w *world) commits(n int, from gitref.Revision) []gitref.Revision {
	w.t.Helper()
	if from != "" {
		w.git(w.clone, "checkout", "--quiet", "--detach", string(from))
	}
	var list []gitref.Revision
	for i := range n {
		w.git(w.clone, "commit", "--quiet", "--allow-empty", "--message", fmt.Sprintf("commit %d on %.8s", i, from))
		list = append(list, gitref.Revision(w.git(w.clone, "rev-parse", "HEAD")))
	}
	w.push("main")
	return list
}

func (w *world) push(branch string) {
	w.t.Helper()
	w.git(w.clone, "push", "--quiet", "--force", w.project.SourceURL(), "HEAD:refs/heads/"+branch)
}

// manifest is an app's Application as a person writes it.
func manifest(app string) string {
	return fmt.Sprintf(`# %[1]s, kept by people
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata:
  name: %[1]s
  annotations:
    fabrique/context: dataops/%[1]s   # its folder
spec:
  project: default
  source:
    repoURL: http://gitea:3000/atlas/atlas.git
    path: deploy/%[1]s
    targetRevision: main
  destination: {server: "https://kubernetes.default.svc", namespace: %[1]s}
`, app)
}

// declare pushes the records of apps.
func (w *world) declare(apps ...string) {
	w.t.Helper()
	tree := fstest.MapFS{}
	for _, app := range apps {
		tree[app+".yaml"] = &fstest.MapFile{Data: []byte(manifest(app)), Mode: 0o644}
	}
	if _, err := w.gitea.PushTree(w.t.Context(), w.project.Apps, "main", tree, "declare apps"); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) client(token secret.Secret) *gitea.Client {
	w.t.Helper()
	c, err := gitea.New(w.url, token)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *world) options(app string) Options {
	return Options{
		Writer: w.client(w.project.Writer), Reader: w.client(w.project.Reader),
		Apps: gitea.Repository(w.project.Apps), AppsBranch: "main",
		Record: gitref.Path(app + ".yaml"), App: app,
		Source: gitea.Repository(w.project.Source), SourceBranch: "main",
		Author: gitea.Author{Name: "Fabrique", Email: "fabrique@example.org"}, MaxWait: time.Minute,
	}
}

// deployment of app at a revision. Each revision has a source of its own unless
// source names one.
func deployment(app string, revision gitref.Revision, source ...string) Deployment {
	text := string(revision)
	if len(source) > 0 {
		text = source[0]
	}
	sum := sha256.Sum256([]byte(text))
	built := sha256.Sum256([]byte("image of " + app + string(revision)))
	return Deployment{
		Revision: revision, SourceKey: gitref.SourceKey(hex.EncodeToString(sum[:])),
		Repository: image.Repository{Registry: "registry:80", Name: image.Name(app)},
		Digest:     image.Digest("sha256:" + hex.EncodeToString(built[:])),
	}
}

// deploy writes back and compares the outcome.
func (w *world) deploy(app string, d Deployment, want string) Result {
	w.t.Helper()
	result, err := Deploy(w.t.Context(), w.logger(), w.options(app), d)
	if err != nil {
		w.t.Fatal(err)
	}
	if result.Result != want {
		w.t.Fatalf("result %+v, want %s", result, want)
	}
	return result
}

// record reads the app's record as it is in Gitea.
func (w *world) record(app string) (record.Record, string) {
	w.t.Helper()
	c, err := gitea.New(parts.GiteaURL, w.project.Writer)
	if err != nil {
		w.t.Fatal(err)
	}
	file, err := c.File(w.t.Context(), gitea.Repository(w.project.Apps), "main", gitref.Path(app+".yaml"))
	if err != nil {
		w.t.Fatal(err)
	}
	records, err := record.ParseFile(app+".yaml", file.Content)
	if err != nil || len(records) != 1 {
		w.t.Fatalf("records %v, %v", records, err)
	}
	return records[0], string(file.Content)
}

// appsClone clones the apps repository as a person would.
func (w *world) appsClone() string {
	w.t.Helper()
	dir := w.t.TempDir()
	w.git(dir, "clone", "--quiet", w.project.AppsURL(), ".")
	return dir
}

// history gives the commit messages of the apps repository, newest first.
func (w *world) history() []string {
	w.t.Helper()
	dir := w.appsClone()
	var messages []string
	for m := range strings.SplitSeq(w.git(dir, "log", "--format=%B%x00"), "\x00") {
		if m = strings.TrimSpace(m); m != "" {
			messages = append(messages, m)
		}
	}
	return messages
}

// person changes a file of the apps repository with git. An empty text removes
// it.
func (w *world) person(file, text string) {
	w.t.Helper()
	dir := w.appsClone()
	if text == "" {
		w.git(dir, "rm", "--quiet", file)
	} else {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			w.t.Fatal(err)
		}
		w.git(dir, "add", file)
	}
	w.git(dir, "commit", "--quiet", "--message", "a person's change")
	w.git(dir, "push", "--quiet", "origin", "HEAD:main")
}

// revert takes the newest commit of the apps repository back with git.
func (w *world) revert() {
	w.t.Helper()
	dir := w.appsClone()
	w.git(dir, "revert", "--no-edit", "HEAD")
	w.git(dir, "push", "--quiet", "origin", "HEAD:main")
}

// fault is what a proxy does to one request. A status replaces Gitea's answer:
// instead of the request or, with passed, after it.
type fault struct {
	status int
	passed bool
	body   string
	abort  bool // break the connection
}

// proxy puts a server before Gitea that asks decide about every request, and
// makes the world use it. It counts requests.
func (w *world) proxy(decide func(*http.Request) *fault) *atomic.Int32 {
	w.t.Helper()
	target, err := url.Parse(parts.GiteaURL)
	if err != nil {
		w.t.Fatal(err)
	}
	var count atomic.Int32
	forward := httputil.NewSingleHostReverseProxy(target)
	forward.ErrorLog = slog.NewLogLogger(w.logger().Handler(), slog.LevelDebug)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		count.Add(1)
		f := decide(r)
		if f == nil {
			forward.ServeHTTP(rw, r)
			return
		}
		if f.passed {
			forward.ServeHTTP(httptest.NewRecorder(), r)
		} else {
			io.Copy(io.Discard, r.Body)
		}
		if f.abort {
			panic(http.ErrAbortHandler)
		}
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(f.status)
		io.WriteString(rw, f.body)
	}))
	w.t.Cleanup(server.Close)
	w.url = server.URL
	return &count
}
