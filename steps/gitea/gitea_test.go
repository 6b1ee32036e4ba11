package gitea

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fabrique/bench/parts"
	"fabrique/steps/gitref"
	"fabrique/steps/secret"
	"fabrique/steps/step"
)

func TestMain(m *testing.M) { parts.Main(m) }

func TestParseRepository(t *testing.T) {
	for _, s := range []string{"cluster/apps", "a/b", "Atlas/atlas.io", "a-b/_c"} {
		if got, err := ParseRepository(s); err != nil || string(got) != s {
			t.Errorf("%q: %v", s, err)
		}
	}
	for _, s := range []string{"", "apps", "a/b/c", "/b", "a/", "a/b.git", "a/..", "../b", "a b/c", "a/b?x=1", "a/%2e%2e", "ä/b", "a/b\n", "a\x00/b"} {
		if _, err := ParseRepository(s); step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestParseURL(t *testing.T) {
	for s, want := range map[string]string{
		"http://gitea:3000": "http://gitea:3000", "https://git.example.org/gitea/": "https://git.example.org/gitea", "http://[::1]:3000": "http://[::1]:3000",
	} {
		if got, err := ParseURL(s); err != nil || got != want {
			t.Errorf("%q: %q %v", s, got, err)
		}
	}
	for _, s := range []string{"", "gitea:3000", "ftp://gitea", "http://", "http://u:hunter2@gitea", "http://gitea?token=hunter2", "http://gitea/#x", "http://u:hunter2@gi tea", "http://gitea:port"} {
		_, err := ParseURL(s)
		if step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("%q: %v", s, err)
		}
		if err != nil && strings.Contains(err.Error(), ":hunter2") {
			t.Errorf("%q: the error shows the password: %v", s, err)
		}
	}
}

func FuzzParseRepository(f *testing.F) {
	f.Add("cluster/apps")
	f.Add("a/../b")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRepository(s)
		if err != nil {
			return
		}
		owner, name := r.split()
		if owner == "" || name == "" || strings.ContainsAny(s, " %?#\\\x00\n") || strings.Contains(s, "..") {
			t.Fatalf("%q passed as %q, %q", s, owner, name)
		}
	})
}

func FuzzParseURL(f *testing.F) {
	f.Add("http://gitea:3000/")
	f.Add("https://u:p@host")
	f.Fuzz(func(t *testing.T, s string) {
		u, err := ParseURL(s)
		if err != nil {
			return
		}
		if again, err := ParseURL(u); err != nil || again != u {
			t.Fatalf("%q became %q, then %q, %v", s, u, again, err)
		}
		if strings.Contains(u, "@") && strings.Contains(strings.SplitN(u, "/", 4)[2], "@") {
			t.Fatalf("%q passed with a user", s)
		}
	})
}

// world is a project in the real Gitea with a clone of its source.
type world struct {
	server         *parts.GiteaServer
	project        parts.Project
	reader, writer *Client
	clone          string
}

func newWorld(t *testing.T, name string) *world {
	t.Helper()
	w := &world{server: parts.Gitea(t), clone: t.TempDir()}
	var err error
	if w.project, err = w.server.NewProject(t.Context(), "atlas/"+name, "cluster/"+name); err != nil {
		t.Fatal(err)
	}
	if w.reader, err = New(parts.GiteaURL, w.project.Reader); err != nil {
		t.Fatal(err)
	}
	if w.writer, err = New(parts.GiteaURL, w.project.Writer); err != nil {
		t.Fatal(err)
	}
	w.git(t, "init", "--quiet")
	return w
}

