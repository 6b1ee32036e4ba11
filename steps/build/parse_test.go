package build

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/buildkit/client"
	digest "github.com/opencontainers/go-digest"

	"fabrique/steps/step"
)

// checkParse checks what a parser gives, or its error and exit code 2.
func checkParse[T any](t *testing.T, parse func(string) (T, error), input string, want T, wantErr string) {
	t.Helper()
	got, err := parse(input)
	if wantErr != "" {
		if err == nil || err.Error() != wantErr || step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("%q: error %v (exit code %d), want %s", input, err, step.ExitCode(err), wantErr)
		}
		return
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%q: %v %s", input, err, diff)
	}
}

func TestParseCache(t *testing.T) {
	for _, mode := range []Cache{CacheOff, CacheMin, CacheMax} {
		checkParse(t, ParseCache, string(mode), mode, "")
	}
	for _, input := range []string{"", "Max", "inline"} {
		checkParse(t, ParseCache, input, "", `parsing the cache mode "`+input+`": want off, min or max`)
	}
}

func TestParseFrontends(t *testing.T) {
	const form, where = `want name=builtin or name=registry:80/replacement:tag`, `want builtin, or an image in a registry named with its port: `
	for input, want := range map[string]Frontends{
		"docker/dockerfile=builtin":                        {"docker/dockerfile": "builtin"},
		"docker.io/docker/dockerfile:1=builtin, x=builtin": {"docker/dockerfile": "builtin", "x": "builtin"},
		"a/b=registry:80/frontends/b:1.7":                  {"a/b": "registry:80/frontends/b:1.7"},
		"a/b=registry:80/b@sha256:abc":                     {"a/b": "registry:80/b@sha256:abc"},
	} {
		checkParse(t, ParseFrontends, input, want, "")
	}
	for input, want := range map[string]string{
		"":                                `parsing the frontend "": ` + form,
		"docker/dockerfile":               `parsing the frontend "docker/dockerfile": ` + form,
		"=builtin":                        `parsing the frontend "=builtin": ` + form,
		"a b=builtin":                     `parsing the frontend "a b=builtin": ` + form,
		"a=builtin,":                      `parsing the frontend "": ` + form,
		"a=":                              `parsing the frontend "a=": ` + where + `parsing the image "": want registry:port/name`,
		"a=docker/dockerfile:1":           `parsing the frontend "a=docker/dockerfile:1": ` + where + `parsing the image "docker/dockerfile": parsing the registry "docker": want host:port, the port included, as in registry:80`,
		"a=builtin,docker.io/a:2=builtin": `parsing the frontend "docker.io/a:2=builtin": the name "a" is given twice; keep one`,
	} {
		checkParse(t, ParseFrontends, input, nil, want)
	}
}

func FuzzParseFrontends(f *testing.F) {
	f.Add("docker/dockerfile=builtin,a/b:1=registry:80/frontends/b:1.7")
	f.Add("a=registry:80/b@sha256:abc")
	f.Fuzz(func(t *testing.T, s string) {
		frontends, err := ParseFrontends(s)
		if err != nil {
			if step.ExitCode(err) != step.ExitInvalid {
				t.Errorf("exit code %d: %v", step.ExitCode(err), err)
			}
			return
		}
		for name, replacement := range frontends {
			host, _, _ := strings.Cut(replacement, "/")
			if name == "" || frontendName(name) == "" || replacement != Builtin && !strings.Contains(host, ":") {
				t.Errorf("%q gave %q=%q", s, name, replacement)
			}
		}
	})
}

func TestFrontendName(t *testing.T) {
	for ref, want := range map[string]string{
		"docker/dockerfile": "docker/dockerfile", "docker/dockerfile:1.7": "docker/dockerfile", "docker/dockerfile:1@sha256:aa": "docker/dockerfile",
		"docker.io/docker/dockerfile:1": "docker/dockerfile", "index.docker.io/docker/dockerfile": "docker/dockerfile",
		"registry:80/docker/dockerfile": "registry:80/docker/dockerfile", "registry:80/a:1": "registry:80/a", "a": "a", "": "",
		"evil.invalid/docker.io/docker/dockerfile": "evil.invalid/docker.io/docker/dockerfile",
	} {
		if got := frontendName(ref); got != want {
			t.Errorf("%q: %q, want %q", ref, got, want)
		}
	}
}

