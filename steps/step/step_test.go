package step_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"fabrique/steps/gitref"
	"fabrique/steps/step"
)

type result struct {
	Revision gitref.Revision `json:"revision"`
	Count    int             `json:"count"`
	Empty    string          `json:"empty"`
	List     []string        `json:"list"`
	Done     bool            `json:"done"`
}

const revision = "7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210"

// execute runs a step whose Run is given, with the parsed flags visible to it.
func execute(ctx context.Context, run func(context.Context, gitref.Revision, []gitref.Path) (result, error), args ...string) (code int, stdout, stderr string) {
	var rev gitref.Revision
	var paths []gitref.Path
	var out, errOut bytes.Buffer
	code = step.Execute(ctx, step.Spec[result]{
		Use: "sample-step", Short: "Sample", Long: "A sample.", Example: "  sample-step --revision X", Timeout: time.Minute,
		Required: []string{"revision"},
		Flags: func(f *pflag.FlagSet) {
			step.Var(f, &rev, "revision", "commit", gitref.ParseRevision)
			step.ListVar(f, &paths, "path", "paths", gitref.ParsePath)
		},
		Run: func(ctx context.Context, _ *slog.Logger) (result, error) { return run(ctx, rev, paths) },
	}, args, &out, &errOut)
	return code, out.String(), errOut.String()
}

func succeed(_ context.Context, r gitref.Revision, p []gitref.Path) (result, error) {
	return result{Revision: r, Count: len(p), List: []string{"a", "b"}, Done: true}, nil
}

func fail(err error) func(context.Context, gitref.Revision, []gitref.Path) (result, error) {
	return func(_ context.Context, r gitref.Revision, _ []gitref.Path) (result, error) {
		return result{Revision: r}, err
	}
}

func TestExitCodes(t *testing.T) {
	cause := errors.New("the cause")
	for _, c := range []struct {
		name string
		err  error
		want int
	}{
		{"done", nil, 0},
		{"plain error", cause, 1},
		{"invalid", step.Invalidf("parsing: %w", cause), 2},
		{"source", step.Sourcef("building: %w", cause), 3},
		{"wrapped keeps its code", fmt.Errorf("more: %w", step.Sourcef("building: %w", cause)), 3},
		{"joined keeps its code", errors.Join(step.Invalidf("first: %w", cause), cause), 2},
		{"outermost wins", step.Retryf("again: %w", step.Invalidf("parsing: %w", cause)), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, stdout, stderr := execute(t.Context(), fail(c.err), "--revision", revision)
			if code != c.want {
				t.Errorf("exit code %d, want %d", code, c.want)
			}
			if c.err == nil {
				return
			}
			if !errors.Is(c.err, cause) || stdout != "" || !strings.Contains(stderr, cause.Error()) {
				t.Errorf("stdout %q, stderr %q: want nothing and the cause", stdout, stderr)
			}
		})
	}
}

