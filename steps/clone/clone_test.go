package clone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fabrique/bench/fault"
	"fabrique/bench/parts"
	"fabrique/steps/git"
	"fabrique/steps/gitref"
	"fabrique/steps/secret"
	"fabrique/steps/step"
)

func TestMain(m *testing.M) { parts.Main(m) }

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// source is a repository on a server and a folder to make commits in.
type source struct {
	t      *testing.T
	work   string
	bare   string
	remote git.Remote
}

func newSource(t *testing.T, server *fault.GitServer, args ...string) *source {
	t.Helper()
	url, bare := server.Create("source.git", args...)
	s := &source{t, t.TempDir(), bare, remote(t, url, secret.Secret{})}
	fault.Git(t, s.work, append([]string{"init", "--quiet"}, args...)...)
	return s
}

func remote(t *testing.T, url string, token secret.Secret) git.Remote {
	t.Helper()
	r, err := git.NewRemote(url, token)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// write puts a file into the next commit.
func (s *source) write(name, content string) {
	s.t.Helper()
	path := filepath.Join(s.work, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// commit pushes all that was written to main.
func (s *source) commit() gitref.Revision {
	s.t.Helper()
	fault.Git(s.t, s.work, "--literal-pathspecs", "add", "--all", "--force", ".")
	fault.Git(s.t, s.work, "commit", "--quiet", "--allow-empty", "--message", "one more")
	fault.Git(s.t, s.work, "push", "--quiet", s.bare, "HEAD:main")
	return gitref.Revision(fault.Git(s.t, s.work, "rev-parse", "HEAD"))
}

// content gives every file below dir: its mode, and its text or link.
func content(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		info, err := d.Info()
		if err != nil {
			return err
		}
		text, err := os.Readlink(path)
		if info.Mode().IsRegular() {
			var raw []byte
			raw, err = os.ReadFile(path)
			text = string(raw)
		}
		found[name] = info.Mode().String() + " " + text
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// names gives what is in dir.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

var whole = []string{lockName, resultName, gitName, treeName}

// fails checks an error's exit code and text, in which ids and addresses are
// replaced.
func fails(t *testing.T, err error, code int, want string) {
	t.Helper()
	got := ""
	if err != nil {
		got = err.Error()
	}
	if step.ExitCode(err) != code {
		t.Errorf("exit code %d, want %d", step.ExitCode(err), code)
	}
	got = regexp.MustCompile(`\b[0-9a-f]{12}([0-9a-f]{28})?\b`).ReplaceAllString(got, "ID")
	got = regexp.MustCompile(`127\.0\.0\.1:[0-9]+`).ReplaceAllString(got, "HOST")
	got = regexp.MustCompile(`"/[^"]*/`).ReplaceAllString(got, `"DIR/`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// C1: the older commit, not the tip; then nothing to do; then another commit in
// the same folder.
func TestRun(t *testing.T) {
	s := newSource(t, fault.NewGitServer(t, false))
	s.write("app/Dockerfile", "FROM scratch\n")
	s.write("run.sh", "exit 1\n")
	if err := os.Chmod(filepath.Join(s.work, "run.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("app", filepath.Join(s.work, "link")); err != nil {
		t.Fatal(err)
	}
	older := s.commit()
	tree := fault.Git(t, s.work, "rev-parse", "HEAD^{tree}")
	want := content(t, s.work)
	for name := range want {
		if strings.HasPrefix(name, ".git/") {
			delete(want, name)
		}
	}
	s.write("app/Dockerfile", "FROM busybox\n")
	newer := s.commit()

	dir := filepath.Join(t.TempDir(), "made", "here")
	o := Options{Remote: s.remote, Revision: older, Dir: dir}
	result, err := Run(t.Context(), quiet, o)
	if err != nil {
		t.Fatal(err)
	}
	// "app" is 3 bytes as a link.
	expected := Result{Revision: older, Tree: tree, Path: filepath.Join(dir, "tree"), Files: 3, Bytes: 13 + 7 + 3}
	if diff := cmp.Diff(expected, result); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want, content(t, result.Path)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(whole, names(t, dir)); diff != "" {
		t.Error(diff)
	}

	before := stamps(t, dir)
	expected.Unchanged = true
	result, err = Run(t.Context(), quiet, o)
	if err != nil || cmp.Diff(expected, result) != "" {
		t.Error(err, cmp.Diff(expected, result))
	}
	if diff := cmp.Diff(before, stamps(t, dir)); diff != "" {
		t.Errorf("the second run changed the folder: %s", diff)
	}

	o.Revision = newer
	result, err = Run(t.Context(), quiet, o)
	if err != nil || result.Unchanged {
		t.Error(result, err)
	}
	if got := content(t, result.Path)["app/Dockerfile"]; got != "-rw-r--r-- FROM busybox\n" {
		t.Errorf("the other commit's Dockerfile is %q", got)
	}

	// A relative folder is the same folder.
	t.Chdir(filepath.Dir(dir))
	o.Dir = "here"
	if result, err = Run(t.Context(), quiet, o); err != nil || !result.Unchanged {
		t.Error(result, err)
	}
}

// W10: a repository with ids of 64 digits.
func TestSHA256(t *testing.T) {
	s := newSource(t, fault.NewGitServer(t, false), "--object-format=sha256")
	s.write("x", "x")
	o := Options{Remote: s.remote, Revision: s.commit(), Dir: t.TempDir()}
	result, err := Run(t.Context(), quiet, o)
	if err != nil || len(result.Revision) != 64 || len(result.Tree) != 64 {
		t.Fatal(result, err)
	}
	if result, err = Run(t.Context(), quiet, o); err != nil || !result.Unchanged {
		t.Error(result, err)
	}
}

// stamps gives each file's time of change and inode number, as a stand-in for
// "not touched".
func stamps(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		found[path] = fmt.Sprintf("%+v", info.Sys())
		found[path] = regexp.MustCompile(`Atim:\{[^}]*\}`).ReplaceAllString(found[path], "")
		return nil
	})
	return found
}

// A clone that lost or gained something is made again, and what was made aside
// by a run that died is removed.
func TestDamaged(t *testing.T) {
	s := newSource(t, fault.NewGitServer(t, false))
	s.write("app/Dockerfile", "FROM scratch\n")
	s.write(".gitignore", "*.log\n")
	revision := s.commit()
	for name, damage := range map[string]func(dir string) error{
		"file changed": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "tree/app/Dockerfile"), []byte("FROM busybox\n"), 0o644)
		},
		"file gone":     func(dir string) error { return os.Remove(filepath.Join(dir, "tree/app/Dockerfile")) },
		"mode changed":  func(dir string) error { return os.Chmod(filepath.Join(dir, "tree/app/Dockerfile"), 0o755) },
		"file added":    func(dir string) error { return os.WriteFile(filepath.Join(dir, "tree/app/new"), nil, 0o644) },
		"ignored added": func(dir string) error { return os.WriteFile(filepath.Join(dir, "tree/app/x.log"), nil, 0o644) },
		"tree gone":     func(dir string) error { return os.RemoveAll(filepath.Join(dir, "tree")) },
		"git gone":      func(dir string) error { return os.RemoveAll(filepath.Join(dir, "git")) },
		"index gone":    func(dir string) error { return os.Remove(filepath.Join(dir, "git/index")) },
		"objects gone":  func(dir string) error { return os.RemoveAll(filepath.Join(dir, "git/objects")) },
		"HEAD broken":   func(dir string) error { return os.WriteFile(filepath.Join(dir, "git/HEAD"), []byte("x"), 0o644) },
		"result gone":   func(dir string) error { return os.Remove(filepath.Join(dir, resultName)) },
		"result cut":    func(dir string) error { return os.Truncate(filepath.Join(dir, resultName), 20) },
		"result moved":  func(dir string) error { return os.WriteFile(filepath.Join(dir, resultName), []byte("{}"), 0o644) },
		"partial left": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, resultName)), os.MkdirAll(filepath.Join(dir, "partial-1/tree/x"), 0o755))
		},
		"other git": func(dir string) error { // the repository's own settings
			return os.WriteFile(filepath.Join(dir, "git/config"), []byte("[core]\n\trepositoryformatversion = 7\n"), 0o644)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			o := Options{Remote: s.remote, Revision: revision, Dir: dir}
			if _, err := Run(t.Context(), quiet, o); err != nil {
				t.Fatal(err)
			}
			want := content(t, filepath.Join(dir, "tree"))
			if err := damage(dir); err != nil {
				t.Fatal(err)
			}
			result, err := Run(t.Context(), quiet, o)
			if err != nil || result.Unchanged {
				t.Errorf("unchanged %v, %v: want it to be made again", result.Unchanged, err)
			}
			if diff := cmp.Diff(want, content(t, filepath.Join(dir, "tree"))); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(whole, names(t, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A folder that holds something else is not touched.
func TestForeignFolder(t *testing.T) {
	s := newSource(t, fault.NewGitServer(t, false))
	revision := s.commit()
	for _, name := range []string{treeName, gitName, resultName, "partial-results"} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, name, "precious"), 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := Run(t.Context(), quiet, Options{Remote: s.remote, Revision: revision, Dir: dir})
		fails(t, err, step.ExitInvalid, fmt.Sprintf(`using the folder "DIR/%s": it holds a %q that this step did not make; name another folder`, filepath.Base(dir), name))
		if got := names(t, dir); !slices.Equal(got, []string{name}) {
			t.Errorf("the folder now holds %v", got)
		}
		if _, err := os.Stat(filepath.Join(dir, name, "precious")); err != nil {
			t.Error(err)
		}
	}
	// What is not in the way may stay.
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), quiet, Options{Remote: s.remote, Revision: revision, Dir: dir}); err != nil {
		t.Error(err)
	}
	// The marker is not followed if it is a link.
	target := filepath.Join(t.TempDir(), "target")
	dir = t.TempDir()
	if err := os.Symlink(target, filepath.Join(dir, lockName)); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), quiet, Options{Remote: s.remote, Revision: revision, Dir: dir}); err == nil {
		t.Error("a lock file that is a link was followed")
	}
	// A file in the folder's place.
	_, err := Run(t.Context(), quiet, Options{Remote: s.remote, Revision: revision, Dir: filepath.Join(s.work, ".git/HEAD")})
	fails(t, err, step.ExitInvalid, `creating the folder: mkdir `+filepath.Join(s.work, ".git/HEAD")+`: not a directory`)
}

