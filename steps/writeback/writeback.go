// Package writeback brings a record to what was built: it commits revision,
// source key and digest to the app's Application file in the apps repository.
//
// Guarantees, whoever else writes at the same time, and whatever Gitea answers:
//
//   - Monotonic: revision N replaces the recorded revision R only if R is an
//     ancestor of N, or if R is no longer on the branch and N is (force push).
//     Otherwise the answer is stale and nothing is written.
//   - Never a blind overwrite: a write names the blob that it replaces. After a
//     conflict or an unclear answer the record is read and decided on again, until
//     --max-wait has passed (exit code 1).
//   - At most one commit for a revision and source key. A write whose answer was
//     lost is recognized when the record is read again; a record that already
//     has both stays as it is, even if the digest is another, as builds are not
//     reproducible bit by bit.
//   - People win. Nothing is deployed while the annotation fabrique/hold is there,
//     nor a source key that fabrique/rollback-of names. A record that a person set
//     back is not set forward again to what was rejected: see below.
//
// How a person's change is noticed: the message of every commit made here ends
// with trailers that give the record's state after it (Fabrique-App,
// Fabrique-Revision, Fabrique-Source-Key). If the newest such state in the file's
// history is not what the record says, a person changed it since. A build of the
// very source that was there before is then not deployed; instead the rejection
// is put on record as fabrique/rollback-of, once. The next source that differs
// is deployed again and ends it, if it is newer than what was rejected.
package writeback

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"fabrique/steps/gitea"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/record"
	"fabrique/steps/step"
)

// Options says where things are and how long to try.
type Options struct {
	Writer *gitea.Client // writes the apps repository
	Reader *gitea.Client // reads the source repository

	Apps         gitea.Repository
	AppsBranch   gitref.Branch
	Record       gitref.Path // the app's file in the apps repository
	App          string
	Source       gitea.Repository
	SourceBranch gitref.Branch

	Author  gitea.Author
	MaxWait time.Duration // for conflicts and trouble of the server
}

// Deployment is what was built and from what.
type Deployment struct {
	Revision   gitref.Revision
	SourceKey  gitref.SourceKey
	Repository image.Repository
	Digest     image.Digest
	// CreateFrom is an Application manifest that becomes the record when there is
	// none. Without it a missing record is an error.
	CreateFrom []byte
}

// Outcomes: what happened to the record.
const (
	Created   = "created"
	Updated   = "updated"
	Unchanged = "unchanged" // it said so already
	Stale     = "stale"     // it says something newer
	Held      = "held"      // a person wants nothing deployed, or not this
)

// Result is the step's result.
type Result struct {
	App      string          `json:"app"`
	Result   string          `json:"result"`
	Reason   string          `json:"reason"`
	Commit   string          `json:"commit"`   // made by this call, else empty
	Revision gitref.Revision `json:"revision"` // in the record afterwards
	Digest   image.Digest    `json:"digest"`   // in the record afterwards
	Attempts int             `json:"attempts"` // how often the record was read
}

// Deploy brings the record to the deployment, by the rules of the package. Exit
// codes: 2 when the record, its branch, the repository or the revision does not
// exist, the record is broken, or a token is refused; 1 when Gitea cannot be
// reached or conflicts lasted longer than MaxWait.
func Deploy(ctx context.Context, log *slog.Logger, o Options, d Deployment) (Result, error) {
	return o.loop(ctx, log, attempts{
		decide:  func(ctx context.Context, c current) (plan, error) { return o.planDeploy(ctx, c, d) },
		history: true,
		create:  d.CreateFrom != nil,
	})
}

// Rollback sets the record back to an older deployment on a person's order, and
// holds back the source that it had until a newer commit changes the app.
// Rolling back again from there goes on holding back the first.
func Rollback(ctx context.Context, log *slog.Logger, o Options, d Deployment) (Result, error) {
	return o.loop(ctx, log, attempts{decide: func(ctx context.Context, c current) (plan, error) { return o.planRollback(ctx, c, d) }})
}

// CheckRollback says what [Rollback] would do, as its result or its error, and
// writes nothing; the deployment needs no digest. So no image is built for a
// rollback that cannot be.
func CheckRollback(ctx context.Context, log *slog.Logger, o Options, d Deployment) (Result, error) {
	return o.loop(ctx, log, attempts{decide: func(ctx context.Context, c current) (plan, error) {
		p, err := o.planRollback(ctx, c, d)
		p.change = record.Change{}
		return p, err
	}})
}

// Hold keeps everything from being deployed, for a reason that people will read.
func Hold(ctx context.Context, log *slog.Logger, o Options, reason string) (Result, error) {
	if reason = record.OneLine(reason); reason == "" {
		return Result{App: o.App}, step.Invalidf("holding the app %q: want a reason; it is what people will read", o.App)
	}
	return o.loop(ctx, log, attempts{decide: func(_ context.Context, c current) (plan, error) { return planHold(c, reason), nil }})
}

