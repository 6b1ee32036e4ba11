package action_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fabrique/bench/action"
)

var errBroken = errors.New("it is broken")

// run runs the actions in a new folder for logs, and gives what a person sees with
// the times and that folder's name taken out.
func run(t *testing.T, ctx context.Context, actions ...action.Action) (changed int, seen string, logs string, err error) {
	t.Helper()
	logs = filepath.Join(t.TempDir(), "log")
	var progress bytes.Buffer
	changed, err = action.Run(ctx, &progress, logs, actions...)
	return changed, regexp.MustCompile(`[0-9.]+m?s\b`).ReplaceAllString(progress.String(), "TIME"), logs, err
}

// plain is an action that writes a line, and ends as told.
func plain(name string, changed bool, err error) action.Action {
	return action.Action{Name: name, Do: func(_ context.Context, log io.Writer) (bool, error) {
		fmt.Fprintln(log, name, "said this")
		return changed, err
	}}
}

func TestRun(t *testing.T) {
	for _, test := range []struct {
		name    string
		actions []action.Action
		changed int
		seen    string
		err     string // with LOGS for the folder
		logs    map[string]string
	}{
		{
			name: "nothing to do",
			logs: map[string]string{},
		},
		{
			name:    "in order, with a count of changes",
			actions: []action.Action{plain("b", true, nil), plain("a", false, nil), plain("two words", true, nil)},
			changed: 2,
			seen: "b                          TIME\n" +
				"a                          unchanged (TIME)\n" +
				"two words                  TIME\n",
			logs: map[string]string{
				"b.log":         "# WHEN b\nb said this\n",
				"a.log":         "# WHEN a\na said this\n",
				"two-words.log": "# WHEN two words\ntwo words said this\n",
			},
		},
		{
			name:    "the first failure ends it and shows the action's own log",
			actions: []action.Action{plain("a", true, nil), plain("b", true, errBroken), plain("c", true, nil)},
			changed: 2,
			seen: "a                          TIME\n" +
				"b                          FAILED after TIME\n",
			err: "b: it is broken\n    # WHEN b\n    b said this\n    failed: it is broken\nsee more: less LOGS/b.log",
			logs: map[string]string{
				"a.log": "# WHEN a\na said this\n",
				"b.log": "# WHEN b\nb said this\nfailed: it is broken\n",
			},
		},
		{
			name: "a failure that brings a component's words and its file",
			actions: []action.Action{plain("b", false, fmt.Errorf("waiting: %w",
				&action.Failure{Err: errBroken, Lines: "one\ntwo\n", More: "/its own/etcd.log"}))},
			seen: "b                          FAILED after TIME\n",
			err:  "b: waiting: it is broken\n    one\n    two\nsee more: less '/its own/etcd.log'",
			logs: map[string]string{
				"b.log": "# WHEN b\nb said this\nfailed: waiting: it is broken\n    one\n    two\nsee more: less '/its own/etcd.log'\n",
			},
		},
		{
			name:    "a failure that brings words only",
			actions: []action.Action{plain("b", false, &action.Failure{Err: errBroken, Lines: "one"})},
			seen:    "b                          FAILED after TIME\n",
			err:     "b: it is broken\n    one\nsee more: less LOGS/b.log",
			logs: map[string]string{
				"b.log": "# WHEN b\nb said this\nfailed: it is broken\n    one\nsee more: less LOGS/b.log\n",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			changed, seen, logs, err := run(t, t.Context(), test.actions...)
			when := regexp.MustCompile(`# \S+T\S+ `)
			stable := func(text string) string {
				return when.ReplaceAllString(strings.ReplaceAll(text, logs, "LOGS"), "# WHEN ")
			}
			got := ""
			if err != nil {
				got = stable(err.Error())
				if !errors.Is(err, errBroken) {
					t.Errorf("%v hides its cause", err)
				}
			}
			kept := map[string]string{}
			files, readErr := os.ReadDir(logs)
			if readErr != nil {
				t.Fatal(readErr)
			}
			for _, f := range files {
				text, err := os.ReadFile(filepath.Join(logs, f.Name()))
				if err != nil {
					t.Fatal(err)
				}
				kept[f.Name()] = stable(string(text))
			}
			if changed != test.changed {
				t.Errorf("%d actions changed something, want %d", changed, test.changed)
			}
			for what, pair := range map[string][2]any{"progress": {test.seen, seen}, "error": {test.err, got}, "logs": {test.logs, kept}} {
				if diff := cmp.Diff(pair[0], pair[1]); diff != "" {
					t.Errorf("%s: -want +got\n%s", what, diff)
				}
			}
		})
	}
}

// One failure does not keep the others from running.
func TestAll(t *testing.T) {
	other := errors.New("another")
	var progress bytes.Buffer
	changed, err := action.All(t.Context(), &progress, t.TempDir(), plain("a", true, errBroken), plain("b", true, nil), plain("c", false, other))
	if changed != 2 || !errors.Is(err, errBroken) || !errors.Is(err, other) {
		t.Errorf("changed %d, %v", changed, err)
	}
	if strings.Count(progress.String(), "\n") != 3 {
		t.Errorf("progress is\n%s", progress.String())
	}
	if changed, err := action.All(t.Context(), io.Discard, t.TempDir(), plain("a", true, nil)); changed != 1 || err != nil {
		t.Errorf("without a failure: changed %d, %v", changed, err)
	}
}

