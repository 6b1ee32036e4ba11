package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"fabrique/bench/binaries"
	"fabrique/bench/fault"
	"fabrique/bench/parts"
	"fabrique/bench/script"
	"fabrique/steps/image"
	"fabrique/steps/step"
)

func TestMain(m *testing.M) { parts.Main(m) }

const revision = "7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210"

// push puts an image of the revision into the registry and gives its digest.
func push(t *testing.T, repository string) string {
	t.Helper()
	parts.Registry(t)
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: "amd64", Config: v1.Config{Labels: map[string]string{image.LabelRevision: revision}},
	})
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(repository+":"+revision[:12], name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, img); err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest.String()
}

func TestScripts(t *testing.T) {
	script.Run(t, map[string]string{"REVISION": revision, "DIGEST": push(t, "registry:80/inspected")})
}

// SIGTERM while the registry does not answer: over in seconds, exit code 1.
func TestSIGTERM(t *testing.T) {
	push(t, "registry:80/sigterm")
	proxy := fault.New(t, "http://registry:80")
	handler, stalled := fault.Stall("/manifests/", 10)
	proxy.Handle(handler)
	var output bytes.Buffer
	cmd := exec.Command(filepath.Join(binaries.Dir(t), "digest-inspect"), "--image", proxy.Address+"/sigterm", "--plain-http", "--revision", revision)
	cmd.Stdout, cmd.Stderr, cmd.Env = &output, &output, os.Environ()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case <-stalled:
	case err := <-done:
		t.Fatalf("%v\n%s", err, &output)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("it does not end")
	}
	if code := cmd.ProcessState.ExitCode(); code != step.ExitRetry || !bytes.Contains(output.Bytes(), []byte("terminated")) {
		t.Errorf("exit code %d\n%s", code, &output)
	}
}
