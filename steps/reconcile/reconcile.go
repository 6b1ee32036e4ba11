// Package reconcile decides which apps are due: it compares the source
// repository at the head of its branch with the records of what is deployed.
// Nothing else decides; an event is only a hint to compare now.
//
// An app is due when its source key at the head is not the recorded one, or the
// record does not deploy what it says is deployed, and nothing holds it. The number of requests to the server does not depend on the
// number of apps: the branch, the trees (no file content) of one commit and the
// records of one commit are fetched with the git protocol.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"fabrique/steps/git"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/record"
	"fabrique/steps/step"
	"fabrique/steps/workspace"
)

// Options says what to compare.
type Options struct {
	Source       git.Remote
	SourceBranch gitref.Branch
	Apps         git.Remote
	AppsBranch   gitref.Branch
	AppsPath     gitref.Path // folder with the records, searched with its subfolders
	// Revision is the commit that the caller was told about; empty means the
	// head. When the branch has moved on, it is superseded and nothing is due.
	Revision gitref.Revision
	// Pinned compares at Revision wherever the branch is, for a rollback.
	Pinned bool
	// Only names the apps to look at; none means all.
	Only []string
}

// App is one declared app and what is to be done about it.
type App struct {
	App        string           `json:"app"`
	Record     string           `json:"record"` // file in the apps repository
	Revision   gitref.Revision  `json:"revision"`
	Context    gitref.Path      `json:"context"`
	Dockerfile gitref.Path      `json:"dockerfile"`
	Inputs     []gitref.Path    `json:"inputs,omitempty"`
	Image      image.Name       `json:"image"`
	BuildArgs  string           `json:"buildArgs"`
	Target     string           `json:"target"`
	SourceKey  gitref.SourceKey `json:"sourceKey"`

	Due    bool   `json:"due"`
	Reason string `json:"reason"`

	DeployedRevision  gitref.Revision  `json:"deployedRevision,omitempty"`
	DeployedSourceKey gitref.SourceKey `json:"deployedSourceKey,omitempty"`
	DeployedDigest    image.Digest     `json:"deployedDigest,omitempty"`
}

// Broken is a record, or an app in it, that cannot be built. It does not stop
// the others.
type Broken struct {
	App    string `json:"app,omitempty"` // empty when the file cannot be read that far
	Record string `json:"record"`        // file in the apps repository, quoted if its name is not allowed
	Error  string `json:"error"`
	// ExitCode is 2 for a record that is wrong, 3 for a source that lacks what
	// the record names.
	ExitCode int `json:"exitCode"`
}

// Plan is the outcome of a comparison.
type Plan struct {
	Head       gitref.Revision // of the source branch; empty for a repository without commits
	Revision   gitref.Revision // that was compared: Options.Revision or Head
	Superseded bool            // Revision is not the head any more
	Apps       []App           // all that are declared and whole, by name
	Broken     []Broken
}

// Reasons of an [App], beside "held: …" and "superseded by …".
const (
	NeverBuilt    = "never built"
	SourceChanged = "source changed"
	NoDigest      = "the record has no digest"
	OtherTarget   = "targetRevision is not the deployed revision"
	UpToDate      = "up to date"
	RolledBack    = "held: rolled back, until the source changes"
)

// Due lists the apps to build.
func (p Plan) Due() []App {
	due := []App{}
	for _, a := range p.Apps {
		if a.Due {
			due = append(due, a)
		}
	}
	return due
}

// Find gives one app by name, or the error that stands in its way.
func (p Plan) Find(app string) (App, error) {
	for _, a := range p.Apps {
		if a.App == app {
			return a, nil
		}
	}
	for _, b := range p.Broken {
		if b.App == app {
			return App{}, step.WithCode(b.ExitCode, fmt.Errorf("%s: %s", b.Record, b.Error))
		}
	}
	return App{}, step.Invalidf("looking for the app %q: the source repository has no commit yet", app)
}

// RecordOf gives the file of an app's record, also of one that cannot be built
// at this revision. A record that is wrong itself is an error.
func (p Plan) RecordOf(app string) (string, error) {
	for _, b := range p.Broken {
		if b.App == app && b.ExitCode == step.ExitSource {
			return b.Record, nil
		}
	}
	a, err := p.Find(app)
	return a.Record, err
}

