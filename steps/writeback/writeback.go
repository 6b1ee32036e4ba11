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
	return o.loop(ctx, log, func(ctx context.Context) (plan, error) { return o.planDeploy(ctx, d) })
}

// Rollback sets the record back to an older deployment on a person's order, and
// holds back the source that it had until a newer commit changes the app.
// Rolling back again from there goes on holding back the first.
func Rollback(ctx context.Context, log *slog.Logger, o Options, d Deployment) (Result, error) {
	return o.loop(ctx, log, func(ctx context.Context) (plan, error) { return o.planRollback(ctx, d) })
}

// Hold keeps everything from being deployed, for a reason that people will read.
func Hold(ctx context.Context, log *slog.Logger, o Options, reason string) (Result, error) {
	if reason = record.OneLine(reason); reason == "" {
		return Result{App: o.App}, step.Invalidf("holding the app %q: want a reason; it is what people will read", o.App)
	}
	return o.loop(ctx, log, func(ctx context.Context) (plan, error) { return o.planHold(ctx, reason) })
}

// Release ends a hold and a rollback: the next comparison deploys the newest
// source.
func Release(ctx context.Context, log *slog.Logger, o Options) (Result, error) {
	return o.loop(ctx, log, o.planRelease)
}

// plan is what to do about a record as it was read.
type plan struct {
	read   gitea.File    // zero if there is no record
	before record.Record // zero if there is no record

	outcome string
	reason  string
	change  record.Change // to commit; none leaves the record alone
	base    []byte        // text to change: the record's, or the manifest of a new one
	subject string        // of the commit, after the app's name
}

func (p plan) writes() bool { return p.change != (record.Change{}) }

// loop reads, decides and writes until it is done.
func (o Options) loop(ctx context.Context, log *slog.Logger, decide func(context.Context) (plan, error)) (Result, error) {
	deadline := time.Now().Add(o.MaxWait)
	result := Result{App: o.App}
	var sent []byte // the last write that may have been made
	var intended plan
	for wait := newBackoff(); ; result.Attempts++ {
		p, err := decide(ctx)
		if err == nil && sent != nil && bytes.Equal(p.read.Content, sent) {
			// The answer was lost, the commit was not.
			return o.finish(log, result, intended, sent, p.read.LastCommit)
		}
		took := time.Duration(0)
		if err == nil {
			if !p.writes() {
				return o.finish(log, result, p, p.read.Content, "")
			}
			var after []byte
			if after, err = record.Apply(string(o.Record), p.base, o.App, p.change); err != nil {
				return result, err
			}
			if p.read.SHA != "" && bytes.Equal(after, p.read.Content) {
				p.outcome, p.reason = Unchanged, "the record says so already"
				return o.finish(log, result, p, after, "")
			}
			var message string
			if message, err = o.message(p, after); err != nil {
				return result, err
			}
			started := time.Now()
			var commit string
			commit, err = o.Writer.WriteFile(ctx, o.Apps, o.AppsBranch, gitea.Write{
				Path: o.Record, Content: after, SHA: p.read.SHA, Message: message, Author: o.Author,
			})
			if err == nil {
				return o.finish(log, result, p, after, commit)
			}
			took = time.Since(started)
			sent, intended = after, p
			if errors.Is(err, gitea.ErrNotFound) {
				// The record or its branch went away; reading again says which.
				err = step.Retryf("%w", err)
			}
		}
		if step.ExitCode(err) != step.ExitRetry || ctx.Err() != nil {
			result.Attempts++
			return result, err
		}
		pause := wait.next(took)
		if time.Now().Add(pause).After(deadline) {
			result.Attempts++
			return result, step.Retryf("bringing the record %q of %s up to date: giving up after %d attempts in %s (--max-wait): %w",
				o.Record, o.Apps, result.Attempts, o.MaxWait, err)
		}
		log.Warn("reading the record again", "app", o.App, "attempt", result.Attempts+1, "pause", pause.Round(time.Millisecond), "because", err.Error())
		select {
		case <-ctx.Done():
			result.Attempts++
			return result, step.Retryf("bringing the record %q of %s up to date: %w", o.Record, o.Apps, err)
		case <-time.After(pause):
		}
	}
}

// finish reports the record as it is now.
func (o Options) finish(log *slog.Logger, result Result, p plan, content []byte, commit string) (Result, error) {
	result.Attempts++
	result.Result, result.Reason, result.Commit = p.outcome, p.reason, commit
	if len(content) > 0 {
		now, err := o.find(content)
		if err != nil {
			return result, err
		}
		result.Revision, result.Digest = now.Revision, now.Digest
	}
	log.Info(result.Result, "app", o.App, "revision", result.Revision, "reason", result.Reason, "commit", commit, "attempts", result.Attempts)
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
// attempt and is never below four times what the last write took. Writers of one
// repository get in each other's way for as long as a write takes, and a busy
// server makes that longer.
type backoff struct{ doubling time.Duration }

const (
	firstPause   = 100 * time.Millisecond
	longestPause = 30 * time.Second
)

func newBackoff() *backoff { return &backoff{firstPause} }

func (b *backoff) next(took time.Duration) time.Duration {
	b.doubling = min(2*b.doubling, longestPause/4)
	ceiling := min(max(b.doubling, 4*took), longestPause)
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

// read gives the record, or false if there is none and create says that one may
// be made.
func (o Options) read(ctx context.Context, create bool) (gitea.File, record.Record, bool, error) {
	file, err := o.Writer.File(ctx, o.Apps, string(o.AppsBranch), o.Record)
	if errors.Is(err, gitea.ErrNotFound) {
		return gitea.File{}, record.Record{}, false, o.missing(ctx, create)
	}
	if err != nil {
		return gitea.File{}, record.Record{}, false, err
	}
	r, err := o.find(file.Content)
	return file, r, true, err
}

// message is the commit's: a subject, and trailers with the state after it.
func (o Options) message(p plan, after []byte) (string, error) {
	now, err := o.find(after)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s: %s\n\n%s", o.App, p.subject, state{o.App, now.Revision, now.SourceKey}.trailers()), nil
}
