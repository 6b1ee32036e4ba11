package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"fabrique/bench/binaries"
	"fabrique/bench/images"
	"fabrique/bench/parts"
	"fabrique/steps/chain"
	"fabrique/steps/gitref"
)

// victim is a project with one app whose build takes a while, and the program to
// build it with.
type victim struct {
	t       *testing.T
	gitea   *parts.GiteaServer
	project parts.Project
	dir     string // with fabrique.yaml
	temp    string // the program's TMPDIR
}

func newVictim(t *testing.T, name string) victim {
	t.Helper()
	ctx := t.Context()
	gitea, buildkit := parts.Gitea(t), parts.BuildKit(t)
	parts.Registry(t)
	if _, err := images.Busybox.Push(ctx, "registry:80"); err != nil {
		t.Fatal(err)
	}
	project, err := gitea.NewProject(ctx, name+"/atlas", name+"-cluster/apps")
	if err != nil {
		t.Fatal(err)
	}
	v := victim{t, gitea, project, t.TempDir(), t.TempDir()}
	if err := configure(v.dir, project, buildkit.Address); err != nil {
		t.Fatal(err)
	}
	if _, err := gitea.PushTree(ctx, project.Apps, "main", fstest.MapFS{name + ".yaml": {Data: []byte(`apiVersion: argoproj.io/v1alpha1
kind: Application
metadata:
  name: ` + name + `
  annotations:
    fabrique/context: app
spec:
  source:
    repoURL: ` + project.SourceURL() + `
    path: app
`)}}, "Declare it"); err != nil {
		t.Fatal(err)
	}
	return v
}

// push makes a new commit, whose build runs instruction, the head of the source.
func (v victim) push(round int, instruction string) string {
	v.t.Helper()
	revision, err := v.gitea.PushTree(v.t.Context(), v.project.Source, "main", fstest.MapFS{
		"app/Dockerfile": {Data: []byte("FROM registry:80/base/busybox:latest\nCOPY page /page\nRUN " + instruction + "\n")},
		"app/page":       {Data: []byte(strconv.Itoa(round))},
	}, "Round "+strconv.Itoa(round))
	if err != nil {
		v.t.Fatal(err)
	}
	return revision
}

// build prepares "fabrique build".
func (v victim) build() (*exec.Cmd, *strings.Builder) {
	v.t.Helper()
	cmd := exec.Command(filepath.Join(binaries.Dir(v.t), "fabrique"), "build", "--json")
	cmd.Dir, cmd.Env = v.dir, append(os.Environ(), "TMPDIR="+v.temp)
	out := new(strings.Builder)
	cmd.Stdout = out
	return cmd, out
}

// deploys counts the commits that deployed the revision.
func (v victim) deploys(revision string) int {
	v.t.Helper()
	dir := v.t.TempDir()
	if _, err := v.gitea.Git(v.t.Context(), dir, "clone", "--quiet", parts.CloneURL(v.project.Apps), "."); err != nil {
		v.t.Fatal(err)
	}
	history, err := v.gitea.Git(v.t.Context(), dir, "log", "--format=%H", "--grep", "deploy "+revision[:12])
	if err != nil {
		v.t.Fatal(err)
	}
	return len(strings.Fields(history))
}

// noRemains wants the program's folder for temporary files empty.
func (v victim) noRemains() {
	v.t.Helper()
	left, err := filepath.Glob(filepath.Join(v.temp, "*", "*"))
	if err != nil || len(left) > 0 {
		v.t.Errorf("left behind: %v, %v", left, err)
	}
}

// manifests counts the images that were ever pushed to a repository: distribution
// keeps a folder for the digest of each, also of one whose tag moved on.
func manifests(t *testing.T, repository string) int {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(parts.Dir(), "registry", "docker", "registry", "v2", "repositories", repository, "_manifests", "revisions", "sha256", "*"))
	if err != nil || len(found) == 0 {
		t.Fatalf("looking for the manifests of %s: found %v, %v", repository, found, err)
	}
	return len(found)
}