// Two runs at once: one works, the other says so and is worth a retry.
func TestTwoRuns(t *testing.T) {
	server := fault.NewGitServer(t, false)
	s := newSource(t, server)
	s.write("x", strings.Repeat("x", 1000))
	revision := s.commit()
	proxy := fault.New(t, server.URL)
	handler, stalled := fault.Stall("git-upload-pack", 20)
	proxy.Handle(handler)

	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		_, err := Run(ctx, quiet, Options{Remote: remote(t, proxy.URL+"/source.git", secret.Secret{}), Revision: revision, Dir: dir})
		fails(t, err, step.ExitRetry, "fetching commit ID from http://HOST/source.git: context canceled")
	})
	<-stalled
	o := Options{Remote: s.remote, Revision: revision, Dir: dir}
	_, err := Run(t.Context(), quiet, o)
	fails(t, err, step.ExitRetry, `locking the folder "DIR/`+filepath.Base(dir)+`": another run works in it`)
	cancel()
	running.Wait()
	if diff := cmp.Diff([]string{lockName}, names(t, dir)); diff != "" {
		t.Errorf("left by a cancelled run: %s", diff)
	}
	if _, err := Run(t.Context(), quiet, o); err != nil {
		t.Error(err)
	}
	// A cancelled run over a whole clone leaves it.
	if _, err := Run(ctx, quiet, o); step.ExitCode(err) != step.ExitRetry {
		t.Error(err)
	}
	if diff := cmp.Diff(whole, names(t, dir)); diff != "" {
		t.Error(diff)
	}
}

