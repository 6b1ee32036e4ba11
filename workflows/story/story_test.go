package story

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"fabrique/steps/config"
	"fabrique/steps/gitea"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/reconcile"
	"fabrique/steps/step"
	"fabrique/workflows/run"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	time.Local = time.FixedZone("", 3600) // the golden files are in this zone
	os.Exit(m.Run())
}

// The three commits of the recorded Workflows, the oldest first, and a newer one.
const (
	begin = gitref.Revision("1e0023c87945f1f3e47eac56711fb27fcd1817fb")
	first = gitref.Revision("5971957bed816a7819fbbe1a1915fa7175960f44")
	next  = gitref.Revision("83b5dcb8a46f15b1b50b2e0f2d551e28f00dc2dd")
	later = gitref.Revision("7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210")

	firstDigest    = image.Digest("sha256:244bdb403fe7b0a956e74aaf79930a92a354728ace8dc166b5c1345489e7e446")
	nextDigest     = image.Digest("sha256:dfc28e5298fdaeca7d755277e97d8c4543df4391738e1ad10c3df13c07de5510")
	citationDigest = image.Digest("sha256:58e2e151c1a322ce2bdd34f7e01a2fd6a800fac0b3a653fea2ab2957ed858339")
)

func at(clock string) time.Time {
	t, err := time.Parse(time.DateTime, "2026-11-30 "+clock)
	if err != nil {
		panic(err)
	}
	return t
}

// runNamed reads a recorded Workflow.
func runNamed(t *testing.T, name string) run.Run {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "run", "testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := run.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// hello gives the recorded Application, with the recorded pods.
func hello(t *testing.T) application {
	t.Helper()
	text, err := os.ReadFile("testdata/hello.application.json")
	if err != nil {
		t.Fatal(err)
	}
	a, err := parseApplication(text)
	if err != nil {
		t.Fatal(err)
	}
	text, err = os.ReadFile("testdata/web.pods.json")
	if err != nil {
		t.Fatal(err)
	}
	var list corev1.PodList
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		a.pods = append(a.pods, podOf(&list.Items[i]))
	}
	return a
}

// settings are the configuration.
func settings() config.Config {
	return config.Config{
		Source:  config.Source{Repository: "atlas/atlas", Branch: "main"},
		Apps:    config.Apps{Repository: "cluster/apps", Branch: "main"},
		Cluster: config.Cluster{Schedule: "*/10 * * * *"},
	}
}

// base are the facts of a commit that is the head, and of nothing else.
func base(revision gitref.Revision) facts {
	return facts{
		Config: settings(), revision: revision, on: true,
		plan:   reconcile.Plan{Head: revision, Revision: revision},
		commit: &gitea.Dated{Commit: gitea.Commit{ID: string(revision), Message: "Greet\n\nWith a reason.\n"}, Author: "Ada", Time: at("14:40:00")},
		push:   &gitea.Push{Time: at("14:51:08"), By: "ada", Head: revision, Commits: 1},
	}
}

func deploy(app string, revision gitref.Revision, id, clock string) write {
	return write{gitea.Dated{Commit: gitea.Commit{ID: id, Message: app + ": deploy " + revision.Short() + "\n\n…"}, Time: at(clock)}, app, revision}
}

func declared(app string, due bool, reason string, deployed gitref.Revision, digest image.Digest) reconcile.App {
	return reconcile.App{App: app, Record: app + ".yaml", Image: image.Name(app), Due: due, Reason: reason, DeployedRevision: deployed, DeployedDigest: digest}
}

