// Package commitstatus shows, on the commit in Gitea, what a run of the chain makes
// of it, and says in the end how the run went.
//
// A commit has the context "fabrique" for the run as a whole and "fabrique/APP" for
// each app that was due. The state is pending, success (with the digest), failure
// (with the reason) or, for what a newer commit superseded and what a person holds,
// skipped: Gitea has no state for these, and counts this one as no failure.
//
// Guarantees:
//   - A status that says so already is not written again.
//   - A success is replaced only by what happened to the same app at the same
//     commit later: neither by "superseded" nor by "nothing to build".
//   - What stands there as pending is settled by the next run of the same commit that
//     finds the app no longer due.
//   - A run for one app says nothing of the commit as a whole.
package commitstatus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"fabrique/steps/gitea"
	"fabrique/steps/gitref"
	"fabrique/steps/step"
	"fabrique/workflows/run"
)

// Context is that of the whole commit; an app's is "fabrique/APP".
const Context = "fabrique"

// Options says what to report and where.
type Options struct {
	Run    run.Run
	End    bool // the run's steps are over: nothing is pending any more
	Client *gitea.Client
	Source gitea.Repository
	// Link is the address that shows Workflows, as of an Argo server:
	// "https://argo.example". Empty for none.
	Link string
}

// Reported is one status and what was done about it.
type Reported struct {
	Context     string `json:"context"`
	State       string `json:"state"`
	Description string `json:"description"`
	Result      string `json:"result"` // created or unchanged
}

// Result is the step's result.
type Result struct {
	Revision gitref.Revision `json:"revision"` // empty when none is known
	Outcome  run.Outcome     `json:"outcome"`
	Reason   string          `json:"reason"`
	Statuses []Reported      `json:"statuses"`
}

// Report writes the statuses. At the end the error is the run's failure, with its
// exit code, so that it becomes the Workflow's message; else errors are those of
// Gitea. A commit that Gitea does not have gets no status.
func Report(ctx context.Context, log *slog.Logger, o Options) (Result, error) {
	verdict := o.Run.Verdict(o.End)
	result := Result{Outcome: verdict.Outcome, Reason: verdict.Text, Statuses: []Reported{}}
	var err error
	if o.Run.Revision != "" {
		if result.Revision, err = gitref.ParseRevision(o.Run.Revision); err == nil {
			result.Statuses, err = write(ctx, log, o, result.Revision)
		}
	}
	if errors.Is(err, gitea.ErrNotFound) {
		exists, _, otherErr := o.Client.Exists(ctx, o.Source)
		switch {
		case otherErr != nil:
			err = otherErr
		case exists:
			log.Warn("the commit gets no status", "because", err.Error())
			err = nil
		default:
			err = step.Invalidf("writing statuses: the repository %s does not exist, or the token's user may not see it; let the bot in as a collaborator who may write", o.Source)
		}
	}
	if o.End && verdict.Outcome == run.Failure {
		failed := step.WithCode(verdict.ExitCode, errors.New(verdict.Text))
		if err != nil {
			return result, step.WithCode(verdict.ExitCode, fmt.Errorf("%w; and the commit's status could not be written: %w", failed, err))
		}
		return result, failed
	}
	return result, err
}

func write(ctx context.Context, log *slog.Logger, o Options, commit gitref.Revision) ([]Reported, error) {
	var there map[string]gitea.Status
	if err := again(ctx, log, func() (err error) {
		there, err = o.Client.Statuses(ctx, o.Source, commit)
		return err
	}); err != nil {
		return []Reported{}, err
	}
	reported := []Reported{}
	for _, s := range wanted(o.Run, o.End, there) {
		if o.Link != "" {
			s.Link = o.Link + "/workflows/" + o.Run.Namespace + "/" + o.Run.Name
		}
		did := Reported{s.Context, s.State, s.Description, "created"}
		if now, ok := there[s.Context]; ok && now.State == s.State && now.Description == s.Description {
			did.Result = "unchanged"
		} else if err := again(ctx, log, func() error { return o.Client.SetStatus(ctx, o.Source, commit, s) }); err != nil {
			return reported, err
		}
		log.Info(did.Result, "context", s.Context, "state", s.State, "description", s.Description)
		reported = append(reported, did)
	}
	return reported, nil
}

// wanted gives the statuses that a run calls for, given those that are there.
func wanted(r run.Run, end bool, there map[string]gitea.Status) []gitea.Status {
	verdicts := map[string]run.Verdict{}
	if r.Only == "" {
		verdicts[Context] = r.Verdict(end)
	}
	for _, a := range r.Apps {
		verdicts[Context+"/"+a.App] = a.Verdict(end)
	}
	for _, b := range r.Broken {
		if b.App != "" {
			verdicts[Context+"/"+b.App] = run.Verdict{Outcome: run.Failure, Text: b.Record + ": " + b.Error}
		}
	}
	// What an earlier run of this commit left behind.
	for name, s := range there {
		_, spoken := verdicts[name]
		if app, ours := strings.CutPrefix(name, Context+"/"); !ours || spoken || s.State == states[run.Success] || !end || r.Only != "" && r.Only != app || r.Plan.State != run.Succeeded {
			continue
		}
		switch {
		case r.Superseded:
			verdicts[name] = run.Verdict{Outcome: run.Superseded, Text: "superseded by " + r.Head}
		case s.State == states[run.Pending]:
			// Deployed by another run, held, or gone: which, this run did not ask.
			verdicts[name] = run.Verdict{Outcome: run.Held, Text: "not due any more"}
		}
	}
	var all []gitea.Status
	for name, v := range verdicts {
		succeeded := there[name].State == states[run.Success]
		nothing := name == Context && len(r.Apps) == 0 && v.Outcome == run.Success
		if succeeded && (v.Outcome == run.Superseded || nothing) {
			continue
		}
		all = append(all, gitea.Status{Context: name, State: states[v.Outcome], Description: line(v.Text)})
	}
	slices.SortFunc(all, func(a, b gitea.Status) int { return strings.Compare(a.Context, b.Context) })
	return all
}

// states are Gitea's words.
var states = map[run.Outcome]string{run.Pending: "pending", run.Success: "success", run.Failure: "failure", run.Superseded: "skipped", run.Held: "skipped"}

// maxDescription bounds what stands on the commit's page, in bytes. The rest is in
// the Workflow.
const maxDescription = 1000

// line makes one line of a text. Of one that is too long the middle goes: the end
// has the last lines of a failed build.
func line(text string) string {
	text = strings.Join(strings.FieldsFunc(step.Printable(text), func(r rune) bool { return r == '\n' || r == '\t' }), " | ")
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxDescription {
		const cut = " … "
		half := (maxDescription - len(cut)) / 2
		text = strings.ToValidUTF8(text[:half], "") + cut + strings.ToValidUTF8(text[len(text)-half:], "")
	}
	return text
}

// again calls a request until ctx ends while a retry may mend it: the report is the
// last step of a run, and no other comes after it.
func again(ctx context.Context, log *slog.Logger, call func() error) error {
	pause := time.Second
	for {
		err := call()
		if err == nil || step.ExitCode(err) != step.ExitRetry || ctx.Err() != nil {
			return err
		}
		log.Warn("trying again", "pause", pause, "because", err.Error())
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause = min(2*pause, 15*time.Second)
	}
}
