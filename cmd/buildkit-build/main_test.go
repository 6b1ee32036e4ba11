package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	controlapi "github.com/moby/buildkit/api/services/control"
	"github.com/moby/buildkit/client"

	"fabrique/bench/binaries"
	"fabrique/bench/images"
	"fabrique/bench/parts"
	"fabrique/bench/script"
	"fabrique/steps/image"
	"fabrique/steps/secret"
	"fabrique/steps/step"
)

func TestMain(m *testing.M) { parts.Main(m) }

const revision = "7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210"

func start(t *testing.T) *parts.BuildKitDaemon {
	t.Helper()
	parts.Registry(t)
	if _, err := images.Busybox.Push(t.Context(), "registry:80"); err != nil {
		t.Fatal(err)
	}
	return parts.BuildKit(t)
}

func TestScripts(t *testing.T) {
	daemon := start(t)
	password := secret.New("corr3ct-h0rse-b4ttery")
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(password.Reveal()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	script.Run(t, map[string]string{"REVISION": revision, "BUILDER": daemon.Address, "PASSWORD_FILE": file}, password)
}

// command prepares the real program for the clone in dir.
func command(t *testing.T, daemon *parts.BuildKitDaemon, dir, name, revision string) (*exec.Cmd, *output) {
	t.Helper()
	cmd := exec.Command(filepath.Join(binaries.Dir(t), "buildkit-build"), "--address", daemon.Address, "--dir", dir,
		"--context", "app", "--image", "registry:80/"+name, "--plain-http", "--revision", revision)
	out := new(output)
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, os.Environ()
	return cmd, out
}

// output can be read while it is written.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func dockerfile(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "app"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "app/Dockerfile"), []byte("FROM registry:80/base/busybox:latest\n"+text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// idle waits until the daemon has no running build.
func idle(t *testing.T, daemon *parts.BuildKitDaemon) {
	t.Helper()
	c, err := client.New(t.Context(), daemon.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		running, err := c.ControlClient().ListenBuildHistory(t.Context(), &controlapi.BuildHistoryRequest{ActiveOnly: true, EarlyExit: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := running.Recv(); errors.Is(err, io.EOF) {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the daemon still builds a minute later")
		}
	}
}

// B2: SIGTERM in mid-build ends the program in seconds, and the build with it.
func TestSIGTERM(t *testing.T) {
	daemon := start(t)
	cmd, out := command(t, daemon, dockerfile(t, "RUN echo be''gun; sleep 3544\n"), "sigterm", revision)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for !strings.Contains(out.String(), "begun") {
		select {
		case err := <-done:
			t.Fatalf("%v\n%s", err, out)
		case <-time.After(20 * time.Millisecond):
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("it does not end")
	}
	t.Logf("ended %v after SIGTERM", time.Since(begun).Round(time.Millisecond))
	if code := cmd.ProcessState.ExitCode(); code != step.ExitRetry || !strings.Contains(out.String(), "terminated") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	idle(t, daemon)
	if left := binaries.Running("sleep 3544"); len(left) > 0 {
		t.Errorf("still running: %q", left)
	}
}

// kill -9 at moments spread over the length of a build, each of a new revision;
// the run after it ends as if nothing had been: one image, whole and labelled.
func TestKilled(t *testing.T) {
	daemon := start(t)
	random := rand.New(rand.NewPCG(95, 3))
	dir := func(round int) string {
		return dockerfile(t, fmt.Sprintf("RUN echo %d > /round; sleep 0.2\nRUN head -c 300000 /dev/urandom > /noise\n", round))
	}
	whole, out := command(t, daemon, dir(-1), "killed", revision)
	begun := time.Now()
	if err := whole.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	length := time.Since(begun)

	const rounds = 12
	killed := 0
	for round := range rounds {
		revision, clone := fmt.Sprintf("%012x", round+1)+revision[12:], dir(round)
		victim, _ := command(t, daemon, clone, "killed", revision)
		if err := victim.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(random.Int64N(int64(length) * 11 / 10)))
		victim.Process.Kill()
		if victim.Wait() != nil {
			killed++
		}
		again, out := command(t, daemon, clone, "killed", revision)
		if err := again.Run(); err != nil {
			t.Fatalf("after the kill: %v\n%s", err, out)
		}
		digest := check(t, revision, out.String())
		// The killed run's build, if it is still going on, must not push another
		// image over this one.
		idle(t, daemon)
		if after := check(t, revision, out.String()); after != digest {
			t.Errorf("round %d: the tag moved from %s to %s", round, digest, after)
		}
	}
	t.Logf("%d of %d runs of %v were killed", killed, rounds, length.Round(time.Millisecond))
	if killed < rounds/3 {
		t.Errorf("only %d of %d runs were killed before their end", killed, rounds)
	}
	repository, err := name.NewRepository("registry:80/killed", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	tags, err := remote.List(repository)
	if err != nil || len(tags) != rounds+1 {
		t.Errorf("%d tags (%v), want one for each of the %d revisions: %v", len(tags), err, rounds+1, tags)
	}
}

// check wants the revision's image in the registry, with all its layers, and
// its digest in the program's output.
func check(t *testing.T, revision, output string) string {
	t.Helper()
	tag, err := name.NewTag("registry:80/killed:"+revision[:12], name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	img, err := remote.Image(tag)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got := config.Config.Labels[image.LabelRevision]; got != revision {
		t.Errorf("the image is of revision %q, want %q", got, revision)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, layer := range layers {
		raw, err := layer.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, raw); err != nil { // checks its digest
			t.Error(err)
		}
		raw.Close()
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(output, `{"digest":"`+digest.String()+`"`) {
		t.Errorf("the registry has %s; the program said:\n%s", digest, output)
	}
	return digest.String()
}