// golden compares with a golden file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestTell compares stories with golden files.
func TestTell(t *testing.T) {
	writes := []write{
		deploy("hello", first, "eccae1bf92227abeab1a80113b8e82a0ad6ae864", "14:51:53"),
		deploy("citation", first, "ff9ae6f243aceaeaf4d7fa05a021f0ce30515fb0", "14:52:56"),
		deploy("hello", next, "a2ecfb5a11d060436fc096c4a5bcdff1b53a963f", "14:53:03"),
	}
	both := []reconcile.App{
		declared("citation", false, reconcile.UpToDate, first, citationDigest),
		declared("hello", false, reconcile.UpToDate, next, nextDigest),
	}
	for name, make := range map[string]func(*testing.T) facts{
		"running": func(t *testing.T) facts {
			f := base(next)
			f.push.Time = at("14:52:12")
			f.runs = []run.Run{runNamed(t, "nothing-due"), runNamed(t, "rechecked")}
			f.plan.Apps, f.writes = both, writes
			f.applications = map[string]application{"hello": hello(t)}
			return f
		},
		"replaced": func(t *testing.T) facts {
			f := base(first)
			f.plan.Head, f.behind = next, 1
			f.runs = []run.Run{runNamed(t, "deployed")}
			f.plan.Apps, f.writes = both, writes
			f.applications = map[string]application{"hello": hello(t), "citation": {trouble: "Argo CD has no Application citation in argocd"}}
			return f
		},
		"superseded": func(t *testing.T) facts {
			f := base(begin)
			f.push.Time = at("14:51:05")
			f.plan.Head, f.behind = next, 2
			f.runs = []run.Run{runNamed(t, "superseded")}
			f.plan.Apps, f.writes = both, writes
			return f
		},
		"building-and-waiting": func(t *testing.T) facts {
			f := base(next)
			f.runs = []run.Run{runNamed(t, "building-and-waiting")}
			f.plan.Apps = []reconcile.App{
				declared("citation", true, reconcile.NeverBuilt, "", ""), declared("hello", true, reconcile.SourceChanged, first, firstDigest),
				declared("other", false, reconcile.UpToDate, begin, citationDigest), declared("stopped", false, "held: waiting for the migration", begin, citationDigest),
			}
			return f
		},
		"failed": func(t *testing.T) facts {
			f := base(first)
			f.runs = []run.Run{runNamed(t, "builds-failed")}
			f.plan.Apps = []reconcile.App{declared("citation", true, reconcile.NeverBuilt, "", ""), declared("hello", true, reconcile.NeverBuilt, "", "")}
			return f
		},
		"tried-again": func(t *testing.T) facts {
			f := base(first)
			f.runs = []run.Run{runNamed(t, "build-failed-and-tried-again")}
			return f
		},
		"plan-failed": func(t *testing.T) facts {
			f := base(first)
			r := runNamed(t, "plan-unreachable")
			r.Revision, r.Created = string(first), at("14:51:10")
			f.runs = []run.Run{r}
			return f
		},
		"no-run": func(*testing.T) facts {
			f := base(later)
			f.push = nil
			f.plan.Apps = []reconcile.App{declared("hello", true, reconcile.SourceChanged, next, nextDigest)}
			f.plan.Broken = []reconcile.Broken{{App: "gone", Record: "gone.yaml", Error: `the context "gone" does not exist`, ExitCode: 3}, {Record: "garbage.yaml", Error: "garbage.yaml:2:1: not YAML", ExitCode: 2}}
			return f
		},
		"pushed-below-another": func(*testing.T) facts {
			f := base(begin)
			f.plan.Head, f.behind = first, 1
			f.push.Head, f.push.Commits = first, 2
			return f
		},
		"no-cluster": func(*testing.T) facts {
			f := base(first)
			f.plan.Head, f.behind = next, 1
			f.plan.Apps, f.writes = both, writes
			f.statuses = map[string]gitea.Status{
				"fabrique": {State: "failure", Description: "citation: building … | exit code: 2"}, "fabrique/citation": {State: "failure", Description: "building …"},
				"ci/other": {State: "success", Description: "not ours"},
			}
			f.notAsked = "there is no kubeconfig; name one by --kubeconfig"
			return f
		},
		"gone": func(t *testing.T) facts {
			f := base(first)
			f.commit, f.push, f.on = nil, nil, false
			f.plan.Head = next
			f.writes = writes
			f.plan.Apps = both
			f.applications = map[string]application{"hello": hello(t), "citation": {elsewhere: "https://10.0.0.1:6443", namespace: "dataops"}}
			return f
		},
		"aside": func(*testing.T) facts {
			f := base(first)
			f.on, f.plan.Head = false, next
			return f
		},
		"not-synced": func(t *testing.T) facts {
			f := base(later)
			f.push.Time = at("14:59:00")
			f.plan.Apps = []reconcile.App{
				declared("complains", false, reconcile.UpToDate, later, firstDigest), declared("failing", false, reconcile.UpToDate, later, firstDigest),
				declared("pulling", false, reconcile.UpToDate, later, firstDigest), declared("refused", false, reconcile.UpToDate, later, firstDigest),
			}
			failing := application{namespace: "web", health: "Degraded"}
			failing.operation.phase, failing.operation.revision, failing.operation.message, failing.operation.finished = "Failed", string(later), "one or more objects failed to apply\nDeployment.apps \"x\" is invalid", at("14:59:30")
			pulling := application{namespace: "web", history: []synced{{at("14:59:20"), string(later), string(later), string(firstDigest)}}}
			pulling.pods = []pod{
				{name: "pulling-1", images: []string{"registry:80/pulling@" + string(firstDigest)}, waits: "ImagePullBackOff: Back-off pulling image"},
				{name: "pulling-2", images: []string{"registry:80/pulling@" + string(firstDigest)}, waits: "0/2 nodes are available"},
				{name: "else-1", images: []string{"registry:80/else@" + string(nextDigest)}, since: at("14:00:00")},
			}
			f.applications = map[string]application{
				"complains": {namespace: "web", syncStatus: "OutOfSync", compared: string(next), problems: []string{"ComparisonError: repository not accessible"}},
				"failing":   failing, "pulling": pulling,
				"refused": {namespace: "web", podsTrouble: "listing the pods in web: forbidden", history: pulling.history},
			}
			return f
		},
		"hostile": func(t *testing.T) facts {
			f := base(first)
			f.commit.Message, f.commit.Author = "\x1b]0;title\a Greet\tall\n", "Eve \u202e \x1b[31m"
			r := runNamed(t, "builds-failed")
			for i := range r.Apps {
				r.Apps[i].Build.Message = "\x1b[2J\r{{workflow.name}}\tand\nhttp://u:hunter2@host\x00"
				r.Apps[i].Item.Reason = "source\nchanged\t\x9b"
			}
			r.Apps[0].Builder = "\x1b[1m"
			r.Broken = []run.Broken{{Record: "a\x1b.yaml", Error: "b\r\n\x1bc", ExitCode: 2}}
			f.runs = []run.Run{r}
			f.statuses = map[string]gitea.Status{"fabrique": {State: "\x1b", Description: "\x1b"}}
			return f
		},
		"empty": func(*testing.T) facts {
			f := base(first)
			f.plan = reconcile.Plan{}
			f.push = nil
			return f
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := make(t).tell()
			var table bytes.Buffer
			if err := s.Write(&table); err != nil {
				t.Fatal(err)
			}
			golden(t, name, table.String())
			text, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			for _, out := range []string{table.String(), string(text)} {
				if strings.ContainsAny(out, "\x1b\r\x00\a\u009b\u202e") || strings.Contains(out, `\u001b`) || strings.Contains(out, "hunter2") {
					t.Errorf("it holds a control character or a password: %q", out)
				}
			}
			for _, l := range s.Lines {
				if l.What == "" || l.Text == "" {
					t.Errorf("an empty line: %+v", l)
				}
			}
		})
	}
}

