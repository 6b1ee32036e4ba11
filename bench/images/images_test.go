package images_test

import (
	"archive/tar"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"fabrique/bench/cache"
	"fabrique/bench/images"
	"fabrique/bench/parts"
)

func TestMain(m *testing.M) { parts.Main(m) }

func pull(t *testing.T, base images.Image) v1.Image {
	t.Helper()
	ref, err := base.Push(t.Context(), parts.Registry(t).Address)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := name.NewDigest(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	image, err := remote.Image(digest)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture != runtime.GOARCH {
		t.Errorf("the image is for %s/%s", config.OS, config.Architecture)
	}
	return image
}

func TestBusyboxIsReproducible(t *testing.T) {
	first, err := pull(t, images.Busybox).Digest()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(cache.EnvDir, t.TempDir())
	// The registry's program is in the other cache, and runs already.
	ref, err := images.Busybox.Push(t.Context(), parts.RegistryAddress)
	if err != nil || !strings.HasSuffix(ref, first.String()) {
		t.Errorf("made again it is %s, %v; want %s", ref, err, first)
	}
}

func TestDebianHasTheMachinesSettings(t *testing.T) {
	files := mutate.Extract(pull(t, images.Debian))
	defer files.Close()
	found := map[string]bool{}
	for r := tar.NewReader(files); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		found[strings.TrimSuffix(h.Name, "/")] = true
		for _, unwanted := range []string{"dev/null", "etc/hostname", "etc/resolv.conf", "var/lib/apt/lists/d", "debootstrap/"} {
			if strings.HasPrefix(h.Name, unwanted) {
				t.Errorf("the image holds %s", h.Name)
			}
		}
	}
	for _, wanted := range []string{
		"etc/apt/sources.list.d/debian.sources", "etc/ssl/certs/ca-certificates.crt", "etc/pip.conf", "usr/bin/apt-get", "tmp",
	} {
		if !found[wanted] {
			t.Errorf("the image lacks %s", wanted)
		}
	}
}
