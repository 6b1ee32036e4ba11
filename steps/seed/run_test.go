package seed

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"fabrique/steps/step"
)

// What a run says and ends with, whatever becomes of its items.
func TestRun(t *testing.T) {
	ready, differs := State{Exists: true}, State{true, []string{"a: 1, want 2"}}
	fine := func() *fake { return &fake{name: "fine", states: []State{ready}} }
	lost := func() *fake { return &fake{name: "lost", states: []State{absent, ready}} }
	other := func() *fake { return &fake{name: "other", states: []State{differs, ready}} }
	stubborn := func() *fake { return &fake{name: "stubborn", states: []State{differs}} }
	waits := func() *fake { return &fake{name: "waits", missing: true} }
	broken := func(err error) *fake { return &fake{name: "broken", states: []State{absent}, fails: err} }
	for name, c := range map[string]struct {
		items []Item
		check bool
		want  []string
		code  int
	}{
		"nothing":            {[]Item{fine()}, false, []string{"unchanged fine"}, 0},
		"nothing to find":    {[]Item{fine()}, true, []string{"unchanged fine"}, 0},
		"all":                {[]Item{lost(), other(), fine()}, false, []string{"created lost", "updated other", "unchanged fine"}, 0},
		"all is found":       {[]Item{lost(), other(), fine()}, true, []string{"created lost", "updated other", "unchanged fine"}, 4},
		"missing":            {[]Item{waits(), lost()}, false, []string{"missing waits", "created lost"}, 1},
		"missing in a check": {[]Item{waits(), lost()}, true, []string{"missing waits", "created lost"}, 1},
		"no retry mends it":  {[]Item{broken(step.Invalidf("a")), lost()}, false, []string{"failed broken", "created lost"}, 2},
		"a retry may":        {[]Item{broken(step.Invalidf("a")), broken(step.Retryf("b")), broken(step.Invalidf("c"))}, false, []string{"failed broken", "failed broken", "failed broken"}, 1},
		"a retry does":       {[]Item{&fake{name: "busy", states: []State{absent, absent, ready}, fails: step.Retryf("b"), once: true}}, false, []string{"created busy"}, 0},
		"it stays different": {[]Item{stubborn(), lost()}, false, []string{"failed stubborn", "created lost"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var said []string
			var report Report
			var err error
			synctest.Test(t, func(t *testing.T) {
				report, err = Run(t.Context(), slog.New(slog.DiscardHandler), c.items, c.check, func(o Outcome) { said = append(said, o.Result+" "+o.Item) })
			})
			if diff := cmp.Diff(c.want, said); diff != "" {
				t.Error(diff)
			}
			if got := step.ExitCode(err); got != c.code || len(report.Items) != len(c.items) {
				t.Errorf("exit code %d (%v), want %d; %d outcomes", got, err, c.code, len(report.Items))
			}
			for _, item := range c.items {
				if f := item.(*fake); c.check && f.mended > 0 {
					t.Errorf("a check mended %s", f.name)
				}
			}
		})
	}
}

// fake is an item without a world.
type fake struct {
	name    string
	states  []State // one for each check
	missing bool
	fails   error
	once    bool // it fails the first time only
	mended  int
}

func (f *fake) Name() string { return f.name }
func (f *fake) Check(context.Context) (State, error) {
	if f.missing {
		return absent, step.Retryf("it is %w", ErrMissing)
	}
	state := f.states[0]
	if len(f.states) > 1 {
		f.states = f.states[1:]
	}
	return state, nil
}
func (f *fake) Mend(context.Context) error {
	f.mended++
	if f.once && f.mended > 1 {
		return nil
	}
	return f.fails
}
