package buildkitd

import (
	"bytes"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fabrique/bench/parts"
	"fabrique/steps/config"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) { parts.Main(m) }

// TestGenerate compares with the golden files.
func TestGenerate(t *testing.T) {
	base := string(config.Template())
	for name, text := range map[string]string{
		"template": base,
		"https":    string(bytes.ReplaceAll([]byte(base), []byte("plainHTTP: true"), []byte("plainHTTP: false"))),
		"all": string(bytes.ReplaceAll([]byte(base), []byte("\nbuilder:\n"), []byte(`
builder:
  platform: linux/arm64
  maxCacheBytes: 20000000000
  frontends:
    docker/dockerfile: registry:80/mirror/dockerfile:1.7
    other/frontend: registry:80/mirror/dockerfile:1.8
    third/frontend: registry:80/third@sha256:1111111111111111111111111111111111111111111111111111111111111111
`))),
	} {
		t.Run(name, func(t *testing.T) {
			c, err := config.Parse("fabrique.yaml", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			got, err := Generate(c)
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name+".toml")
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatalf("%v (go test -update writes it)", err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestDaemon starts a real daemon with the generated file: it pushes to the
// registry, pulls a base from it and keeps the cache there, all on plain HTTP,
// and refuses a frontend image. With plainHTTP false the same push fails.
func TestDaemon(t *testing.T) {
	parts.Registry(t)
	base := string(config.Template())
	plain := start(t, base)
	dir := t.TempDir()
	write(t, dir, "hello", "hello")

	write(t, dir, "Dockerfile", "FROM scratch\nCOPY hello /hello\n")
	if out, err := build(t, plain, dir, "registry:80/buildkitd-test:base"); err != nil {
		t.Fatalf("pushing the image and the cache: %v\n%s", err, out)
	}
	write(t, dir, "Dockerfile", "FROM registry:80/buildkitd-test:base\nCOPY hello /again\n")
	if out, err := build(t, plain, dir, "registry:80/buildkitd-test:next"); err != nil {
		t.Fatalf("pulling the base and the cache: %v\n%s", err, out)
	}
	write(t, dir, "Dockerfile", "# syntax=registry:80/buildkitd-test:base\nFROM scratch\n")
	out, err := build(t, plain, dir, "registry:80/buildkitd-test:frontend")
	if err == nil || !strings.Contains(out, "gateway.v0") {
		t.Errorf("a frontend image is not refused: %v\n%s", err, out)
	}

	https := start(t, strings.Replace(base, "plainHTTP: true", "plainHTTP: false", 1))
	write(t, dir, "Dockerfile", "FROM scratch\nCOPY hello /hello\n")
	out, err = build(t, https, dir, "registry:80/buildkitd-test:https")
	if err == nil || !strings.Contains(out, "HTTPS") {
		t.Errorf("plainHTTP false does not lead to HTTPS: %v\n%s", err, out)
	}
}

func start(t *testing.T, text string) *parts.BuildKitDaemon {
	t.Helper()
	c, err := config.Parse("fabrique.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	generated, err := Generate(c)
	if err != nil {
		t.Fatal(err)
	}
	daemon, err := parts.StartBuildKit(context.Background(), string(generated))
	if err != nil {
		t.Fatal(err)
	}
	return daemon
}

func build(t *testing.T, daemon *parts.BuildKitDaemon, dir, image string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), daemon.Buildctl, "--addr", daemon.Address, "build", "--progress=plain",
		"--frontend=dockerfile.v0", "--local", "context="+dir, "--local", "dockerfile="+dir,
		"--output", "type=image,push=true,name="+image,
		"--export-cache", "type=registry,ref=registry:80/buildkitd-test:buildcache",
		"--import-cache", "type=registry,ref=registry:80/buildkitd-test:buildcache").CombinedOutput()
	return string(out), err
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
