// Package seed brings Gitea and the cluster from empty to what the factory needs
// (adr-0095 §3, §4): repositories, users with their rights and tokens, the webhook,
// the branch protections, and Secrets.
//
// Guarantees:
//
//   - State is compared. Everything is an [Item] that can say what differs without
//     changing anything, and mend exactly that. A second run changes nothing.
//   - Killed at any moment and run again, it ends in the same state, with one
//     webhook and one token for each bot.
//   - One item's failure does not stop those after it.
//   - Nothing that people made is lost: no repository is removed or turned into
//     something else, other webhooks, tokens and keys of a Secret stay.
//   - Tokens and passwords go from Gitea into Secrets and from Secret to Secret. They
//     are in no report, difference, error or log.
//
// Two runs at once may each make what the other just made; a third run mends it.
package seed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"fabrique/steps/step"
)

// Item is one thing that has a wanted state.
type Item interface {
	// Name says what it is: a kind, and which.
	Name() string
	// Check compares and changes nothing. What cannot be made yet, as its parts
	// are not there, is an error with [ErrMissing].
	Check(context.Context) (State, error)
	// Mend brings it to the wanted state from any other.
	Mend(context.Context) error
}

// State is what [Item.Check] found.
type State struct {
	Exists bool
	Diff   []string // what differs, in words, without secrets
}

func (s State) ready() bool { return s.Exists && len(s.Diff) == 0 }

// absent is the state of what is not there at all.
var absent = State{}

// ErrMissing is in the chain of an error about something that others make.
var ErrMissing = errors.New("missing")

// Results of an item. In a check, Created and Updated are what a run would do.
const (
	Created   = "created"
	Updated   = "updated"
	Unchanged = "unchanged"
	Missing   = "missing" // others make what it is made of; run it again then
	Failed    = "failed"
)

// Outcome is what became of one item.
type Outcome struct {
	Item     string   `json:"item"`
	Result   string   `json:"result"`
	Diff     []string `json:"diff,omitempty"` // what differed
	Error    string   `json:"error,omitempty"`
	ExitCode int      `json:"exitCode,omitempty"`
}

// Report is the outcome of a run.
type Report struct {
	Check   bool      `json:"check"`
	Changed bool      `json:"changed"` // or would be, in a check
	Changes int       `json:"changes"`
	Items   []Outcome `json:"items"`
}

// itemTimeout bounds one item; a mirror's first pull is the longest of them.
const itemTimeout = 15 * time.Minute

// patience is how long a run pauses in all to try again what failed and may be mended
// by that: Gitea goes on with requests of a run that was killed, and what they leave
// may come and go for a moment.
const patience = 20 * time.Second

// Run takes the items in their order and tells report of each. In a check nothing is
// changed. The error joins those of the items: exit code 1 when a retry may mend one of
// them, else 2; after a check that finds a difference and no error, 4.
func Run(ctx context.Context, log *slog.Logger, items []Item, check bool, report func(Outcome)) (Report, error) {
	r := Report{Check: check, Items: []Outcome{}}
	var errs []error
	code := step.ExitOK
	left := patience
	for _, item := range items {
		if ctx.Err() != nil {
			return r, step.Retryf("seeding: ended before %q: %w", item.Name(), context.Cause(ctx))
		}
		outcome, err := one(ctx, item, check)
		for pause := time.Second; pause <= left && outcome.Result == Failed && step.ExitCode(err) == step.ExitRetry && ctx.Err() == nil; pause *= 2 {
			log.Warn("trying again", "item", item.Name(), "pause", pause, "because", err.Error())
			left -= pause
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			outcome, err = one(ctx, item, check)
		}
		if err != nil {
			outcome.Error, outcome.ExitCode = step.Printable(err.Error()), step.ExitCode(err)
			if code != step.ExitRetry {
				code = outcome.ExitCode
			}
			errs = append(errs, fmt.Errorf("%s: %w", item.Name(), err))
		}
		if outcome.Result == Created || outcome.Result == Updated {
			r.Changed = true
			r.Changes++
		}
		r.Items = append(r.Items, outcome)
		report(outcome)
		log.Info(outcome.Result, "item", outcome.Item, "diff", strings.Join(outcome.Diff, "; "))
	}
	switch {
	case len(errs) > 0:
		return r, step.WithCode(code, errors.Join(errs...))
	case check && r.Changed:
		return r, step.WithCode(step.ExitDrift, fmt.Errorf("seeding: %d of %d differ; fabrique seed mends them", r.Changes, len(items)))
	}
	return r, nil
}

func one(ctx context.Context, item Item, check bool) (Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, itemTimeout)
	defer cancel()
	o := Outcome{Item: item.Name(), Result: Unchanged}
	fail := func(err error) (Outcome, error) {
		o.Result = Failed
		if errors.Is(err, ErrMissing) {
			o.Result = Missing
		}
		return o, step.WithCause(ctx, err)
	}
	state, err := item.Check(ctx)
	if err != nil {
		return fail(err)
	}
	o.Diff = state.Diff
	if state.ready() {
		return o, nil
	}
	o.Result = Updated
	if !state.Exists {
		o.Result = Created
	}
	if check {
		return o, nil
	}
	if err := item.Mend(ctx); err != nil {
		return fail(err)
	}
	after, err := item.Check(ctx)
	if err != nil {
		return fail(err)
	}
	if !after.ready() {
		return fail(step.Invalidf("it was mended, and still differs (%s); something else changes it, or Gitea does not take it: look at it there", strings.Join(after.Diff, "; ")))
	}
	return o, nil
}