// TestKilled kills "fabrique build" at ten moments spread over the length of a
// run, and once right after the push, each with a new commit, and runs it again:
// the same end as without the kill, with one image and one commit for each
// revision, and nothing left behind.
func TestKilled(t *testing.T) {
	v := newVictim(t, "killed")
	const instruction = "sleep 0.3; sha256sum /page > /sum"
	v.push(0, instruction)
	whole, _ := v.build()
	started := time.Now()
	if err := whole.Run(); err != nil {
		t.Fatal(err)
	}
	length := time.Since(started)

	const rounds = 11
	random := rand.New(rand.NewPCG(95, 1))
	killed := 0
	for round := range rounds {
		revision := v.push(round+1, instruction)
		first, _ := v.build()
		progress, err := first.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := first.Start(); err != nil {
			t.Fatal(err)
		}
		moment := time.Duration((float64(round) + random.Float64()) / (rounds - 1) * float64(length))
		if round == rounds-1 {
			moment = length * 100 // the last is killed when the image has been pushed
		}
		timer := time.AfterFunc(moment, func() { _ = first.Process.Kill() })
		for lines := bufio.NewScanner(progress); lines.Scan(); {
			if round == rounds-1 && lines.Text() == "killed: inspect" {
				_ = first.Process.Kill()
			}
		}
		var failure *exec.ExitError
		if err := first.Wait(); errors.As(err, &failure) && failure.ExitCode() == -1 {
			killed++
		} else if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		timer.Stop()
		second, out := v.build()
		if err := second.Run(); err != nil {
			t.Fatalf("round %d, killed after %s: the second run: %v\n%s", round, moment, err, out)
		}
		var report chain.Report
		if err := json.Unmarshal([]byte(out.String()), &report); err != nil {
			t.Fatal(err)
		}
		if round == rounds-1 && !report.Apps[0].Reused {
			t.Errorf("killed after the push: the second run did not reuse the image: %s", out)
		}
		third, out := v.build()
		if err := third.Run(); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(out.String()), &report); err != nil {
			t.Fatal(err)
		}
		if report.Changed || report.Apps[0].Revision != gitref.Revision(revision) {
			t.Errorf("round %d, killed after %s: the third run reports %s", round, moment, out)
		}
		if n := v.deploys(revision); n != 1 {
			t.Errorf("round %d, killed after %s: %d commits for %s, want one", round, moment, n, revision)
		}
	}
	if killed < rounds/2 {
		t.Errorf("only %d of %d runs were killed in time: the moments do not fit the length of a run (%s)", killed, rounds, length)
	}
	if n := manifests(t, "killed"); n != rounds+1 {
		t.Errorf("%d images were pushed, want one for each of %d revisions", n, rounds+1)
	}
	v.noRemains()
}

// SIGTERM in the middle of a build: over in seconds, exit code 1, nothing written,
// nothing left behind, and the report says so.
func TestSIGTERM(t *testing.T) {
	v := newVictim(t, "ended")
	revision := v.push(0, "echo it has begun; sleep 600")
	cmd, out := v.build()
	progress, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := new(strings.Builder)
	var asked time.Time
	for lines := bufio.NewScanner(progress); lines.Scan(); {
		fmt.Fprintln(said, lines.Text())
		if strings.HasSuffix(lines.Text(), " it has begun") && asked.IsZero() {
			asked = time.Now()
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
	}
	err = cmd.Wait()
	if asked.IsZero() {
		t.Fatalf("the build never began: %v\n%s", err, said)
	}
	if took := time.Since(asked); took > 30*time.Second {
		t.Errorf("it took %s to end", took)
	}
	var failure *exec.ExitError
	if !errors.As(err, &failure) || failure.ExitCode() != 1 || !strings.Contains(said.String(), "terminated") {
		t.Errorf("%v; want exit code 1 and the signal named\n%s", err, said)
	}
	var report chain.Report
	if err := json.Unmarshal([]byte(out.String()), &report); err != nil || report.Changed || report.Apps[0].Result != chain.Failed {
		t.Errorf("the report: %v\n%s", err, out)
	}
	if n := v.deploys(revision); n != 0 {
		t.Errorf("%d commits were made", n)
	}
	v.noRemains()
}