// Run compares. Errors: exit code 2 for a revision, branch or app that does not
// exist and for a wrong token, 1 for the network.
func Run(ctx context.Context, log *slog.Logger, o Options) (plan Plan, err error) {
	dir, remove, err := workspace.Make("reconcile")
	if err != nil {
		return Plan{}, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	started := time.Now()

	var records []record.Record
	var broken []Broken
	var source *git.Repository
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		records, broken, err = readRecords(groupCtx, filepath.Join(dir, "apps"), o)
		return err
	})
	group.Go(func() (err error) {
		source, err = openSource(groupCtx, filepath.Join(dir, "source"), o, &plan)
		return err
	})
	if err := group.Wait(); err != nil {
		return Plan{}, err
	}
	records, clashes := separate(records, o)
	plan.Broken = append(broken, clashes...)
	if err := known(records, plan.Broken, o); err != nil {
		return Plan{}, err
	}
	if source != nil {
		if err := plan.compare(ctx, source, records, o.Pinned); err != nil {
			return Plan{}, err
		}
	}
	plan.keep(o.Only)
	for _, b := range plan.Broken {
		log.Warn("broken record", "record", b.Record, "app", b.App, "error", b.Error)
	}
	log.Info("compared", "head", plan.Head, "revision", plan.Revision, "superseded", plan.Superseded,
		"apps", len(plan.Apps), "due", len(plan.Due()), "broken", len(plan.Broken), "took", time.Since(started).Round(time.Millisecond))
	return plan, nil
}

// openSource finds the head and fetches its trees. It gives no repository when
// there is no commit.
func openSource(ctx context.Context, dir string, o Options, plan *Plan) (*git.Repository, error) {
	head, err := o.Source.Head(ctx, o.SourceBranch)
	if err != nil {
		return nil, err
	}
	plan.Head, plan.Revision = head, head
	if head == "" {
		if o.Revision != "" {
			return nil, step.Invalidf("reading revision %s: the repository %s has no commit", o.Revision, o.Source)
		}
		return nil, nil
	}
	repo, err := git.Init(ctx, o.Source, dir, "", head)
	if err != nil {
		return nil, fmt.Errorf("creating the git folder: %w", err)
	}
	if o.Pinned && o.Revision != "" {
		plan.Revision = o.Revision
		return repo, repo.Fetch(ctx, o.Revision, "blob:none")
	}
	if o.Revision != "" && o.Revision != head {
		plan.Revision, plan.Superseded = o.Revision, true
		if err := repo.Fetch(ctx, o.Revision, "tree:0"); err != nil {
			return nil, err
		}
	}
	return repo, repo.Fetch(ctx, head, "blob:none")
}

// readRecords fetches and parses all records of the apps repository.
func readRecords(ctx context.Context, dir string, o Options) ([]record.Record, []Broken, error) {
	head, err := o.Apps.Head(ctx, o.AppsBranch)
	if err != nil || head == "" {
		return nil, nil, err
	}
	repo, err := git.Init(ctx, o.Apps, dir, "", head)
	if err != nil {
		return nil, nil, fmt.Errorf("creating the git folder: %w", err)
	}
	if err := repo.Fetch(ctx, head, ""); err != nil {
		return nil, nil, err
	}
	folder, err := repo.Entries(ctx, head, []gitref.Path{o.AppsPath})
	if err != nil {
		return nil, nil, err
	}
	if folder[o.AppsPath].Mode != git.ModeFolder {
		return nil, nil, step.Invalidf("reading the records of %s: there is no folder %q on the branch %q; push it, or correct the folder's name", o.Apps, o.AppsPath, o.AppsBranch)
	}
	tree, err := repo.Tree(ctx, head, o.AppsPath)
	if err != nil {
		return nil, nil, err
	}
	var files, ids []string
	var broken []Broken
	for _, e := range tree {
		switch {
		case !record.IsManifest(e.Path) || !strings.HasPrefix(e.Mode, "100"):
		case e.Size > record.MaxSize:
			broken = append(broken, wrong("", e.Path, fmt.Sprintf("it has %d bytes, at most %d are allowed; split the file, or move what is no record to another folder", e.Size, record.MaxSize)))
		default:
			files, ids = append(files, e.Path), append(ids, e.ID)
		}
	}
	blobs, err := repo.Blobs(ctx, ids)
	if err != nil {
		return nil, nil, err
	}
	var records []record.Record
	for i, file := range files {
		found, err := record.ParseFile(file, blobs[i])
		if _, pathErr := gitref.ParsePath(file); pathErr != nil {
			// No step takes such a path; a file without records may have any name.
			for _, r := range found {
				broken = append(broken, wrong(r.App, file, pathErr.Error()+"; rename the file"))
			}
			found = nil
		}
		records = append(records, found...)
		if err != nil {
			broken = append(broken, wrong("", file, strings.ReplaceAll(err.Error(), "\n", "; ")))
		}
	}
	return records, broken, nil
}

// wrong makes a Broken of a record that is wrong itself. A path that would not
// be taken as one is quoted, as it may hold what a terminal obeys.
func wrong(app, file, problem string) Broken {
	if _, err := gitref.ParsePath(file); err != nil {
		file = strconv.Quote(file)
	}
	return Broken{App: app, Record: file, Error: problem, ExitCode: step.ExitInvalid}
}

