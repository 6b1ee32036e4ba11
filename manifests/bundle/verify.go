package bundle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"go.yaml.in/yaml/v3"

	"fabrique/steps/config"
	"fabrique/steps/digest"
	"fabrique/steps/image"
	"fabrique/steps/step"
)

// Finding is something that is wrong in a folder.
type Finding struct {
	File string // in the folder
	Line int    // from 1; 0 for the whole file
	What string // and what to do
}

func (f Finding) String() string {
	if f.Line == 0 {
		return f.File + ": " + f.What
	}
	return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.What)
}

// maxFile bounds a manifest in bytes.
const maxFile = 16 << 20

// ReadLock reads the lock of a folder. Errors: exit code 2; [fs.ErrNotExist] is in the
// chain when there is none.
func ReadLock(folder string) (Lock, error) {
	file := filepath.Join(folder, LockName)
	text, err := os.ReadFile(file)
	if err != nil {
		return Lock{}, step.Invalidf("reading the lock: %w", err)
	}
	lock, err := ParseLock(text)
	if err != nil {
		return Lock{}, fmt.Errorf("reading %s: %w; take it back from version control, or remove it and bundle again", file, err)
	}
	return lock, nil
}

// Check looks at a folder without any network and gives what is wrong, by file and line:
// an image in any YAML that is not of the configured registry, or by anything but a
// digest; a file that is not as the lock has it, missing, or not in it; an image that
// the lock has and no file, or a file and not the lock. Errors: exit code 2 for a folder
// without a lock, or with one that cannot be read.
func Check(folder string, c config.Config) (Lock, []Finding, error) {
	lock, err := ReadLock(folder)
	if err != nil {
		return Lock{}, nil, err
	}
	locked := map[string]string{}
	for _, f := range lock.Files {
		locked[f.Path] = f.SHA256
	}
	pinned := map[string]bool{}
	for _, i := range lock.Images {
		pinned[i.Pinned()] = false
	}
	var findings []Finding
	err = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		manifest := slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
		sum, known := locked[name]
		delete(locked, name)
		switch {
		case name == LockName, !known && !manifest:
			return nil
		case !entry.Type().IsRegular():
			findings = append(findings, Finding{name, 0, "it is no regular file; bundle again"})
			return nil
		case !known:
			findings = append(findings, Finding{name, 0, "the lock does not have it, and kubectl apply would take it; move it elsewhere"})
		}
		text, err := readFile(path)
		if err != nil {
			return err
		}
		if known && hash(text) != sum {
			findings = append(findings, Finding{name, 0, "it is not as it was written; bundle again, and change it with an overlay"})
		}
		if manifest {
			findings = append(findings, checkImages(name, text, c.Registry.Address, pinned)...)
		}
		return nil
	})
	if err != nil {
		return Lock{}, nil, step.Invalidf("reading the bundle: %w", err)
	}
	for name := range locked {
		findings = append(findings, Finding{name, 0, "it is missing; bundle again"})
	}
	text := lock.Text()
	for _, i := range lock.Images {
		line := lineOf(text, i.Mirror)
		if repository, err := image.ParseRepository(image.Untagged(i.Mirror)); err != nil || repository.Registry != c.Registry.Address {
			findings = append(findings, Finding{LockName, line, fmt.Sprintf("%s is not of the registry %s (registry.address); bundle again", i.Mirror, c.Registry.Address)})
		}
		if !pinned[i.Pinned()] {
			findings = append(findings, Finding{LockName, line, fmt.Sprintf("no file names %s; bundle again", i.Pinned())})
		}
	}
	slices.SortStableFunc(findings, compare)
	return lock, findings, nil
}

func compare(a, b Finding) int {
	if by := strings.Compare(a.File, b.File); by != 0 {
		return by
	}
	return a.Line - b.Line
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s has %d bytes, at most %d are allowed", path, info.Size(), maxFile)
	}
	return os.ReadFile(path)
}

// lineOf gives the line on which the text stands as a JSON string.
func lineOf(text []byte, s string) int {
	before, _, found := bytes.Cut(text, []byte(`"`+s+`"`))
	if !found {
		return 0
	}
	return 1 + bytes.Count(before, []byte("\n"))
}

var pinnedForm = regexp.MustCompile(`^[^@]+@sha256:[0-9a-f]{64}$`)

