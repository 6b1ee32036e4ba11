package speed

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	sdk "code.gitea.io/sdk/gitea"

	"fabrique/bench/parts"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/record"
)

const (
	reconcileRounds = 5
	dueApps         = 10
	fewApps         = 10
	fewRepo         = "cluster/apps-few"
	sampleDigest    = "sha256:" + "4444444444444444444444444444444444444444444444444444444444444444"
)

// decision is what of reconcile-head's result is looked at.
type decision struct {
	Head gitref.Revision
	Apps int
	Due  []struct {
		App       string
		SourceKey gitref.SourceKey
	}
	Broken []any
}

// reconcile measures reconcile-head over 1,000 apps of which few are due, and
// counts its requests.
func (b *bench) reconcile(ctx context.Context, report *Report) error {
	reader, err := b.tokenFile("reader", b.project.Reader.Reveal())
	if err != nil {
		return err
	}
	step := func(server, repo string) program {
		return program{args: []string{
			b.program("reconcile-head"), "--source-url", server + "/atlas/atlas.git", "--apps-url", server + "/" + repo + ".git", "--token-file", reader,
		}}
	}
	decide := func(p program, wantApps, wantDue int) (decision, error) {
		r, err := p.run(ctx)
		if err != nil {
			return decision{}, err
		}
		return parseDecision(r, wantApps, wantDue)
	}

	if err := b.pushRecords(ctx, b.project.Apps, apps, decision{}); err != nil {
		return err
	}
	first, err := decide(step(b.gitea.URL, b.project.Apps), apps, apps)
	if err != nil {
		return err
	}
	if err := b.pushRecords(ctx, b.project.Apps, apps, first); err != nil {
		return err
	}
	if err := b.gitea.CreateRepo(ctx, fewRepo); err != nil {
		return err
	}
	if err := b.gitea.AddCollaborator(ctx, fewRepo, parts.ReaderName, sdk.AccessModeRead); err != nil {
		return err
	}
	if err := b.pushRecords(ctx, fewRepo, fewApps, decision{}); err != nil {
		return err
	}

	paths := []string{"git", "rev-parse"}
	for app := range apps {
		paths = append(paths, "main:"+appContext(app))
	}
	runs, err := compete(ctx, b.progress, "reconcile", reconcileRounds,
		contender{
			name:    "reconcile-head",
			prepare: func(context.Context, int) (program, error) { return step(b.gitea.URL, b.project.Apps), nil },
			check: func(_ context.Context, _ int, r run) error {
				_, err := parseDecision(r, apps, dueApps)
				return err
			},
		},
		contender{
			name: "git rev-parse, local clone",
			prepare: func(context.Context, int) (program, error) {
				return program{args: paths, dir: b.history.dir, env: gitEnv}, nil
			},
		})
	if err != nil {
		return err
	}

	proxy, err := newCounter(b.gitea.URL)
	if err != nil {
		return err
	}
	defer proxy.close()
	many, err := proxy.count(func() error { _, err := decide(step(proxy.url, b.project.Apps), apps, dueApps); return err })
	if err != nil {
		return err
	}
	few, err := proxy.count(func() error { _, err := decide(step(proxy.url, fewRepo), fewApps, fewApps); return err })
	if err != nil {
		return err
	}
	report.Rows = append(report.Rows,
		measured(fmt.Sprintf("reconcile-head, %d apps, %d files, %d due", apps, apps*filesPerApp, dueApps), "s", seconds(runs[0])).
			against("git rev-parse, local clone", seconds(runs[1])).atMost(2),
		measured(fmt.Sprintf("reconcile-head, %d apps", apps), "requests", []float64{many}).
			against(fmt.Sprintf("itself, %d apps", fewApps), []float64{few}).equal(),
	)
	report.Notes = append(report.Notes,
		fmt.Sprintf("git rev-parse answers %d paths in one process from a full clone on the disk; reconcile-head starts from nothing and asks Gitea for the trees and the records.", apps))
	return nil
}

func parseDecision(r run, wantApps, wantDue int) (decision, error) {
	var d decision
	if err := json.Unmarshal(r.stdout[bytes.LastIndexByte(bytes.TrimSpace(r.stdout), '\n')+1:], &d); err != nil {
		return d, fmt.Errorf("reading the step's result: %w", err)
	}
	if d.Apps != wantApps || len(d.Due) != wantDue || len(d.Broken) > 0 {
		return d, fmt.Errorf("reconcile-head found %d apps, %d due, %d broken, want %d, %d, 0", d.Apps, len(d.Due), len(d.Broken), wantApps, wantDue)
	}
	return d, nil
}

// pushRecords declares apps 0 to n-1. All but the first ten that were due in an
// earlier decision are written as deployed.
func (b *bench) pushRecords(ctx context.Context, repo string, n int, earlier decision) error {
	dir, err := os.MkdirTemp(b.dir, "records-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	contents := map[string][]byte{}
	for app := range n {
		contents[appName(app)] = newRecord(app)
	}
	for _, due := range earlier.Due[min(len(earlier.Due), dueApps):] {
		raw, err := deployed(contents[due.App], due.App, earlier.Head, due.SourceKey)
		if err != nil {
			return err
		}
		contents[due.App] = raw
	}
	for name, raw := range contents {
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), raw, 0o644); err != nil {
			return err
		}
	}
	_, err = b.gitea.PushTree(ctx, repo, "main", os.DirFS(dir), "declare")
	return err
}

func appName(app int) string { return fmt.Sprintf("app-%04d", app) }

func newRecord(app int) []byte {
	return fmt.Appendf(nil, `apiVersion: argoproj.io/v1alpha1
kind: Application
metadata:
  name: %[1]s
  namespace: argocd
  annotations:
    fabrique/context: %[2]s
spec:
  project: default
  source:
    repoURL: %[3]s
    path: %[2]s/deploy
    targetRevision: main
  destination:
    server: https://kubernetes.default.svc
    namespace: %[1]s
`, appName(app), appContext(app), parts.CloneURL("atlas/atlas"))
}

// deployed gives the record with a deployment written into it.
func deployed(raw []byte, app string, revision gitref.Revision, key gitref.SourceKey) ([]byte, error) {
	return record.Apply(app+".yaml", raw, app, record.Change{Deploy: &record.Deployment{
		Revision: revision, SourceKey: key, Digest: sampleDigest,
		Repository: image.Repository{Registry: parts.RegistryAddress, Name: image.Name(app)},
	}})
}
