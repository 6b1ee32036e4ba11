package run_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fabrique/steps/step"
	"fabrique/workflows/run"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestParse reads Workflows as a cluster gave them (some with states put in that it
// did not show in time) and compares what is read with the golden file beside each.
func TestParse(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no testdata: ", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			text := read(t, file)
			r, err := run.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			got := describe(r)
			golden := strings.TrimSuffix(file, ".json") + ".txt"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(string(read(t, golden)), got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			packed, err := run.Parse(compress(t, text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got, describe(packed)); diff != "" {
				t.Errorf("with compressed nodes, -plain +compressed:\n%s", diff)
			}
		})
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// compress puts the nodes where Argo puts many.
func compress(t *testing.T, text []byte) []byte {
	t.Helper()
	return change(t, text, func(status map[string]any) {
		nodes, err := json.Marshal(status["nodes"])
		if err != nil {
			t.Fatal(err)
		}
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		if _, err := w.Write(nodes); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		delete(status, "nodes")
		status["compressedNodes"] = base64.StdEncoding.EncodeToString(packed.Bytes())
	})
}

// change changes a Workflow's status.
func change(t *testing.T, text []byte, edit func(status map[string]any)) []byte {
	t.Helper()
	var w map[string]any
	if err := json.Unmarshal(text, &w); err != nil {
		t.Fatal(err)
	}
	edit(w["status"].(map[string]any))
	text, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// describe writes a run for a golden file.
func describe(r run.Run) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("%s/%s of %q, by %s: %s, over %v", r.Namespace, r.Name, r.Template, r.Cause, r.Phase, r.Over())
	line("asked for revision %q, app %q; head %q, revision %q, superseded %v", r.Asked, r.Only, r.Head, r.Revision, r.Superseded)
	line("created %s, finished %s; steps over %v, left %d, trouble %q", clock(r.Created), clock(r.Finished), r.StepsOver, r.Left, r.Trouble)
	steps := func(name string, s run.Step) {
		if s.State == run.NotBegun {
			return
		}
		line("  %s %s %s to %s, try %d, again %v, exit code %d: %q (%s)", name, s.State, clock(s.Started), clock(s.Finished), s.Tries, s.Again, s.ExitCode, s.Message, s.Pod)
	}
	verdict := func(v run.Verdict) {
		line("  => %s, exit code %d: %s", v.Outcome, v.ExitCode, v.Text)
	}
	steps("plan", r.Plan)
	verdict(r.Verdict(r.Over()))
	for _, broken := range r.Broken {
		line("broken %+v", broken)
	}
	for _, a := range r.Apps {
		line("%s due: %s, %s@%s", a.App, a.Item.Reason, a.Image, a.Digest)
		steps("recheck", a.Recheck)
		steps("build", a.Build)
		steps("publish", a.Publish)
		line("  lock %q, not due %q, superseded by %q, cached %d of %d, reused %v, builder %q", a.Lock, a.NotDue, a.SupersededBy, a.Cached, a.Total, a.Reused, a.Builder)
		line("  result %q %q %q, deployed %v", a.Result, a.Reason, a.Commit, a.Deployed())
		verdict(a.Verdict(r.Over()))
	}
	return b.String()
}

func clock(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.TimeOnly)
}

// What a cluster seldom shows, made of a run that deployed two apps.
func TestVerdict(t *testing.T) {
	type parameters map[string]string
	for _, c := range []struct {
		name     string
		template string // whose steps of hello are changed
		phase    string
		message  string
		out      parameters
		drop     string // templates of hello that were not reached
		running  bool
		want     run.Verdict
	}{
		{name: "deployed", want: run.Verdict{Outcome: run.Success, Text: "hello@" + digest + " is deployed"}},
		{
			name: "stale", template: run.Publish, out: parameters{"result": "stale", "reason": "the record is at a newer one"},
			want: run.Verdict{Outcome: run.Superseded, Text: "superseded by what the record has: the record is at a newer one"},
		},
		{
			name: "held", template: run.Publish, out: parameters{"result": "held", "reason": "waiting for the migration"},
			want: run.Verdict{Outcome: run.Held, Text: "hello@" + digest + " is built and not deployed, held: waiting for the migration"},
		},
		{
			name: "superseded at its turn", template: run.Recheck, drop: "build publish",
			out:  parameters{"count": "0", "superseded": "true", "head": "83b5dcb8a46f15b1b50b2e0f2d551e28f00dc2dd", "idle": `[{"app":"hello","reason":"superseded by 83b5"}]`},
			want: run.Verdict{Outcome: run.Superseded, Text: "superseded by 83b5dcb8a46f15b1b50b2e0f2d551e28f00dc2dd"},
		},
		{
			name: "held at its turn", template: run.Recheck, drop: "build publish", out: parameters{"count": "0", "idle": `[{"app":"hello","reason":"held: waiting for the migration"}]`},
			want: run.Verdict{Outcome: run.Held, Text: "held: waiting for the migration"},
		},
		{
			name: "its record broke", template: run.Recheck, drop: "build publish", out: parameters{"count": "0"},
			want: run.Verdict{Outcome: run.Failure, Text: "hello.yaml: the record cannot be used any more, or is gone; the next run says why", ExitCode: 2},
		},
		{
			name: "evicted", template: run.Build, phase: "Failed", drop: "publish", message: "The node was low on resource: memory.",
			want: run.Verdict{Outcome: run.Failure, Text: "The node was low on resource: memory.", ExitCode: 1},
		},
		{
			name: "out of memory", template: run.Build, phase: "Failed", drop: "publish", message: "main: OOMKilled (exit code 137)",
			want: run.Verdict{Outcome: run.Failure, Text: "main: OOMKilled (exit code 137)", ExitCode: 1},
		},
		{
			name: "the clone failed", template: run.Build, phase: "Failed", drop: "publish", message: "clone: Error (exit code 3): cloning: Git LFS pointer",
			want: run.Verdict{Outcome: run.Failure, Text: "cloning: Git LFS pointer", ExitCode: 3},
		},
		{
			name: "no reason", template: run.Publish, phase: "Error",
			want: run.Verdict{Outcome: run.Failure, Text: "Argo gives no reason", ExitCode: 1},
		},
		{
			name: "cut off", drop: "build publish",
			want: run.Verdict{Outcome: run.Failure, Text: "the run ended before its turn", ExitCode: 1},
		},
		{
			name: "at fault while others go on", template: run.Build, phase: "Failed", drop: "publish", running: true, message: "main: Error (exit code 3): RUN failed",
			want: run.Verdict{Outcome: run.Failure, Text: "RUN failed", ExitCode: 3},
		},
		{
			name: "hostile", template: run.Build, phase: "Failed", drop: "publish",
			message: "main: Error (exit code 3): main: Error (exit code 0): \x1b[2J{{workflow.name}}\nmain: Error (exit code 1): x",
			want:    run.Verdict{Outcome: run.Failure, Text: "main: Error (exit code 0): \x1b[2J{{workflow.name}}\nmain: Error (exit code 1): x", ExitCode: 3},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := change(t, read(t, "testdata/deployed.json"), func(status map[string]any) {
				if c.running {
					status["phase"] = "Running"
				}
				nodes := status["nodes"].(map[string]any)
				for id, n := range nodes {
					n := n.(map[string]any)
					template, _ := n["templateName"].(string)
					if n["type"] != "Pod" && n["type"] != "Retry" || parameter(n, "inputs", "app") != "hello" {
						continue
					}
					if strings.Contains(c.drop, template) && template != c.template {
						delete(nodes, id)
					}
					if template != c.template {
						continue
					}
					if c.phase != "" {
						n["phase"] = c.phase
						delete(n, "outputs")
						if n["type"] == "Pod" {
							n["message"] = c.message
						}
					}
					for name, value := range c.out {
						set(n, name, value)
					}
				}
			})
			r, err := run.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range r.Apps {
				if a.App != "hello" {
					continue
				}
				if diff := cmp.Diff(c.want, a.Verdict(r.Over())); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			}
		})
	}
}

