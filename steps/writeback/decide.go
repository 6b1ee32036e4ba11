package writeback

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"fabrique/steps/gitea"
	"fabrique/steps/gitref"
	"fabrique/steps/record"
	"fabrique/steps/step"
)

// planDeploy decides about a deployment. A normal update costs three requests
// before the write: the record, its history (at the same time) and the ancestry.
func (o Options) planDeploy(ctx context.Context, c current, d Deployment) (plan, error) {
	if !c.found {
		return o.planCreate(d)
	}
	r := c.record
	p := plan{base: c.file.Content}
	if settled(&p, r, d) {
		return p, nil
	}

	// The ancestry is asked while the history is still on its way.
	ancestry := sync.OnceValues(func() (string, error) { return o.older(ctx, r.Revision, d.Revision) })
	go ancestry()
	commits, err := c.history()
	if errors.Is(err, gitea.ErrNotFound) {
		// It was there a moment ago.
		err = step.Retryf("%w", err)
	}
	if err != nil {
		return plan{}, err
	}
	last, known := newest(commits, o.App, nil)
	if known && last == (state{o.App, r.Revision, r.SourceKey}) {
		known = false // nobody changed it since
	}
	if known && r.Revision == "" {
		// Either the first deployment was taken back, or the app was removed
		// and declared anew. Only the first is a rejection.
		anew, err := o.declaredAnew(ctx, commits)
		if err != nil {
			return plan{}, err
		}
		known = !anew
	}
	if p.reason, err = ancestry(); err != nil {
		return plan{}, err
	}
	if known && p.reason == "" && last.key == d.SourceKey {
		p.outcome = Held
		p.reason = fmt.Sprintf("a person took the record back from revision %s, which has this source; it is held until the source changes", last.revision.Short())
		p.change = record.Change{RollbackOf: &last.key}
		p.subject = fmt.Sprintf("hold back %s, as a person took it back", last.revision.Short())
		return p, nil
	}
	// What was rejected is a floor as well: nothing older comes back in its place.
	rejected, floored := last, known
	if r.RollbackOf != "" {
		rejected, floored = newest(commits, o.App, func(s state) bool { return s.key == r.RollbackOf })
	}
	if floored && p.reason == "" && rejected.revision != r.Revision {
		if p.reason, err = o.older(ctx, rejected.revision, d.Revision); err != nil {
			return plan{}, err
		}
	}
	if p.reason != "" {
		p.outcome = Stale
		return p, nil
	}
	p.deploy(d)
	p.outcome = Updated
	return p, nil
}

// settled decides what the record alone settles.
func settled(p *plan, r record.Record, d Deployment) bool {
	switch {
	case r.Hold != "":
		p.outcome, p.reason = Held, r.Hold
	case r.RollbackOf == d.SourceKey:
		p.outcome, p.reason = Held, "this source was rolled back; it is held until the source changes"
	case r.Revision == d.Revision && r.SourceKey == d.SourceKey && r.Digest != "" && r.TargetRevision == string(d.Revision):
		p.outcome, p.reason = Unchanged, "the record has this revision and source already"
		if r.Digest != d.Digest {
			p.reason += ", with the digest of another build; it stays as it is"
		}
	default:
		return false
	}
	return true
}

func (o Options) planCreate(d Deployment) (plan, error) {
	r, err := o.find(d.CreateFrom)
	if err != nil {
		return plan{}, fmt.Errorf("reading the manifest of --create-from: %w", err)
	}
	p := plan{base: d.CreateFrom, outcome: Created}
	if r.Hold != "" {
		p.outcome, p.reason = Held, r.Hold
		return p, nil
	}
	p.deploy(d)
	return p, nil
}

// deploy makes the plan write the deployment and end a rollback.
func (p *plan) deploy(d Deployment) {
	p.change.Deploy = &record.Deployment{Revision: d.Revision, SourceKey: d.SourceKey, Repository: d.Repository, Digest: d.Digest}
	none := gitref.SourceKey("")
	p.change.RollbackOf = &none
	p.subject = "deploy " + d.Revision.Short()
}