// TestFacts checks what a program reads of a story.
func TestFacts(t *testing.T) {
	f := base(next)
	f.runs = []run.Run{runNamed(t, "rechecked")}
	f.plan.Apps = []reconcile.App{declared("citation", false, reconcile.UpToDate, first, citationDigest), declared("hello", false, reconcile.UpToDate, next, nextDigest)}
	f.writes = []write{deploy("hello", next, "a2ecfb5a11d060436fc096c4a5bcdff1b53a963f", "14:53:03")}
	f.applications = map[string]application{"hello": hello(t)}
	got := f.tell()
	const builder = "tcp://buildkitd-0.buildkitd.fabrique-build.svc.cluster.local:1234"
	want := []App{
		{App: "citation", Due: true, Reason: "never built", Run: "push-" + string(next), Outcome: run.Success, DeployedRevision: first,
			Text: "nothing left to do: citation@" + string(citationDigest) + " is deployed"},
		{App: "hello", Due: true, Reason: "source changed", Run: "push-" + string(next), Outcome: run.Success, Text: "hello@" + string(nextDigest) + " is deployed",
			Built: at("14:52:47"), Cached: 1, Total: 3, Builder: builder, Digest: nextDigest,
			Result: "updated", Commit: "a2ecfb5a11d060436fc096c4a5bcdff1b53a963f", Written: at("14:53:03"), Synced: at("14:53:23"),
			Running: at("14:53:25"), Ready: 2, Pods: 2, DeployedRevision: next},
	}
	if diff := cmp.Diff(want, got.Apps); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got.Place != Head || got.NotAsked != "" || len(got.Runs) != 1 || got.Runs[0].Outcome != run.Success {
		t.Errorf("%+v", got)
	}
}

