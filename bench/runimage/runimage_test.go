package runimage_test

import (
	"context"
	"encoding/json"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fabrique/bench/images"
	"fabrique/bench/parts"
	"fabrique/bench/runimage"
	"fabrique/bench/sample"
)

func TestMain(m *testing.M) { parts.Main(m) }

// build builds a folder of the sample source with buildctl and gives the
// image's reference by digest.
func build(t *testing.T, base images.Image, folder, image string) string {
	t.Helper()
	registry, d := parts.Registry(t), parts.BuildKit(t)
	if _, err := base.Push(t.Context(), registry.Address); err != nil {
		t.Fatal(err)
	}
	tree, err := fs.Sub(sample.Atlas(), folder)
	if err != nil {
		t.Fatal(err)
	}
	dir, metadata := t.TempDir(), filepath.Join(t.TempDir(), "metadata")
	if err := os.CopyFS(dir, tree); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	out, err := exec.CommandContext(t.Context(), d.Buildctl, "--addr", d.Address, "build", "--progress", "plain",
		"--frontend", "dockerfile.v0", "--local", "context="+dir, "--local", "dockerfile="+dir,
		"--metadata-file", metadata, "--output", "type=image,push=true,name=registry:80/"+image+":test").CombinedOutput()
	if err != nil {
		t.Fatalf("building %s: %v\n%s", folder, err, out)
	}
	t.Logf("built %s in %v", folder, time.Since(start))
	if testing.Verbose() {
		t.Logf("%s", out)
	}
	text, err := os.ReadFile(metadata)
	if err != nil {
		t.Fatal(err)
	}
	var result struct {
		Digest string `json:"containerimage.digest"`
	}
	if err := json.Unmarshal(text, &result); err != nil {
		t.Fatal(err)
	}
	return "registry:80/" + image + "@" + result.Digest
}

func start(t *testing.T, o runimage.Options) *runimage.Container {
	t.Helper()
	c, err := runimage.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
		if left, err := filepath.Glob(filepath.Join(parts.Dir(), "run-*")); err != nil || len(left) > 0 {
			t.Errorf("left after the container: %v, %v", left, err)
		}
	})
	return c
}

func TestHello(t *testing.T) {
	ref := build(t, images.Busybox, "web/hello", "hello")
	addr := net.JoinHostPort(parts.Address(), "8080")
	c := start(t, runimage.Options{Image: ref, Args: []string{addr}})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for path, want := range map[string]string{"/healthz": "ok", "/": "Hello from the factory."} {
		body, err := c.WaitHTTP(ctx, "http://"+addr+path)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(body), want) {
			t.Errorf("%s answers %q, want %q in it", path, body, want)
		}
	}
}

func TestCitation(t *testing.T) {
	ref := build(t, images.Debian, "dataops/citation-dagster", "citation")
	addr := net.JoinHostPort(parts.Address(), "4266")
	begin := time.Now()
	c := start(t, runimage.Options{Image: ref, Env: []string{"GRPC_ADDRESS=" + addr, "REVISION=0123456789ab"}})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	if err := c.WaitServing(ctx, addr, "DagsterApi"); err != nil {
		t.Fatal(err)
	}
	t.Logf("serving %v after the start", time.Since(begin))
	for _, want := range []string{`"revision": "0123456789ab"`, `"most_cited": "Codd 1970", "count": 2`} {
		if !strings.Contains(c.Log(), want) {
			t.Errorf("the log lacks %s:\n%s", want, c.Log())
		}
	}
}

func TestEndedContainerIsReported(t *testing.T) {
	ref := build(t, images.Busybox, "web/hello", "hello")
	c := start(t, runimage.Options{Image: ref, Args: []string{"no port"}})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := c.WaitHTTP(ctx, "http://"+net.JoinHostPort(parts.Address(), "8081")+"/"); err == nil || !strings.Contains(err.Error(), "the container ended") {
		t.Errorf("got %v, want that the container ended", err)
	}
}
