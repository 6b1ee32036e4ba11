package writeback

import (
	"strings"
	"testing"
	"time"

	"fabrique/steps/gitea"
	"fabrique/steps/gitref"
	"fabrique/steps/record"
)

const (
	revisionA = gitref.Revision("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
	revisionB = gitref.Revision("bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb")
)

func key(digit string) gitref.SourceKey { return gitref.SourceKey(strings.Repeat(digit, 64)) }

func TestTrailers(t *testing.T) {
	full := state{"citation", revisionA, key("1")}
	message := "citation: deploy aaaaaaaaaaaa\n\n" + full.trailers()
	never := state{app: "citation"}
	for name, c := range map[string]struct {
		message string
		want    state
		ok      bool
	}{
		"ours":                  {message, full, true},
		"with more trailers":    {message + "Signed-off-by: someone\n", full, true},
		"Windows line ends":     {strings.ReplaceAll(message, "\n", "\r\n"), full, true},
		"a git revert":          {"Revert \"citation: deploy aaaaaaaaaaaa\"\n\nThis reverts commit 1234.\n", state{}, false},
		"quoted in a paragraph": {message + "\nI do not agree with the above.\n", state{}, false},
		"subject only":          {full.trailers(), state{}, false},
		"never deployed":        {"citation: hold: x\n\n" + never.trailers(), never, false},
		"broken revision":       {"x\n\nFabrique-App: citation\nFabrique-Revision: main\nFabrique-Source-Key: " + string(key("1")), state{app: "citation"}, false},
		"empty":                 {"", state{}, false},
	} {
		got, ok := parseTrailers(c.message)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
		if app, revision, ok := Deployed(c.message); ok != c.ok || ok && (app != c.want.app || revision != c.want.revision) {
			t.Errorf("%s: %q at %q, %v", name, app, revision, ok)
		}
	}
}

func TestNewest(t *testing.T) {
	history := []gitea.Commit{
		{ID: "5", Message: "a person's"},
		{ID: "4", Message: "other: x\n\n" + state{"other", revisionB, key("4")}.trailers()},
		{ID: "3", Message: "citation: x\n\n" + state{"citation", revisionA, key("3")}.trailers()},
		{ID: "2", Message: "citation: x\n\n" + state{"citation", revisionB, key("2")}.trailers()},
	}
	if got, ok := newest(history, "citation", nil); !ok || got.key != key("3") {
		t.Errorf("newest: %+v %v", got, ok)
	}
	if got, ok := newest(history, "citation", func(s state) bool { return s.key == key("2") }); !ok || got.revision != revisionB {
		t.Errorf("newest with the key: %+v %v", got, ok)
	}
	if _, ok := newest(history, "absent", nil); ok {
		t.Error("found a state of another app")
	}
}

func TestSettled(t *testing.T) {
	d := Deployment{Revision: revisionA, SourceKey: key("1"), Digest: "sha256:1"}
	for name, c := range map[string]struct {
		record  record.Record
		outcome string // empty: not settled
	}{
		"never built":             {record.Record{}, ""},
		"held":                    {record.Record{Hold: "because"}, Held},
		"held and the same":       {record.Record{Hold: "because", Revision: revisionA, SourceKey: key("1"), Digest: "sha256:1"}, Held},
		"rolled back":             {record.Record{Revision: revisionB, SourceKey: key("2"), RollbackOf: key("1")}, Held},
		"another rolled back":     {record.Record{Revision: revisionB, SourceKey: key("2"), RollbackOf: key("3")}, ""},
		"the same":                {record.Record{Revision: revisionA, SourceKey: key("1"), Digest: "sha256:1", TargetRevision: string(revisionA)}, Unchanged},
		"the same, other digest":  {record.Record{Revision: revisionA, SourceKey: key("1"), Digest: "sha256:2", TargetRevision: string(revisionA)}, Unchanged},
		"the same, other target":  {record.Record{Revision: revisionA, SourceKey: key("1"), Digest: "sha256:1", TargetRevision: "main"}, ""},
		"the same without digest": {record.Record{Revision: revisionA, SourceKey: key("1"), TargetRevision: string(revisionA)}, ""},
		"the same revision only":  {record.Record{Revision: revisionA, SourceKey: key("2"), Digest: "sha256:1"}, ""},
		"the same source only":    {record.Record{Revision: revisionB, SourceKey: key("1"), Digest: "sha256:1"}, ""},
	} {
		var p plan
		if got := settled(&p, c.record, d); got != (c.outcome != "") || p.outcome != c.outcome {
			t.Errorf("%s: %v %q", name, got, p.outcome)
		}
	}
}

func TestBackoff(t *testing.T) {
	within := func(pause, ceiling time.Duration) {
		t.Helper()
		if pause < ceiling/10 || pause > ceiling+ceiling/10 {
			t.Errorf("%s with a ceiling of %s", pause, ceiling)
		}
	}
	b := newBackoff(4 * time.Minute)
	for i := range 20 {
		within(b.next(0), min(firstPause<<(i+1), longestDoubling))
	}
	within(b.next(2*time.Second), 16*time.Second)
	within(b.next(time.Hour), time.Minute)
	within(newBackoff(0).next(time.Hour), firstPause)
}

func FuzzParseTrailers(f *testing.F) {
	f.Add("x\n\n" + state{"citation", revisionA, key("1")}.trailers())
	f.Add("Fabrique-App: a\n\n\nFabrique-Revision: b")
	f.Fuzz(func(t *testing.T, message string) {
		s, ok := parseTrailers(message)
		if !ok {
			return
		}
		again, ok := parseTrailers("x\n\n" + s.trailers())
		if !ok || again != s {
			t.Fatalf("%+v became %+v", s, again)
		}
	})
}
