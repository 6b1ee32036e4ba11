package bundle

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
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"fabrique/bench/images"
	"fabrique/bench/parts"
	"fabrique/steps/config"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) { parts.Main(m) }

// configured is a configuration with the registry of the parts.
func configured(t testing.TB, extra string) config.Config {
	t.Helper()
	c, err := config.Parse("fabrique.yaml", []byte(`gitea: {url: http://gitea:3000}
source: {repository: a/source}
apps: {repository: a/apps}
registry: {address: registry:80, plainHTTP: true}
`+extra))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// linkedVersions are those of go.mod: a test's own program is not linked with the modules.
func linkedVersions(t testing.TB) []Version {
	t.Helper()
	var versions []Version
	for _, path := range modules {
		out, err := exec.Command("go", "list", "-m", "-f", "{{.Path}}@{{.Version}}", path).Output()
		if err != nil {
			t.Fatal(err)
		}
		version, err := ParseVersion(strings.TrimSpace(string(out)))
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, version)
	}
	return versions
}

// planned is a plan over the real modules, with mirrors below a prefix of its own.
func planned(t testing.TB, prefix string) *Plan {
	t.Helper()
	p, err := NewPlan(t.Context(), Options{Config: configured(t, ""), Prefix: prefix, Versions: linkedVersions(t), Path: "platform/bundles"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var platforms = images.SmallPlatforms

func single(t testing.TB, seed int64, platform v1.Platform) v1.Image {
	t.Helper()
	image, err := images.Small(seed, platform)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func index(t testing.TB, seed int64) v1.ImageIndex {
	t.Helper()
	index, err := images.SmallIndex(seed)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// push brings an image or index to a registry on plain HTTP, and gives its digest.
func push(t testing.TB, ref string, what remote.Taggable) string {
	t.Helper()
	parsed, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Push(parsed, what, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	descriptor, err := remote.Head(parsed)
	if err != nil {
		t.Fatal(err)
	}
	return descriptor.Digest.String()
}

// remove takes a manifest out of the registry, by digest.
func remove(t testing.TB, ref string) {
	t.Helper()
	parsed, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Delete(parsed, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// fill mirrors an index for each image of the plan.
func fill(t testing.TB, p *Plan) {
	t.Helper()
	parts.Registry(t)
	for i, image := range p.Images {
		push(t, image.Mirror, index(t, int64(i)))
	}
}

// bundled renders the plan into a new folder, as a first run does.
func bundled(t testing.TB, p *Plan) (dir string, lock Lock) {
	t.Helper()
	rendered := render(t, p, Lock{}, false)
	dir = t.TempDir()
	write(t, dir, rendered)
	return dir, rendered.Lock
}

func render(t testing.TB, p *Plan, lock Lock, update bool) Rendered {
	t.Helper()
	outcomes, err := p.Resolve(t.Context(), lock, update)
	if err != nil {
		t.Fatal(err)
	}
	var resolved []Image
	for _, o := range outcomes {
		resolved = append(resolved, o.Image)
	}
	// Rendering changes the plan's documents: each has one of its own.
	fresh, err := plan(p.modules, p.options)
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := fresh.Render(resolved)
	if err != nil {
		t.Fatal(err)
	}
	return rendered
}

func write(t testing.TB, dir string, r Rendered) {
	t.Helper()
	r.Files[LockName] = r.Lock.Text()
	for file, text := range r.Files {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// edit changes a file of a bundle by hand; the old text must be there.
func edit(t testing.TB, dir, file, old, new string) {
	t.Helper()
	path := filepath.Join(dir, file)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(text, []byte(old)) {
		t.Fatalf("%s has no %q", file, old)
	}
	if err := os.WriteFile(path, bytes.Replace(text, []byte(old), []byte(new), 1), 0o644); err != nil {
		t.Fatal(err)
	}
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	file = filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (make golden writes it)", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s: -want +got\n%s", file, diff)
	}
}

// texts gives findings as they are printed.
func texts(findings []Finding) []string {
	var all []string
	for _, f := range findings {
		all = append(all, f.String())
	}
	return all
}

// check is [Check] and [CheckRegistry] on a folder.
func checkAll(ctx context.Context, dir string, c config.Config) ([]string, error) {
	lock, findings, err := Check(dir, c)
	if err != nil {
		return nil, err
	}
	more, err := CheckRegistry(ctx, lock, c)
	return texts(append(findings, more...)), err
}
