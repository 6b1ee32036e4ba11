// Package story tells what became of a commit: received or not, due or not and why,
// built, written back, synced, running, and when.
//
// It has three witnesses, none of which alone knows: the source and the records in
// Gitea (which is the truth about what is deployed), the Workflows on record, and
// Argo CD with the pods. What one of them does not know is said to be unknown; without
// a cluster the first is asked alone. Nothing is changed anywhere.
package story

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"fabrique/steps/chain"
	"fabrique/steps/config"
	"fabrique/steps/gitea"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/reconcile"
	"fabrique/steps/step"
	"fabrique/steps/writeback"
	"fabrique/workflows"
	"fabrique/workflows/run"
)

// Story is what is known of a commit.
type Story struct {
	Revision   gitref.Revision  `json:"revision"`
	Repository gitea.Repository `json:"repository"`
	Branch     gitref.Branch    `json:"branch"`
	Head       gitref.Revision  `json:"head"`
	Place      Place            `json:"place"`
	// NotAsked says why the cluster was not asked; empty when it was.
	NotAsked string `json:"notAsked"`
	Runs     []Run  `json:"runs"`
	Apps     []App  `json:"apps"`
	Lines    []Line `json:"lines"`
}

// A Place is where a commit is, seen from the head of the branch.
type Place string

// The places.
const (
	Head   Place = "head"
	Behind Place = "behind" // on the branch, and not its head any more
	Aside  Place = "aside"  // not on the branch
	Gone   Place = "gone"   // the repository does not have it
)

// Run is a run of the commit.
type Run struct {
	Name     string      `json:"name"`
	Cause    string      `json:"cause"`
	Phase    string      `json:"phase"`
	Outcome  run.Outcome `json:"outcome"`
	Text     string      `json:"text"`
	Created  time.Time   `json:"created"`
	Finished time.Time   `json:"finished,omitzero"`
}

// App is what became of one app at the commit. Times are zero for what has not
// happened, or of which nobody knows.
type App struct {
	App      string       `json:"app"`
	Due      bool         `json:"due"`
	Reason   string       `json:"reason"` // why it was due or not; empty when nobody knows
	Run      string       `json:"run"`    // the Workflow that tells the next of it; empty for none
	Outcome  run.Outcome  `json:"outcome,omitempty"`
	Text     string       `json:"text"`
	ExitCode int          `json:"exitCode"`
	Built    time.Time    `json:"built,omitzero"`
	Cached   int          `json:"cached"`
	Total    int          `json:"total"`
	Reused   bool         `json:"reused"`
	Builder  string       `json:"builder"`
	Digest   image.Digest `json:"digest"`
	Result   string       `json:"result"` // of the write-back
	Commit   string       `json:"commit"` // in the apps repository
	Written  time.Time    `json:"written,omitzero"`
	Synced   time.Time    `json:"synced,omitzero"`
	Running  time.Time    `json:"running,omitzero"` // since when its first pod is ready
	Ready    int          `json:"ready"`            // pods
	Pods     int          `json:"pods"`
	// DeployedRevision is what the record has now.
	DeployedRevision gitref.Revision `json:"deployedRevision"`
}

// Line is one thing that happened, or did not.
type Line struct {
	Time time.Time `json:"time,omitzero"`
	// After is how many seconds after the push it was, or after the first moment that
	// is known; null for what is older, and for what has no time.
	After *float64 `json:"afterSeconds"`
	App   string   `json:"app"` // empty for the commit as a whole
	What  string   `json:"what"`
	Text  string   `json:"text"`
}

// Tell finds the commit that begins with the prefix and tells its story. cluster is
// nil when it is not to be asked, for the reason that notAsked gives.
//
// Exit codes: 2 when there is no such commit or several begin so, or the configuration
// is at fault; 1 when Gitea cannot be reached. A cluster that cannot be reached
// is part of the story.
func Tell(ctx context.Context, log *slog.Logger, c config.Config, prefix gitref.Prefix, cluster *Cluster, notAsked string) (Story, error) {
	f := facts{Config: c, notAsked: notAsked, applications: map[string]application{}}
	token, err := c.ReaderToken()
	if err != nil {
		return Story{}, err
	}
	client, err := gitea.New(c.Gitea.URL, token)
	if err != nil {
		return Story{}, err
	}
	var runs []run.Run
	group, within := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		quiet := log
		if !log.Enabled(within, slog.LevelInfo) {
			quiet = slog.New(slog.DiscardHandler) // the story tells of broken records
		}
		f.plan, err = chain.Plan(within, quiet, c, "", nil)
		return err
	})
	group.Go(func() error {
		commit, err := client.Commit(within, c.Source.Repository, prefix)
		if err == nil {
			f.commit = &commit
		}
		if errors.Is(err, gitea.ErrNotFound) {
			return nil
		}
		return err
	})
	group.Go(func() error {
		if cluster == nil {
			return nil
		}
		list, err := cluster.runs(within)
		if err != nil && within.Err() == nil {
			log.Warn("going on without the cluster: " + err.Error())
			cluster, f.notAsked = nil, err.Error()
		}
		runs = list
		return nil
	})
	if err := group.Wait(); err != nil {
		return Story{}, step.WithCause(ctx, err)
	}
	if err := f.readGitea(ctx, log, client, prefix, runs); err != nil {
		return Story{}, step.WithCause(ctx, err)
	}
	for _, r := range runs {
		if r.Template == workflows.TemplateName && r.Revision == string(f.revision) {
			f.runs = append(f.runs, r)
		}
	}
	if cluster != nil {
		f.readCluster(ctx, *cluster)
	}
	return f.tell(), ctx.Err()
}