// Release ends a hold and a rollback: the next comparison deploys the newest
// source.
func Release(ctx context.Context, log *slog.Logger, o Options) (Result, error) {
	return o.loop(ctx, log, attempts{decide: func(_ context.Context, c current) (plan, error) { return planRelease(c), nil }})
}

// current is the record as it was read.
type current struct {
	file   gitea.File    // zero if there is no record
	record record.Record // zero if there is no record
	found  bool
	// history waits for the file's newest commits.
	history func() ([]gitea.Commit, error)
}

// plan is what to do about the current record.
type plan struct {
	outcome string
	reason  string
	change  record.Change // to commit; none leaves the record alone
	// unstated leaves the state out of the commit's message: it says nothing about
	// whether a person's change before it was meant.
	unstated bool
	base     []byte // text to change: the record's, or the manifest of a new one
	subject  string // of the commit, after the app's name
}

func (p plan) writes() bool { return p.change != (record.Change{}) }

// loop reads, decides and writes until it is done.
func (o Options) loop(ctx context.Context, log *slog.Logger, a attempts) (Result, error) {
	deadline := time.Now().Add(o.MaxWait)
	// Pauses are at most a bit longer than the quarter that newBackoff gets.
	a.Options, a.patience, a.patient = o, 5, time.Now().Add(o.MaxWait/4)
	wait := newBackoff(o.MaxWait)
	result := Result{App: o.App}
	for {
		result.Attempts++
		done, took, err := a.next(ctx)
		if err == nil {
			return o.report(log, result, done)
		}
		if step.ExitCode(err) != step.ExitRetry || ctx.Err() != nil {
			return result, err
		}
		pause := wait.next(took)
		if time.Now().Add(pause).After(deadline) {
			return result, step.Retryf("bringing the record %q of %s up to date: giving up after %d attempts in %s (--max-wait): %w",
				o.Record, o.Apps, result.Attempts, o.MaxWait, err)
		}
		log.Warn("reading the record again", "app", o.App, "attempt", result.Attempts, "pause", pause.Round(time.Millisecond), "because", err.Error())
		select {
		case <-ctx.Done():
			return result, step.Retryf("bringing the record %q of %s up to date: %w", o.Record, o.Apps, err)
		case <-time.After(pause):
		}
	}
}

// attempts is what one attempt must know of those before it.
type attempts struct {
	Options
	decide  func(context.Context, current) (plan, error)
	history bool // ask for the history together with the record
	create  bool // a record that is not there can be made

	patience int       // how often to let others go first on a busy server
	patient  time.Time // and until when

	// What was decided about which state of the file. As long as nobody commits
	// to this file, losing a race to the commit of another costs no new decision.
	blob, commit string
	decided      plan

	// The last write, which may have been made whatever Gitea answered.
	sent     []byte
	intended plan
}

// done is the end of the attempts.
type done struct {
	plan
	content []byte // of the record now; nil if there is none
	commit  string // made by us, else empty
}

// next reads, decides and writes once. On an error it also gives the time that
// the last request took.
func (a *attempts) next(ctx context.Context) (done, time.Duration, error) {
	started := time.Now()
	c, p, err := a.consider(ctx)
	took := time.Since(started)
	switch {
	case err != nil:
		return done{}, took, err
	case a.sent != nil && bytes.Equal(c.file.Content, a.sent):
		return done{a.intended, a.sent, c.file.LastCommit}, 0, nil // the answer was lost, the commit was not
	case !p.writes():
		return done{p, c.file.Content, ""}, 0, nil
	case took > busy && a.patience > 0 && time.Now().Before(a.patient):
		// Many writers at once make each other fail. Those that wait may find
		// that nothing is left for them to write.
		a.patience--
		return done{}, took, step.Retryf("reading the record %q of %s: Gitea is busy, it took %s", a.Record, a.Apps, took.Round(time.Millisecond))
	}
	after, err := record.Apply(string(a.Record), p.base, a.App, p.change)
	if err != nil {
		return done{}, 0, err
	}
	if c.found && bytes.Equal(after, c.file.Content) {
		p.outcome, p.reason = Unchanged, "the record says so already"
		return done{p, after, ""}, 0, nil
	}
	message, err := a.message(p, after)
	if err != nil {
		return done{}, 0, err
	}
	a.sent, a.intended = after, p
	started = time.Now()
	commit, err := a.Writer.WriteFile(ctx, a.Apps, a.AppsBranch, gitea.Write{
		Path: a.Record, Content: after, SHA: c.file.SHA, Message: message, Author: a.Author,
	})
	if errors.Is(err, gitea.ErrNotFound) {
		// The record or its branch went away; reading again says which.
		err = step.Retryf("%w", err)
	}
	return done{p, after, commit}, time.Since(started), err
}

