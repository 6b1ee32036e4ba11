package build

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/buildkit/client"
	digest "github.com/opencontainers/go-digest"

	"fabrique/steps/secret"
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
			if _, err := secret.ParseID(id); err != nil || file == "" || !strings.Contains(s, id+"="+file) {
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