func TestFlags(t *testing.T) {
	for _, c := range []struct {
		name   string
		env    map[string]string
		args   []string
		code   int
		result string // the last line of stdout
		says   string // part of stderr
	}{
		{name: "flags", args: []string{"--revision", revision, "--path", "a", "--path", "b,"}, code: 2, says: "commas"},
		{name: "list", args: []string{"--revision", revision, "--path", "a", "--path", "b"}, result: `{"revision":"` + revision + `","count":2,"empty":"","list":["a","b"],"done":true}`},
		{name: "environment", env: map[string]string{"FABRIQUE_REVISION": revision, "FABRIQUE_PATH": "a,b,c"}, result: `{"revision":"` + revision + `","count":3,"empty":"","list":["a","b"],"done":true}`},
		{name: "flag beats environment", env: map[string]string{"FABRIQUE_REVISION": "bad"}, args: []string{"--revision", revision}, result: `{"revision":"` + revision + `","count":0,"empty":"","list":["a","b"],"done":true}`},
		{name: "bad environment", env: map[string]string{"FABRIQUE_REVISION": "main"}, code: 2, says: "FABRIQUE_REVISION"},
		{name: "bad flag", args: []string{"--revision", "main"}, code: 2, says: "full commit id"},
		{name: "missing", code: 2, says: "missing --revision"},
		{name: "unknown", args: []string{"--bogus"}, code: 2, says: "unknown flag"},
		{name: "argument", args: []string{"--revision", revision, "extra"}, code: 2, says: "extra"},
		{name: "bad timeout", args: []string{"--revision", revision, "--timeout", "-1s"}, code: 2, says: "positive"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			code, stdout, stderr := execute(t.Context(), succeed, c.args...)
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if diff := cmp.Diff(c.result, strings.TrimSpace(stdout)); diff != "" {
				t.Errorf("stdout (-want +got):\n%s", diff)
			}
			if !strings.Contains(stderr, c.says) {
				t.Errorf("stderr %q, want %q in it", stderr, c.says)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	code, stdout, _ := execute(t.Context(), succeed, "--help")
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"Exit codes:", "Examples:", "sample-step --revision X", "FABRIQUE_"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the help lacks %q:\n%s", want, stdout)
		}
	}
}

func TestOutputs(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want map[string]string
	}{
		{"success", nil, map[string]string{"revision": revision, "count": "0", "empty": "", "list": "null", "done": "false", "error": ""}},
		{"failure", step.Sourcef("building it"), map[string]string{"revision": revision, "count": "0", "empty": "", "list": "null", "done": "false", "error": "building it"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "deep", "outputs")
			execute(t.Context(), fail(c.err), "--revision", revision, "--outputs", dir)
			got := map[string]string{}
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
				if err != nil {
					t.Fatal(err)
				}
				got[e.Name()] = string(raw)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
	}
	for says, args := range map[string][]string{
		"full commit id": {"--revision", "main"},
		"unknown flag":   {"--bogus"},
		"missing":        {},
		"extra":          {"--revision", revision, "extra"},
	} {
		for _, form := range []func(string) []string{
			func(dir string) []string { return []string{"--outputs", dir} },
			func(dir string) []string { return []string{"--outputs=" + dir} },
			func(dir string) []string { t.Setenv("FABRIQUE_OUTPUTS", dir); return nil },
		} {
			dir := filepath.Join(t.TempDir(), "outputs")
			execute(t.Context(), succeed, append(args, form(dir)...)...)
			if raw, err := os.ReadFile(filepath.Join(dir, "error")); err != nil || !strings.Contains(string(raw), says) {
				t.Errorf("%v: the error file: %q, %v; want %q in it", args, raw, err, says)
			}
			os.Unsetenv("FABRIQUE_OUTPUTS")
		}
	}
}

func TestCutOff(t *testing.T) {
	wait := func(ctx context.Context, _ gitref.Revision, _ []gitref.Path) (result, error) {
		<-ctx.Done()
		return result{}, step.Sourcef("building: %w", ctx.Err())
	}
	t.Run("deadline", func(t *testing.T) {
		code, _, stderr := execute(t.Context(), wait, "--revision", revision, "--timeout", "20ms")
		if code != 1 || !strings.Contains(stderr, "the deadline of 20ms passed") {
			t.Errorf("exit code %d, stderr %q", code, stderr)
		}
	})
	t.Run("signal", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(20*time.Millisecond, func() { cancel(errors.New("terminated signal received")) })
		code, _, stderr := execute(ctx, wait, "--revision", revision)
		if code != 1 || !strings.Contains(stderr, "terminated signal received") {
			t.Errorf("exit code %d, stderr %q", code, stderr)
		}
	})
}

