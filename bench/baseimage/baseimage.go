// Package baseimage makes on this machine the images that builds start from, as
// none can be fetched: one from Debian's busybox-static package, one by
// debootstrap. They are kept in the bench's cache as OCI layouts.
package baseimage

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"fabrique/bench/cache"
)

// Base is an image that can be made here.
type Base struct {
	Name string // repository and tag, without a registry
	// entry says how to make it, and from what.
	entry func(ctx context.Context, progress io.Writer) (cache.Entry, error)
}

// The base images.
var (
	// Busybox has a shell and small tools, among them an HTTP server; 1 MB.
	Busybox = Base{"base/busybox:latest", busybox}
	// Debian is a minimal Debian whose apt and pip use this machine's mirrors and
	// trust its CA bundle.
	Debian = Base{"base/debian:" + Release, debianImage}
)

// Release is the Debian release of [Debian].
const Release = "bookworm"

// epoch is the creation time of all that has no better one, so that the same
// input gives the same digest.
var epoch = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// Ensure makes the image if it is not in the cache yet, and gives the folder of
// its OCI layout and whether it was there.
func (b Base) Ensure(ctx context.Context, progress io.Writer) (dir string, cached bool, err error) {
	entry, err := b.entry(ctx, progress)
	if err != nil {
		return "", false, fmt.Errorf("making %s: %w", b.Name, err)
	}
	return cache.Get(ctx, entry, progress)
}

// Push brings the image, made first if need be, into a registry that speaks
// plain HTTP ("registry:80"), and gives its reference by digest. When the
// registry has it already this is one request.
func (b Base) Push(ctx context.Context, registry string) (string, error) {
	dir, _, err := b.Ensure(ctx, os.Stderr)
	if err != nil {
		return "", err
	}
	image, err := read(dir)
	if err != nil {
		return "", fmt.Errorf("reading the cached %s: %w", b.Name, err)
	}
	digest, err := image.Digest()
	if err != nil {
		return "", fmt.Errorf("reading the cached %s: %w", b.Name, err)
	}
	tag, err := name.NewTag(registry+"/"+b.Name, name.Insecure, name.StrictValidation)
	if err != nil {
		return "", err
	}
	there, err := remote.Head(tag, remote.WithContext(ctx))
	if err != nil || there.Digest != digest {
		if err := remote.Write(tag, image, remote.WithContext(ctx)); err != nil {
			return "", fmt.Errorf("pushing %s: %w", tag, err)
		}
	}
	return tag.Context().Digest(digest.String()).String(), nil
}

// write writes a single image for this machine's architecture as an OCI layout.
func write(dir string, config v1.Config, layers ...v1.Layer) error {
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	image, err := mutate.AppendLayers(image, layers...)
	if err != nil {
		return err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return err
	}
	file = file.DeepCopy()
	// BuildKit refuses to export on top of an image without them.
	file.OS, file.Architecture = "linux", runtime.GOARCH
	file.Created = v1.Time{Time: epoch}
	file.Config = config
	if image, err = mutate.ConfigFile(image, file); err != nil {
		return err
	}
	out, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	return out.AppendImage(image)
}

func read(dir string) (v1.Image, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) != 1 {
		return nil, fmt.Errorf("%s holds %d images, want 1", dir, len(manifest.Manifests))
	}
	return index.Image(manifest.Manifests[0].Digest)
}