const digest = "sha256:244bdb403fe7b0a956e74aaf79930a92a354728ace8dc166b5c1345489e7e446"

// parameter reads one of a node.
func parameter(node map[string]any, side, name string) string {
	list, _ := node[side].(map[string]any)
	all, _ := list["parameters"].([]any)
	for _, p := range all {
		if p := p.(map[string]any); p["name"] == name {
			value, _ := p["value"].(string)
			return value
		}
	}
	return ""
}

// set changes an output of a node.
func set(node map[string]any, name, value string) {
	for _, p := range node["outputs"].(map[string]any)["parameters"].([]any) {
		if p := p.(map[string]any); p["name"] == name {
			p["value"] = value
		}
	}
}

// What cannot be read is an error, with all that can be.
func TestUnreadable(t *testing.T) {
	deployed := read(t, "testdata/deployed.json")
	plan := func(name, value string) []byte {
		return change(t, deployed, func(status map[string]any) {
			for _, n := range status["nodes"].(map[string]any) {
				if n := n.(map[string]any); n["templateName"] == run.Plan {
					set(n, name, value)
				}
			}
		})
	}
	for name, c := range map[string]struct {
		text []byte
		says string
	}{
		"the plan's list":  {plan("due", "[{"), `its plan's output "due"`},
		"another kind":     {plan("broken", `"x"`), `its plan's output "broken"`},
		"compressed nodes": {change(t, deployed, func(s map[string]any) { s["compressedNodes"] = "H4sI" }), "its compressed nodes"},
		"not base64":       {change(t, deployed, func(s map[string]any) { s["compressedNodes"] = "\x1b" }), "its compressed nodes"},
		"nodes in a database": {change(t, deployed, func(s map[string]any) {
			delete(s, "nodes")
			s["offloadNodeStatusVersion"] = "fnv:1"
		}), "in Argo's database"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := run.Parse(c.text)
			if err == nil || !strings.Contains(err.Error(), c.says) || r.Unreadable == "" || r.Name == "" || r.Revision == "" {
				t.Errorf("%v, %+v", err, r)
			}
			if v := r.Verdict(r.Over()); v.Outcome != run.Failure || !strings.Contains(v.Text, c.says) {
				t.Errorf("%+v", v)
			}
		})
	}
	for _, text := range []string{"", "[]", `"x"`, `{"metadata":{"creationTimestamp":"yesterday"}}`, `{"status":{"nodes":[]}}`} {
		if r, err := run.Parse([]byte(text)); err == nil || step.ExitCode(err) != step.ExitRetry {
			t.Errorf("%q: %+v, %v", text, r, err)
		}
	}
}

// A person may write a parameter without quotes.
func TestParameterKinds(t *testing.T) {
	r, err := run.Parse([]byte(`{"metadata":{"name":"hand-1","creationTimestamp":null},"spec":{"arguments":{"parameters":[
		{"name":"revision","value":7222512},{"name":"app","value":true},{"name":"other","value":null},{"name":"none"}]}},"status":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := run.Run{Name: "hand-1", Cause: run.Hand, Phase: "Pending", Asked: "7222512", Only: "true", Revision: "7222512"}
	if diff := cmp.Diff(fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", r)); diff != "" {
		t.Error(diff)
	}
}

// Whatever a Workflow holds, reading it ends, and there is a word for it.
func FuzzParse(f *testing.F) {
	// Small ones: the engine is slow with large inputs.
	for _, seed := range []string{
		`{"metadata":{"name":"push-1","labels":{"fabrique/cause":"push"},"creationTimestamp":"2026-11-30T14:51:10Z"},"spec":{"arguments":{"parameters":[{"name":"revision","value":"a"},{"name":"app","value":1}]}},"status":{"phase":"Failed"}}`,
		`{"metadata":{"name":"a"},"status":{"nodes":{"p":{"id":"p","type":"Pod","templateName":"plan","phase":"Succeeded","outputs":{"parameters":[{"name":"due","value":"[{\"app\":\"x\",\"reason\":\"never built\"}]"},{"name":"broken","value":"[{\"record\":\"y\"}]"}]}},` +
			`"b":{"id":"b","type":"Pod","templateName":"build","phase":"Failed","message":"main: Error (exit code 3): x","inputs":{"parameters":[{"name":"app","value":"x"}]}},"r":{"type":"Retry","templateName":"build","phase":"Running","inputs":{"parameters":[{"name":"app","value":"x"}]}}}}}`,
		`{"metadata":{"name":"a"},"status":{"nodes":{"p":{"type":"Pod","templateName":"plan","phase":"Succeeded","outputs":{"parameters":[{"name":"due","value":"[{\"app\":\"x\"}]"}]}},` +
			`"c":{"type":"Pod","templateName":"recheck","phase":"Succeeded","inputs":{"parameters":[{"name":"app","value":"x"}]},"outputs":{"parameters":[{"name":"count","value":"0"},{"name":"idle","value":"[]"}]}}}}}`,
		`{"metadata":{"name":"a"},"status":{"compressedNodes":"H4sIAAAAAAAA/6uuBQBDv6ajAgAAAA=="}}`,
		`{"metadata":{"name":"a"},"status":{"nodes":{"p":{"type":"Pod","templateName":"plan","phase":"Error","message":"main: Error (exit code 2): "}}}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := run.Parse(text)
		if err != nil && r.Name != "" && r.Unreadable == "" {
			t.Errorf("%v, and the run does not know", err)
		}
		for _, end := range []bool{false, true} {
			check := func(v run.Verdict) {
				if v.Outcome == "" || v.Text == "" || end && v.Outcome == run.Pending && r.Left == 0 || (v.Outcome == run.Failure) != (v.ExitCode != 0) {
					t.Errorf("end %v: %+v", end, v)
				}
			}
			check(r.Verdict(end))
			for _, a := range r.Apps {
				check(a.Verdict(end))
			}
		}
	})
}