func (w *world) git(t *testing.T, args ...string) string {
	t.Helper()
	out, err := w.server.Git(t.Context(), w.clone, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (w *world) commit(t *testing.T) string {
	t.Helper()
	w.git(t, "commit", "--quiet", "--allow-empty", "--message", "x")
	return w.git(t, "rev-parse", "HEAD")
}

func TestFiles(t *testing.T) {
	w := newWorld(t, "files")
	ctx := t.Context()
	repo := Repository(w.project.Apps)
	author := Author{"Ada", "ada@example.org"}

	if exists, empty, err := w.writer.Exists(ctx, repo); !exists || !empty || err != nil {
		t.Errorf("an empty repository: %v %v %v", exists, empty, err)
	}
	if exists, _, err := w.writer.Exists(ctx, "cluster/nothing"); exists || err != nil {
		t.Errorf("no repository: %v %v", exists, err)
	}
	if _, err := w.writer.File(ctx, repo, "main", "a.yaml"); !errors.Is(err, ErrNotFound) || step.ExitCode(err) != step.ExitInvalid {
		t.Errorf("a file of an empty repository: %v", err)
	}
	if _, err := w.writer.Head(ctx, repo, "main"); !errors.Is(err, ErrNotFound) {
		t.Errorf("the head of an empty repository: %v", err)
	}
	if _, err := w.writer.History(ctx, repo, "main", "a.yaml", anyCommit); step.ExitCode(err) != step.ExitRetry {
		t.Errorf("the history in an empty repository: %v", err)
	}

	// Create, read, update; names that need escaping.
	path := gitref.Path("in folder/a %2e#?.yaml")
	first, err := w.writer.WriteFile(ctx, repo, "main", Write{Path: path, Content: []byte("one\n"), Message: "first\n\nTrailer: x", Author: author})
	if err != nil {
		t.Fatal(err)
	}
	file, err := w.writer.File(ctx, repo, "main", path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(File{string(path), []byte("one\n"), "5626abf0f72e58d7a153368ba57db4c673c0e171", first}, file); diff != "" {
		t.Error(diff)
	}
	second, err := w.writer.WriteFile(ctx, repo, "main", Write{Path: path, Content: nil, SHA: file.SHA, Message: "second", Author: author})
	if err != nil {
		t.Fatal(err)
	}
	if file, err := w.writer.File(ctx, repo, "main", path); err != nil || len(file.Content) != 0 || file.LastCommit != second {
		t.Errorf("an empty file: %+v %v", file, err)
	}
	if file, err := w.writer.File(ctx, repo, first, path); err != nil || string(file.Content) != "one\n" {
		t.Errorf("a file of an older commit: %+v %v", file, err)
	}
	if head, err := w.writer.Head(ctx, repo, "main"); err != nil || string(head) != second {
		t.Errorf("the head: %q %v", head, err)
	}
	history, err := w.reader.History(ctx, repo, "main", path, anyCommit)
	if diff := cmp.Diff([]Commit{{second, "second\n"}, {first, "first\n\nTrailer: x\n"}}, history); diff != "" || err != nil {
		t.Errorf("history: %v %s", err, diff)
	}
	if _, err := w.reader.History(ctx, repo, "main", "nothing", anyCommit); !errors.Is(err, ErrNotFound) {
		t.Errorf("the history of no file: %v", err)
	}

	// Lost races.
	for name, lost := range map[string]Write{
		"another blob":   {Path: path, Content: []byte("x"), SHA: file.SHA, Message: "x", Author: author},
		"exists already": {Path: path, Content: []byte("x"), Message: "x", Author: author},
	} {
		if _, err := w.writer.WriteFile(ctx, repo, "main", lost); !errors.Is(err, ErrConflict) || step.ExitCode(err) != step.ExitRetry {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, gone := range map[string]struct {
		branch gitref.Branch
		path   gitref.Path
	}{"no branch": {"nothing", path}, "no file": {"main", "nothing"}} {
		_, err := w.writer.WriteFile(ctx, repo, gone.branch, Write{Path: gone.path, Content: []byte("x"), SHA: file.SHA, Message: "x", Author: author})
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := w.reader.WriteFile(ctx, repo, "main", Write{Path: "b", Content: []byte("x"), Message: "x", Author: author}); step.ExitCode(err) != step.ExitInvalid || errors.Is(err, ErrConflict) {
		t.Errorf("the reader writes: %v", err)
	}

	// What is not a file.
	if err := os.Symlink("target", filepath.Join(w.clone, "link")); err != nil {
		t.Fatal(err)
	}
	w.git(t, "fetch", "--quiet", w.project.AppsURL(), "main")
	w.git(t, "checkout", "--quiet", "FETCH_HEAD")
	w.git(t, "add", "link")
	w.git(t, "commit", "--quiet", "--message", "link")
	w.git(t, "push", "--quiet", w.project.AppsURL(), "HEAD:main")
	for path, want := range map[gitref.Path]string{"link": "it is a symlink", "in folder": "it is a folder"} {
		if _, err := w.writer.File(ctx, repo, "main", path); step.ExitCode(err) != step.ExitInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A tag with the branch's name does not mislead.
func TestTagOfTheSameName(t *testing.T) {
	w := newWorld(t, "tag")
	ctx := t.Context()
	repo := Repository(w.project.Source)
	old := w.commit(t)
	w.git(t, "push", "--quiet", w.project.SourceURL(), "HEAD:refs/heads/main", "HEAD:refs/tags/main")
	next := w.commit(t)
	w.git(t, "push", "--quiet", w.project.SourceURL(), "HEAD:refs/heads/main")
	// Gitea takes note of a first push a moment after it.
	var head gitref.Revision
	err := errors.New("not asked yet")
	for deadline := time.Now().Add(30 * time.Second); (err != nil || string(head) != next) && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		head, err = w.reader.Head(ctx, repo, "main")
	}
	if err != nil || string(head) != next {
		t.Fatalf("head %q, want %q, not the tag's %q: %v", head, next, old, err)
	}
	if n, err := w.reader.Ahead(ctx, repo, "refs/heads/main", next); n != 0 || err != nil {
		t.Errorf("the branch's head is %d ahead of it, %v", n, err)
	}
}

// Gitea has SHA-256 repositories only with a newer git than Debian 12's; the
// blob ids of both kinds are compared with git's own.
func TestBlobID(t *testing.T) {
	server := parts.Gitea(t)
	for format, length := range map[string]int{"sha1": 40, "sha256": 64} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "file"), []byte("some content\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := server.Git(t.Context(), dir, "init", "--quiet", "--object-format="+format); err != nil {
			t.Fatal(err)
		}
		want, err := server.Git(t.Context(), dir, "hash-object", "file")
		if err != nil {
			t.Fatal(err)
		}
		if got := blobID([]byte("some content\n"), length); got != want {
			t.Errorf("%s: %s, git says %s", format, got, want)
		}
	}
}

func TestAhead(t *testing.T) {
	w := newWorld(t, "ahead")
	ctx := t.Context()
	repo := Repository(w.project.Source)
	push := func(ref string) { w.git(t, "push", "--quiet", w.project.SourceURL(), "HEAD:"+ref) }
	a, b, c := w.commit(t), w.commit(t), w.commit(t)
	push("refs/heads/main")
	w.git(t, "checkout", "--quiet", "--orphan", "aside")
	// A message of its own: a root like the first, made within a second, is the first.
	w.git(t, "commit", "--quiet", "--allow-empty", "--message", "unrelated")
	unrelated := w.git(t, "rev-parse", "HEAD")
	push("refs/heads/aside")
	w.git(t, "checkout", "--quiet", "--detach", a)
	w.git(t, "commit", "--quiet", "--allow-empty", "--message", "fork")
	fork := w.git(t, "rev-parse", "HEAD")
	push("refs/heads/fork")
	unknown := strings.Repeat("12", len(a)/2)

	for _, x := range []struct {
		base, head string
		want       int
		err        error
	}{
		{c, a, 0, nil}, {c, c, 0, nil}, {a, c, 2, nil}, {b, c, 1, nil},
		{"refs/heads/main", b, 0, nil}, {"refs/heads/main", fork, 1, nil},
		{fork, c, 2, nil}, {unrelated, c, 3, nil}, {c, unrelated, 1, nil},
		{c, unknown, 0, ErrNotFound}, {unknown, c, 0, ErrNoBase}, {unknown, unknown, 0, ErrNotFound},
		{"refs/heads/nothing", c, 0, ErrNoBase},
	} {
		got, err := w.reader.Ahead(ctx, repo, x.base, x.head)
		if got != x.want || !errors.Is(err, x.err) || err != nil && step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("%.12s not in %.12s: %d, %v; want %d, %v", x.head, x.base, got, err, x.want, x.err)
		}
	}
	if _, err := w.reader.Ahead(ctx, "atlas/nothing", a, b); !errors.Is(err, ErrNotFound) {
		t.Errorf("no repository: %v", err)
	}
}

// Errors of every kind have their exit code, advice, one line, and no token.
func TestFailures(t *testing.T) {
	const token = "0123456789abcdef0123456789abcdef01234567"
	var status int
	var body string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, strings.ReplaceAll(body, "TOKEN", r.Header.Get("Authorization")))
	}))
	defer server.Close()
	client, err := New(server.URL, secret.New(token))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		status int
		body   string
		code   int
		want   string
	}{
		{401, `{"message": "TOKEN"}`, step.ExitInvalid, "make a new one"},
		{403, `{"message": "no TOKEN"}`, step.ExitInvalid, "forbids"},
		{403, `{"message": "cannot lock ref 'refs/heads/main': is at 1 but expected 2"}`, step.ExitRetry, "came first"},
		{404, `{"message": "TOKEN"}`, step.ExitInvalid, "not found"},
		{409, `{"message": "TOKEN"}`, step.ExitRetry, "came first"},
		{422, `{"message": "TOKEN"}`, step.ExitRetry, "came first"},
		{423, `{"message": "TOKEN"}`, step.ExitInvalid, "unarchive"},
		{429, "slow\ndown TOKEN", step.ExitRetry, "429"},
		{500, "<html>\n<body>TOKEN</body>\n</html>", step.ExitRetry, "500"},
		{503, "", step.ExitRetry, "503"},
		{400, `{"message": "bad"}`, step.ExitInvalid, "400"},
		{200, "<html>TOKEN", step.ExitRetry, "not JSON"},
		{200, strings.Repeat("x", maxAnswer+1), step.ExitRetry, ""},
		{500, strings.Repeat("x", maxAnswer+1), step.ExitRetry, ""},
	} {
		status, body = c.status, c.body
		_, err := client.File(t.Context(), "a/b", "main", "c.yaml")
		if step.ExitCode(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d %.40q: exit code %d, %.300v", c.status, c.body, step.ExitCode(err), err)
		}
		if strings.Contains(err.Error(), token) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 700 {
			t.Errorf("%d %.40q: the error shows the token or is too long: %.900v", c.status, c.body, err)
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer slow.Close()
	if client, err = New(slow.URL, secret.New(token)); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	if _, err := client.Head(ctx, "a/b", "main"); step.ExitCode(err) != step.ExitRetry || !errors.Is(err, context.DeadlineExceeded) || time.Since(started) > 5*time.Second {
		t.Errorf("a server that does not answer: %v after %s", err, time.Since(started))
	}
	if client, err = New("http://gitea:9", secret.New(token)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Head(t.Context(), "a/b", "main"); step.ExitCode(err) != step.ExitRetry || !strings.Contains(err.Error(), "check the address") {
		t.Errorf("no server: %v", err)
	}
}

// A wrong token is told from a repository that is not there.
func TestWrongToken(t *testing.T) {
	w := newWorld(t, "token")
	if _, err := w.server.PushTree(t.Context(), w.project.Apps, "main", fstest.MapFS{"a": {Data: []byte("x"), Mode: 0o644}}, "x"); err != nil {
		t.Fatal(err)
	}
	wrong, err := New(parts.GiteaURL, secret.New("0123456789abcdef0123456789abcdef01234567"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wrong.File(t.Context(), Repository(w.project.Apps), "main", "a"); step.ExitCode(err) != step.ExitInvalid || errors.Is(err, ErrNotFound) {
		t.Errorf("a wrong token: %v", err)
	}
	if _, err := w.writer.File(t.Context(), Repository(w.project.Source), "main", "a"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a repository of others: %v", err)
	}
}

func anyCommit(Commit) bool { return true }
