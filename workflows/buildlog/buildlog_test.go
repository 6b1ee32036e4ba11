package buildlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"fabrique/steps/step"
	"fabrique/workflows/run"
)

func TestMain(m *testing.M) {
	time.Local = time.UTC // notes have local times
	os.Exit(m.Run())
}

const (
	first = "5971957bed816a7819fbbe1a1915fa7175960f44" // of the recorded Workflows
	next  = "83b5dcb8a46f15b1b50b2e0f2d551e28f00dc2dd"

	helloNode    = "push-" + first + "-3911683730"
	citationNode = "push-" + first + "-3989775584"
)

// workflow reads a recorded one.
func workflow(t *testing.T, name string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "run", "testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var w map[string]any
	if err := json.Unmarshal(text, &w); err != nil {
		t.Fatal(err)
	}
	return w
}

// pod makes the pod of a step; states are those of clone and main: waiting, running
// or terminated.
func pod(name, node, phase string, states ...string) map[string]any {
	status := func(container, state string) map[string]any {
		state, reason, _ := strings.Cut(state, " ")
		detail := map[string]any{}
		if reason != "" {
			detail["reason"] = reason
		}
		return map[string]any{"name": container, "state": map[string]any{state: detail}}
	}
	p := map[string]any{
		"metadata": map[string]any{"name": name, "namespace": "fabrique", "annotations": map[string]any{nodeAnnotation: node}},
		"spec":     map[string]any{"initContainers": []any{map[string]any{"name": "init"}, map[string]any{"name": "clone"}}, "containers": []any{map[string]any{"name": "wait"}, map[string]any{"name": "main"}}},
		"status":   map[string]any{"phase": phase},
	}
	if len(states) == 2 {
		p["status"] = map[string]any{
			"phase":                 phase,
			"initContainerStatuses": []any{status("init", "terminated"), status("clone", states[0])},
			"containerStatuses":     []any{status("wait", "running"), status("main", states[1])},
		}
	}
	return p
}

// moment is what the cluster has at one time.
type moment struct {
	workflows []map[string]any // the newest first
	pods      []map[string]any
}

// api is an API server that goes to its next moment with every reading of a
// Workflow.
type api struct {
	moments []moment
	// log serves a container's log; it may end the connection.
	log  func(w http.ResponseWriter, r *http.Request, pod, container string)
	deny string // part of a path that is forbidden

	mu    sync.Mutex
	reads int
	asked []string // for logs
}

func (a *api) now() moment { return a.moments[min(a.reads, len(a.moments)-1)] }

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	answer := func(v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	refuse := func(status int, reason string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": status, "message": reason + " of " + r.URL.Path})
	}
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	name := path[len(path)-1]
	switch {
	case a.deny != "" && strings.Contains(r.URL.Path, a.deny):
		refuse(http.StatusForbidden, "Forbidden")
	case name == "workflows":
		answer(map[string]any{"kind": "WorkflowList", "apiVersion": "argoproj.io/v1alpha1", "metadata": map[string]any{}, "items": a.now().workflows})
		a.reads++
	case path[len(path)-2] == "workflows":
		for _, item := range a.now().workflows {
			if item["metadata"].(map[string]any)["name"] == name {
				answer(item)
				a.reads++
				return
			}
		}
		refuse(http.StatusNotFound, "NotFound")
	case name == "pods":
		answer(map[string]any{"kind": "PodList", "apiVersion": "v1", "metadata": map[string]any{}, "items": a.now().pods})
	case name == "log":
		pod, container := path[len(path)-2], r.URL.Query().Get("container")
		a.asked = append(a.asked, pod+" "+container)
		a.log(w, r, pod, container)
	case path[len(path)-2] == "pods":
		a.reads++
		for _, item := range a.now().pods {
			if item["metadata"].(map[string]any)["name"] == name {
				item["kind"], item["apiVersion"] = "Pod", "v1"
				answer(item)
				return
			}
		}
		refuse(http.StatusNotFound, "NotFound")
	default:
		refuse(http.StatusNotFound, "NotFound")
	}
}

