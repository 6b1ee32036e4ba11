package story

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"fabrique/steps/image"
	"fabrique/steps/reconcile"
	"fabrique/steps/record"
	"fabrique/steps/step"
	"fabrique/workflows/run"
)

// names gives every app that there is something to say of, in order.
func (f facts) names() []string {
	all := map[string]bool{}
	for _, r := range f.runs {
		for _, a := range r.Apps {
			all[a.App] = true
		}
		for _, b := range r.Broken {
			all[nameOf(b.App, b.Record)] = true
		}
	}
	for _, w := range f.writes {
		if w.revision == f.revision {
			all[w.app] = true
		}
	}
	if f.head() {
		for _, a := range f.plan.Apps {
			all[a.App] = true
		}
		for _, b := range f.plan.Broken {
			all[nameOf(b.App, b.Record)] = true
		}
	}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// nameOf gives what a broken record goes by; it may be too broken to name its app.
func nameOf(app, file string) string { return cmp.Or(record.OneLine(app), record.OneLine(file)) }

// inFile says where the error is, unless what it goes by says so.
func inFile(app, file, err string) string {
	if app == "" {
		return err
	}
	return file + ": " + err
}

func (f facts) head() bool { return f.revision == f.plan.Head }

// now gives what the comparison at the head says of an app.
func (f facts) now(name string) reconcile.App {
	for _, a := range f.plan.Apps {
		if a.App == name {
			return a
		}
	}
	return reconcile.App{}
}

// pick gives the newest run that did something for the app, or is about to; else the
// newest that had it due.
func (f facts) pick(name string) (r run.Run, a run.AppRun, found bool) {
	for _, candidate := range f.runs {
		for _, in := range candidate.Apps {
			if in.App != name {
				continue
			}
			if in.Build.State != run.NotBegun || !candidate.Over() && in.Verdict(false).Outcome == run.Pending {
				return candidate, in, true
			}
			if !found {
				r, a, found = candidate, in, true
			}
		}
	}
	return r, a, found
}

// deployed tells whether the record was at the commit once, or is.
func (f facts) deployed(name string) bool {
	_, a, _ := f.pick(name)
	return a.Deployed() || len(f.writesOf(name)) > 0 || f.now(name).DeployedRevision == f.revision
}

// writesOf gives the commits that left the app at this revision, the oldest first.
func (f facts) writesOf(name string) []write {
	var writes []write
	for _, w := range f.writes {
		if w.app == name && w.revision == f.revision {
			writes = append(writes, w)
		}
	}
	return writes
}

// tell makes a story of the facts.
func (f facts) tell() Story {
	s := Story{
		Revision: f.revision, Repository: f.Source.Repository, Branch: f.Source.Branch, Head: f.plan.Head,
		Place: f.place(), NotAsked: step.Printable(f.notAsked), Runs: []Run{}, Apps: []App{}, Lines: []Line{},
	}
	t := &teller{facts: f, story: &s}
	t.tellCommit()
	t.tellRuns()
	for _, name := range f.names() {
		t.tellApp(name)
	}
	if slices.ContainsFunc(f.runs, func(r run.Run) bool { return !r.Over() && r.Verdict(false).Outcome == run.Pending }) {
		t.say("", "next", time.Time{}, "fabrique logs %s follows the builds", f.revision)
	}
	if f.notAsked != "" {
		t.say("", "unknown", time.Time{}, "what the cluster knows, its runs, Argo CD and the pods: %s", f.notAsked)
	}
	t.measure()
	return s
}

func (f facts) place() Place {
	switch {
	case f.commit == nil:
		return Gone
	case f.head():
		return Head
	case f.on:
		return Behind
	}
	return Aside
}

type teller struct {
	facts
	story *Story
}

// say adds a line.
func (t *teller) say(app, what string, at time.Time, format string, args ...any) {
	t.story.Lines = append(t.story.Lines, Line{Time: at, App: app, What: what, Text: step.Printable(fmt.Sprintf(format, args...))})
}

// measure fills in the delays. A commit's own time is by its author's clock, and
// often long before the push.
func (t *teller) measure() {
	lines := t.story.Lines
	var zero time.Time
	for _, l := range lines {
		if l.What != committed && !l.Time.IsZero() && (zero.IsZero() || l.Time.Before(zero)) {
			zero = l.Time
		}
	}
	for i, l := range lines {
		if l.What != committed && !l.Time.IsZero() {
			after := l.Time.Sub(zero).Seconds()
			lines[i].After = &after
		}
	}
}

const committed = "committed"

func (t *teller) tellCommit() {
	where := map[Place]string{
		Head:   fmt.Sprintf("the head of %s", t.Source.Branch),
		Behind: fmt.Sprintf("on %s, %d behind the head %s", t.Source.Branch, t.behind, t.plan.Head),
		Aside:  fmt.Sprintf("not on %s, whose head is %s", t.Source.Branch, t.plan.Head),
		Gone:   fmt.Sprintf("%s does not have it any more", t.Source.Repository),
	}[t.story.Place]
	if t.plan.Head == "" {
		where = fmt.Sprintf("%s has no branch %s", t.Source.Repository, t.Source.Branch)
	}
	if c := t.commit; c != nil {
		subject, _, _ := strings.Cut(strings.TrimSpace(c.Message), "\n")
		t.say("", committed, c.Time, "%q by %s; %s", step.Clip(subject), step.Clip(c.Author), where)
	} else {
		t.say("", committed, time.Time{}, "%s", where)
	}
	if p := t.push; p != nil {
		with := ""
		if p.Head != t.revision {
			with = fmt.Sprintf(", below %s: a push is received once, for its newest commit", p.Head)
		}
		t.say("", "pushed", p.Time, "by %s%s", step.Clip(p.By), with)
	}
}

var byCause = map[string]string{run.Push: "by push", run.Schedule: "by the schedule", run.Hand: "by hand"}

// tellRuns tells of the runs, the oldest first.
func (t *teller) tellRuns() {
	what := "received"
	for _, r := range slices.Backward(t.runs) {
		v := r.Verdict(r.Over())
		t.story.Runs = append(t.story.Runs, Run{r.Name, r.Cause, r.Phase, v.Outcome, step.Printable(v.Text), r.Created, r.Finished})
		text := v.Text
		if len(r.Apps) > 0 {
			text = fmt.Sprintf("%d of %d apps due", len(r.Apps), r.Declared)
			if len(r.Broken) > 0 {
				text += fmt.Sprintf(", %d records broken", len(r.Broken))
			}
			if r.Left > 0 {
				text += fmt.Sprintf(", %d more are due and left to the next run", r.Left)
			}
		}
		state := string(v.Outcome)
		if r.Over() && !r.Finished.IsZero() {
			state += " after " + r.Finished.Sub(r.Created).String()
		}
		t.say("", what, r.Created, "%s, as %s: %s: %s", byCause[r.Cause], r.Name, state, text)
		what = "again"
		if r.Trouble != "" && len(r.Apps) > 0 {
			t.say("", "failed", r.Finished, "%s", r.Trouble)
		}
		if len(r.Apps) == 0 && len(r.Broken) == 0 {
			t.advise("", v.ExitCode, false)
		}
	}
	if len(t.runs) > 0 {
		return
	}
	if t.notAsked == "" {
		why := "older than the time that finished Workflows are kept, or its event was lost"
		if t.push != nil && t.push.Head != t.revision {
			why = "it was pushed below a newer one"
		}
		t.say("", "received", time.Time{}, "no run of it is on record: %s; the CronWorkflow compares the head at %q", why, t.Cluster.Schedule)
	}
	if s, there := t.statuses["fabrique"]; there {
		t.say("", "status", time.Time{}, "%s: %s", s.State, s.Description)
	}
}

// tellApp tells of one app.
func (t *teller) tellApp(name string) {
	now := t.now(name)
	a := App{App: name, DeployedRevision: now.DeployedRevision}
	from := len(t.story.Lines)
	r, in, found := t.pick(name)
	if found {
		t.tellRun(&a, r, in)
	} else {
		t.tellNoRun(&a, now)
	}
	t.tellWrites(&a, in)
	asked := t.deployed(name) && t.notAsked == ""
	if asked {
		t.tellSync(&a)
	}
	t.tellNext(name)
	if asked {
		t.tellPods(&a)
	}
	inOrder(t.story.Lines[from:])
	if a.Due && a.Run == "" && !t.planning() {
		t.say(name, "next", time.Time{}, "the CronWorkflow compares at %q; or at once: fabrique build %s", t.Cluster.Schedule, name)
	}
	t.advise(name, a.ExitCode, in.Build.State == run.Failed)
	t.story.Apps = append(t.story.Apps, a)
}

// inOrder sorts by time what several witnesses said. A line without a time keeps
// its place behind the one before it.
func inOrder(lines []Line) {
	times := make([]time.Time, len(lines))
	var last time.Time
	index := make([]int, len(lines))
	for i, l := range lines {
		if !l.Time.IsZero() {
			last = l.Time
		}
		times[i], index[i] = last, i
	}
	slices.SortStableFunc(index, func(x, y int) int { return times[x].Compare(times[y]) })
	sorted := make([]Line, len(lines))
	for to, from := range index {
		sorted[to] = lines[from]
	}
	copy(lines, sorted)
}

// tellRun tells what a run did for the app.
func (t *teller) tellRun(a *App, r run.Run, in run.AppRun) {
	v := in.Verdict(r.Over())
	a.Run, a.Due, a.Reason, a.Outcome, a.Text, a.ExitCode = r.Name, true, in.Item.Reason, v.Outcome, step.Printable(v.Text), v.ExitCode
	was := ""
	if in.DeployedRevision != "" {
		was = "; deployed was " + in.DeployedRevision
	}
	t.say(a.App, "due", r.Plan.Finished, "%s%s", in.Item.Reason, was)
	const usual = 30 * time.Second
	if waited := in.Recheck.Started.Sub(r.Plan.Finished); !in.Recheck.Started.IsZero() && !r.Plan.Finished.IsZero() && waited > usual {
		t.say(a.App, "waited", in.Recheck.Started, "%s for another run that had the app, or for room in the cluster", waited)
	}
	ended := func(s run.Step) bool { return s.State == run.Failed && (r.Over() || !s.Again) }
	switch {
	case ended(in.Recheck):
		t.say(a.App, "failed", in.Recheck.Finished, "the comparison before the build: %s", in.Recheck.Message)
	case in.SupersededBy != "":
		t.say(a.App, "superseded", in.Recheck.Finished, "by %s, before the build", in.SupersededBy)
	case in.NotDue != "":
		t.say(a.App, "not due", in.Recheck.Finished, "any more, when its turn came: %s; deployed is %s", in.NotDue, cmp.Or(in.Digest, "nothing"))
	case ended(in.Build):
		t.say(a.App, "failed", in.Build.Finished, "the build%s: %s", tries(in.Build), in.Build.Message)
	case in.Build.State == run.Succeeded:
		a.Built, a.Cached, a.Total, a.Reused, a.Builder = in.Build.Finished, in.Cached, in.Total, in.Reused, step.Printable(in.Builder)
		how := fmt.Sprintf("%d of %d build steps cached, in %s on %s", in.Cached, in.Total, in.Build.Finished.Sub(in.Build.Started), in.Builder)
		if in.Reused {
			how = "not built again, the registry had it"
		}
		t.say(a.App, "built", in.Build.Finished, "%s%s; %s@%s", how, tries(in.Build), in.Image, in.Digest)
		if ended(in.Publish) {
			t.say(a.App, "failed", in.Publish.Finished, "the write-back%s: %s", tries(in.Publish), in.Publish.Message)
		}
	case v.Outcome == run.Failure:
		t.say(a.App, "failed", r.Finished, "%s", v.Text)
	}
	if digest, err := image.ParseDigest(in.Digest); err == nil && in.NotDue == "" {
		a.Digest = digest
	}
	if v.Outcome == run.Pending {
		t.say(a.App, "now", started(r, in), "%s", v.Text)
	}
}

// started gives when the step that is at work began, or the waiting for it.
func started(r run.Run, in run.AppRun) time.Time {
	for _, s := range []run.Step{in.Publish, in.Build, in.Recheck} {
		if s.State != run.NotBegun {
			return s.Started
		}
	}
	return r.Plan.Finished
}

func tries(s run.Step) string {
	if s.Tries > 1 {
		return fmt.Sprintf(", at try %d", s.Tries)
	}
	return ""
}

// planning tells whether a run in flight does not know yet what is due.
func (f facts) planning() bool {
	return slices.ContainsFunc(f.runs, func(r run.Run) bool { return !r.Over() && r.Plan.State != run.Succeeded })
}

// tellNoRun tells of an app that no run of the commit had due.
func (t *teller) tellNoRun(a *App, now reconcile.App) {
	for _, r := range t.runs {
		for _, b := range r.Broken {
			if nameOf(b.App, b.Record) == a.App {
				a.Reason, a.Outcome, a.Text, a.ExitCode = "broken", run.Failure, step.Printable(b.Error), b.ExitCode
				t.say(a.App, "broken", r.Plan.Finished, "%s", inFile(b.App, b.Record, b.Error))
				return
			}
		}
	}
	if !t.head() {
		if s, there := t.statuses["fabrique/"+a.App]; there && len(t.runs) == 0 {
			t.say(a.App, "status", time.Time{}, "%s: %s", s.State, s.Description)
		}
		return
	}
	for _, b := range t.plan.Broken {
		if nameOf(b.App, b.Record) == a.App {
			a.Reason, a.Outcome, a.Text, a.ExitCode = "broken", run.Failure, step.Printable(b.Error), b.ExitCode
			t.say(a.App, "broken", time.Time{}, "%s", inFile(b.App, b.Record, b.Error))
			return
		}
	}
	a.Due, a.Reason = now.Due, step.Printable(now.Reason)
	switch {
	case now.Due:
		run := "no run of this commit has it yet"
		if t.planning() {
			run = "a run in flight is looking for what is due"
		}
		t.say(a.App, "due", time.Time{}, "%s; %s", now.Reason, run)
	case now.DeployedRevision == t.revision:
		t.say(a.App, "not due", time.Time{}, "%s: this commit is deployed", now.Reason)
	case now.Reason == reconcile.UpToDate:
		t.say(a.App, "not due", time.Time{}, "%s: its source is that of %s, which is deployed", now.Reason, now.DeployedRevision)
	default:
		t.say(a.App, "not due", time.Time{}, "%s", now.Reason)
	}
}

// tellWrites tells what is in the record's history, and what a run says of it.
func (t *teller) tellWrites(a *App, in run.AppRun) {
	a.Result, a.Commit = in.Result, in.Commit
	told := in.Result == ""
	for _, w := range t.writesOf(a.App) {
		result := ""
		if w.ID == in.Commit {
			result, told = in.Result+": ", true
		}
		if a.Written.IsZero() {
			a.Written, a.Commit = w.Time, cmp.Or(a.Commit, w.ID)
		}
		subject, _, _ := strings.Cut(w.Message, "\n")
		t.say(a.App, "written", w.Time, "%scommit %s in %s, %q", result, short(w.ID), t.Apps.Repository, step.Clip(subject))
	}
	switch {
	case told:
	case in.Deployed():
		if a.Written.IsZero() {
			a.Written = in.Publish.Finished
		}
		t.say(a.App, "written", in.Publish.Finished, "%s: %s", in.Result, cmp.Or(in.Reason, "commit "+short(in.Commit)+" in "+string(t.Apps.Repository)))
	default:
		t.say(a.App, "not written", in.Publish.Finished, "%s: %s", in.Result, in.Reason)
	}
}

func short(id string) string { return id[:min(12, len(id))] }

// tellNext tells of the next deployment, and where the record is now.
func (t *teller) tellNext(name string) {
	was := false
	for _, w := range t.writes {
		if w.app != name {
			continue
		}
		if was && w.revision != t.revision {
			t.say(name, "replaced", w.Time, "the record went on to %s", w.revision)
		}
		was = w.revision == t.revision
	}
}

// tellSync tells what Argo CD makes of it.
func (t *teller) tellSync(a *App) {
	app := t.applications[a.App]
	current := a.DeployedRevision == t.revision
	if a.Digest == "" && current {
		a.Digest = t.now(a.App).DeployedDigest
	}
	if a.Digest == "" {
		a.Digest = app.digest(t.revision)
	}
	if app.trouble != "" {
		t.say(a.App, "unknown", time.Time{}, "whether it is synced and running: %s", app.trouble)
		return
	}
	h, synced := app.sync(t.revision, a.Digest)
	o := app.operation
	switch {
	case synced:
		a.Synced = h.at
		t.say(a.App, "synced", h.at, "by Argo CD")
	case current && o.revision == string(t.revision) && o.phase != "Succeeded":
		t.say(a.App, "not synced", o.finished, "Argo CD's sync is %s: %s", o.phase, o.message)
	case current:
		t.say(a.App, "not synced", time.Time{}, "Argo CD says %s, having compared with %s", cmp.Or(app.syncStatus, "nothing"), cmp.Or(app.compared, "nothing"))
	case len(app.history) > 0:
		t.say(a.App, "not synced", time.Time{}, "as far back as Argo CD remembers, %s", app.history[0].at.Local().Format(time.RFC3339))
	}
	if current {
		for _, problem := range app.problems {
			t.say(a.App, "not synced", time.Time{}, "Argo CD complains of %s", problem)
		}
	}
}

// tellPods tells whether it is running.
func (t *teller) tellPods(a *App) {
	app := t.applications[a.App]
	switch {
	case app.trouble != "":
		return
	case app.elsewhere != "":
		t.say(a.App, "unknown", time.Time{}, "whether it is running: that is in another cluster, %s", app.elsewhere)
		return
	case app.podsTrouble != "":
		t.say(a.App, "unknown", time.Time{}, "whether it is running: %s", app.podsTrouble)
		return
	case a.Digest == "":
		t.say(a.App, "unknown", time.Time{}, "whether it is running: its digest is not known")
		return
	}
	var waits []string
	for _, p := range app.pods {
		if !p.of(a.Digest) {
			continue
		}
		a.Pods++
		if p.since.IsZero() {
			waits = append(waits, p.name+": "+p.waits)
			continue
		}
		a.Ready++
		if a.Running.IsZero() || p.since.Before(a.Running) {
			a.Running = p.since
		}
	}
	if len(waits) > 0 {
		waits[0] = "; " + waits[0]
	}
	switch {
	case a.Ready > 0:
		t.say(a.App, "running", a.Running, "%d of %d pods ready%s", a.Ready, a.Pods, strings.Join(waits, "; "))
	case a.Pods > 0:
		t.say(a.App, "not running", time.Time{}, "0 of %d pods ready%s", a.Pods, strings.Join(waits, "; "))
	case a.DeployedRevision != t.revision:
		t.say(a.App, "not running", time.Time{}, "any more: the record is at %s", cmp.Or(string(a.DeployedRevision), "no revision"))
	default:
		t.say(a.App, "not running", time.Time{}, "no pod in %s has its digest; Argo CD says %s", app.namespace, cmp.Or(app.health, "nothing of its health"))
	}
}

// advise says what a person does about a failure; built tells that there is a log of
// it.
func (t *teller) advise(app string, exitCode int, built bool) {
	log := fmt.Sprintf("the log: fabrique logs %s; ", t.revision)
	if !built {
		log = ""
	}
	switch exitCode {
	case step.ExitRetry:
		t.say(app, "next", time.Time{}, "%sa retry may mend it, and the CronWorkflow compares at %q", log, t.Cluster.Schedule)
	case step.ExitInvalid:
		t.say(app, "next", time.Time{}, "%smend the record or the configuration, as the message says; the next run goes on", log)
	case step.ExitSource:
		t.say(app, "next", time.Time{}, "%spush a fix", log)
	}
}
