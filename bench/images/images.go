// Package images makes on this machine every image that the bench uses, as none
// can be fetched: those that builds start from, those of the cluster, those of
// the steps. They are kept in the bench's cache as OCI layouts, for this
// machine's architecture. The same input gives the same digest.
package images

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/compression"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"fabrique/bench/cache"
)

// Image is an image that can be made here.
type Image struct {
	Name string // repository and tag, without a registry
	// entry says how to make it, and from what.
	entry func(ctx context.Context, progress io.Writer) (cache.Entry, error)
}

// The images that builds start from.
var (
	// Busybox has a shell and small tools, among them an HTTP server; 1 MB.
	Busybox = Image{"base/busybox:latest", busybox}
	// Debian is a minimal Debian whose apt and pip use this machine's mirrors and
	// trust its CA bundle.
	Debian = Image{"base/debian:" + Release, debianImage}
)

// Release is the Debian release of [Debian].
const Release = "bookworm"

// epoch is the creation time of all that has no better one, so that the same
// input gives the same digest.
var epoch = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// Ensure makes the image if it is not in the cache yet, and gives the folder of
// its OCI layout and whether it was there. What it is made of (a tool, a program
// of this repository) is built first if need be.
func (i Image) Ensure(ctx context.Context, progress io.Writer) (dir string, cached bool, err error) {
	entry, err := i.entry(ctx, progress)
	if err != nil {
		return "", false, fmt.Errorf("making %s: %w", i.Name, err)
	}
	return cache.Get(ctx, entry, progress)
}

// Load gives the image, made first if need be, and its digest ("sha256:…").
func (i Image) Load(ctx context.Context, progress io.Writer) (v1.Image, string, error) {
	dir, _, err := i.Ensure(ctx, progress)
	if err != nil {
		return nil, "", err
	}
	image, err := read(dir)
	if err != nil {
		return nil, "", fmt.Errorf("reading the cached %s: %w", i.Name, err)
	}
	digest, err := image.Digest()
	if err != nil {
		return nil, "", fmt.Errorf("reading the cached %s: %w", i.Name, err)
	}
	return image, digest.String(), nil
}

// Push brings the image, made first if need be, into a registry that speaks
// plain HTTP ("registry:80"), and gives its reference by digest. When the
// registry has it already this is one request.
func (i Image) Push(ctx context.Context, registry string) (string, error) {
	ref, _, err := i.PushNew(ctx, registry)
	return ref, err
}

// PushNew is [Image.Push] and also tells whether the registry lacked it.
func (i Image) PushNew(ctx context.Context, registry string) (ref string, pushed bool, err error) {
	image, digest, err := i.Load(ctx, os.Stderr)
	if err != nil {
		return "", false, err
	}
	tag, err := name.NewTag(registry+"/"+i.Name, name.Insecure, name.StrictValidation)
	if err != nil {
		return "", false, err
	}
	there, err := remote.Head(tag, remote.WithContext(ctx))
	if err != nil || there.Digest.String() != digest {
		if err := remote.Write(tag, image, remote.WithContext(ctx)); err != nil {
			return "", false, fmt.Errorf("pushing %s: %w", tag, err)
		}
		pushed = true
	}
	return tag.Context().Digest(digest).String(), pushed, nil
}

// recipe is what an image consists of.
type recipe struct {
	config v1.Config
	layers [][]file // from the bottom up
}

// format is part of every assembled image's key: another one makes them all anew.
const format = "images 1"

// assembled is an image whose recipe gather finds, on every use: it is to be
// quick when all is there.
func assembled(name string, c compression.Compression, gather func(ctx context.Context, progress io.Writer) (recipe, error)) Image {
	return Image{name, func(ctx context.Context, progress io.Writer) (cache.Entry, error) {
		r, err := gather(ctx, progress)
		if err != nil {
			return cache.Entry{}, err
		}
		r.layers = stack(r.layers)
		inputs := []string{format, runtime.GOARCH, fmt.Sprint(c), fmt.Sprintf("%+v", r.config)}
		for _, layer := range r.layers {
			key, err := identity(layer)
			if err != nil {
				return cache.Entry{}, err
			}
			inputs = append(inputs, key)
		}
		base, _, _ := strings.Cut(path.Base(name), ":")
		return cache.Entry{
			Name: "image-" + base,
			Key:  cache.Key(inputs...),
			Make: func(_ context.Context, dir string, _ io.Writer) error {
				var layers []v1.Layer
				for _, files := range r.layers {
					layer, err := layerOf(files, c)
					if err != nil {
						return err
					}
					layers = append(layers, layer)
				}
				return write(dir, r.config, layers...)
			},
		}, nil
	}}
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