// No spelling of one name is that of another one.
func FuzzFrontendName(f *testing.F) {
	f.Add("docker.io/docker/dockerfile:1@sha256:aa")
	f.Add("registry:80/a")
	f.Add("a@b:c/d")
	f.Fuzz(func(t *testing.T, ref string) {
		name := frontendName(ref)
		if strings.Contains(name, "@") || !strings.Contains(ref, name) {
			t.Errorf("%q became %q", ref, name)
		}
		if strings.HasPrefix(ref, "docker.io/") || strings.HasPrefix(ref, "index.docker.io/") || strings.HasPrefix(ref, "registry-1.docker.io/") {
			return
		}
		if !strings.HasPrefix(ref, name) {
			t.Errorf("%q became %q", ref, name)
		}
	})
}

func TestParseSecrets(t *testing.T) {
	const form = "parsing the build secrets: want id=file, the id of letters, digits and ._- (the content is never given here)"
	checkParse(t, ParseSecrets, "netrc=/run/secrets/netrc, b.2=x=y", Secrets{"netrc": "/run/secrets/netrc", "b.2": "x=y"}, "")
	for _, input := range []string{"", "netrc", "netrc=", "=x", "a b=x", "a=x,", ".a=x", strings.Repeat("a", 64) + "=x"} {
		checkParse(t, ParseSecrets, input, nil, form)
	}
	checkParse(t, ParseSecrets, "a=x,a=y", nil, `parsing the build secrets: the id "a" is given twice; keep one`)
}

func FuzzParseSecrets(f *testing.F) {
	f.Add("netrc=/run/secrets/netrc,b=c")
	f.Fuzz(func(t *testing.T, s string) {
		secrets, err := ParseSecrets(s)
		if err != nil {
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("what was given is shown: %v", err)
			}
			return
		}
		for id, file := range secrets {
			if !secretID.MatchString(id) || file == "" || !strings.Contains(s, id+"="+file) {
				t.Errorf("%q gave %q=%q", s, id, file)
			}
		}
	})
}

func TestConfidential(t *testing.T) {
	got := confidential("{\n  \"user\": \"ada\",\n  \"token\": \"0123456789abcdef\"\n}\nab\n\nplain-password\r\n")
	want := []string{`"token": "0123456789abcdef"`, "0123456789abcdef", `"user": "ada",`, "plain-password"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// However the output is cut into pieces, nothing of it is lost and no secret
// comes through.
func FuzzHeld(f *testing.F) {
	f.Add("first\nhunter2 and hunter2\rlast hunter2", uint8(3), true)
	f.Add("hunter2", uint8(1), false)
	f.Fuzz(func(t *testing.T, output string, size uint8, ends bool) {
		const secret = "hunter2"
		redact := func(s string) string { return strings.ReplaceAll(s, secret, "***") }
		held, shown := held{}, new(bytes.Buffer)
		show := func(status *client.SolveStatus) {
			clean(status, redact)
			for _, l := range status.Logs {
				shown.Write(l.Data)
			}
		}
		step := digest.FromString("step")
		for rest := []byte(output); len(rest) > 0; {
			n := min(int(size)+1, len(rest))
			status := &client.SolveStatus{Logs: []*client.VertexLog{{Vertex: step, Data: rest[:n]}}}
			held.complete(status)
			show(status)
			rest = rest[n:]
		}
		if ends {
			now := time.Now()
			status := &client.SolveStatus{Vertexes: []*client.Vertex{{Digest: step, Completed: &now}}}
			held.complete(status)
			show(status)
		}
		show(held.rest())
		if want := redact(output); shown.String() != want {
			t.Errorf("shown %q, want %q", shown, want)
		}
	})
}
