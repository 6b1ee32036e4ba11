package buildlog

import (
	"errors"
	"slices"
	"strings"

	"fabrique/steps/gitref"
	"fabrique/steps/record"
	"fabrique/steps/step"
	"fabrique/workflows"
	"fabrique/workflows/run"
)

// Target is what a person asks for: an app or a commit. A name like "deadbeef" can
// be both; the app comes first.
type Target struct {
	text   string
	app    string
	commit gitref.Prefix
}

// ParseTarget accepts the name of an app, or a commit's id or its first digits. Exit
// code 2.
func ParseTarget(s string) (Target, error) {
	t := Target{text: s}
	app, appErr := record.ParseApp(s)
	commit, commitErr := gitref.ParsePrefix(s)
	if appErr != nil && commitErr != nil {
		return Target{}, step.Invalidf("parsing %q: want the name of an app, or a commit by its id or at least the first 7 of its lower-case hex digits", step.Clip(s))
	}
	if appErr == nil {
		t.app = app
	}
	if commitErr == nil {
		t.commit = commit
	}
	return t, nil
}

// errNothing is in the error when no run is of the target.
var errNothing = errors.New("no run on record")

// build is an app in a run.
type build struct {
	run run.Run
	app string
}

// in gives the app's part of the run.
func (b build) in() run.AppRun {
	for _, a := range b.run.Apps {
		if a.App == b.app {
			return a
		}
	}
	return run.AppRun{Item: run.Item{App: b.app}}
}

// begun tells whether there is a log, or will be one.
func (b build) begun() bool { return b.in().Build.State != run.NotBegun || b.awaited() }

// awaited tells whether its build is still to come.
func (b build) awaited() bool {
	return !b.run.Over() && b.in().Build.State == run.NotBegun && b.in().Verdict(false).Outcome == run.Pending
}

// planning tells whether it is not known yet what the run builds.
func planning(r run.Run) bool { return !r.Over() && r.Unreadable == "" && !r.Plan.State.Over() }

// choice is what a target means among the runs.
type choice struct {
	builds []build   // for each app the newest run that builds it, else the newest that did not
	runs   []run.Run // the target's, the newest first
	// undecided is a run of which it is not known yet what it builds, and which is
	// newer than what it may build instead.
	undecided *run.Run
}

// choose finds what to show among the runs, the newest first. Exit code 2 when
// there is nothing of that name, or several commits begin with it.
func (t Target) choose(all []run.Run) (choice, error) {
	var ours []run.Run
	for _, r := range all {
		if r.Template == workflows.TemplateName {
			ours = append(ours, r)
		}
	}
	if c := t.ofApp(ours); len(c.builds) > 0 || c.undecided != nil && t.commit == "" {
		return c, nil
	}
	if t.commit == "" {
		return choice{}, step.Invalidf("looking for a build of the app %q: %w had it due; \"fabrique status\" tells which apps there are and which are due. A Workflow is kept for a day, a failed one for a week", t.text, errNothing)
	}
	return t.ofCommit(ours)
}

func (t Target) ofApp(runs []run.Run) choice {
	var c choice
	if t.app == "" {
		return c
	}
	for i, r := range runs {
		if planning(r) && (r.Only == "" || r.Only == t.app) && c.undecided == nil {
			c.undecided = &runs[i]
		}
		b := build{r, t.app}
		if b.in().Revision == "" { // not among what was due
			continue
		}
		if b.begun() {
			c.builds = []build{b}
			break
		}
		if len(c.builds) == 0 {
			c.builds = []build{b}
		}
	}
	return c
}

func (t Target) ofCommit(runs []run.Run) (choice, error) {
	var c choice
	revisions := map[gitref.Revision]bool{}
	for _, r := range runs {
		revision, err := gitref.ParseRevision(r.Revision)
		if err != nil || !t.commit.Of(revision) {
			continue
		}
		revisions[revision] = true
		c.runs = append(c.runs, r)
	}
	if len(revisions) > 1 {
		var all []string
		for revision := range revisions {
			all = append(all, string(revision))
		}
		slices.Sort(all)
		return choice{}, step.Invalidf("looking for runs of the commit %s: several commits begin so: %s; give more digits", t.commit, strings.Join(all, ", "))
	}
	if len(c.runs) == 0 {
		return choice{}, step.Invalidf("looking for the build of %s: %w is of that commit; \"fabrique why %s\" tells what else is known of it. A Workflow is kept for a day, a failed one for a week", t.commit, errNothing, t.commit)
	}
	found := map[string]int{}
	for i, r := range c.runs {
		if planning(r) && c.undecided == nil {
			c.undecided = &c.runs[i]
		}
		for _, a := range r.Apps {
			b := build{r, a.App}
			at, seen := found[a.App]
			switch {
			case !seen:
				found[a.App] = len(c.builds)
				c.builds = append(c.builds, b)
			case !c.builds[at].begun() && b.begun():
				c.builds[at] = b
			}
		}
	}
	slices.SortFunc(c.builds, func(a, b build) int { return strings.Compare(a.app, b.app) })
	return c, nil
}
