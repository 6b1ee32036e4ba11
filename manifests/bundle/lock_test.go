package bundle

import (
	"bytes"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"fabrique/steps/image"
	"fabrique/steps/step"
)

func sample() Lock {
	return Lock{
		Path: "platform/bundles",
		Images: []Image{{
			Source: "nats:2", Mirror: "registry:80/mirror/library/nats:2", Digest: image.Digest("sha256:" + strings.Repeat("a", 64)),
			MediaType: "application/vnd.oci.image.index.v1+json", Platforms: []image.Platform{"linux/amd64", "linux/arm64"},
			Module: "example.org/events", Version: "v1.2.3",
		}},
		Files: []File{{"argo-events/install.yaml", strings.Repeat("0", 64)}, {"nats/install.yaml", strings.Repeat("1", 64)}},
	}
}

func TestParseLock(t *testing.T) {
	text := string(sample().Text())
	got, err := ParseLock([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample(), got); diff != "" {
		t.Errorf("-written +read\n%s", diff)
	}
	for _, test := range []struct{ name, old, new, want string }{
		{"no JSON", "{", "", "parsing the lock: line 2: "},
		{"an unknown field", `"path"`, `"paths"`, `unknown field "paths"`},
		{"more behind it", "\n}\n", "\n}\n{}", "there is something behind its end"},
		{"a doubled key", `"path": "platform/bundles",`, `"path": "other", "path": "platform/bundles",`, "line 2 is not as it was written"},
		{"another spelling of a key", `"path"`, `"Path"`, "line 2 is not as it was written"},
		{"spaces", `  "path"`, `"path"`, "line 2 is not as it was written"},
		{"no end of line", "\n}\n", "\n}", "is not as it was written"},
		{"a path outside", "platform/bundles", "../bundles", "parsing the folder"},
		{"a source without a tag", `"nats:2"`, `"nats"`, "it has no tag and no digest"},
		{"a source that is none", `"nats:2"`, `"NATS:2 x"`, "parsing the image"},
		{"a mirror without a registry's port", "registry:80/mirror/library/nats:2", "registry/nats:2", "the port included"},
		{"a short digest", strings.Repeat("a", 64), "aa", "want sha256: and 64"},
		{"a media type", "application/vnd.oci.image.index.v1+json", "x y", "is no media type"},
		{"a platform", "linux/arm64", "linux arm64", "parsing the platform"},
		{"platforms out of order", `"linux/amd64",`, `"linux/s390x",`, "not in order"},
		{"a module's version", "v1.2.3", "latest", "is no module with its version"},
		{"a file outside", "argo-events/install.yaml", "../install.yaml", "want a path inside the folder"},
		{"an absolute file", "argo-events/install.yaml", "/etc/passwd", "want a path inside the folder"},
		{"the lock itself", "argo-events/install.yaml", LockName, "want a path inside the folder"},
		{"a sum", strings.Repeat("0", 64), "0", "is no SHA-256"},
		{"files out of order", "argo-events/install.yaml", "z.yaml", "it is not in its place"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if !strings.Contains(text, test.old) {
				t.Fatalf("the lock has no %q", test.old)
			}
			_, err := ParseLock([]byte(strings.Replace(text, test.old, test.new, 1)))
			wants(t, err, step.ExitInvalid, test.want)
		})
	}
	_, err = ParseLock(bytes.Repeat([]byte(" "), maxLock+1))
	wants(t, err, step.ExitInvalid, "at most 262144 are allowed")
	twice := sample()
	twice.Images = append(twice.Images, twice.Images[0])
	_, err = ParseLock(twice.Text())
	wants(t, err, step.ExitInvalid, "it is not in its place")
}

// What is accepted is exactly what would be written.
func FuzzParseLock(f *testing.F) {
	f.Add(sample().Text())
	f.Add([]byte(`{"path":"x","images":[],"files":[]}`))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		lock, err := ParseLock(text)
		if err != nil {
			if step.ExitCode(err) != step.ExitInvalid {
				t.Errorf("exit code %d: %v", step.ExitCode(err), err)
			}
			return
		}
		if !bytes.Equal(text, lock.Text()) {
			t.Errorf("%q is accepted, and written as %q", text, lock.Text())
		}
	})
}

