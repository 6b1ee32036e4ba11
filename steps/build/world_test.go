package build

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	controlapi "github.com/moby/buildkit/api/services/control"
	"github.com/moby/buildkit/client"

	"fabrique/bench/images"
	"fabrique/bench/parts"
	"fabrique/steps/frontend"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/step"
)

func TestMain(m *testing.M) { parts.Main(m) }

const (
	revision = gitref.Revision("7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210")
	key      = gitref.SourceKey("00000000000000000000000000000000000000000000000000000000000000aa")
	base     = "FROM registry:80/base/busybox:latest\n"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

var pushBase = sync.OnceValue(func() error {
	ctx, cancel := deadline()
	defer cancel()
	_, err := images.Busybox.Push(ctx, parts.RegistryAddress)
	return err
})

// prepare writes the files, of which those in app/ are the context, and gives
// the options to build them to an image of their own.
func prepare(t *testing.T, files map[string]string) Options {
	t.Helper()
	parts.Registry(t)
	if err := pushBase(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range files {
		write(t, dir, name, text)
	}
	return Options{
		Addresses: []string{parts.BuildKit(t).Address}, Dir: dir, Context: "app", Dockerfile: "Dockerfile",
		Repository: image.Repository{Registry: parts.RegistryAddress, Name: image.Name(imageName(t.Name()))},
		Revision:   revision, Platform: "linux/amd64", PlainHTTP: true, Frontends: frontend.Default(),
	}
}

func imageName(test string) string {
	return strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(test), "-"), "-")
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if target, ok := strings.CutPrefix(text, "-> "); ok {
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// mustBuild builds, and checks that the registry has what was reported.
func mustBuild(t *testing.T, o Options) (Result, v1.Image) {
	t.Helper()
	var progress bytes.Buffer
	if o.Progress == nil {
		o.Progress = &progress
	}
	result, err := Run(t.Context(), quiet, o)
	if err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	tag, err := name.NewTag(result.Image, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	descriptor, err := remote.Get(tag)
	if err != nil {
		t.Fatal(err)
	}
	if descriptor.Digest.String() != string(result.Digest) {
		t.Fatalf("reported %s, but the registry has %s", result.Digest, descriptor.Digest)
	}
	img, err := descriptor.Image()
	if err != nil {
		t.Fatal(err)
	}
	return result, img
}

// content gives the files of an image: their text, or "-> target" for a link.
func content(t *testing.T, img v1.Image) map[string]string {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, layer := range layers {
		raw, err := layer.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		for archive := tar.NewReader(raw); ; {
			header, err := archive.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			switch header.Typeflag {
			case tar.TypeReg:
				text, err := io.ReadAll(archive)
				if err != nil {
					t.Fatal(err)
				}
				found[header.Name] = string(text)
			case tar.TypeSymlink:
				found[header.Name] = "-> " + header.Linkname
			}
		}
	}
	return found
}

func labels(t *testing.T, img v1.Image) v1.Config {
	t.Helper()
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return config.Config
}

// builds lists the builds that the daemon knows, or only those that run.
func builds(t *testing.T, address string, running bool) int {
	t.Helper()
	daemon, err := client.New(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer daemon.Close()
	history, err := daemon.ControlClient().ListenBuildHistory(t.Context(), &controlapi.BuildHistoryRequest{ActiveOnly: running, EarlyExit: true})
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		if _, err := history.Recv(); err != nil {
			if !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			return n
		}
	}
}

// runs reports whether a process whose command line contains part runs.
func runs(part string) bool {
	found := false
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		raw, err := os.ReadFile(file)
		found = found || err == nil && !errors.Is(err, fs.ErrNotExist) && strings.Contains(string(bytes.ReplaceAll(raw, []byte{0}, []byte(" "))), part)
	}
	return found
}

// progress is a build's display that can be read and waited for.
type progress struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *progress) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// fails checks an error's exit code, and that its text has all the parts.
func fails(t *testing.T, err error, code int, parts ...string) {
	t.Helper()
	text := fmt.Sprint(err)
	if step.ExitCode(err) != code {
		t.Errorf("exit code %d, want %d", step.ExitCode(err), code)
	}
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("the error lacks %q", part)
		}
	}
	if t.Failed() {
		t.Logf("the error: %s", text)
	}
}

// tarOf gives an archive with one program.
func tarOf(name string, program []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) {
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(program))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(program); err != nil {
			return nil, err
		}
		return io.NopCloser(&archive), w.Close()
	}
}

func rootFS(t *testing.T, img v1.Image) v1.RootFS {
	t.Helper()
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return config.RootFS
}
