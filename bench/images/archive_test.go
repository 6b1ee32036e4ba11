package images_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"fabrique/bench/images"
)

func TestArchiveIsAnOCILayout(t *testing.T) {
	refs, want := map[string]v1.Image{}, map[string]string{}
	for _, i := range append(images.Steps()[3:], images.Busybox) {
		image, digest, err := i.Load(t.Context(), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		ref := "registry:80/" + i.Name
		refs[ref], want[ref] = image, digest
		refs[ref+"@"+digest], want[ref+"@"+digest] = image, digest
	}
	var archive, again bytes.Buffer
	if err := images.Archive(t.Context(), &archive, refs); err != nil {
		t.Fatal(err)
	}
	if err := images.Archive(t.Context(), &again, refs); err != nil || !bytes.Equal(archive.Bytes(), again.Bytes()) {
		t.Errorf("the same images give another archive (%v)", err)
	}

	dir := t.TempDir()
	for r := tar.NewReader(&archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, h.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatalf("the archive holds a file twice: %v", err)
		}
		if _, err := io.Copy(f, r); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, m := range manifest.Manifests {
		got[m.Annotations["io.containerd.image.name"]] = m.Digest.String()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