// write is a commit in the apps repository that left an app at a revision.
type write struct {
	gitea.Dated
	app      string
	revision gitref.Revision
}

// facts is what the witnesses say.
type facts struct {
	config.Config
	revision gitref.Revision
	plan     reconcile.Plan // at the head
	commit   *gitea.Dated   // nil when the repository does not have it
	on       bool           // the branch
	behind   int            // commits that the head has and it has not
	push     *gitea.Push
	writes   []write                 // of all apps and revisions, the oldest first
	statuses map[string]gitea.Status // on the commit
	notAsked string
	runs     []run.Run // of the commit, the newest first
	// Of the apps that were deployed at the commit.
	applications map[string]application
}

// readGitea settles which commit it is and reads what Gitea knows of it.
func (f *facts) readGitea(ctx context.Context, log *slog.Logger, client *gitea.Client, prefix gitref.Prefix, runs []run.Run) error {
	var since time.Time
	if f.commit != nil {
		since = f.commit.Time.AddDate(0, 0, -7) // it is by somebody's clock
	}
	commits, err := client.Commits(ctx, f.Apps.Repository, f.Apps.Branch, since)
	if err != nil {
		return err
	}
	slices.Reverse(commits)
	for _, c := range commits {
		if app, revision, ok := writeback.Deployed(c.Message); ok {
			f.writes = append(f.writes, write{c, app, revision})
		}
	}
	if err := f.resolve(prefix, runs); err != nil {
		return err
	}
	if f.commit == nil {
		return nil
	}
	if f.plan.Head != "" {
		if err := f.locate(ctx, client); err != nil {
			return err
		}
	}
	// What follows adds to the story, and does not carry it.
	push, found, err := client.Push(ctx, f.Source.Repository, f.Source.Branch, f.revision)
	if err != nil {
		log.Warn("going on without the time of the push: " + err.Error())
	} else if found {
		f.push = &push
	}
	if f.statuses, err = client.Statuses(ctx, f.Source.Repository, f.revision); err != nil {
		log.Warn("going on without the commit's statuses: " + err.Error())
	}
	return nil
}

// resolve settles which commit the prefix means, among all that anybody names.
func (f *facts) resolve(prefix gitref.Prefix, runs []run.Run) error {
	named := map[gitref.Revision]bool{}
	if f.commit != nil {
		named[gitref.Revision(f.commit.ID)] = true
	}
	for _, w := range f.writes {
		named[w.revision] = prefix.Of(w.revision) || named[w.revision]
	}
	for _, r := range runs {
		if revision, err := gitref.ParseRevision(r.Revision); err == nil && prefix.Of(revision) {
			named[revision] = true
		}
	}
	var all []string
	for revision, match := range named {
		if match {
			all = append(all, string(revision))
		}
	}
	slices.Sort(all)
	switch len(all) {
	case 0:
		return step.Invalidf("looking for the commit %s: %s does not have it, or more than one commit begins so; give its whole id, or push it", prefix, f.Source.Repository)
	case 1:
		f.revision = gitref.Revision(all[0])
		return nil
	}
	return step.Invalidf("looking for the commit %s: several begin so: %s; give more digits", prefix, strings.Join(all, ", "))
}

// locate finds the commit's place on the branch.
func (f *facts) locate(ctx context.Context, client *gitea.Client) error {
	if f.on = f.revision == f.plan.Head; f.on {
		return nil
	}
	ahead, err := client.Ahead(ctx, f.Source.Repository, string(f.plan.Head), string(f.revision))
	if err != nil {
		return err
	}
	if f.on = ahead == 0; f.on {
		f.behind, err = client.Ahead(ctx, f.Source.Repository, string(f.revision), string(f.plan.Head))
	}
	return err
}
