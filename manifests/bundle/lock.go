package bundle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"fabrique/steps/image"
	"fabrique/steps/step"
)

// LockName is the lock's file name. It ends in no suffix that kubectl or Argo CD would
// take for a manifest's.
const LockName = "bundle.lock"

// Lock says what the files of a bundle are made of. It is written as JSON in exactly
// one form, so that any other text is a change by hand.
type Lock struct {
	// Path is the folder's place in the repository that it is committed to, for the
	// tools that are told to leave it alone.
	Path   string  `json:"path"`
	Images []Image `json:"images"` // by source
	Files  []File  `json:"files"`  // by path
}

// Image is one image that the files name.
type Image struct {
	Source    string           `json:"source"` // as upstream names it
	Mirror    string           `json:"mirror"` // with upstream's tag; the files have the digest
	Digest    image.Digest     `json:"digest"` // of the mirror's own descriptor: the index where it is one
	MediaType string           `json:"mediaType"`
	Platforms []image.Platform `json:"platforms"` // sorted, without attestations
	Module    string           `json:"module"`    // that names it
	Version   string           `json:"version"`   // of the module
}

// Pinned gives the reference that the files have, registry:80/mirror/name@sha256:….
func (i Image) Pinned() string { return image.Untagged(i.Mirror) + "@" + string(i.Digest) }

// File is one file beside the lock.
type File struct {
	Path   string `json:"path"` // in the folder, with slashes
	SHA256 string `json:"sha256"`
}

// maxLock bounds a lock in bytes; a real one has a tenth of it.
const maxLock = 256 << 10

var (
	hexForm       = regexp.MustCompile(`^[0-9a-f]{64}$`)
	mediaTypeForm = regexp.MustCompile(`^[a-z0-9.+/-]{1,127}$`)
	modulePath    = regexp.MustCompile(`^[a-z0-9][a-z0-9./-]{0,200}$`)
	folderForm    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_.][A-Za-z0-9._-]*)*$`)
	fileForm      = regexp.MustCompile(`^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$`)
)

// ParseFolder accepts a folder's place in a repository, relative, with slashes. Exit code 2.
func ParseFolder(s string) (string, error) {
	if !folderForm.MatchString(s) || len(s) > 250 || path.Clean(s) != s || !filepath.IsLocal(s) {
		return "", step.Invalidf("parsing the folder %q: want a relative path of letters, digits and . _ -, as in platform/bundles", step.Clip(s))
	}
	return s, nil
}

// ParseLock accepts what [Lock.Text] gives and nothing else. Exit code 2.
func ParseLock(text []byte) (Lock, error) {
	var lock Lock
	if len(text) > maxLock {
		return Lock{}, step.Invalidf("parsing the lock: it has %d bytes, at most %d are allowed", len(text), maxLock)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&lock); err != nil {
		return Lock{}, step.Invalidf("parsing the lock: line %d: %w", 1+bytes.Count(text[:min(len(text), int(decoder.InputOffset()))], []byte("\n")), err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return Lock{}, step.Invalidf("parsing the lock: there is something behind its end")
	}
	if err := lock.check(); err != nil {
		return Lock{}, step.Invalidf("parsing the lock: %w", err)
	}
	if line := firstDifference(text, lock.Text()); line > 0 {
		return Lock{}, step.Invalidf("parsing the lock: line %d is not as it was written: a doubled key, another order or another spelling", line)
	}
	return lock, nil
}

func (l Lock) check() error {
	if _, err := ParseFolder(l.Path); err != nil {
		return err
	}
	for i, m := range l.Images {
		if err := m.check(); err != nil {
			return fmt.Errorf("image %q: %w", step.Clip(m.Source), err)
		}
		if i > 0 && l.Images[i-1].Source >= m.Source {
			return fmt.Errorf("image %q: it is not in its place in the order", m.Source)
		}
	}
	for i, f := range l.Files {
		if !fileForm.MatchString(f.Path) || path.Clean(f.Path) != f.Path || !filepath.IsLocal(f.Path) || f.Path == LockName {
			return fmt.Errorf("file %q: want a path inside the folder", step.Clip(f.Path))
		}
		if !hexForm.MatchString(f.SHA256) {
			return fmt.Errorf("file %q: %q is no SHA-256", f.Path, step.Clip(f.SHA256))
		}
		if i > 0 && l.Files[i-1].Path >= f.Path {
			return fmt.Errorf("file %q: it is not in its place in the order", f.Path)
		}
	}
	return nil
}

func (i Image) check() error {
	if _, err := parseSource(i.Source); err != nil {
		return err
	}
	if err := image.CheckReference(i.Mirror); err != nil {
		return err
	}
	if _, err := image.ParseDigest(string(i.Digest)); err != nil {
		return err
	}
	if !mediaTypeForm.MatchString(i.MediaType) {
		return fmt.Errorf("%q is no media type", step.Clip(i.MediaType))
	}
	for _, p := range i.Platforms {
		if _, err := image.ParsePlatform(string(p)); err != nil {
			return err
		}
	}
	if len(i.Platforms) == 0 || !slices.IsSorted(i.Platforms) {
		return fmt.Errorf("its platforms are not there, or not in order")
	}
	if !modulePath.MatchString(i.Module) || !versionForm.MatchString(i.Version) {
		return fmt.Errorf("%q is no module with its version", step.Clip(i.Module+"@"+i.Version))
	}
	return nil
}

// parseSource accepts an image as upstream names it, with a tag or digest; the client's
// rules complete a name without a registry.
func parseSource(s string) (name.Reference, error) {
	ref, err := name.ParseReference(s)
	if err != nil {
		return nil, step.Invalidf("parsing the image %q: %w", step.Clip(s), err)
	}
	if image.Untagged(s) == s {
		return nil, step.Invalidf("parsing the image %q: it has no tag and no digest", step.Clip(s))
	}
	return ref, nil
}

// Text gives the lock as it is written.
func (l Lock) Text() []byte {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(l); err != nil {
		panic(err) // strings alone
	}
	return out.Bytes()
}

// Image gives the entry of a source, nil where there is none.
func (l Lock) Image(source string) *Image {
	for i := range l.Images {
		if l.Images[i].Source == source {
			return &l.Images[i]
		}
	}
	return nil
}

// firstDifference gives the first line in which two texts differ, 0 for none.
func firstDifference(a, b []byte) int {
	if bytes.Equal(a, b) {
		return 0
	}
	left, right := strings.Split(string(a), "\n"), strings.Split(string(b), "\n")
	for i := range left {
		if i >= len(right) || left[i] != right[i] {
			return i + 1
		}
	}
	return len(left)
}
