package git

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fabrique/bench/fault"
	"fabrique/bench/parts"
	"fabrique/steps/gitref"
	"fabrique/steps/secret"
	"fabrique/steps/step"
)

const unknown = gitref.Revision("7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210")

// fetch fetches into a fresh folder.
func fetch(t *testing.T, remote Remote, revision gitref.Revision) (*Repository, error) {
	t.Helper()
	repo, err := Init(t.Context(), remote, t.TempDir(), "", revision)
	if err != nil {
		t.Fatal(err)
	}
	return repo, repo.Fetch(t.Context(), revision, "")
}

func newRemote(t *testing.T, url string, token secret.Secret) Remote {
	t.Helper()
	remote, err := NewRemote(url, token)
	if err != nil {
		t.Fatal(err)
	}
	return remote
}

// fails checks an error's exit code and its text, in which ids are replaced.
func fails(t *testing.T, err error, code int, want string) {
	t.Helper()
	if step.ExitCode(err) != code {
		t.Errorf("exit code %d, want %d", step.ExitCode(err), code)
	}
	got := regexp.MustCompile(`[0-9a-f]{40,64}`).ReplaceAllString(text(err), "ID")
	got = regexp.MustCompile(`127\.0\.0\.1:[0-9]+|127.0.0.1 port [0-9]+`).ReplaceAllString(got, "HOST")
	got = regexp.MustCompile(`after [0-9]+ ms`).ReplaceAllString(got, "after N ms")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// history makes a repository on the server with two commits on main, and gives
// its URL and the older commit, its tree, a blob of it and an annotated tag.
func history(t *testing.T, server *fault.GitServer) (url string, older, tree, blob, tag gitref.Revision) {
	t.Helper()
	url, dir := server.Create("history.git")
	work := t.TempDir()
	git := func(args ...string) gitref.Revision { t.Helper(); return gitref.Revision(fault.Git(t, work, args...)) }
	git("init", "--quiet")
	write(t, work, "app/Dockerfile", "FROM scratch\n")
	git("add", ".")
	git("commit", "--quiet", "-m", "one")
	older = git("rev-parse", "HEAD")
	tree, blob = git("rev-parse", "HEAD^{tree}"), git("rev-parse", "HEAD:app/Dockerfile")
	git("tag", "-a", "-m", "v1", "v1")
	tag = git("rev-parse", "v1")
	git("commit", "--quiet", "--allow-empty", "-m", "two")
	git("push", "--quiet", dir, "main", "v1")
	return url, older, tree, blob, tag
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// C1: exactly the commit, or failure.
func TestFetchExactly(t *testing.T) {
	for name, old := range map[string]bool{"version 2": false, "version 0": true} {
		t.Run(name, func(t *testing.T) {
			url, older, tree, blob, tag := history(t, fault.NewGitServer(t, old))
			remote := newRemote(t, url, secret.Secret{})

			repo, err := fetch(t, remote, older)
			if old {
				fails(t, err, step.ExitInvalid, "fetching commit ID from http://HOST/history.git: the commit does not exist there, or the server does not give it by its id (git: error: Server does not allow request for unadvertised object ID)")
				if refs, err := repo.Git(t.Context(), nil, "rev-list", "--all", "--objects"); err != nil || len(refs) > 0 {
					t.Errorf("something was taken in its place: %s %v", refs, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			list, err := repo.Git(t.Context(), nil, "rev-list", string(older))
			if err != nil || strings.TrimSpace(string(list)) != string(older) {
				t.Errorf("history %q, %v: want the commit alone", list, err)
			}
			_, err = fetch(t, remote, unknown)
			fails(t, err, step.ExitInvalid, "fetching commit ID from http://HOST/history.git: the commit does not exist there, or the server does not give it by its id (git: fatal: remote error: upload-pack: not our ref ID)")
			for kind, id := range map[string]gitref.Revision{"tree": tree, "blob": blob, "tag": tag} {
				_, err = fetch(t, remote, id)
				fails(t, err, step.ExitInvalid, "fetching commit ID from http://HOST/history.git: this id is a "+kind+", not a commit")
			}
		})
	}
}

// The commit that a branch points at is given by every server.
func TestFetchTipFromOldServer(t *testing.T) {
	url, _, _, _, _ := history(t, fault.NewGitServer(t, true))
	remote := newRemote(t, url, secret.Secret{})
	head, err := remote.Head(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fetch(t, remote, head); err != nil {
		t.Error(err)
	}
}

func TestHead(t *testing.T) {
	server := fault.NewGitServer(t, false)
	empty, _ := server.Create("empty.git")
	if head, err := newRemote(t, empty, secret.Secret{}).Head(t.Context(), "main"); head != "" || err != nil {
		t.Errorf("empty repository: %q, %v", head, err)
	}
	url, _, _, _, _ := history(t, server)
	_, err := newRemote(t, url, secret.Secret{}).Head(t.Context(), "mai")
	fails(t, err, step.ExitInvalid, `reading the branches of http://HOST/history.git: there is no branch "mai"; push it or correct the branch's name`)
}

// W10: both lengths of id; the wrong one is told. Gitea makes such repositories
// only with a newer git than Debian's.
func TestSHA256(t *testing.T) {
	url, dir := fault.NewGitServer(t, false).Create("sha256.git", "--object-format=sha256")
	work := t.TempDir()
	write(t, work, "app/Dockerfile", "FROM scratch\n")
	fault.Git(t, work, "init", "--quiet", "--object-format=sha256")
	fault.Git(t, work, "add", ".")
	fault.Git(t, work, "commit", "--quiet", "-m", "one")
	fault.Git(t, work, "push", "--quiet", dir, "main")
	remote := newRemote(t, url, secret.Secret{})
	head, err := remote.Head(t.Context(), "main")
	if err != nil || len(head) != 64 {
		t.Fatalf("head %q, %v", head, err)
	}
	repo, err := fetch(t, remote, head)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := repo.Entries(t.Context(), head, []gitref.Path{"app", "app/Dockerfile"})
	if err != nil || len(entries) != 2 || len(entries["app"].ID) != 64 {
		t.Errorf("entries %v, %v", entries, err)
	}
	_, err = fetch(t, remote, unknown)
	fails(t, err, step.ExitInvalid, "fetching commit ID from http://HOST/sha256.git: the id's length does not fit the repository's hash algorithm (git: fatal: mismatched algorithms: client sha1; server sha256)")
	url, _, _, _, _ = history(t, fault.NewGitServer(t, false))
	_, err = fetch(t, newRemote(t, url, secret.Secret{}), head)
	fails(t, err, step.ExitInvalid, "fetching commit ID from http://HOST/history.git: the id's length does not fit the repository's hash algorithm (git: fatal: mismatched algorithms: client sha256; server sha1)")
}

func TestEntries(t *testing.T) {
	url, dir := fault.NewGitServer(t, false).Create("entries.git")
	work := t.TempDir()
	git := func(args ...string) string { t.Helper(); return fault.Git(t, work, args...) }
	git("init", "--quiet")
	for _, file := range []string{"a/Dockerfile", "a/deep/file", "a.b/x", "b/*/x", "b/y/x", ":(glob)c/x", "-d/x", "e \"f\"/ü", "top"} {
		write(t, work, file, file)
	}
	if err := os.Symlink("a", filepath.Join(work, "link")); err != nil {
		t.Fatal(err)
	}
	git("--literal-pathspecs", "add", ".")
	git("commit", "--quiet", "-m", "one")
	git("push", "--quiet", dir, "main")
	head := gitref.Revision(git("rev-parse", "HEAD"))
	repo, err := fetch(t, newRemote(t, url, secret.Secret{}), head)
	if err != nil {
		t.Fatal(err)
	}
	id := func(path string) string { t.Helper(); return git("rev-parse", string(head)+":"+path) }
	want := map[gitref.Path]TreeEntry{
		".":            {ModeFolder, git("rev-parse", "HEAD^{tree}"), ".", 0},
		"a":            {ModeFolder, id("a"), "a", 0},
		"a/Dockerfile": {"100644", id("a/Dockerfile"), "a/Dockerfile", 0},
		"a/deep/file":  {"100644", id("a/deep/file"), "a/deep/file", 0},
		"b/*/x":        {"100644", id("b/*/x"), "b/*/x", 0},
		":(glob)c":     {ModeFolder, id(":(glob)c"), ":(glob)c", 0},
		"-d/x":         {"100644", id("-d/x"), "-d/x", 0},
		`e "f"/ü`:      {"100644", id(`e "f"/ü`), `e "f"/ü`, 0},
		"top":          {"100644", id("top"), "top", 0},
		"link":         {ModeLink, id("link"), "link", 0},
	}
	// Without the paths that are not there: beside one that is, below a file,
	// through a link, by a pattern.
	asked := []gitref.Path{"a", "a/Dockerfile", "nothing", "a/nothing", "top/below", "link/Dockerfile", "*", "b/?"}
	for p := range want {
		asked = append(asked, p)
	}
	got, err := repo.Entries(t.Context(), head, asked)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// More paths than one command line takes.
	for range 2500 {
		asked = append(asked, gitref.Path("long/"+strings.Repeat("x", 900)+"/"+strings.Repeat("y", len(asked)%97)))
	}
	if got, err = repo.Entries(t.Context(), head, asked); err != nil || cmp.Diff(want, got) != "" {
		t.Error(err, cmp.Diff(want, got))
	}
}

// C4 and bad access: one line, the right code, no secret.
func TestRefusals(t *testing.T) {
	g := parts.Gitea(t)
	project, err := g.NewProject(t.Context(), "git/source", "git/apps")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.PushTree(t.Context(), "git/source", "main", fstest.MapFS{"x": {Data: []byte("x")}}, "one"); err != nil {
		t.Fatal(err)
	}
	proxy := fault.New(t, g.URL)
	closed := fault.New(t, g.URL)
	closed.Handle(func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			conn.Close()
		}
	})
	redirect := fault.New(t, g.URL)
	redirect.Handle(func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		http.Redirect(w, r, g.URL+r.URL.String(), http.StatusFound)
	})
	wrong := secret.New("wr0ng/t0ken+with=signs")
	const access = "the token is missing, wrong or may not read this repository (git: "
	for name, test := range map[string]struct {
		url    string
		token  secret.Secret
		status int
		code   int
		want   string
	}{
		"no token":           {proxy.URL + "/git/source.git", secret.Secret{}, 0, step.ExitInvalid, access},
		"wrong token":        {proxy.URL + "/git/source.git", wrong, 0, step.ExitInvalid, access},
		"may not read":       {proxy.URL + "/git/other.git", project.Reader, 0, step.ExitInvalid, "there is no such repository, or the token may not see it (git: "},
		"no such repository": {proxy.URL + "/no/such.git", project.Reader, 0, step.ExitInvalid, "there is no such repository, or the token may not see it (git: "},
		"401":                {proxy.URL + "/git/source.git", project.Reader, 401, step.ExitInvalid, access},
		"403":                {proxy.URL + "/git/source.git", project.Reader, 403, step.ExitInvalid, access},
		"404":                {proxy.URL + "/git/source.git", project.Reader, 404, step.ExitInvalid, "there is no such repository"},
		"429":                {proxy.URL + "/git/source.git", project.Reader, 429, step.ExitRetry, "git ls-remote: "},
		"500":                {proxy.URL + "/git/source.git", project.Reader, 500, step.ExitRetry, "git ls-remote: "},
		"502":                {proxy.URL + "/git/source.git", project.Reader, 502, step.ExitRetry, "git ls-remote: "},
		"connection closed":  {closed.URL + "/git/source.git", project.Reader, 0, step.ExitRetry, "git ls-remote: "},
		"redirect":           {redirect.URL + "/git/source.git", project.Reader, 0, step.ExitInvalid, "the server redirects; name the repository's own URL (git: "},
		"nobody listens":     {"http://127.0.0.1:1/git/source.git", project.Reader, 0, step.ExitRetry, "git ls-remote: "},
		"no such host":       {"http://no-such-host.invalid/git/source.git", project.Reader, 0, step.ExitRetry, "git ls-remote: "},
		"HTTPS to HTTP":      {strings.Replace(proxy.URL, "http://", "https://", 1) + "/git/source.git", project.Reader, 0, step.ExitInvalid, "the server does not speak HTTPS, or its certificate is not trusted (git: "},
	} {
		t.Run(name, func(t *testing.T) {
			proxy.Handle(nil)
			if test.status != 0 {
				proxy.Handle(fault.Status(test.status, fault.All))
			}
			remote := newRemote(t, test.url, test.token)
			_, err := remote.Head(t.Context(), "main")
			if step.ExitCode(err) != test.code {
				t.Errorf("exit code %d, want %d", step.ExitCode(err), test.code)
			}
			if want := "reading the branches of " + test.url + ": " + test.want; !strings.HasPrefix(text(err), want) {
				t.Errorf("got  %v\nwant %s…", err, want)
			}
			if strings.Contains(text(err), "\n") {
				t.Errorf("more than one line: %v", err)
			}
			_, fetched := fetch(t, remote, unknown)
			if step.ExitCode(fetched) != test.code {
				t.Errorf("fetch: exit code %d, want %d: %v", step.ExitCode(fetched), test.code, fetched)
			}
			for _, token := range []secret.Secret{project.Reader, wrong, g.Admin.Token} {
				for _, form := range []string{token.Reveal(), strings.TrimPrefix(token.BasicAuth(), "Basic ")} {
					if strings.Contains(text(err)+text(fetched), form) {
						t.Error("the token is in the error")
					}
				}
			}
		})
	}
}

// Nothing of the surroundings reaches git: not the user's configuration, not
// the variables that point it elsewhere.
func TestClosedOff(t *testing.T) {
	url, older, _, _, _ := history(t, fault.NewGitServer(t, false))
	home := t.TempDir()
	write(t, home, ".gitconfig", "[url \"http://127.0.0.1:1/\"]\n\tinsteadOf = http://\n[core]\n\tsshCommand = false\n")
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", home)
	t.Setenv("GIT_DIR", home)
	t.Setenv("GIT_WORK_TREE", home)
	t.Setenv("GIT_INDEX_FILE", filepath.Join(home, "index"))
	t.Setenv("GIT_CONFIG_PARAMETERS", "'url.http://127.0.0.1:1/.insteadof=http://'")
	t.Setenv("GIT_CONFIG_GLOBAL", filepath.Join(home, ".gitconfig"))
	t.Setenv("GIT_TRACE", filepath.Join(home, "trace"))
	t.Setenv("LANG", "de_DE.UTF-8")
	if _, err := fetch(t, newRemote(t, url, secret.Secret{}), older); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(home, "trace")); err == nil {
		t.Error("GIT_TRACE reached git")
	}
}

// A server that stops in mid-answer does not hold a cancelled call.
func TestCancel(t *testing.T) {
	server := fault.NewGitServer(t, false)
	url, older, _, _, _ := history(t, server)
	proxy := fault.New(t, server.URL)
	handler, stalled := fault.Stall("git-upload-pack", 20)
	proxy.Handle(handler)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-stalled; cancel() }()
	remote := newRemote(t, proxy.URL+strings.TrimPrefix(url, server.URL), secret.Secret{})
	repo, err := Init(t.Context(), remote, t.TempDir(), "", older)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- repo.Fetch(ctx, older, "") }()
	select {
	case err := <-done:
		fails(t, err, step.ExitRetry, "fetching commit ID from http://HOST/history.git: context canceled")
	case <-time.After(20 * time.Second):
		t.Fatal("the call does not end")
	}
}

func TestNoGit(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := newRemote(t, "http://gitea:3000/a/b.git", secret.Secret{}).Head(t.Context(), "main")
	fails(t, err, step.ExitInvalid, "reading the branches of http://gitea:3000/a/b.git: running git: the program is not installed; install the package git")
}