// Of a long log the end is shown; a log of an earlier run stays.
func TestFailureShowsTheEnd(t *testing.T) {
	logs := t.TempDir()
	if err := os.WriteFile(filepath.Join(logs, "long.log"), []byte("an earlier run\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := action.Run(t.Context(), io.Discard, logs, action.Action{Name: "long", Do: func(_ context.Context, log io.Writer) (bool, error) {
		for i := range 100 {
			fmt.Fprintln(log, "line", i)
		}
		return false, errBroken
	}})
	var shown *action.Failure
	if !errors.As(err, &shown) {
		t.Fatalf("%v is no Failure", err)
	}
	lines := strings.Split(shown.Lines, "\n")
	if len(lines) != action.LogLines || lines[0] != "line 86" || lines[len(lines)-1] != "failed: it is broken" {
		t.Errorf("it shows %q", lines)
	}
	text, err := os.ReadFile(filepath.Join(logs, "long.log"))
	if err != nil || !strings.HasPrefix(string(text), "an earlier run\n# ") {
		t.Errorf("the log begins with %.40q, %v", text, err)
	}
}

// Whoever interrupts a run is not shown a log, and nothing further begins.
func TestCancelledRun(t *testing.T) {
	interrupt := errors.New("interrupted")
	for _, test := range []struct {
		name string
		do   func(ctx context.Context, cancel func()) (bool, error)
		seen string
	}{
		{"an action that heeds it", func(ctx context.Context, cancel func()) (bool, error) {
			cancel()
			<-ctx.Done()
			return false, context.Cause(ctx)
		}, "first                      FAILED after TIME\n"},
		{"an action that ends nevertheless", func(_ context.Context, cancel func()) (bool, error) {
			cancel()
			return true, nil
		}, "first                      TIME\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			_, seen, _, err := run(t, ctx,
				action.Action{Name: "first", Do: func(ctx context.Context, _ io.Writer) (bool, error) {
					return test.do(ctx, func() { cancel(interrupt) })
				}},
				plain("second", true, nil))
			if !errors.Is(err, interrupt) || strings.Contains(err.Error(), "less") {
				t.Errorf("the error is %v", err)
			}
			if diff := cmp.Diff(test.seen, seen); diff != "" {
				t.Errorf("progress: -want +got\n%s", diff)
			}
		})
	}
}

func TestTail(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, []byte("one\ntwo\nthree\n\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for lines, want := range map[int]string{1: "three", 2: "two\nthree", 9: "one\ntwo\nthree"} {
		if got := action.Tail(file, lines); got != want {
			t.Errorf("the last %d lines are %q, want %q", lines, got, want)
		}
	}
	if got := action.Tail(file+".gone", 1); !strings.Contains(got, "no such file") {
		t.Errorf("of a file that is not there: %q", got)
	}
}

func TestPoll(t *testing.T) {
	const short = 500 * time.Millisecond
	interrupt := errors.New("interrupted")
	for _, test := range []struct {
		name  string
		limit time.Duration
		probe func(ctx context.Context, call int, cancel func()) error
		calls int // 0 for any number
		is    error
		text  string
	}{
		{"at once", short, func(context.Context, int, func()) error { return nil }, 1, nil, ""},
		{"the third time", 10 * time.Second, func(_ context.Context, call int, _ func()) error {
			if call < 3 {
				return errBroken
			}
			return nil
		}, 3, nil, ""},
		{"final", time.Minute, func(_ context.Context, call int, _ func()) error {
			if call < 2 {
				return errors.New("not yet")
			}
			return fmt.Errorf("looking: %w", &action.Final{Err: errBroken})
		}, 2, errBroken, "looking: it is broken"},
		{"never", short, func(context.Context, int, func()) error { return errBroken }, 0, errBroken, "not so after 500ms: it is broken"},
		{"the deadline cuts a probe off", short, func(ctx context.Context, call int, _ func()) error {
			if call < 2 {
				return errBroken
			}
			<-ctx.Done()
			return ctx.Err()
		}, 2, errBroken, "not so after 500ms: it is broken"},
		{"the deadline cuts the first probe off", short, func(ctx context.Context, _ int, _ func()) error {
			<-ctx.Done()
			return ctx.Err()
		}, 1, context.DeadlineExceeded, "not so after 500ms: context deadline exceeded"},
		{"cancelled", time.Minute, func(_ context.Context, call int, cancel func()) error {
			if call == 2 {
				cancel()
			}
			return errBroken
		}, 2, interrupt, "interrupted"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			calls := 0
			err := action.Poll(ctx, test.limit, func(ctx context.Context) error {
				calls++
				return test.probe(ctx, calls, func() { cancel(interrupt) })
			})
			if text := fmt.Sprint(err); !errors.Is(err, test.is) || (err != nil && text != test.text) {
				t.Errorf("got %v, want %q", err, test.text)
			}
			if test.calls != 0 && calls != test.calls {
				t.Errorf("%d calls, want %d", calls, test.calls)
			}
		})
	}
}