// C3: what the commit does not hold is refused where it would be missed.
func TestLFSAndSubmodules(t *testing.T) {
	const pointer = pointerStart + "v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
	s := newSource(t, fault.NewGitServer(t, false))
	s.write("lfs/.gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
	s.write("lfs/weights.bin", pointer)
	s.write("plain/pointer-shaped.txt", pointer)
	s.write("plain/Dockerfile", "FROM scratch\n")
	fault.Git(t, s.work, "add", ".")
	head := fault.Git(t, s.work, "commit-tree", "-m", "x", fault.Git(t, s.work, "write-tree"))
	fault.Git(t, s.work, "update-index", "--add", "--cacheinfo", "160000,"+head+",modules/one")
	s.write(".gitmodules", "[submodule \"one\"]\n\tpath = modules/one\n\turl = ../one.git\n")
	// Not through add --all, which would drop the submodule that has no folder.
	fault.Git(t, s.work, "add", ".gitmodules")
	fault.Git(t, s.work, "commit", "--quiet", "--message", "one")
	fault.Git(t, s.work, "push", "--quiet", s.bare, "HEAD:main")
	revision := gitref.Revision(fault.Git(t, s.work, "rev-parse", "HEAD"))

	const (
		lfs    = `reading commit ID: "lfs/weights.bin" is a Git LFS pointer, whose content the factory does not fetch; commit the file itself, or fetch it in the Dockerfile`
		module = `reading commit ID: "modules/one" is a submodule, which the factory does not fetch; commit its content instead`
	)
	for name, test := range map[string]struct {
		paths []gitref.Path
		want  string
	}{
		"whole tree":         {nil, lfs},
		"root":               {[]gitref.Path{"."}, lfs},
		"LFS folder":         {[]gitref.Path{"lfs"}, lfs},
		"LFS file":           {[]gitref.Path{"plain", "lfs/weights.bin"}, lfs},
		"other folder":       {[]gitref.Path{"plain"}, ""},
		"same beginning":     {[]gitref.Path{"lf", "module", "modules/on"}, ""},
		"submodule":          {[]gitref.Path{"modules/one"}, module},
		"above a submodule":  {[]gitref.Path{"modules"}, module},
		"inside a submodule": {[]gitref.Path{"modules/one/app"}, module},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			o := Options{Remote: s.remote, Revision: revision, Dir: dir, Paths: test.paths}
			for range 2 { // also when there is nothing to fetch
				_, err := Run(t.Context(), quiet, o)
				code := step.ExitSource
				if test.want == "" {
					code = step.ExitOK
				}
				fails(t, err, code, test.want)
			}
		})
	}
	// Without the attribute such a file is a file.
	plain := newSource(t, fault.NewGitServer(t, false))
	plain.write("pointer-shaped.txt", pointer)
	if _, err := Run(t.Context(), quiet, Options{Remote: plain.remote, Revision: plain.commit(), Dir: t.TempDir()}); err != nil {
		t.Error(err)
	}
}

