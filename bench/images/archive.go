package images

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// annotationName holds the reference that containerd gives an imported image
// (AnnotationImageName in its package images).
const annotationName = "io.containerd.image.name"

// Archive writes an OCI layout as a tar stream, for "ctr images import": each
// image comes to be there under its full reference, the key in refs, such as
// "registry:80/bench/pause@sha256:…". Blobs that images share are written once.
func Archive(ctx context.Context, w io.Writer, refs map[string]v1.Image) error {
	out := archive{ctx, tar.NewWriter(w), map[v1.Hash]bool{}}
	if err := out.text("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	for _, ref := range slices.Sorted(maps.Keys(refs)) {
		if err := out.image(refs[ref]); err != nil {
			return fmt.Errorf("archiving %s: %w", ref, err)
		}
		descriptor, err := partial.Descriptor(refs[ref])
		if err != nil {
			return fmt.Errorf("archiving %s: %w", ref, err)
		}
		descriptor.Annotations = map[string]string{annotationName: ref}
		index.Manifests = append(index.Manifests, *descriptor)
	}
	text, err := json.Marshal(index)
	if err != nil {
		return err
	}
	if err := out.text("index.json", text); err != nil {
		return err
	}
	return out.tar.Close()
}

type archive struct {
	ctx   context.Context
	tar   *tar.Writer
	blobs map[v1.Hash]bool // those that are written
}

func (a archive) image(image v1.Image) error {
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	for _, layer := range layers {
		if err := a.layer(layer); err != nil {
			return err
		}
	}
	config, err := partial.ConfigLayer(image)
	if err != nil {
		return err
	}
	if err := a.layer(config); err != nil {
		return err
	}
	digest, err := image.Digest()
	if err != nil || a.blobs[digest] {
		return err
	}
	a.blobs[digest] = true
	manifest, err := image.RawManifest()
	if err != nil {
		return err
	}
	return a.text(blobPath(digest), manifest)
}

func (a archive) layer(layer v1.Layer) error {
	if a.ctx.Err() != nil {
		return context.Cause(a.ctx)
	}
	digest, err := layer.Digest()
	if err != nil || a.blobs[digest] {
		return err
	}
	a.blobs[digest] = true
	size, err := layer.Size()
	if err != nil {
		return err
	}
	content, err := layer.Compressed()
	if err != nil {
		return err
	}
	defer content.Close()
	return a.write(blobPath(digest), size, content)
}

func (a archive) text(name string, text []byte) error {
	return a.write(name, int64(len(text)), bytes.NewReader(text))
}

func (a archive) write(name string, size int64, content io.Reader) error {
	err := a.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, ModTime: epoch, Format: tar.FormatPAX})
	if err != nil {
		return err
	}
	_, err = io.Copy(a.tar, content)
	return err
}

func blobPath(digest v1.Hash) string { return "blobs/" + digest.Algorithm + "/" + digest.Hex }
