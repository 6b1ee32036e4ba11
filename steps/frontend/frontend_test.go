package frontend

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fabrique/steps/step"
)

var digest = "sha256:" + strings.Repeat("ab", 32)

func TestParse(t *testing.T) {
	for input, want := range map[string]Allowed{
		"":                          {},
		"docker/dockerfile=builtin": {"docker/dockerfile": "builtin"},
		"docker.io/docker/dockerfile=builtin, x=builtin": {"docker/dockerfile": "builtin", "x": "builtin"},
		"a/b=registry:80/frontends/b:1.7":                {"a/b": "registry:80/frontends/b:1.7"},
		"registry:80/a=registry:80/b@" + digest:          {"registry:80/a": "registry:80/b@" + digest},
	} {
		got, err := Parse(input)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q: %v %s", input, err, diff)
		}
	}
	const form = `want name=builtin or name=registry:80/replacement:tag`
	const where = `parsing the frontend's replacement: want builtin, or an image in a registry named with its port: `
	name := func(s string) string {
		return `parsing the frontend's name "` + s + `": want an image name without tag and digest, as in docker/dockerfile`
	}
	for input, want := range map[string]string{
		"docker/dockerfile":              `parsing the frontend "docker/dockerfile": ` + form,
		"a=builtin,":                     `parsing the frontend "": ` + form,
		"=builtin":                       name(""),
		"a b=builtin":                    name("a b"),
		"docker/dockerfile:1=builtin":    name("docker/dockerfile:1"),
		"a@" + digest + "=builtin":       name("a@" + digest),
		"A=builtin":                      name("A"),
		"docker.io/docker.io/a=builtin":  name("docker.io/docker.io/a"),
		"a=":                             where + `parsing the image "": want registry:port/name`,
		"a=docker/dockerfile:1":          where + `parsing the image "docker/dockerfile": parsing the registry "docker": want host:port, the port included, as in registry:80`,
		"a=registry:80/b":                where + `parsing the image "registry:80/b": want a tag or a digest behind it`,
		"a=registry:80/b:":               where + `parsing the image "registry:80/b:": "" is not a tag`,
		"a=registry:80/b@sha256:abc":     where + `parsing the digest "sha256:abc": want sha256: and 64 lower-case hex digits`,
		"a=builtin,docker.io/a=builtin":  `parsing the frontend "docker.io/a=builtin": "a" is given twice; keep one`,
		"a=builtin, library/a=builtin":   `parsing the frontend " library/a=builtin": "a" is given twice; keep one`,
		"a=builtin,index.docker.io/a=bu": `parsing the frontend "index.docker.io/a=bu": "a" is given twice; keep one`,
	} {
		if _, err := Parse(input); err == nil || err.Error() != want || step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("%q: %v, want %s", input, err, want)
		}
	}
}

// B1: every spelling of a listed name leads to its replacement, and no other
// name does.
func TestReplacement(t *testing.T) {
	allowed := Allowed{"docker/dockerfile": Builtin, "registry:80/mine": "registry:80/mine:2", "short": Builtin}
	for named, want := range map[string]string{
		"docker/dockerfile": Builtin, "docker/dockerfile:1.7": Builtin, "docker/dockerfile:1@" + digest: Builtin,
		"docker.io/docker/dockerfile:1": Builtin, "index.docker.io/docker/dockerfile": Builtin,
		"registry:80/mine": "registry:80/mine:2", "registry:80/mine:1": "registry:80/mine:2",
		"short": Builtin, "docker.io/library/short:1": Builtin, "library/short": Builtin,
		"": "", "mine": "", "registry:81/mine": "", "registry:80/docker/dockerfile": "", "docker/dockerfile-upstream": "",
		"evil.invalid/docker.io/docker/dockerfile": "", "docker.io/docker.io/docker/dockerfile": "", "library/docker/dockerfile": "",
	} {
		if got, ok := allowed.Replacement(named); got != want || ok != (want != "") {
			t.Errorf("%q: %q, want %q", named, got, want)
		}
	}
	if _, ok := (Allowed{}).Replacement("docker/dockerfile"); ok {
		t.Error("nothing is listed, and yet something is allowed")
	}
}

// What is accepted leads to itself, and to no public registry.
func FuzzParse(f *testing.F) {
	f.Add("docker/dockerfile=builtin,a/b=registry:80/frontends/b:1.7")
	f.Add("a=registry:80/b@" + digest)
	f.Fuzz(func(t *testing.T, s string) {
		allowed, err := Parse(s)
		if err != nil {
			if step.ExitCode(err) != step.ExitInvalid {
				t.Errorf("exit code %d: %v", step.ExitCode(err), err)
			}
			return
		}
		for name, replacement := range allowed {
			host, _, _ := strings.Cut(replacement, "/")
			if got, ok := allowed.Replacement(name); !ok || got != replacement || replacement != Builtin && !strings.Contains(host, ":") {
				t.Errorf("%q gave %q=%q", s, name, replacement)
			}
			if again, err := ParseName(name); err != nil || again != name {
				t.Errorf("%q is not its own name: %q, %v", name, again, err)
			}
		}
	})
}

// No spelling of one name is that of another one.
func FuzzCanonical(f *testing.F) {
	f.Add("docker.io/docker/dockerfile:1@sha256:aa")
	f.Add("registry:80/a")
	f.Add("a@b:c/d")
	f.Fuzz(func(t *testing.T, reference string) {
		name := canonical(reference)
		if strings.Contains(name, "@") || !strings.Contains(reference, name) {
			t.Errorf("%q became %q", reference, name)
		}
	})
}
