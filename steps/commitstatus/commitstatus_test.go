package commitstatus

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"fabrique/bench/parts"
	"fabrique/steps/gitea"
	"fabrique/steps/gitref"
	"fabrique/steps/step"
	"fabrique/workflows/run"
)

func TestMain(m *testing.M) { parts.Main(m) }

const (
	revision = "7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210"
	head     = "1111111111111111111111111111111111111111"
	digest   = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
)

func due(app string) run.AppRun {
	return run.AppRun{Item: run.Item{App: app, Image: app, Reason: "source changed"}}
}

func deployed(app string) run.AppRun {
	a := due(app)
	a.Digest, a.Result = digest, "updated"
	return a
}

func planned(apps ...run.AppRun) run.Run {
	return run.Run{Revision: revision, Head: revision, Plan: run.Step{State: run.Succeeded}, Declared: 2, Apps: apps}
}

// TestWanted tells which statuses a run calls for, given what stands there.
func TestWanted(t *testing.T) {
	broken := due("news")
	broken.Build = run.Step{State: run.Failed, ExitCode: 3, Message: "first line\nlast line"}
	building := due("news")
	building.Build = run.Step{State: run.Running}
	superseded := planned()
	superseded.Superseded, superseded.Head = true, head
	refused := planned()
	refused.Broken = []run.Broken{{App: "", Record: "x.yaml", Error: "no name", ExitCode: 2}, {App: "y", Record: "y.yaml", Error: "no folder", ExitCode: 3}}
	only := planned()
	only.Only = "hello"
	noPlan := run.Run{Revision: revision, Plan: run.Step{State: run.Failed, ExitCode: 2, Message: "no such app"}}

	for name, c := range map[string]struct {
		run   run.Run
		end   bool
		there map[string]string // context to state
		want  []string
	}{
		"begun": {planned(due("hello"), building), false, nil, []string{
			"fabrique pending hello: due: source changed; news: being built",
			"fabrique/hello pending due: source changed",
			"fabrique/news pending being built",
		}},
		"one failed": {planned(deployed("hello"), broken), true, nil, []string{
			"fabrique failure news: first line | last line",
			"fabrique/hello success hello@" + digest + " is deployed",
			"fabrique/news failure first line | last line",
		}},
		"cut off": {planned(due("hello")), true, nil, []string{
			"fabrique failure hello: the run ended before its turn",
			"fabrique/hello failure the run ended before its turn",
		}},
		"nothing due":                     {planned(), true, nil, []string{"fabrique success nothing to build: 2 declared, none is due"}},
		"nothing due, success stays":      {planned(), true, map[string]string{"fabrique": "success", "fabrique/hello": "success"}, nil},
		"nothing due, failure is settled": {planned(), true, map[string]string{"fabrique": "failure"}, []string{"fabrique success nothing to build: 2 declared, none is due"}},
		"what a killed run left": {planned(), true, map[string]string{"fabrique/hello": "pending", "other/x": "pending", "fabrique/news": "failure"}, []string{
			"fabrique success nothing to build: 2 declared, none is due",
			"fabrique/hello skipped not due any more",
		}},
		"another app is not spoken of": {only, true, map[string]string{"fabrique/news": "pending"}, nil},
		"superseded": {superseded, true, map[string]string{"fabrique/hello": "pending", "fabrique/news": "success"}, []string{
			"fabrique skipped superseded by " + head,
			"fabrique/hello skipped superseded by " + head,
		}},
		"superseded, success stays": {superseded, true, map[string]string{"fabrique": "success"}, nil},
		"broken records": {refused, true, nil, []string{
			"fabrique failure x.yaml: no name; y.yaml: no folder",
			"fabrique/y failure y.yaml: no folder",
		}},
		"no plan": {noPlan, true, map[string]string{"fabrique/hello": "pending"}, []string{"fabrique failure no such app"}},
	} {
		t.Run(name, func(t *testing.T) {
			there := map[string]gitea.Status{}
			for context, state := range c.there {
				there[context] = gitea.Status{Context: context, State: state}
			}
			var got []string
			for _, s := range wanted(c.run, c.end, there) {
				got = append(got, s.Context+" "+s.State+" "+s.Description)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestLine keeps both ends of a long text, on one line, and nothing that a page or
// a terminal would obey.
func TestLine(t *testing.T) {
	for text, want := range map[string]string{
		"a\nb\n\n  c\t": "a | b | c |",
		"x\x1b[31m":     "x\uFFFD[31m",
		"":              "",
	} {
		if got := line(text); strings.TrimRight(got, " |") != strings.TrimRight(want, " |") {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	long := line("begin " + strings.Repeat("é", 3000) + " end")
	if len(long) > maxDescription || !strings.HasPrefix(long, "begin") || !strings.HasSuffix(long, "end") {
		t.Errorf("%d bytes: %s", len(long), long)
	}
}

// TestReport writes to a real Gitea: once each, not again, and ends as the run did.
func TestReport(t *testing.T) {
	ctx := t.Context()
	server := parts.Gitea(t)
	name := strings.ToLower(t.Name())
	project, err := server.NewProject(ctx, name+"/atlas", name+"/apps")
	if err != nil {
		t.Fatal(err)
	}
	commit, err := server.PushTree(ctx, project.Source, "main", fstest.MapFS{"x": {Data: []byte("x")}}, "Begin")
	if err != nil {
		t.Fatal(err)
	}
	token, err := server.StatusBot(ctx, project.Source)
	if err != nil {
		t.Fatal(err)
	}
	client, err := gitea.New(parts.GiteaURL, token)
	if err != nil {
		t.Fatal(err)
	}
	report := func(r run.Run, end bool, results ...string) error {
		t.Helper()
		result, err := Report(ctx, slog.New(slog.DiscardHandler), Options{Run: r, End: end, Client: client, Source: gitea.Repository(project.Source), Link: "https://argo.example"})
		var got []string
		for _, s := range result.Statuses {
			got = append(got, s.Result)
		}
		if diff := cmp.Diff(results, got); diff != "" {
			t.Errorf("%v: %s", err, diff)
		}
		return err
	}
	r := planned(due("hello"))
	r.Name, r.Namespace, r.Revision = "push-x", "fabrique", commit
	if err := report(r, false, "created", "created"); err != nil {
		t.Error(err)
	}
	if err := report(r, false, "unchanged", "unchanged"); err != nil {
		t.Error(err)
	}
	r.Apps[0].Build = run.Step{State: run.Failed, ExitCode: 3, Message: "it broke"}
	if err := report(r, true, "created", "created"); step.ExitCode(err) != step.ExitSource || err.Error() != "hello: it broke" {
		t.Errorf("a failed run ends in %v", err)
	}
	r.Apps = []run.AppRun{deployed("hello")}
	if err := report(r, true, "created", "created"); err != nil {
		t.Error(err)
	}
	there, err := client.Statuses(ctx, gitea.Repository(project.Source), gitref.Revision(commit))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]gitea.Status{}
	for context, text := range map[string]string{"fabrique": "hello: hello@%s is deployed", "fabrique/hello": "hello@%s is deployed"} {
		want[context] = gitea.Status{Context: context, State: "success", Description: fmt.Sprintf(text, digest), Link: "https://argo.example/workflows/fabrique/push-x"}
	}
	if diff := cmp.Diff(want, there); diff != "" {
		t.Error(diff)
	}

	// A commit that Gitea does not have gets none; the verdict is the same.
	r.Revision = head
	if err := report(r, true); err != nil {
		t.Errorf("a commit that is not there: %v", err)
	}
	// The writer of the records may not write here.
	if client, err = gitea.New(parts.GiteaURL, project.Writer); err != nil {
		t.Fatal(err)
	}
	r.Revision = commit
	if err := report(r, true); step.ExitCode(err) != step.ExitInvalid {
		t.Errorf("another bot may write statuses: %v", err)
	}
}