// consider reads the record and decides, unless that is decided already.
func (a *attempts) consider(ctx context.Context) (current, plan, error) {
	c := current{history: sync.OnceValues(func() ([]gitea.Commit, error) {
		return a.Writer.History(ctx, a.Apps, a.AppsBranch, a.Record, func(c gitea.Commit) bool {
			s, ok := parseTrailers(c.Message)
			return ok && s.app == a.App
		})
	})}
	if a.history && a.blob == "" {
		go c.history() // at the same time, as it will be needed
	}
	var err error
	c.file, err = a.Writer.File(ctx, a.Apps, string(a.AppsBranch), a.Record)
	switch {
	case errors.Is(err, gitea.ErrNotFound):
		if err := a.missing(ctx, a.create); err != nil {
			return c, plan{}, err
		}
		c.file = gitea.File{}
	case err != nil:
		return c, plan{}, err
	default:
		if c.record, err = a.find(c.file.Content); err != nil {
			return c, plan{}, err
		}
		c.found = true
	}
	if c.found && a.blob == c.file.SHA && a.commit == c.file.LastCommit {
		return c, a.decided, nil
	}
	p, err := a.decide(ctx, c)
	if err == nil {
		a.blob, a.commit, a.decided = c.file.SHA, c.file.LastCommit, p
	}
	return c, p, err
}

// report gives the record as it is now.
func (o Options) report(log *slog.Logger, result Result, d done) (Result, error) {
	result.Result, result.Reason, result.Commit = d.outcome, d.reason, d.commit
	if len(d.content) > 0 {
		now, err := o.find(d.content)
		if err != nil {
			return result, err
		}
		result.Revision, result.Digest = now.Revision, now.Digest
	}
	log.Info(result.Result, "app", o.App, "revision", result.Revision, "reason", result.Reason, "commit", result.Commit, "attempts", result.Attempts)
	return result, nil
}

// find gives the app's record in the file. What is wrong with other documents
// of the file does not matter.
func (o Options) find(content []byte) (record.Record, error) {
	records, err := record.ParseFile(string(o.Record), content)
	for _, r := range records {
		if r.App == o.App {
			return r, nil
		}
	}
	if err != nil {
		return record.Record{}, err
	}
	return record.Record{}, step.Invalidf("reading the record %q of %s: it declares no app %q; name the file with its Application, or add the annotation %s to it",
		o.Record, o.Apps, o.App, record.AnnotationContext)
}

// backoff spaces attempts out: by chance, up to a ceiling that doubles with each
// attempt and is never below eight times what the last request took. Writers of
// one repository get in each other's way for as long as a write takes, and every
// one more makes that longer; a window that grows with it brings any number of
// them down to the few that the server can serve.
type backoff struct{ doubling, longest time.Duration }

const (
	firstPause      = 100 * time.Millisecond
	longestDoubling = 8 * time.Second
	busy            = time.Second // a read that takes longer means that many want to write
)

func newBackoff(maxWait time.Duration) *backoff { return &backoff{firstPause, maxWait / 4} }

func (b *backoff) next(took time.Duration) time.Duration {
	b.doubling = min(2*b.doubling, longestDoubling)
	ceiling := max(min(max(b.doubling, 8*took), b.longest), firstPause)
	return ceiling/10 + rand.N(ceiling)
}

// missing explains why there is no record, with exit code 2, or gives nil if one
// can be created.
func (o Options) missing(ctx context.Context, create bool) error {
	exists, empty, err := o.Writer.Exists(ctx, o.Apps)
	if err != nil {
		return err
	}
	if !exists {
		return step.Invalidf("reading the record %q: the apps repository %s does not exist, or the writer may not see it; create it and add the writer as a collaborator", o.Record, o.Apps)
	}
	if !empty {
		_, err := o.Writer.Head(ctx, o.Apps, o.AppsBranch)
		if errors.Is(err, gitea.ErrNotFound) {
			return step.Invalidf("reading the record %q: the apps repository %s has no branch %q; push it or correct --apps-branch", o.Record, o.Apps, o.AppsBranch)
		}
		if err != nil {
			return err
		}
	}
	if create {
		return nil
	}
	where := "on the branch " + string(o.AppsBranch)
	if empty {
		where = "as the repository is empty"
	}
	return step.Invalidf("reading the record of the app %q: there is no file %q in %s, %s; declare the app by pushing its Application with the annotation %s there, or give one with --create-from",
		o.App, o.Record, o.Apps, where, record.AnnotationContext)
}

// message is the commit's: a subject, and trailers with the state after it.
func (o Options) message(p plan, content []byte) (string, error) {
	now, err := o.find(content)
	if err != nil {
		return "", err
	}
	after := state{o.App, now.Revision, now.SourceKey}
	if p.unstated {
		after = state{app: o.App}
	}
	return fmt.Sprintf("%s: %s\n\n%s", o.App, p.subject, after.trailers()), nil
}