func (o Options) planRollback(ctx context.Context, c current, d Deployment) (plan, error) {
	r := c.record
	p := plan{base: c.file.Content, outcome: Updated}
	if r.Hold != "" {
		p.outcome, p.reason = Held, r.Hold
		return p, nil
	}
	if r.Revision == d.Revision && r.SourceKey == d.SourceKey && r.RollbackOf != "" {
		p.outcome, p.reason = Unchanged, "the record is rolled back to this revision already"
		return p, nil
	}
	rejected := r.SourceKey
	if r.RollbackOf != "" {
		rejected = r.RollbackOf
	}
	switch {
	case rejected == "":
		return plan{}, step.Invalidf("rolling back the app %q: it was never deployed, so there is nothing to go back from", o.App)
	case rejected == d.SourceKey:
		return plan{}, step.Invalidf("rolling back the app %q to %s: that revision has the same source as the one to leave; name an older one whose source differs", o.App, d.Revision.Short())
	}
	if err := o.checkTarget(ctx, r, d.Revision); err != nil {
		return plan{}, err
	}
	p.deploy(d)
	p.change.RollbackOf = &rejected
	p.subject = "roll back to " + d.Revision.Short()
	p.reason = "rolled back; it is held there until the source changes"
	return p, nil
}

// checkTarget wants the revision to be on the source branch and older than what
// is deployed. Between two rollbacks it may also be newer: it is still older than
// what was left first, which has another source.
func (o Options) checkTarget(ctx context.Context, r record.Record, to gitref.Revision) error {
	on, err := o.onBranch(ctx, to)
	if errors.Is(err, gitea.ErrNotFound) {
		return o.explain(ctx, to)
	}
	if err != nil {
		return err
	}
	if !on {
		return step.Invalidf("rolling back the app %q to %s: that revision is not on %s; name one that is", o.App, to.Short(), o.SourceBranch)
	}
	if r.RollbackOf != "" {
		return nil
	}
	ahead, err := o.Reader.Ahead(ctx, o.Source, string(r.Revision), string(to))
	switch {
	case errors.Is(err, gitea.ErrNoBase): // a force push dropped what is deployed
		return nil
	case err != nil:
		return err
	case ahead == 0:
		return nil
	}
	deployed, err := o.onBranch(ctx, r.Revision)
	if err != nil && !errors.Is(err, gitea.ErrNotFound) {
		return err
	}
	if deployed {
		return step.Invalidf("rolling back the app %q to %s: that revision is not older than the deployed %s; \"fabrique build\" goes forward", o.App, to.Short(), r.Revision.Short())
	}
	return nil
}

func planHold(c current, reason string) plan {
	p := plan{base: c.file.Content, outcome: Updated, reason: reason}
	if c.record.Hold == reason {
		p.outcome = Unchanged
		return p
	}
	p.change.Hold = &reason
	p.subject = "hold: " + reason
	p.unstated = true
	return p
}

func planRelease(c current) plan {
	p := plan{base: c.file.Content, outcome: Updated}
	if c.record.Hold == "" && c.record.RollbackOf == "" {
		p.outcome, p.reason = Unchanged, "nothing holds it"
		return p
	}
	noHold, noKey := "", gitref.SourceKey("")
	p.change.Hold, p.change.RollbackOf = &noHold, &noKey
	p.subject = "release"
	return p
}

// older says why next must not replace recorded, or "" if it may: recorded is
// an ancestor of next or, after a force push, only next is on the branch.
func (o Options) older(ctx context.Context, recorded, next gitref.Revision) (reason string, err error) {
	if recorded == "" || recorded == next {
		return "", nil
	}
	ahead, err := o.Reader.Ahead(ctx, o.Source, string(next), string(recorded))
	gone := errors.Is(err, gitea.ErrNotFound)
	switch {
	case errors.Is(err, gitea.ErrNoBase):
		return "", o.noRevision(next)
	case err != nil && !gone:
		return "", err
	case err == nil && ahead == 0:
		return "", nil
	}
	if !gone {
		on, err := o.onBranch(ctx, recorded)
		if err != nil {
			return "", err
		}
		if on {
			return fmt.Sprintf("the record is at %s, which is on %s and not an ancestor of %s", recorded.Short(), o.SourceBranch, next.Short()), nil
		}
	}
	on, err := o.onBranch(ctx, next)
	if errors.Is(err, gitea.ErrNotFound) {
		return "", o.explain(ctx, next)
	}
	if err != nil {
		return "", err
	}
	if !on {
		return fmt.Sprintf("neither the recorded %s nor %s is on %s any more", recorded.Short(), next.Short(), o.SourceBranch), nil
	}
	return "", nil
}

// onBranch reports whether the source branch has the revision.
func (o Options) onBranch(ctx context.Context, revision gitref.Revision) (bool, error) {
	ahead, err := o.Reader.Ahead(ctx, o.Source, o.SourceBranch.Ref(), string(revision))
	if errors.Is(err, gitea.ErrNoBase) {
		return false, step.Invalidf("looking for the revision %s in %s: the branch %q does not exist; push it or correct --source-branch", revision.Short(), o.Source, o.SourceBranch)
	}
	return ahead == 0, err
}

func (o Options) noRevision(revision gitref.Revision) error {
	return step.Invalidf("looking for the revision %s in %s: it does not exist there; push it first, or correct --revision or --source-repository", revision.Short(), o.Source)
}

// explain says whether the revision or the whole repository is missing.
func (o Options) explain(ctx context.Context, revision gitref.Revision) error {
	exists, _, err := o.Reader.Exists(ctx, o.Source)
	if err != nil {
		return err
	}
	if !exists {
		return step.Invalidf("looking for the revision %s: the source repository %s does not exist, or the reader may not see it; correct --source-repository or add the reader as a collaborator", revision.Short(), o.Source)
	}
	return o.noRevision(revision)
}

// state is what a commit's trailers say of the record after it.
type state struct {
	app      string
	revision gitref.Revision
	key      gitref.SourceKey
}

const (
	trailerApp       = "Fabrique-App: "
	trailerRevision  = "Fabrique-Revision: "
	trailerSourceKey = "Fabrique-Source-Key: "
)

// trailers writes the state as git trailers. A record that was never deployed
// has only the first.
func (s state) trailers() string {
	text := trailerApp + s.app + "\n"
	if s.revision != "" {
		text += trailerRevision + string(s.revision) + "\n"
	}
	if s.key != "" {
		text += trailerSourceKey + string(s.key) + "\n"
	}
	return text
}

// parseTrailers reads the last paragraph of a commit message. A message without
// a complete state is another's.
func parseTrailers(message string) (state, bool) {
	message = strings.TrimRight(strings.ReplaceAll(message, "\r\n", "\n"), "\n ")
	i := strings.LastIndex(message, "\n\n")
	if i < 0 {
		return state{}, false
	}
	var s state
	var err error
	for line := range strings.SplitSeq(message[i+2:], "\n") {
		if value, ok := strings.CutPrefix(line, trailerApp); ok {
			s.app = value
		}
		if value, ok := strings.CutPrefix(line, trailerRevision); ok && err == nil {
			s.revision, err = gitref.ParseRevision(value)
		}
		if value, ok := strings.CutPrefix(line, trailerSourceKey); ok && err == nil {
			s.key, err = gitref.ParseSourceKey(value)
		}
	}
	return s, err == nil && s.app != "" && s.revision != "" && s.key != ""
}

// Deployed tells from the message of a commit in the apps repository which app it
// left at which revision. A commit that was not made here, or that says nothing of a
// revision, gives false.
func Deployed(message string) (app string, revision gitref.Revision, ok bool) {
	s, ok := parseTrailers(message)
	return s.app, s.revision, ok
}

// newest gives the newest state of the app in a history, newest first, that
// matches.
func newest(commits []gitea.Commit, app string, match func(state) bool) (state, bool) {
	for _, c := range commits {
		if s, ok := parseTrailers(c.Message); ok && s.app == app && (match == nil || match(s)) {
			return s, true
		}
	}
	return state{}, false
}

// declaredAnew reports whether one of the commits after the newest state removed
// the record.
func (o Options) declaredAnew(ctx context.Context, commits []gitea.Commit) (bool, error) {
	for _, c := range commits {
		if s, ok := parseTrailers(c.Message); ok && s.app == o.App {
			return false, nil
		}
		file, err := o.Writer.File(ctx, o.Apps, c.ID, o.Record)
		if errors.Is(err, gitea.ErrNotFound) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if records, err := record.ParseFile(string(o.Record), file.Content); err == nil && !declares(records, o.App) {
			return true, nil
		}
	}
	return false, nil
}

func declares(records []record.Record, app string) bool {
	for _, r := range records {
		if r.App == app {
			return true
		}
	}
	return false
}
