package main

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/rogpeppe/go-internal/testscript"

	"fabrique/bench/baseimage"
	"fabrique/bench/binaries"
	"fabrique/bench/parts"
	"fabrique/steps/chain"
	"fabrique/steps/gitref"
)

// TestKilled kills "fabrique build" at ten moments spread over the length of a
// run, each with a new commit, and runs it again: the same end as without the
// kill, with one image and one commit for each revision, and nothing left behind.
func TestKilled(t *testing.T) {
	ctx := t.Context()
	gitea, buildkit := parts.Gitea(t), parts.BuildKit(t)
	parts.Registry(t)
	if _, err := baseimage.Busybox.Push(ctx, "registry:80"); err != nil {
		t.Fatal(err)
	}
	project, err := gitea.NewProject(ctx, "killed/atlas", "killed-cluster/apps")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := configure(&testscript.Env{WorkDir: dir}, project, buildkit.Address); err != nil {
		t.Fatal(err)
	}
	if _, err := gitea.PushTree(ctx, project.Apps, "main", fstest.MapFS{"victim.yaml": {Data: []byte(`apiVersion: argoproj.io/v1alpha1
kind: Application
metadata:
  name: victim
  annotations:
    fabrique/context: victim
spec:
  source:
    repoURL: ` + project.SourceURL() + `
    path: victim
`)}}, "Declare the victim"); err != nil {
		t.Fatal(err)
	}
	temp := t.TempDir()
	fabrique := func(ctx context.Context) (*exec.Cmd, *strings.Builder) {
		cmd := exec.CommandContext(ctx, filepath.Join(binaries.Dir(t), "fabrique"), "build", "--json")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "TMPDIR="+temp)
		out := new(strings.Builder)
		cmd.Stdout = out
		return cmd, out
	}
	push := func(round int) string {
		revision, err := gitea.PushTree(ctx, project.Source, "main", fstest.MapFS{
			"victim/Dockerfile": {Data: []byte("FROM registry:80/base/busybox:latest\nCOPY page /page\nRUN sleep 0.3; sha256sum /page > /sum\n")},
			"victim/page":       {Data: []byte(strconv.Itoa(round))},
		}, "Round "+strconv.Itoa(round))
		if err != nil {
			t.Fatal(err)
		}
		return revision
	}

	push(0)
	whole, _ := fabrique(ctx)
	started := time.Now()
	if err := whole.Run(); err != nil {
		t.Fatal(err)
	}
	length := time.Since(started)

	const rounds = 10
	random := rand.New(rand.NewPCG(95, 1))
	killed := 0
	for round := range rounds {
		revision := push(round + 1)
		moment := time.Duration((float64(round) + random.Float64()) / rounds * float64(length))
		victim, _ := fabrique(ctx)
		if err := victim.Start(); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(moment, func() { _ = victim.Process.Kill() })
		var failure *exec.ExitError
		if err := victim.Wait(); errors.As(err, &failure) && failure.ExitCode() == -1 {
			killed++
		} else if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		again, out := fabrique(ctx)
		if err := again.Run(); err != nil {
			t.Fatalf("round %d, killed after %s: the second run: %v\n%s", round, moment, err, out)
		}
		third, out := fabrique(ctx)
		if err := third.Run(); err != nil {
			t.Fatal(err)
		}
		var report chain.Report
		if err := json.Unmarshal([]byte(out.String()), &report); err != nil {
			t.Fatal(err)
		}
		if report.Changed || report.Apps[0].Revision != gitref.Revision(revision) {
			t.Errorf("round %d, killed after %s: the third run reports %s", round, moment, out)
		}
		history, err := gitea.Git(ctx, clone(t, gitea, project.Apps), "log", "--format=%s", "--grep", "deploy "+revision[:12])
		if err != nil || strings.Count(history+"\n", "\n") != 1 {
			t.Errorf("round %d, killed after %s: commits for %s: %q, %v; want one", round, moment, revision, history, err)
		}
	}
	if killed < rounds/2 {
		t.Errorf("only %d of %d runs were killed in time: the moments do not fit the length of a run (%s)", killed, rounds, length)
	}
	repository, err := name.NewRepository("registry:80/victim", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	tags, err := remote.List(repository, remote.WithContext(ctx))
	if err != nil || len(tags) != rounds+1 {
		t.Errorf("the registry has %d tags %v, %v; want one for each of %d revisions", len(tags), tags, err, rounds+1)
	}
	left, err := filepath.Glob(filepath.Join(temp, "*", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// clone gives a new clone of a repository, with its history.
func clone(t *testing.T, g *parts.GiteaServer, repo string) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := g.Git(t.Context(), dir, "clone", "--quiet", parts.CloneURL(repo), "."); err != nil {
		t.Fatal(err)
	}
	return dir
}