// stamped gives lines as the kubelet stamps them, a millisecond apart.
func stamped(lines ...string) string {
	var b strings.Builder
	at := time.Date(2026, 11, 30, 14, 51, 36, 0, time.UTC)
	for i, line := range lines {
		fmt.Fprintf(&b, "%s %s\n", at.Add(time.Duration(i)*time.Millisecond).Format(time.RFC3339Nano), line)
	}
	return b.String()
}

// logs serves the same text for each container, by its name.
func logs(of map[string]string) func(http.ResponseWriter, *http.Request, string, string) {
	return func(w http.ResponseWriter, _ *http.Request, pod, container string) {
		_, _ = io.WriteString(w, of[container])
	}
}

// show runs Show against the API server.
func show(t *testing.T, a *api, target string, o Options) (out, notes string, err error) {
	t.Helper()
	server := httptest.NewServer(a)
	defer server.Close()
	return showAt(t.Context(), t, server.URL, target, o)
}

func showAt(ctx context.Context, t *testing.T, url, target string, o Options) (out, notes string, err error) {
	t.Helper()
	cluster, err := NewCluster(&rest.Config{Host: url, QPS: 1000, Burst: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if o.Target, err = ParseTarget(target); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	o.Out, o.Notes, o.Poll = &stdout, &stderr, time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err = Show(ctx, cluster, o)
	return stdout.String(), stderr.String(), err
}

func TestShow(t *testing.T) {
	plain := logs(map[string]string{"clone": stamped("fetching", "fetched"), "main": stamped("#1 DONE", "#2 DONE")})
	one := func(names ...string) []map[string]any {
		var all []map[string]any
		for _, name := range names {
			all = append(all, workflow(t, name))
		}
		return all
	}
	helloFailed := pod("build-hello", helloNode, "Failed", "terminated", "terminated")
	for _, c := range []struct {
		name   string
		api    *api
		target string
		follow bool
		wait   time.Duration
		out    string
		notes  string
		code   int
		says   string // in the error
	}{
		{
			name: "the log of a success is gone", api: &api{moments: []moment{{one("deployed"), nil}}}, target: "hello", follow: true,
			notes: "hello: the log is gone, as the pod of a step that succeeded is removed after a minute; at 2026-11-30T14:51:42Z, by push-" + first +
				", it was built in 7s, 0 of 3 build steps cached: hello@sha256:244bdb403fe7b0a956e74aaf79930a92a354728ace8dc166b5c1345489e7e446\n" +
				"hello: hello@sha256:244bdb403fe7b0a956e74aaf79930a92a354728ace8dc166b5c1345489e7e446 is deployed\n",
		},
		{
			name: "a failure", api: &api{moments: []moment{{one("builds-failed"), []map[string]any{pod("other", "x", "Failed"), helloFailed}}}, log: plain}, target: "hello", follow: true,
			out: "fetching\nfetched\n#1 DONE\n#2 DONE\n", code: step.ExitSource, says: `hello: building "web/hello" at 5971957bed81`,
		},
		{
			name: "a failure whose pod is gone", api: &api{moments: []moment{{one("builds-failed"), nil}}}, target: "hello",
			notes: "hello: the pod of the build that failed at 2026-11-30T14:51:42Z is gone; this is what push-" + first + " has kept of it:\n",
			code:  step.ExitSource, says: "No rule to make target 'page'",
		},
		{
			name: "the apps of a commit, both failed", api: &api{moments: []moment{{one("builds-failed"), []map[string]any{helloFailed}}}, log: plain}, target: first[:7],
			out:   "[hello] fetching\n[hello] fetched\n[hello] #1 DONE\n[hello] #2 DONE\n",
			notes: "citation: try 4\ncitation: the pod of the build that failed at 2026-11-30T14:51:54Z is gone; this is what push-" + first + " has kept of it:\n",
			code:  step.ExitRetry, says: "citation: building \"dataops/citation-dagster\"",
		},
		{
			name: "found not due at its turn", api: &api{moments: []moment{{one("rechecked"), nil}}}, target: "citation", follow: true,
			notes: "citation: nothing left to do: citation@sha256:58e2e151c1a322ce2bdd34f7e01a2fd6a800fac0b3a653fea2ab2957ed858339 is deployed\n",
		},
		{
			name: "the newest that built it, not the newest", api: &api{moments: []moment{{one("nothing-due", "rechecked", "deployed"), nil}}}, target: "citation", follow: true,
			notes: "citation: the log is gone, as the pod of a step that succeeded is removed after a minute; at 2026-11-30T14:52:46Z, by push-" + first +
				", it was built in 1m13s, 0 of 6 build steps cached: citation@sha256:58e2e151c1a322ce2bdd34f7e01a2fd6a800fac0b3a653fea2ab2957ed858339\n" +
				"citation: citation@sha256:58e2e151c1a322ce2bdd34f7e01a2fd6a800fac0b3a653fea2ab2957ed858339 is deployed\n",
		},
		{
			name: "one that cannot be read stands in nobody's way", target: "1e0023c87945",
			api: &api{moments: []moment{{[]map[string]any{
				{"metadata": map[string]any{"name": "x"}, "spec": map[string]any{"workflowTemplateRef": map[string]any{"name": "fabrique"}}, "status": map[string]any{"phase": "Running", "compressedNodes": "?"}},
				workflow(t, "superseded"),
			}, nil}}},
			notes: "push-1e0023c87945f1f3e47eac56711fb27fcd1817fb: superseded by " + first + "\n",
		},
		{
			name: "nothing was due", api: &api{moments: []moment{{one("superseded"), nil}}}, target: "1e0023c87945", follow: true,
			notes: "push-1e0023c87945f1f3e47eac56711fb27fcd1817fb: superseded by " + first + "\n",
		},
		{
			name: "the plan failed", api: &api{moments: []moment{{[]map[string]any{asked(workflow(t, "plan-refused"), next)}, nil}}}, target: next, follow: true,
			code: step.ExitInvalid, says: `hand-mglxt: looking for the app "nope"`,
		},
		{
			name: "without following", api: &api{moments: []moment{{one("building-and-waiting"), []map[string]any{pod("build-hello", "push-"+next+"-3831846914", "Running", "terminated", "running")}}}, log: plain},
			target: next[:12],
			out:    "[hello] fetching\n[hello] fetched\n[hello] #1 DONE\n[hello] #2 DONE\n",
			notes:  "citation: waits for another run that has this app\nhello: being built\n",
		},
		{
			name: "still planning, without following", api: &api{moments: []moment{{one("planning"), nil}}}, target: "hello",
			code: step.ExitRetry, says: "the run fabrique-head-1796050800 is still looking for what is due",
		},
		{
			name: "from the plan to the end", target: "hello", follow: true,
			api: &api{log: plain, moments: []moment{
				{[]map[string]any{backToPlan(workflow(t, "built"))}, nil},
				{[]map[string]any{node(workflow(t, "built"), helloNode, "Pending", "PodInitializing")}, nil},
				{[]map[string]any{node(workflow(t, "built"), helloNode, "Pending", "PodInitializing")}, nil},
				{[]map[string]any{node(workflow(t, "built"), helloNode, "Pending", "PodInitializing")}, []map[string]any{pod("build-hello", helloNode, "Pending", "waiting ImagePullBackOff", "waiting PodInitializing")}},
				{[]map[string]any{node(workflow(t, "built"), helloNode, "Pending", "PodInitializing")}, []map[string]any{pod("build-hello", helloNode, "Pending", "running", "waiting PodInitializing")}},
				{[]map[string]any{node(workflow(t, "built"), helloNode, "Running", "")}, []map[string]any{pod("build-hello", helloNode, "Running", "terminated", "waiting PodInitializing")}},
				{[]map[string]any{node(workflow(t, "built"), helloNode, "Running", "")}, []map[string]any{pod("build-hello", helloNode, "Running", "terminated", "running")}},
				{[]map[string]any{node(workflow(t, "built"), helloNode, "Running", "")}, []map[string]any{pod("build-hello", helloNode, "Running", "terminated", "terminated")}},
				{one("built"), nil},
			}},
			out: "fetching\nfetched\n#1 DONE\n#2 DONE\n",
			notes: "the run push-" + first + " is looking for what is due\n" +
				"hello: being built\n" +
				"hello: its pod waits: ImagePullBackOff\n" +
				"hello: built in 7s, 0 of 3 build steps cached: hello@sha256:244bdb403fe7b0a956e74aaf79930a92a354728ace8dc166b5c1345489e7e446\n" +
				"hello: built, to be written into the record\n",
		},
		{
			name: "a run that is still to come", api: &api{moments: []moment{{nil, nil}, {nil, nil}, {one("superseded"), nil}}}, target: "1e0023c87945", follow: true, wait: time.Minute,
			notes: "no run of 1e0023c87945 is there yet\npush-1e0023c87945f1f3e47eac56711fb27fcd1817fb: superseded by " + first + "\n",
		},
		{name: "no such app", api: &api{moments: []moment{{one("deployed"), nil}}}, target: "other", code: step.ExitInvalid, says: `a build of the app "other": no run on record had it due`},
		{name: "no such commit", api: &api{moments: []moment{{one("deployed"), nil}}}, target: "7222512345e2", code: step.ExitInvalid, says: "no run on record is of that commit"},
		{name: "no run at all", api: &api{moments: []moment{{nil, nil}}}, target: "hello", follow: true, code: step.ExitInvalid, says: "no run on record"},
		{
			name: "several commits begin so", api: &api{moments: []moment{{[]map[string]any{workflow(t, "deployed"), asked(workflow(t, "planning"), first[:39]+"0")}, nil}}}, target: first[:7],
			code: step.ExitInvalid, says: "several commits begin so: " + first[:39] + "0, " + first,
		},
		{name: "strangers", api: &api{moments: []moment{{[]map[string]any{stranger(workflow(t, "deployed"))}, nil}}}, target: "hello", code: step.ExitInvalid, says: "no run on record"},
		{name: "Workflows are forbidden", api: &api{moments: []moment{{one("deployed"), nil}}, deny: "/workflows"}, target: "hello", code: step.ExitInvalid, says: "listing the Workflows in fabrique"},
		{name: "pods are forbidden", api: &api{moments: []moment{{one("deployed"), nil}}, deny: "/pods"}, target: "hello", code: step.ExitInvalid, says: "hello: listing the pods"},
		{name: "logs are forbidden", api: &api{moments: []moment{{one("builds-failed"), []map[string]any{helloFailed}}}, deny: "/log"}, target: "hello", code: step.ExitInvalid, says: "hello: reading the log of the pod build-hello"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, notes, err := show(t, c.api, c.target, Options{Follow: c.follow, Wait: c.wait})
			if diff := cmp.Diff(c.out, out); diff != "" {
				t.Errorf("standard output, -want +got:\n%s", diff)
			}
			if diff := cmp.Diff(c.notes, notes); diff != "" {
				t.Errorf("notes, -want +got:\n%s", diff)
			}
			if step.ExitCode(err) != c.code || c.says != "" && !strings.Contains(err.Error(), c.says) {
				t.Errorf("exit code %d, want %d: %v", step.ExitCode(err), c.code, err)
			}
		})
	}
}

// asked makes a Workflow one of a revision.
func asked(w map[string]any, revision string) map[string]any {
	w["spec"].(map[string]any)["arguments"] = map[string]any{"parameters": []any{map[string]any{"name": "revision", "value": revision}}}
	return w
}

// stranger makes a Workflow one of another template.
func stranger(w map[string]any) map[string]any {
	w["spec"].(map[string]any)["workflowTemplateRef"] = map[string]any{"name": "other"}
	return w
}

// backToPlan takes a Workflow back to its plan.
func backToPlan(w map[string]any) map[string]any {
	nodes := w["status"].(map[string]any)["nodes"].(map[string]any)
	for id, n := range nodes {
		n := n.(map[string]any)
		if n["templateName"] != run.Plan {
			delete(nodes, id)
		}
		n["phase"] = "Running"
	}
	return w
}

// node takes a step back, with its retries.
func node(w map[string]any, id, phase, message string) map[string]any {
	nodes := w["status"].(map[string]any)["nodes"].(map[string]any)
	n := nodes[id].(map[string]any)
	n["phase"], n["message"] = phase, message
	delete(n, "outputs")
	return w
}

// Hostile output reaches the terminal clean, whatever its form, and as it comes.
func TestHostileOutput(t *testing.T) {
	long := strings.Repeat("é", 50_000)
	text := stamped("\x1b[2J\x1b]0;title\a\u202e", "10%\r20%\r100%\r", "http://u:hunter2@host/x", "\xff\x00", long, "",
		`time="2026-11-30T14:52:47.376Z" level=info msg="sub-process exited" argo=true error="<nil>"`,
		`time="2026-11-30T14:52:47.376Z" level=error msg="not left out" argo=true`) +
		"no stamp\n" + stamped("no newline at the end")
	a := &api{moments: []moment{{[]map[string]any{workflow(t, "builds-failed")}, []map[string]any{pod("build-hello", helloNode, "Failed", "terminated", "terminated")}}}, log: logs(map[string]string{"main": strings.TrimSuffix(text, "\n")})}
	out, _, err := show(t, a, "hello", Options{Follow: true})
	if step.ExitCode(err) != step.ExitSource {
		t.Fatal(err)
	}
	if strings.ContainsAny(out, "\x1b\r\x00\a\u202e") || strings.Contains(out, "hunter2") || strings.Contains(out, "sub-process exited") {
		t.Errorf("%.300q", out)
	}
	if got := strings.Count(out, "é"); got < 49_900 {
		t.Errorf("%d of 50000 characters of the long line are there", got)
	}
	for _, want := range []string{"\uFFFD[2J", "\n10%\n20%\n100%\n", "http://***@host/x\n", "\n\n", "not left out", "no stamp\n", "no newline at the end\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("it lacks %q", want)
		}
	}
}