// separate takes out the records that cannot be told apart, by app or by image,
// and those whose manifests come from another repository than their image.
func separate(records []record.Record, o Options) (whole []record.Record, broken []Broken) {
	byApp, byImage := map[string][]string{}, map[image.Name][]string{}
	for _, r := range records {
		byApp[r.App] = append(byApp[r.App], r.File)
		byImage[r.Image] = append(byImage[r.Image], r.App)
	}
	for _, r := range records {
		problem := ""
		switch {
		case len(byApp[r.App]) > 1:
			problem = fmt.Sprintf("the app %q is declared in several files: %s; keep one", r.App, strings.Join(byApp[r.App], ", "))
		case len(byImage[r.Image]) > 1:
			problem = fmt.Sprintf("the image %q belongs to several apps: %s; give each its own with %s", r.Image, strings.Join(byImage[r.Image], ", "), record.AnnotationImage)
		case r.SourceRepoURL != "" && !sameRepository(r.SourceRepoURL, o.Source.String()):
			problem = fmt.Sprintf("spec.source.repoURL is %q, but the image comes from %s: one revision cannot name both", r.SourceRepoURL, o.Source)
		}
		if problem != "" {
			broken = append(broken, wrong(r.App, r.File, problem))
			continue
		}
		whole = append(whole, r)
	}
	slices.SortFunc(whole, func(a, b record.Record) int { return strings.Compare(a.App, b.App) })
	return whole, broken
}

// sameRepository compares owner and name only: the same Gitea has one address
// in the cluster and another on the node.
func sameRepository(a, b string) bool {
	name := func(url string) string {
		parts := strings.FieldsFunc(strings.TrimSuffix(strings.TrimSuffix(url, "/"), ".git"), func(r rune) bool { return r == '/' || r == ':' })
		return strings.ToLower(strings.Join(parts[max(0, len(parts)-2):], "/"))
	}
	return name(a) == name(b)
}

// known checks that every app asked for is declared.
func known(records []record.Record, broken []Broken, o Options) error {
	for _, app := range o.Only {
		if slices.ContainsFunc(records, func(r record.Record) bool { return r.App == app }) ||
			slices.ContainsFunc(broken, func(b Broken) bool { return b.App == app }) {
			continue
		}
		var names []string
		for _, r := range records {
			names = append(names, r.App)
		}
		hint := "declared are: " + strings.Join(names, ", ")
		if len(names) == 0 {
			hint = fmt.Sprintf("none is; declare it by pushing an Argo CD Application with the annotation %s to %s", record.AnnotationContext, o.Apps)
		}
		if len(broken) > 0 {
			hint += fmt.Sprintf("; %d records are broken, it may be one of them", len(broken))
		}
		return step.Invalidf("looking for the app %q: it is not declared; %s", app, hint)
	}
	return nil
}

// keep drops the apps that were not asked for.
func (p *Plan) keep(only []string) {
	if len(only) == 0 {
		return
	}
	p.Apps = slices.DeleteFunc(p.Apps, func(a App) bool { return !slices.Contains(only, a.App) })
	p.Broken = slices.DeleteFunc(p.Broken, func(b Broken) bool { return !slices.Contains(only, b.App) })
}

// compare fills in what is due of the records. A superseded revision is not
// looked into: what is due at the head says whether there is anything to do.
func (p *Plan) compare(ctx context.Context, source *git.Repository, records []record.Record, pinned bool) error {
	at := p.Revision
	if p.Superseded {
		at = p.Head
	}
	var wanted []gitref.Path
	for _, r := range records {
		wanted = append(wanted, paths(r)...)
	}
	entries, err := source.Entries(ctx, at, wanted)
	if err != nil {
		return fmt.Errorf("reading the trees of %s: %w", at.Short(), err)
	}
	for _, r := range records {
		key, err := sourceKey(r, at, entries, pinned)
		if err != nil {
			p.Broken = append(p.Broken, Broken{App: r.App, Record: r.File, Error: err.Error(), ExitCode: step.ExitCode(err)})
			continue
		}
		app := App{
			App: r.App, Record: r.File, Revision: p.Revision,
			Context: r.Context, Dockerfile: r.Dockerfile, Inputs: r.Inputs,
			Image: r.Image, BuildArgs: r.BuildArgs.String(), Target: r.Target, SourceKey: key,
			DeployedRevision: r.Revision, DeployedSourceKey: r.SourceKey, DeployedDigest: r.Digest,
		}
		app.Due, app.Reason = due(r, key)
		if app.Due && p.Superseded {
			app.Due, app.Reason = false, "superseded by "+string(p.Head)
		}
		p.Apps = append(p.Apps, app)
	}
	return nil
}

// due is the comparison itself, for one app.
func due(r record.Record, key gitref.SourceKey) (bool, string) {
	switch {
	case r.Hold != "":
		return false, "held: " + r.Hold
	case r.RollbackOf == key:
		return false, RolledBack
	case r.Revision == "" || r.SourceKey == "":
		return true, NeverBuilt
	case r.SourceKey != key:
		return true, SourceChanged
	case r.Digest == "":
		return true, NoDigest
	case r.TargetRevision != string(r.Revision):
		return true, OtherTarget
	}
	return false, UpToDate
}