// C3: nothing to fetch in an empty repository.
func TestEmptyRepository(t *testing.T) {
	url, _ := fault.NewGitServer(t, false).Create("empty.git")
	_, err := Run(t.Context(), quiet, Options{Remote: remote(t, url, secret.Secret{}), Revision: "7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210", Dir: t.TempDir()})
	fails(t, err, step.ExitInvalid, "fetching commit ID from http://HOST/empty.git: the commit does not exist there, or the server does not give it by its id (git: fatal: remote error: upload-pack: not our ref ID)")
}

// What a repository holds is files, never something to run or a way out.
func TestHostileContent(t *testing.T) {
	s := newSource(t, fault.NewGitServer(t, false))
	outside := filepath.Join(t.TempDir(), "outside")
	trap := "#!/bin/sh\ntouch '" + outside + "'\n"
	files := map[string]string{
		"new\nline":                "a",
		"quote\"'`$(touch x)":      "a",
		"-rf":                      "a",
		"--upload-pack=x":          "a",
		":(glob)**":                "a",
		":!x":                      "a",
		"back\\slash":              "a",
		"\xff\xfe not UTF-8":       "a",
		"tree":                     "a",
		"clone.json":               "a",
		"con/aux.txt":              "a",
		" space ":                  "a",
		"hooks/post-checkout":      trap,
		".githooks/post-checkout":  trap,
		"git/hooks/post-checkout":  trap,
		".gitconfig":               "[core]\n\thooksPath = hooks\n\tfsmonitor = hooks/post-checkout\n",
		".gitmodules":              "[submodule \"x\"]\n\tpath = x\n\turl = ext::sh -c touch% " + outside + "\n\tupdate = !touch " + outside + "\n",
		".gitattributes":           "* filter=evil diff=evil merge=evil\n*.txt text eol=lf\n",
		"deep/.gitattributes":      "* filter=lfs\n",
		strings.Repeat("long", 60): "a",
		"many/" + strings.Repeat("d/", 200) + "f": "a",
	}
	for name, text := range files {
		s.write(name, text)
		if text == trap {
			if err := os.Chmod(filepath.Join(s.work, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	links := map[string]string{"link": outside, "up": "../../..", "etc": "/etc", "self": "self"}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(s.work, name)); err != nil {
			t.Fatal(err)
		}
	}
	o := Options{Remote: s.remote, Revision: s.commit(), Dir: t.TempDir()}
	result, err := Run(t.Context(), quiet, o)
	if err != nil {
		t.Fatal(err)
	}
	got := content(t, result.Path)
	for name, text := range files {
		if !strings.HasSuffix(got[name], "- "+text) && !strings.HasSuffix(got[name], "x "+text) {
			t.Errorf("%q is %q, want %q", name, got[name], text)
		}
	}
	for name, target := range links {
		if !strings.HasSuffix(got[name], " "+target) || !strings.HasPrefix(got[name], "L") {
			t.Errorf("%q is %q, want a link to %q", name, got[name], target)
		}
	}
	if len(got) != len(files)+len(links) || result.Files != len(got) {
		t.Errorf("%d files, reported %d, want %d", len(got), result.Files, len(files)+len(links))
	}
	if result, err = Run(t.Context(), quiet, o); err != nil || !result.Unchanged {
		t.Errorf("second run: %+v, %v", result, err)
	}
	if _, err := os.Lstat(outside); err == nil {
		t.Error("something of the repository was run, or written through a link")
	}
}

// A tree that git itself would not write: refused as the source's fault.
func TestImpossiblePath(t *testing.T) {
	s := newSource(t, fault.NewGitServer(t, false))
	s.write("x", "x")
	s.commit()
	blob := fault.Git(t, s.work, "rev-parse", "HEAD:x")
	raw := filepath.Join(t.TempDir(), "raw")
	tree := "x"
	for _, name := range []string{"config", ".git"} { // .git/config
		id, mode := blob, "100644"
		if tree != "x" {
			id, mode = tree, "40000"
		}
		binary := new(bytes.Buffer)
		fmt.Fprintf(binary, "%s %s\x00", mode, name)
		var b []byte
		fmt.Sscanf(id, "%x", &b)
		binary.Write(b)
		if err := os.WriteFile(raw, binary.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		tree = fault.Git(t, s.work, "hash-object", "-t", "tree", "-w", "--literally", raw)
	}
	commit := fault.Git(t, s.work, "commit-tree", "-m", "evil", tree)
	fault.Git(t, s.work, "push", "--quiet", "--force", s.bare, commit+":main")
	dir := t.TempDir()
	_, err := Run(t.Context(), quiet, Options{Remote: s.remote, Revision: gitref.Revision(commit), Dir: dir})
	fails(t, err, step.ExitSource, "checking out commit ID: git checkout: error: invalid path '.git/config'")
	if diff := cmp.Diff([]string{lockName}, names(t, dir)); diff != "" {
		t.Error(diff)
	}
}

// C4, with a real private repository: no secret in the log, in the error or in
// the folder.
func TestPrivateRepository(t *testing.T) {
	g := parts.Gitea(t)
	project, err := g.NewProject(t.Context(), "clone/source", "clone/apps")
	if err != nil {
		t.Fatal(err)
	}
	id, err := g.PushTree(t.Context(), "clone/source", "main", fstest.MapFS{"x": {Data: []byte("x")}}, "one")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.PushTree(t.Context(), "clone/source", "main", fstest.MapFS{"x": {Data: []byte("y")}}, "two"); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		token    secret.Secret
		revision gitref.Revision
		code     int
	}{
		"reader, older commit":   {project.Reader, gitref.Revision(id), step.ExitOK},
		"no token":               {secret.Secret{}, gitref.Revision(id), step.ExitInvalid},
		"wrong token":            {secret.New("0123456789abcdef0123456789abcdef01234567"), gitref.Revision(id), step.ExitInvalid},
		"writer of another repo": {project.Writer, gitref.Revision(id), step.ExitInvalid},
		"no such commit":         {project.Reader, "7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210", step.ExitInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			dir := t.TempDir()
			_, err := Run(t.Context(), slog.New(slog.NewJSONHandler(&log, nil)), Options{Remote: remote(t, project.SourceURL(), test.token), Revision: test.revision, Dir: dir})
			if step.ExitCode(err) != test.code {
				t.Errorf("exit code %d, want %d: %v", step.ExitCode(err), test.code, err)
			}
			all := log.String() + fmt.Sprint(err)
			for _, text := range content(t, dir) {
				all += text
			}
			if token := test.token; !token.IsZero() {
				for _, form := range []string{token.Reveal(), strings.TrimPrefix(token.BasicAuth(), "Basic ")} {
					if strings.Contains(all, form) {
						t.Error("the token is in the log, the error or the folder")
					}
				}
			}
		})
	}
}

// Long work shows progress.
func TestProgress(t *testing.T) {
	var log lockedBuffer
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x"), []byte("1234"), 0o644); err != nil {
		t.Fatal(err)
	}
	stop := progress(slog.New(slog.NewTextHandler(&log, nil)), dir, time.Millisecond)
	for !strings.Contains(log.String(), "still fetching") {
		time.Sleep(time.Millisecond)
	}
	stop()
	if want := "files=1 bytes=4\n"; !strings.Contains(log.String(), want) {
		t.Errorf("the log is %q, want %q in it", log.String(), want)
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A dozen small objects that stand for 10^10 files: refused before anything is
// written to the disk, within bounded memory.
func TestBomb(t *testing.T) {
	s := newSource(t, fault.NewGitServer(t, false))
	s.write("file", "x")
	s.commit()
	tree := fault.Git(t, s.work, "rev-parse", "HEAD^{tree}")
	for range 10 {
		listing := new(strings.Builder)
		for i := range 10 {
			fmt.Fprintf(listing, "040000 tree %s\t%d\n", tree, i)
		}
		mktree := exec.Command("git", "mktree")
		mktree.Dir, mktree.Stdin = s.work, strings.NewReader(listing.String())
		out, err := mktree.Output()
		if err != nil {
			t.Fatal(err)
		}
		tree = strings.TrimSpace(string(out))
	}
	revision := gitref.Revision(fault.Git(t, s.work, "commit-tree", tree, "-m", "boom"))
	fault.Git(t, s.work, "push", "--quiet", s.bare, string(revision)+":refs/heads/bomb")
	dir := t.TempDir()
	_, err := Run(t.Context(), quiet, Options{Remote: s.remote, Revision: revision, Dir: dir})
	fails(t, err, step.ExitSource, "listing commit ID: reading the repository: it holds more than the factory takes (128 MiB of names or records)")
	if diff := cmp.Diff([]string{lockName}, names(t, dir)); diff != "" {
		t.Errorf("left behind (-want +got):\n%s", diff)
	}
}

// A run that was killed when all was in place leaves its folder beside it: the
// next run, which has nothing else to do, removes it.
func TestRemainsBesideAWholeClone(t *testing.T) {
	s := newSource(t, fault.NewGitServer(t, false))
	s.write("file", "x")
	o := Options{Remote: s.remote, Revision: s.commit(), Dir: t.TempDir()}
	if _, err := Run(t.Context(), quiet, o); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(o.Dir, partialName+"123", gitName), 0o755); err != nil {
		t.Fatal(err)
	}
	result, err := Run(t.Context(), quiet, o)
	if err != nil || !result.Unchanged {
		t.Errorf("unchanged %v, %v", result.Unchanged, err)
	}
	if diff := cmp.Diff(whole, names(t, o.Dir)); diff != "" {
		t.Errorf("in the folder (-want +got):\n%s", diff)
	}
}