// checkImages looks at every image that a manifest names, and notes in pinned which of
// the lock's are there.
func checkImages(name string, text []byte, registry image.Registry, pinned map[string]bool) []Finding {
	var findings []Finding
	docs, err := documents(text)
	if err != nil {
		return []Finding{{name, 0, fmt.Sprintf("it is no YAML: %v; bundle again", err)}}
	}
	for _, doc := range docs {
		for _, r := range references(doc) {
			_, known := pinned[r.text]
			quoted := fmt.Sprintf("%q", step.Clip(r.text))
			switch {
			case known:
				pinned[r.text] = true
			case !strings.HasPrefix(r.text, string(registry)+"/"):
				findings = append(findings, Finding{name, r.line, quoted + " is not of the registry " + string(registry) + " (registry.address), which is all that the cluster reaches; name its mirror by digest"})
			case !pinnedForm.MatchString(r.text):
				findings = append(findings, Finding{name, r.line, quoted + " floats; name it by digest, as in " + string(registry) + "/name@sha256:…"})
			default:
				findings = append(findings, Finding{name, r.line, quoted + " is not in the lock; bundle again"})
			}
		}
	}
	return findings
}

// documents parses YAML as a file of several documents. JSON is YAML too.
func documents(text []byte) ([]*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var docs []*yaml.Node
	for {
		var doc yaml.Node
		switch err := decoder.Decode(&doc); {
		case errors.Is(err, io.EOF):
			return docs, nil
		case err != nil:
			return nil, err
		}
		docs = append(docs, &doc)
	}
}

// CheckRegistry asks the configured registry for every image of the lock, by digest, and
// gives what is wrong: one that is not there or of another kind than the lock says; other
// platforms; a manifest that an index names and the registry lacks; and for the platform
// that is configured (builder.platform) a configuration or layer that it lacks. Errors:
// exit code 1 for a registry that does not answer, 2 for what it refuses.
func CheckRegistry(ctx context.Context, lock Lock, c config.Config) ([]Finding, error) {
	registry := registry{c.Registry.PlainHTTP}
	text := lock.Text()
	var findings []Finding
	for _, i := range lock.Images {
		wrong, err := registry.check(ctx, i, c.Builder.Platform)
		if err != nil {
			return findings, err
		}
		for _, what := range wrong {
			findings = append(findings, Finding{LockName, lineOf(text, i.Mirror), i.Pinned() + " " + what + "; copy " + i.Source + " to the registry again, with all platforms: fabrique bundle mirror"})
		}
	}
	return findings, nil
}

func (r registry) check(ctx context.Context, i Image, platform image.Platform) (wrong []string, err error) {
	parsed, err := r.parse(i.Pinned())
	if err != nil {
		return nil, err
	}
	only, options := r.options(ctx)
	there, err := remote.Get(parsed, options...)
	if missing(err) {
		return []string{"is not in the registry"}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("asking for %s: %w", i.Pinned(), only.Classify(err))
	}
	if string(there.MediaType) != i.MediaType {
		return []string{fmt.Sprintf("is %s, and the lock says %s", there.MediaType, i.MediaType)}, nil
	}
	if there.MediaType.IsIndex() {
		index, err := there.ImageIndex()
		if err != nil {
			return nil, err
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			return nil, step.Invalidf("reading %s: %w", i.Pinned(), err)
		}
		for _, m := range manifest.Manifests {
			switch _, err := remote.Head(parsed.Context().Digest(m.Digest.String()), options...); {
			case missing(err):
				wrong = append(wrong, fmt.Sprintf("lacks the manifest %s for %s", m.Digest, m.Platform))
			case err != nil:
				return nil, fmt.Errorf("asking for %s: %w", i.Pinned(), only.Classify(err))
			}
		}
		if len(wrong) > 0 {
			return wrong, nil
		}
	}
	images, err := digest.ByPlatform(there)
	if missing(err) {
		return append(wrong, "lacks a part"), nil
	}
	if err != nil {
		return nil, fmt.Errorf("asking for %s: %w", i.Pinned(), only.Classify(err))
	}
	if platforms := slices.Sorted(maps.Keys(images)); !slices.Equal(platforms, i.Platforms) {
		return append(wrong, fmt.Sprintf("is for %s, and the lock says %s", joined(platforms), joined(i.Platforms))), nil
	}
	img, ok := images[platform]
	if !ok {
		return append(wrong, fmt.Sprintf("is not for %s (builder.platform)", platform)), nil
	}
	manifest, err := img.Manifest()
	if err != nil {
		return nil, fmt.Errorf("asking for %s: %w", i.Pinned(), only.Classify(err))
	}
	for _, blob := range append([]v1.Descriptor{manifest.Config}, manifest.Layers...) {
		if !blob.MediaType.IsDistributable() {
			continue // a foreign layer stays where it is
		}
		layer, err := remote.Layer(parsed.Context().Digest(blob.Digest.String()), options...)
		if err != nil {
			return nil, step.Invalidf("asking for %s: %w", i.Pinned(), err)
		}
		there, err := partial.Exists(layer)
		if err != nil && !missing(err) {
			return nil, fmt.Errorf("asking for the blob %s of %s: %w", blob.Digest, i.Pinned(), only.Classify(err))
		}
		if !there {
			wrong = append(wrong, fmt.Sprintf("lacks the blob %s for %s", blob.Digest, platform))
		}
	}
	return wrong, nil
}