// A connection that breaks is made again; no line is lost, none comes twice.
func TestBrokenConnection(t *testing.T) {
	var lines []string
	for i := range 20 {
		lines = append(lines, fmt.Sprint("line ", i))
	}
	all := strings.SplitAfter(stamped(lines...), "\n")
	building := []map[string]any{workflow(t, "building-and-waiting")}
	id := "push-" + next + "-3831846914"
	breaks := 0
	a := &api{}
	a.moments = []moment{{building, []map[string]any{pod("b", id, "Running", "terminated", "running")}}}
	a.log = func(w http.ResponseWriter, r *http.Request, _, container string) {
		if container != "main" {
			return
		}
		since := r.URL.Query().Get("sinceTime")
		switch breaks++; {
		case breaks == 1:
			_, _ = io.WriteString(w, strings.Join(all[:5], "")+all[5][:len(all[5])-3]) // in the middle of a line
		case since == "" || !strings.HasPrefix(since, "2026-11-30T14:51:36"):
			t.Errorf("asked since %q", since)
		case breaks == 2:
			_, _ = io.WriteString(w, strings.Join(all[:12], ""))
		case breaks == 3:
			w.WriteHeader(http.StatusInternalServerError)
			return
		default:
			_, _ = io.WriteString(w, strings.Join(all, ""))
			a.moments = []moment{{[]map[string]any{workflow(t, "rechecked")}, []map[string]any{pod("b", id, "Succeeded", "terminated", "terminated")}}}
			return
		}
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	out, _, err := show(t, a, "hello", Options{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(lines, strings.Split(strings.TrimSpace(out), "\n")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A log that cannot be read is given up.
func TestGivingUp(t *testing.T) {
	a := &api{moments: []moment{{[]map[string]any{workflow(t, "builds-failed")}, []map[string]any{pod("b", helloNode, "Failed", "terminated", "terminated")}}}}
	a.log = func(w http.ResponseWriter, _ *http.Request, _, _ string) {
		w.WriteHeader(http.StatusInternalServerError)
	}
	_, _, err := show(t, a, "hello", Options{Follow: true})
	if step.ExitCode(err) != step.ExitRetry || !strings.Contains(err.Error(), "reading the log of the pod b") || len(a.asked) != mostBreaks+1 {
		t.Errorf("%v, asked %d times", err, len(a.asked))
	}
}

func TestCutOff(t *testing.T) {
	a := &api{moments: []moment{{[]map[string]any{workflow(t, "building-and-waiting")}, []map[string]any{pod("b", "push-"+next+"-3831846914", "Running", "terminated", "running")}}}}
	begun, stop := make(chan bool), make(chan bool)
	a.log = func(w http.ResponseWriter, r *http.Request, _, container string) {
		if container == "main" {
			_, _ = io.WriteString(w, stamped("one"))
			w.(http.Flusher).Flush()
			close(begun)
			<-stop
		}
	}
	server := httptest.NewServer(a)
	defer server.Close()
	defer close(stop)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-begun
		cancel(errors.New("terminated signal received"))
	}()
	started := time.Now()
	_, _, err := showAt(ctx, t, server.URL, "hello", Options{Follow: true})
	if err == nil || step.ExitCode(err) != step.ExitRetry || time.Since(started) > 10*time.Second {
		t.Errorf("after %s: %v", time.Since(started), err)
	}
	if _, _, err := showAt(t.Context(), t, "http://127.0.0.1:1", "hello", Options{}); step.ExitCode(err) != step.ExitRetry {
		t.Errorf("no cluster: %v", err)
	}
}

// Output that nobody takes ends it.
func TestClosedOutput(t *testing.T) {
	a := &api{moments: []moment{{[]map[string]any{workflow(t, "builds-failed")}, []map[string]any{pod("b", helloNode, "Failed", "terminated", "terminated")}}}, log: logs(map[string]string{"main": stamped("x")})}
	server := httptest.NewServer(a)
	defer server.Close()
	cluster, err := NewCluster(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	target, err := ParseTarget("hello")
	if err != nil {
		t.Fatal(err)
	}
	if err := Show(t.Context(), cluster, Options{Target: target, Follow: true, Out: closed{}, Notes: io.Discard}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("%v", err)
	}
}

type closed struct{}

func (closed) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestParseTarget(t *testing.T) {
	for text, want := range map[string]Target{
		"hello":                         {text: "hello", app: "hello"},
		"deadbeef":                      {text: "deadbeef", app: "deadbeef", commit: "deadbeef"},
		first:                           {text: first, app: first, commit: first},
		first + strings.Repeat("0", 24): {text: first + strings.Repeat("0", 24), commit: first + "000000000000000000000000"},
	} {
		got, err := ParseTarget(text)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "A", "a_b", "HEAD", "-f", "a/b", "\x1b[2J", first + strings.Repeat("g", 40)} {
		if got, err := ParseTarget(text); step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

func FuzzStamp(f *testing.F) {
	f.Add("2026-11-30T14:51:36.000000001Z text")
	f.Add("2026-11-30T14:51:36Z")
	f.Fuzz(func(t *testing.T, line string) {
		if _, rest, ok := stamp(line); ok && !strings.HasSuffix(line, rest) {
			t.Errorf("%q became %q", line, rest)
		}
	})
}