func TestResolve(t *testing.T) {
	similar := first[:8] + begin[8:]
	for _, c := range []struct {
		name   string
		prefix gitref.Prefix
		commit gitref.Revision // that Gitea gives
		writes []write
		runs   []run.Run
		want   gitref.Revision
		says   string
	}{
		{name: "Gitea has it", prefix: gitref.Prefix(first[:7]), commit: first, want: first},
		{name: "the records name it", prefix: gitref.Prefix(first[:7]), writes: []write{deploy("hello", first, "e", "14:51:53"), deploy("hello", next, "f", "14:53:53")}, want: first},
		{name: "a run names it", prefix: gitref.Prefix(first), runs: []run.Run{{Revision: string(first)}, {Revision: ""}, {Revision: "main"}}, want: first},
		{name: "all name it", prefix: gitref.Prefix(first[:7]), commit: first, writes: []write{deploy("hello", first, "e", "14:51:53")}, runs: []run.Run{{Revision: string(first)}}, want: first},
		{name: "nobody", prefix: gitref.Prefix(later), writes: []write{deploy("hello", first, "e", "14:51:53")}, says: "atlas/atlas does not have it"},
		{name: "two", prefix: gitref.Prefix(first[:7]), commit: first, runs: []run.Run{{Revision: string(similar)}}, says: "several begin so: " + string(similar) + ", " + string(first)},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := facts{Config: settings(), writes: c.writes}
			if c.commit != "" {
				f.commit = &gitea.Dated{Commit: gitea.Commit{ID: string(c.commit)}}
			}
			err := f.resolve(c.prefix, c.runs)
			if f.revision != c.want || (err != nil) != (c.says != "") {
				t.Errorf("%q, %v", f.revision, err)
			}
			if c.says != "" && (step.ExitCode(err) != step.ExitInvalid || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%v (exit code %d)", err, step.ExitCode(err))
			}
		})
	}
}