// With --every a failure ends nothing, a result is printed when it is a new one, and
// a signal is no failure; but a first round with exit code 2 is.
func TestEvery(t *testing.T) {
	run := func(rounds ...error) (code int, stdout, stderr string) {
		ctx, cancel := context.WithCancelCause(t.Context())
		var out, errOut bytes.Buffer
		n := 0
		code = step.Execute(ctx, step.Spec[result]{
			Use: "sample-step", Timeout: time.Minute, Repeats: true, Flags: func(*pflag.FlagSet) {},
			Run: func(context.Context, *slog.Logger) (result, error) {
				if n == len(rounds) {
					cancel(errors.New("terminated signal received"))
					return result{}, errors.New("cut off")
				}
				n++
				return result{Count: min(n, 3)}, rounds[n-1]
			},
		}, []string{"--every", "1s"}, &out, &errOut)
		return code, out.String(), errOut.String()
	}
	code, stdout, stderr := run(nil, step.Invalidf("parsing it"), nil, nil)
	if code != 0 || strings.Count(stdout, "\n") != 2 || !strings.Contains(stdout, `"count":1`) || !strings.Contains(stdout, `"count":3`) {
		t.Errorf("exit code %d, stdout %q", code, stdout)
	}
	if !strings.Contains(stderr, "parsing it") || !strings.Contains(stderr, "terminated signal received") || strings.Contains(stderr, "cut off") {
		t.Errorf("stderr %q", stderr)
	}
	if code, stdout, _ := run(step.Invalidf("parsing it")); code != 2 || stdout != "" {
		t.Errorf("a first round with exit code 2: %d, %q", code, stdout)
	}
	if code, _, stderr := execute(t.Context(), succeed, "--every", "1s"); code != 2 || !strings.Contains(stderr, "unknown flag") {
		t.Errorf("a step that does not repeat: %d, %s", code, stderr)
	}
}

func TestLogsAreJSONOffTerminal(t *testing.T) {
	_, _, stderr := execute(t.Context(), fail(step.Invalidf("parsing it")), "--revision", revision)
	var line struct {
		Level, Msg string
		ExitCode   int `json:"exit_code"`
	}
	if err := json.Unmarshal([]byte(stderr), &line); err != nil {
		t.Fatalf("%q: %v", stderr, err)
	}
	if line.Level != "ERROR" || line.Msg != "parsing it" || line.ExitCode != 2 {
		t.Errorf("got %+v", line)
	}
}

func TestPrintable(t *testing.T) {
	digest := "registry:80/citation:7222512345e2@sha256:" + strings.Repeat("0a", 32)
	for in, want := range map[string]string{
		"plain ünïcode\n\ttext":                     "plain ünïcode\n\ttext",
		"\x1b[2J\x1b]0;title\a and \u202e":          "\uFFFD[2J\uFFFD]0;title\uFFFD and \uFFFD",
		"a\rb\x00c\x7f":                             "a\uFFFDb\uFFFDc\uFFFD",
		"\xff\xfe":                                  "\uFFFD",
		"http://user:pass@host/x https://u@h":       "http://***@host/x https://***@h",
		`parsing "bob:hunter2@registry:80/x": want`: `parsing "***@registry:80/x": want`,
		"Ada <ada@bench.invalid>, " + digest:        "Ada <ada@bench.invalid>, " + digest,
	} {
		if got := step.Printable(in); got != want {
			t.Errorf("Printable(%q) = %q, want %q", in, got, want)
		}
	}
	long := "the beginning " + strings.Repeat("é", 1<<20) + " the end"
	got := step.Printable(long)
	if len(got) > 16<<10 || !strings.HasPrefix(got, "the beginning") || !strings.HasSuffix(got, "the end") {
		t.Errorf("a message of %d bytes became one of %d bytes: %.30q … %q", len(long), len(got), got, got[len(got)-10:])
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("http://user:pass@host \x1b[0m")
	f.Fuzz(func(t *testing.T, s string) {
		if got := step.Printable(s); len(got) > 16<<10 || strings.ContainsAny(got, "\x1b\r\x00\a") {
			t.Errorf("Printable(%q) = %q", s, got)
		}
	})
}

// Neither a log line nor an output holds what the caller's input smuggled in.
func TestHostileError(t *testing.T) {
	dir := t.TempDir()
	_, _, stderr := execute(t.Context(), fail(step.Sourcef("building: \x1b[31m http://user:hunter2@host and bob:hunter2@host")), "--revision", revision, "--outputs", dir)
	raw, err := os.ReadFile(filepath.Join(dir, "error"))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{stderr, string(raw)} {
		if strings.Contains(text, "hunter2") || strings.Contains(text, "\x1b") || strings.Contains(text, `\u001b`) {
			t.Errorf("it holds a password or an escape code: %q", text)
		}
	}
}
