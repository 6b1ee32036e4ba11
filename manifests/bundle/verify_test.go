package bundle

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"fabrique/steps/config"
	"fabrique/steps/image"
	"fabrique/steps/step"
)

// Each change by hand is found, at its line, and nothing else is.
func TestCheckFindsWhatWasChanged(t *testing.T) {
	p := planned(t, "changed")
	fill(t, p)
	rendered := render(t, p, Lock{}, false)
	lock := rendered.Lock
	pin := func(name string) string {
		for _, i := range lock.Images {
			if strings.HasSuffix(image.Untagged(i.Mirror), "/"+name) {
				return i.Pinned()
			}
		}
		t.Fatalf("the lock has no %s", name)
		return ""
	}
	const workflows, events, nats = "argo-workflows/install.yaml", "argo-events/install.yaml", "nats/install.yaml"
	const notAsWritten = "it is not as it was written; bundle again, and change it with an overlay"
	floats := func(ref string) string {
		return `"` + ref + `" floats; name it by digest, as in registry:80/name@sha256:…`
	}
	foreign := func(ref string) string {
		return `"` + ref + `" is not of the registry registry:80 (registry.address), which is all that the cluster reaches; name its mirror by digest`
	}
	unlocked := func(ref string) string { return `"` + ref + `" is not in the lock; bundle again` }
	noFile := func(ref string) string { return "no file names " + ref + "; bundle again" }
	other := "registry:80/changed/other@sha256:" + strings.Repeat("0", 64)
	for _, test := range []struct {
		name           string
		file, old, new string
		also           string // a second change in the same file
		want           map[string][]string
	}{
		{name: "nothing", file: events, old: "kind: Deployment", new: "kind: Deployment"},
		{name: "floating in a container", file: events, old: "image: " + pin("argo-events"), new: "image: registry:80/changed/argoproj/argo-events:v1.9.10",
			want: map[string][]string{events: {notAsWritten, floats("registry:80/changed/argoproj/argo-events:v1.9.10")}}},
		{name: "a short name in a container", file: events, old: "image: " + pin("argo-events"), new: "image: busybox",
			want: map[string][]string{events: {notAsWritten, foreign("busybox")}}},
		{name: "floating in an argument", file: workflows, old: pin("argoexec"), new: "registry:80/changed/argoproj/argoexec:latest",
			want: map[string][]string{LockName: {noFile(pin("argoexec"))}, workflows: {notAsWritten, floats("registry:80/changed/argoproj/argoexec:latest")}}},
		{name: "a short name in an argument", file: workflows, old: pin("argoexec"), new: "argoexec:v3",
			want: map[string][]string{LockName: {noFile(pin("argoexec"))}, workflows: {notAsWritten, foreign("argoexec:v3")}}},
		{name: "floating in an environment variable", file: events, old: "value: " + pin("argo-events"), new: "value: registry:80/changed/argoproj/argo-events:v1",
			want: map[string][]string{events: {notAsWritten, floats("registry:80/changed/argoproj/argo-events:v1")}}},
		{name: "floating in a ConfigMap", file: nats, old: "configReloaderImage: " + pin("nats-server-config-reloader"), new: "configReloaderImage: registry:80/changed/reloader:1",
			want: map[string][]string{LockName: {noFile(pin("nats-server-config-reloader"))}, nats: {notAsWritten, floats("registry:80/changed/reloader:1")}}},
		{name: "of another registry", file: events, old: "image: registry:80/", new: "image: registry.example:80/",
			want: map[string][]string{events: {notAsWritten, foreign(strings.Replace(pin("argo-events"), "registry:80", "registry.example:80", 1))}}},
		{name: "another digest", file: events, old: "image: " + pin("argo-events"), new: "image: " + other,
			want: map[string][]string{events: {notAsWritten, unlocked(other)}}},
		{name: "something else", file: events, old: "kind: Deployment", new: "kind: DaemonSet",
			want: map[string][]string{events: {notAsWritten}}},
		{name: "an example", file: ".prettierignore.example", old: "platform", new: "elsewhere",
			want: map[string][]string{".prettierignore.example": {notAsWritten}}},
		{name: "no YAML", file: events, old: "kind: Deployment", new: "kind: [",
			want: map[string][]string{events: {notAsWritten, "it is no YAML: "}, LockName: {noFile(pin("argo-events"))}}},
		{name: "a digest in the lock", file: LockName, old: string(lock.Image("nats:2.10.29").Digest), new: "sha256:" + strings.Repeat("0", 64),
			want: map[string][]string{
				LockName: {noFile("registry:80/changed/library/nats@sha256:" + strings.Repeat("0", 64))},
				nats:     {unlocked(pin("nats")), unlocked(pin("nats"))},
			}},
		{name: "a sum in the lock", file: LockName, old: lock.Files[len(lock.Files)-1].SHA256, new: strings.Repeat("0", 64),
			want: map[string][]string{nats: {notAsWritten}}},
		{name: "the mirror in the lock", file: LockName, old: "registry:80/changed/library/nats:", new: "registry.example:80/changed/library/nats:",
			want: map[string][]string{
				LockName: {"registry.example:80/changed/library/nats:2.10.29 is not of the registry registry:80 (registry.address); bundle again", noFile(strings.Replace(pin("nats"), "registry:80", "registry.example:80", 1))},
				nats:     {unlocked(pin("nats")), unlocked(pin("nats"))},
			}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, rendered)
			edit(t, dir, test.file, test.old, test.new)
			_, findings, err := Check(dir, configured(t, ""))
			if err != nil {
				t.Fatal(err)
			}
			got := map[string][]string{}
			for _, f := range findings {
				what := f.What
				if strings.HasPrefix(what, "it is no YAML: ") {
					what = "it is no YAML: "
				}
				got[f.File] = append(got[f.File], what)
				if !strings.HasPrefix(what, "it is ") {
					checkLine(t, dir, f)
				}
			}
			if test.want == nil {
				test.want = map[string][]string{}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// checkLine wants what a finding quotes, or its repository, on its line.
func checkLine(t *testing.T, dir string, f Finding) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, f.File))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	if f.Line < 1 || f.Line > len(lines) {
		t.Errorf("%s: there is no such line", f)
		return
	}
	words := strings.FieldsFunc(strings.TrimPrefix(f.What, "no file names "), func(r rune) bool { return r == '"' || r == ' ' || r == ';' })
	if !strings.Contains(lines[f.Line-1], image.Untagged(words[0])) {
		t.Errorf("%s: the line is %q", f, lines[f.Line-1])
	}
}

func TestCheckFindsFiles(t *testing.T) {
	p := planned(t, "files")
	fill(t, p)
	rendered := render(t, p, Lock{}, false)
	folder := func() string {
		dir := t.TempDir()
		write(t, dir, rendered)
		return dir
	}
	for _, test := range []struct {
		name   string
		change func(dir string) error
		want   []string
	}{
		{"another manifest", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "nats", "more.yml"), []byte("image: registry:80/x:1\n"), 0o644)
		}, []string{
			"nats/more.yml: the lock does not have it, and kubectl apply would take it; move it elsewhere",
			`nats/more.yml:1: "registry:80/x:1" floats; name it by digest, as in registry:80/name@sha256:…`,
		}},
		{"JSON, which kubectl takes too", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "more.json"), []byte(`{"kind": "Pod", "spec": {"containers": [{"image": "busybox"}]}}`), 0o644)
		}, []string{
			"more.json: the lock does not have it, and kubectl apply would take it; move it elsewhere",
			`more.json:1: "busybox" is not of the registry registry:80 (registry.address), which is all that the cluster reaches; name its mirror by digest`,
		}},
		{"a person's notes", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "README.md"), []byte("image: busybox\n"), 0o644)
		}, nil},
		{"a file less", func(dir string) error { return os.Remove(filepath.Join(dir, "argo-workflows/role-argo-role.yaml")) },
			[]string{"argo-workflows/role-argo-role.yaml: it is missing; bundle again"}},
		{"a symbolic link", func(dir string) error {
			file := filepath.Join(dir, "nats/install.yaml")
			if err := os.Rename(file, filepath.Join(dir, "elsewhere")); err != nil {
				return err
			}
			return os.Symlink("../elsewhere", file)
		}, []string{"nats/install.yaml: it is no regular file; bundle again"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := folder()
			if err := test.change(dir); err != nil {
				t.Fatal(err)
			}
			_, findings, err := Check(dir, configured(t, ""))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, text := range texts(findings) {
				if test.name != "a symbolic link" || !strings.HasPrefix(text, LockName) { // the images that it named are told too
					got = append(got, text)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
	_, _, err := Check(t.TempDir(), configured(t, ""))
	wants(t, err, step.ExitInvalid, "reading the lock: ")
	dir := folder()
	edit(t, dir, LockName, "{", "[")
	_, _, err = Check(dir, configured(t, ""))
	wants(t, err, step.ExitInvalid, "take it back from version control")
	dir = folder()
	other, err := config.Parse("fabrique.yaml", []byte("gitea: {url: http://gitea:3000}\nsource: {repository: a/s}\napps: {repository: a/a}\nregistry: {address: \"other:80\"}\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, findings, err := Check(dir, other)
	if err != nil || len(findings) == 0 || !strings.Contains(findings[0].What, "is not of the registry other:80") {
		t.Errorf("a configuration of another registry: %q, %v", texts(findings), err)
	}
}

func TestCheckRegistry(t *testing.T) {
	// blob and manifest give a part of the index that the lock's first image is.
	amd64 := func(t *testing.T, i Image) (v1.Image, name.Repository) {
		t.Helper()
		ref, err := name.NewDigest(i.Pinned(), name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		img, err := remote.Image(ref, remote.WithPlatform(platforms[0]))
		if err != nil {
			t.Fatal(err)
		}
		return img, ref.Context()
	}
	for _, test := range []struct {
		name   string
		change func(t *testing.T, dir string, i Image)
		want   string // in the only finding, behind the reference
	}{
		{"fine", func(*testing.T, string, Image) {}, ""},
		{"the tag has moved", func(t *testing.T, _ string, i Image) { push(t, i.Mirror, index(t, 5000)) }, ""},
		{"the digest is gone", func(t *testing.T, _ string, i Image) { remove(t, i.Pinned()) }, "is not in the registry"},
		{"the index became one manifest", func(t *testing.T, _ string, i Image) {
			img, _ := amd64(t, i)
			remove(t, i.Pinned())
			push(t, i.Mirror, img)
		}, "is not in the registry"},
		{"the lock has one manifest's digest", func(t *testing.T, dir string, i Image) {
			img, _ := amd64(t, i)
			digest, err := img.Digest()
			if err != nil {
				t.Fatal(err)
			}
			edit(t, dir, LockName, string(i.Digest), digest.String())
		}, "is application/vnd.docker.distribution.manifest.v2+json, and the lock says application/vnd.oci.image.index.v1+json"},
		{"a platform's manifest is gone", func(t *testing.T, _ string, i Image) {
			img, repository := amd64(t, i)
			digest, err := img.Digest()
			if err != nil {
				t.Fatal(err)
			}
			remove(t, repository.Digest(digest.String()).String())
		}, "lacks the manifest sha256:"},
		{"a layer is gone", func(t *testing.T, _ string, i Image) {
			img, repository := amd64(t, i)
			layers, err := img.Layers()
			if err != nil {
				t.Fatal(err)
			}
			digest, err := layers[1].Digest()
			if err != nil {
				t.Fatal(err)
			}
			removeBlob(t, repository, digest)
		}, "lacks the blob sha256:"},
		{"the configuration is gone", func(t *testing.T, _ string, i Image) {
			img, repository := amd64(t, i)
			digest, err := img.ConfigName()
			if err != nil {
				t.Fatal(err)
			}
			removeBlob(t, repository, digest)
		}, "lacks the blob sha256:"},
		{"the lock's platforms are others", func(t *testing.T, dir string, i Image) {
			edit(t, dir, LockName, `"linux/arm64"`, `"linux/s390x"`)
		}, "is for linux/amd64, linux/arm64, and the lock says linux/amd64, linux/s390x"},
	} {
		t.Run(test.name, func(t *testing.T) {
			// The registry keeps blobs by repository, so each case has its own.
			p := planned(t, "case/"+strings.NewReplacer(" ", "-", "'", "").Replace(test.name)[:min(14, len(test.name))]+"x")
			fill(t, p)
			dir, lock := bundled(t, p)
			test.change(t, dir, lock.Images[0])
			lock, err := ReadLock(dir)
			if err != nil {
				t.Fatal(err)
			}
			findings, err := CheckRegistry(t.Context(), lock, configured(t, ""))
			if err != nil {
				t.Fatal(err)
			}
			got := texts(findings)
			if test.want == "" && len(got) == 0 {
				return
			}
			start := "bundle.lock:6: " + lock.Images[0].Pinned() + " " + test.want
			if test.want == "" || len(got) != 1 || !strings.HasPrefix(got[0], start) || !strings.HasSuffix(got[0], "; copy nats:2.10.29 to the registry again, with all platforms: fabrique bundle mirror") {
				t.Errorf("got %q, want %q", got, start)
			}
		})
	}
	_, err := CheckRegistry(t.Context(), Lock{Images: []Image{{Mirror: "registry:81/x:1", Digest: image.Digest("sha256:" + strings.Repeat("0", 64))}}}, configured(t, ""))
	wants(t, err, step.ExitRetry, "cannot be reached")
}

// removeBlob takes a blob out of a repository, as a registry that lost it would.
func removeBlob(t *testing.T, repository name.Repository, digest v1.Hash) {
	t.Helper()
	request(t, "DELETE", "http://"+repository.RegistryStr()+"/v2/"+repository.RepositoryStr()+"/blobs/"+digest.String())
}

// A bundle that was just made has no fault, offline and in the registry, also with a
// single manifest for an image.
func TestFine(t *testing.T) {
	p := planned(t, "fine")
	fill(t, p)
	push(t, p.Images[2].Mirror, mutate.MediaType(single(t, 77, platforms[0]), "application/vnd.oci.image.manifest.v1+json"))
	dir, _ := bundled(t, p)
	got, err := checkAll(t.Context(), dir, configured(t, ""))
	if err != nil || len(got) > 0 {
		t.Errorf("%q, %v", got, err)
	}
}
