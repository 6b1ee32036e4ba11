package parts_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"fabrique/bench/images"
	"fabrique/bench/parts"
)

func TestMain(m *testing.M) {
	if os.Getenv(envHold) != "" {
		parts.Run(hold)
	}
	parts.Main(m)
}

func TestBuildAndPush(t *testing.T) {
	registry, buildkit := parts.Registry(t), parts.BuildKit(t)
	base, err := images.Busybox.Push(t.Context(), registry.Address)
	if err != nil {
		t.Fatal(err)
	}
	again, err := images.Busybox.Push(t.Context(), registry.Address)
	if err != nil || again != base {
		t.Errorf("pushing again gives %q, %v; want %q", again, err, base)
	}
	dir := t.TempDir()
	dockerfile := "FROM registry:80/base/busybox\nRUN echo built > /out && id -u > /uid\n"
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile), 0o644); err != nil {
		t.Fatal(err)
	}
	buildctl(t, buildkit, "build", "--frontend", "dockerfile.v0", "--local", "context="+dir, "--local", "dockerfile="+dir,
		"--output", "type=image,name=registry:80/parts/built:1,push=true")
	tag, err := name.NewTag("registry:80/parts/built:1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := remote.Head(tag, remote.WithContext(t.Context())); err != nil {
		t.Error(err)
	}
}

func buildctl(t *testing.T, d *parts.BuildKitDaemon, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), d.Buildctl, append([]string{"--addr", d.Address}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("buildctl %v: %v\n%s", args, err, out)
	}
}

// A step that runs when the daemon is killed dies with it, as in a pod, and the
// daemon comes back with its state.
func TestKillBuildKitInABuild(t *testing.T) {
	registry := parts.Registry(t)
	if _, err := images.Busybox.Push(t.Context(), registry.Address); err != nil {
		t.Fatal(err)
	}
	d, err := parts.StartBuildKit(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM registry:80/base/busybox\nRUN sleep 4321\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	build := exec.Command(d.Buildctl, "--addr", d.Address, "build", "--frontend", "dockerfile.v0", "--local", "context="+dir, "--local", "dockerfile="+dir)
	if err := build.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the step to run", func() bool { return len(pgrep(t, "sleep 4321")) > 0 })
	if err := d.Kill(); err != nil {
		t.Fatal(err)
	}
	if d.PID() != 0 {
		t.Error("the daemon has a PID after it was killed")
	}
	waitFor(t, "the step to end", func() bool { return len(pgrep(t, "sleep 4321")) == 0 })
	if err := build.Wait(); err == nil {
		t.Error("the build went well without its daemon")
	}
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	buildctl(t, d, "debug", "workers")
	if err := d.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.Stop(); err != nil {
		t.Fatal(err)
	}
}

// pgrep gives the processes of this PID namespace whose command line holds text.
func pgrep(t *testing.T, text string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(files, func(f string) bool {
		line, err := os.ReadFile(f)
		return err != nil || !strings.HasPrefix(strings.ReplaceAll(string(line), "\x00", " "), text)
	})
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func TestProject(t *testing.T) {
	g := parts.Gitea(t)
	p, err := g.NewProject(t.Context(), "atlas/atlas", "cluster/apps")
	if err != nil {
		t.Fatal(err)
	}
	first := push(t, g, p.Source, fstest.MapFS{"a": {Data: []byte("1")}, "gone": {Data: []byte("2")}})
	second := push(t, g, p.Source, fstest.MapFS{"a": {Data: []byte("3")}})
	push(t, g, p.Apps, fstest.MapFS{"app.yaml": {Data: []byte("kind: Application\n")}})

	// A commit that is no tip, by its id, with a filter.
	dir := t.TempDir()
	for _, args := range [][]string{
		{"init", "--quiet"},
		{"fetch", "--quiet", "--depth", "1", "--filter=blob:none", p.SourceURL(), first},
	} {
		git(t, dir, parts.GitEnv(p.Reader), args...)
	}
	if got := git(t, dir, parts.GitEnv(p.Reader), "ls-tree", "--name-only", first); got != "a\ngone\n" {
		t.Errorf("the first commit holds %q", got)
	}
	if got := git(t, dir, parts.GitEnv(p.Reader), "ls-remote", p.SourceURL(), "refs/heads/main"); !strings.HasPrefix(got, second) {
		t.Errorf("main is %q, want %s", got, second)
	}

	// Each user may do its own work and no more.
	for _, test := range []struct {
		who, repo string
		read      bool
		write     bool
	}{
		{parts.ReaderName, p.Source, true, false},
		{parts.ReaderName, p.Apps, true, false},
		{parts.WriterName, p.Source, false, false},
		{parts.WriterName, p.Apps, true, true},
	} {
		token := p.Reader
		if test.who == parts.WriterName {
			token = p.Writer
		}
		client, err := g.Client(t.Context(), token)
		if err != nil {
			t.Fatal(err)
		}
		owner, name, _ := strings.Cut(test.repo, "/")
		if _, _, err := client.GetRepo(owner, name); (err == nil) != test.read {
			t.Errorf("%s reading %s: %v, want allowed: %v", test.who, test.repo, err, test.read)
		}
		clone := t.TempDir()
		env := parts.GitEnv(g.Admin.Token)
		git(t, clone, env, "clone", "--quiet", parts.CloneURL(test.repo), ".")
		git(t, clone, env, "commit", "--quiet", "--allow-empty", "--message", test.who)
		cmd := exec.Command("git", "push", "--quiet", "origin", "HEAD:main")
		cmd.Dir, cmd.Env = clone, parts.GitEnv(token)
		if out, err := cmd.CombinedOutput(); (err == nil) != test.write {
			t.Errorf("%s pushing to %s: %v, want allowed: %v\n%s", test.who, test.repo, err, test.write, out)
		}
	}
}

func push(t *testing.T, g *parts.GiteaServer, repo string, tree fstest.MapFS) string {
	t.Helper()
	sha, err := g.PushTree(t.Context(), repo, "main", tree, "change")
	if err != nil {
		t.Fatal(err)
	}
	return sha
}

func git(t *testing.T, dir string, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir, cmd.Env = dir, env
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, err.(*exec.ExitError).Stderr)
	}
	return string(out)
}

func TestFailingStartShowsTheLog(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := parts.StartBuildKit(ctx, "this is no TOML")
	if err == nil || !strings.Contains(err.Error(), "toml") {
		t.Errorf("got %v, want the daemon's own complaint", err)
	}
}