func TestParseFolder(t *testing.T) {
	for _, good := range []string{"bundles", "platform/bundles", "a/.hidden/b-1_2"} {
		if got, err := ParseFolder(good); err != nil || got != good {
			t.Errorf("%q: %q, %v", good, got, err)
		}
	}
	for _, bad := range []string{"", ".", "..", "/bundles", "a/../b", "a//b", "a/", "a b", "a*", "!a", "#a", "-o", "a/..", "../a", "a\nb", strings.Repeat("a", 300)} {
		if _, err := ParseFolder(bad); step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestReferences(t *testing.T) {
	const pin = "@sha256:0000000000000000000000000000000000000000000000000000000000000000"
	for _, test := range []struct {
		name, text string
		want       []string // "line text"
	}{
		{"a container", "kind: Pod\nspec:\n  containers:\n  - image: busybox\n", []string{"4 busybox"}},
		{"a key that ends so", "natsImage: nats:2\nimagePullPolicy: Always\n", []string{"1 nats:2"}},
		{"a variable", "env:\n- name: ARGO_EVENTS_IMAGE\n  value: a/b\n- name: OTHER\n  value: a/b\n", []string{"3 a/b"}},
		{"any variable with a name and a tag", "env:\n- name: OTHER\n  value: busybox:latest\n", []string{"3 busybox:latest"}},
		{"an option and its value", "args: [controller, --executor-image, busybox]\n", []string{"1 busybox"}},
		{"an option with its value", "args: [--executor-image=busybox, --other=x]\n", []string{"1 busybox"}},
		{"an argument that is a reference", "args: [\"busybox:1.36\", \"0.0.0.0:8080\", \":9090\", \"localhost:80\"]\n", []string{"1 busybox:1.36"}},
		{"a registry's reference anywhere", "data: {text: \"run registry.example:80/a/b:1, please\"}\n", []string{"1 registry.example:80/a/b:1"}},
		{"a pinned reference anywhere", "data: {text: \"registry:80/a/b" + pin + "\"}\n", []string{"1 registry:80/a/b" + pin}},
		{"a URL", "data: {text: \"https://registry.example/a/b:1 and http://example.org:80/x\"}\n", nil},
		{"a path without a tag", "rules: [{apiGroups: [example.org/v1], text: example.org/a/b}]\n", nil},
		{"a ConfigMap", "kind: ConfigMap\ndata:\n  c.yaml: |\n    versions:\n    - natsImage: nats:2\n      image: \"x\"\n", []string{"5 nats:2", "6 x"}},
		{"JSON in a ConfigMap", "kind: ConfigMap\ndata:\n  c.json: '{\"image\":\"x:1\", \"n\": 1}'\n", []string{"3 x:1"}},
		{"a schema", "kind: CustomResourceDefinition\nspec:\n  properties:\n    image: {type: string, description: \"image: what to run\"}\n    value: {default: string}\n", nil},
		{"a reference in a schema", "kind: CustomResourceDefinition\nspec: {default: \"registry.example/a:1\"}\n", []string{"2 registry.example/a:1"}},
		{"a role", "rules: [{resources: [\"system:nodes\"], verbs: [get]}]\n", nil},
		{"aliases", "a: &x {image: busybox}\nb: *x\n", []string{"1 busybox"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			docs, err := documents([]byte(test.text))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, doc := range docs {
				for _, r := range references(doc) {
					got = append(got, strings.Join([]string{strconv.Itoa(r.line), r.text}, " "))
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// What is replaced is what was found, and nothing beside it changes.
func FuzzReplace(f *testing.F) {
	f.Add("image: busybox\nargs: [--x-image=a, b.example/c:1]\n")
	f.Add("data:\n  c: |\n    natsImage: nats:2\n    otherImage: \"x\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		docs, err := documents([]byte(text))
		if err != nil {
			return
		}
		for _, doc := range docs {
			before, err := yaml.Marshal(doc)
			if err != nil {
				return
			}
			found := references(doc)
			for _, r := range found {
				if r.node.Value[r.from:r.to] != r.text {
					t.Errorf("%q is not at %d of %q", r.text, r.from, r.node.Value)
				}
			}
			if err := replace(found, func(s string) (string, error) { return s, nil }); err != nil {
				t.Fatal(err)
			}
			if after, err := yaml.Marshal(doc); err != nil || !bytes.Equal(before, after) {
				t.Errorf("%q became %q, %v", before, after, err)
			}
		}
	})
}

// What a flag's parser accepts is printed and given on as it is: no spaces, no control
// characters, and nothing that leaves the folder or names a user.
func FuzzParsers(f *testing.F) {
	for _, s := range []string{"platform/bundles", "../x", "https://proxy.example:443", "https://a:b@c:1", modules[Events] + "@v1.2.3", "@"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got, err := ParseFolder(s); err == nil && (got != s || !filepath.IsLocal(s) || strings.ContainsAny(s, " \n\x00*")) {
			t.Errorf("the folder %q is accepted", s)
		}
		if got, err := ParseVersion(s); err == nil && got.Path+"@"+got.Version != s {
			t.Errorf("the module %q is read as %v", s, got)
		}
		if got, err := ParseOrigin(s); err == nil {
			if _, err := image.ParseRegistry(string(got.address)); err != nil || strings.Contains(s, "@") {
				t.Errorf("the registry %q is read as %v", s, got)
			}
		}
	})
}