func TestApplication(t *testing.T) {
	a := hello(t)
	if h, found := a.sync(first, firstDigest); !found || !h.at.Equal(at("14:52:06")) {
		t.Errorf("the sync before the write-back counts: %+v, %v", h, found)
	}
	if h, found := a.sync(first, ""); !found || !h.at.Equal(at("14:52:06")) {
		t.Errorf("without a digest: %+v, %v", h, found)
	}
	if _, found := a.sync(later, ""); found {
		t.Error("a revision that was never synced is found")
	}
	if got := a.digest(first); got != firstDigest {
		t.Errorf("the digest is %q", got)
	}
	for _, text := range []string{"{", `{"status":{"history":[{"deployedAt":"yesterday"}]}}`} {
		if _, err := parseApplication([]byte(text)); err == nil {
			t.Errorf("%s passes", text)
		}
	}
	several, err := parseApplication([]byte(`{"spec":{"destination":{"name":"in-cluster","namespace":"a"}},"status":{"history":[{"revision":"x","source":null}],"conditions":[{"type":"SharedResourceWarning","message":"m"},{"type":"SyncError","message":"n"}]}}`))
	if err != nil || several.elsewhere != "" || len(several.history) != 1 || several.digest("x") != "" {
		t.Errorf("%+v, %v", several, err)
	}
	if diff := cmp.Diff([]string{"SyncError: n"}, several.problems); diff != "" {
		t.Error(diff)
	}
}

func TestInFlight(t *testing.T) {
	stranger := runNamed(t, "planning")
	stranger.Name, stranger.Template = "stranger", "other"
	hostile := runNamed(t, "planning")
	hostile.Name, hostile.Revision, hostile.Only = "hostile", "\x1b[2J\n"+strings.Repeat("x", 500), "other"
	unreadable := run.Run{Name: "unreadable", Template: "fabrique", Cause: run.Hand, Phase: "Running", Created: at("14:50:00"), Unreadable: "its compressed nodes: EOF"}
	all := []run.Run{runNamed(t, "planning"), stranger, hostile, runNamed(t, "building-and-waiting"), runNamed(t, "unschedulable-and-publishing"), unreadable}
	write := func(runs []InFlight) string {
		var b bytes.Buffer
		if err := WriteInFlight(&b, runs, at("15:00:09")); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	golden(t, "in-flight", write(inFlight(all, nil)))
	var names []string
	for _, r := range inFlight(all, []string{"hello"}) {
		for _, a := range r.Apps {
			names = append(names, r.Name[:8]+" "+a.App)
		}
		if len(r.Apps) == 0 {
			names = append(names, r.Name)
		}
	}
	if diff := cmp.Diff([]string{"unreadable", "push-597 hello", "push-83b hello", "fabrique-head-1796050800"}, names); diff != "" {
		t.Errorf("of one app, -want +got:\n%s", diff)
	}
	if got := write(inFlight(nil, nil)); got != "\nno run is in flight\n" {
		t.Errorf("%q", got)
	}
	if got := write(nil); got != "" {
		t.Errorf("nobody was asked: %q", got)
	}
}

func TestPodOf(t *testing.T) {
	now := time.Now()
	ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
	ready.LastTransitionTime.Time = now
	for name, c := range map[string]struct {
		status corev1.PodStatus
		since  time.Time
		waits  string
	}{
		"ready":         {corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{ready}}, now, "Running"},
		"unschedulable": {corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "no room"}}}, time.Time{}, "no room"},
		"pulling": {corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{
			{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "not found"}}},
		}}, time.Time{}, "ErrImagePull: not found"},
		"nothing": {corev1.PodStatus{Phase: corev1.PodPending}, time.Time{}, "Pending"},
	} {
		t.Run(name, func(t *testing.T) {
			p := podOf(&corev1.Pod{Status: c.status})
			if !p.since.Equal(c.since) || p.waits != c.waits {
				t.Errorf("%+v", p)
			}
		})
	}
	if !(pod{images: []string{"x", "registry:80/x@sha256:a"}}).of("sha256:a") || (pod{images: []string{"registry:80/x:sha256"}}).of("sha256:a") {
		t.Error("the image's digest is not what tells")
	}
}

// A story that cannot be written is an error.
func TestWriteError(t *testing.T) {
	if err := base(first).tell().Write(full{}); !errors.Is(err, errFull) {
		t.Errorf("%v", err)
	}
}

var errFull = errors.New("no space left")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }
