// Package run reads what became of a run of the chain: a Workflow that was made
// from the WorkflowTemplate of package workflows.
//
// It reads the Workflow object alone, so that one reading serves the statuses on
// the commit, "fabrique status", "why" and "logs". What the steps say in it is
// hostile text (a build's output among it): it is parsed as data and never
// expanded.
package run

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Names of the WorkflowTemplate's templates.
const (
	Plan     = "plan"
	Announce = "announce"
	App      = "app"
	Recheck  = "recheck"
	Build    = "build"
	Publish  = "publish"
	Report   = "report"
)

// CauseLabel tells, on a Workflow, what started it; without it a person did.
const CauseLabel = "fabrique/cause"

// Causes of a run.
const (
	Push     = "push"
	Schedule = "schedule"
	Hand     = "hand"
)

// cronLabel is on what a CronWorkflow started (Argo Workflows' documentation,
// "Cron Workflows").
const cronLabel = "workflows.argoproj.io/cron-workflow"

// A State is how far a step is.
type State string

// The states of a [Step].
const (
	NotBegun  State = ""
	Waiting   State = "waiting" // its pod is not running yet
	Running   State = "running"
	Succeeded State = "succeeded"
	Failed    State = "failed"
)

// Over tells whether nothing more happens.
func (s State) Over() bool { return s == Succeeded || s == Failed }

// Step is one step of a run: its last try.
type Step struct {
	State    State
	Message  string // why it failed, as the step said it, or why it waits; else Argo's own words
	ExitCode int    // of a failed step; 0 when there is none (evicted, cut off)
	Again    bool   // it failed, and another try follows
	Started  time.Time
	Finished time.Time
	Tries    int
	Pod      string // its node's id, which the pod's annotation workflows.argoproj.io/node-id repeats
	out      map[string]string
}

// Item is an app in the plan's answer (reconcile-head's "due").
type Item struct {
	App       string `json:"app"`
	Record    string `json:"record"`
	Image     string `json:"image"`
	Revision  string `json:"revision"`
	SourceKey string `json:"sourceKey"`
	Reason    string `json:"reason"`
	// DeployedRevision and DeployedDigest are what the record said.
	DeployedRevision string `json:"deployedRevision"`
	DeployedDigest   string `json:"deployedDigest"`
}

// Broken is a record that the plan could not use.
type Broken struct {
	App      string `json:"app"`
	Record   string `json:"record"`
	Error    string `json:"error"`
	ExitCode int    `json:"exitCode"`
}

// AppRun is one app in a run.
type AppRun struct {
	Item
	// Lock says what the app waits for while another run has it.
	Lock    string
	Recheck Step
	Build   Step
	Publish Step

	// Of the recheck: what it found instead of something to do; empty otherwise.
	NotDue string
	// SupersededBy is the head that the recheck found in place of the revision.
	SupersededBy string
	// Unusable tells that the recheck found a record that it could not use.
	Unusable bool
	Problem  string // why, as the recheck said it

	Digest  string // what was built, or what was deployed already
	Cached  int    // build steps from the cache
	Total   int    // build steps in all
	Reused  bool   // the registry had the image already
	Builder string // address of the buildkitd that built it
	Result  string // of the write-back: created, updated, unchanged, stale, held
	Reason  string // of the write-back
	Commit  string // made in the apps repository
}

// Run is a whole run.
type Run struct {
	Name      string
	Namespace string
	Template  string // the WorkflowTemplate that it was made of; empty for none
	Cause     string // Push, Schedule or Hand
	Phase     string // Argo's: Pending, Running, Succeeded, Failed or Error
	Message   string // Argo's
	Asked     string // revision that it was asked for; empty for the head
	Only      string // the one app that it was asked for; empty for all
	Created   time.Time
	Finished  time.Time
	// Unreadable says why the steps' words could not be read; empty when they could.
	Unreadable string

	Plan       Step
	Head       string
	Revision   string // that was compared; before the plan the one that was asked for
	Superseded bool
	Declared   int // apps with a whole record
	Left       int // apps that are due beyond what one run takes
	Broken     []Broken
	Apps       []AppRun // what was due
	// StepsOver tells whether all steps have ended; the exit handler comes after them.
	StepsOver bool
	// Trouble is what Argo says of an error of its own, which no step could speak of.
	Trouble string
}

// Over tells whether Argo has ended the run.
func (r Run) Over() bool { return r.Phase == "Succeeded" || r.Phase == "Failed" || r.Phase == "Error" }

// workflow is the part of a Workflow that is read
// (argoproj.io/v1alpha1, Argo Workflows' field reference).
type workflow struct {
	Metadata struct {
		Name, Namespace   string
		Labels            map[string]string
		CreationTimestamp time.Time
	}
	Spec struct {
		Arguments           parameters
		WorkflowTemplateRef struct{ Name string }
	}
	Status struct {
		Phase, Message string
		FinishedAt     time.Time
		Nodes          map[string]node
		// Of many nodes there is one of these in their place.
		CompressedNodes, OffloadNodeStatusVersion string
	}
}

type parameters struct {
	Parameters []struct {
		Name  string
		Value value
	}
}

func (p parameters) all() map[string]string {
	values := map[string]string{}
	for _, parameter := range p.Parameters {
		values[parameter.Name] = string(parameter.Value)
	}
	return values
}

// value is a parameter's: a string, or what a person wrote without quotes, which
// the API server keeps so (Argo's AnyString).
type value string

func (v *value) UnmarshalJSON(text []byte) error {
	var s string
	switch err := json.Unmarshal(text, &s); {
	case err == nil:
		*v = value(s)
	case text[0] == '{' || text[0] == '[':
		return err
	default:
		*v = value(text)
	}
	return nil
}

type node struct {
	ID, Type, TemplateName, Phase, Message string
	StartedAt, FinishedAt                  time.Time
	Inputs, Outputs                        parameters
	SynchronizationStatus                  struct{ Waiting string }
}

// Parse reads a Workflow as the API server gives it, in JSON. Exit code 1 when it
// is none, or when what its steps say cannot be read; the run has then the rest.
func Parse(text []byte) (Run, error) {
	var w workflow
	if err := json.Unmarshal(text, &w); err != nil {
		return Run{}, fmt.Errorf("reading a Workflow: %w", err)
	}
	given := w.Spec.Arguments.all()
	r := Run{
		Name: w.Metadata.Name, Namespace: w.Metadata.Namespace, Template: w.Spec.WorkflowTemplateRef.Name, Cause: cause(w.Metadata.Labels),
		Phase: w.Status.Phase, Message: w.Status.Message, Asked: given["revision"], Only: given["app"],
		Created: w.Metadata.CreationTimestamp, Finished: w.Status.FinishedAt, Revision: given["revision"],
	}
	if r.Phase == "" {
		r.Phase = "Pending"
	}
	if err := r.read(w); err != nil {
		r.Unreadable = err.Error()
		return r, fmt.Errorf("reading the Workflow %s: %w", r.Name, err)
	}
	return r, nil
}

// read reads what the steps say.
func (r *Run) read(w workflow) error {
	if w.Status.CompressedNodes != "" {
		if err := expand(w.Status.CompressedNodes, &w.Status.Nodes); err != nil {
			return fmt.Errorf("its compressed nodes: %w", err)
		}
	}
	if len(w.Status.Nodes) == 0 && w.Status.OffloadNodeStatusVersion != "" {
		return errors.New("its nodes are in Argo's database")
	}
	nodes := byStart(w.Status.Nodes)
	for _, n := range nodes {
		if n.ID == r.Name { // the entry point's
			r.StepsOver = state(n.Phase).Over()
		}
		if (n.Type == "Steps" || n.Type == "StepGroup") && n.Phase == "Error" && n.Message != "" && !strings.HasPrefix(n.Message, "child '") {
			r.Trouble = n.Message
		}
	}
	r.Plan = last(nodes, Plan, "")
	if r.Plan.State == Succeeded {
		if err := r.readPlan(r.Plan.out); err != nil {
			return err
		}
	}
	for i := range r.Apps {
		if err := r.Apps[i].read(nodes); err != nil {
			return err
		}
	}
	return nil
}

// expand reads what Argo writes instead of nodes when these are too many.
func expand(text string, nodes *map[string]node) error {
	packed, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return err
	}
	stream, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return err
	}
	const limit = 64 << 20
	plain, err := io.ReadAll(io.LimitReader(stream, limit))
	if err != nil {
		return err
	}
	return json.Unmarshal(plain, nodes)
}

func cause(labels map[string]string) string {
	switch {
	case labels[CauseLabel] == Push:
		return Push
	case labels[cronLabel] != "":
		return Schedule
	}
	return Hand
}

func byStart(nodes map[string]node) []node {
	var all []node
	for _, n := range nodes {
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b node) int { return cmp.Or(a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.ID, b.ID)) })
	return all
}

// last gives the last try of a template's step, for an app unless that is empty.
func last(nodes []node, template, app string) Step {
	var s Step
	over := true // of all tries together
	for _, n := range nodes {
		if n.TemplateName != template || app != "" && n.Inputs.all()["app"] != app {
			continue
		}
		if n.Type == "Retry" {
			over = state(n.Phase).Over()
		}
		if n.Type != "Pod" {
			continue
		}
		s = Step{State: state(n.Phase), Message: n.Message, Started: n.StartedAt, Finished: n.FinishedAt, Tries: s.Tries + 1, Pod: n.ID, out: n.Outputs.all()}
		if s.State == Failed {
			s.Message, s.ExitCode = said(n.Message)
		}
	}
	// Argo waits before it sees that an exit code is none to try again with.
	s.Again = s.State == Failed && !over && s.ExitCode != 2 && s.ExitCode != 3
	return s
}

func state(phase string) State {
	switch phase {
	case "Succeeded":
		return Succeeded
	case "Failed", "Error":
		return Failed
	case "Running":
		return Running
	}
	return Waiting
}

// containerEnd is how Argo words the end of a container (workflow/controller,
// inferFailedReason): "main: Error (exit code 3): what the container said".
var containerEnd = regexp.MustCompile(`(?s)^[a-z0-9-]+: \w+ \(exit code (\d+)\)(?:: (.*))?$`)

// said takes a step's own words out of Argo's.
func said(message string) (text string, exitCode int) {
	found := containerEnd.FindStringSubmatch(message)
	if found == nil {
		if message == "" {
			message = "Argo gives no reason"
		}
		return message, 0
	}
	exitCode, _ = strconv.Atoi(found[1])
	if text = strings.TrimSpace(found[2]); text == "" {
		text = message
	}
	return text, exitCode
}

func (r *Run) readPlan(out map[string]string) error {
	r.Head, r.Revision, r.Superseded = out["head"], out["revision"], out["superseded"] == "true"
	r.Declared, _ = strconv.Atoi(out["apps"])
	r.Left, _ = strconv.Atoi(out["left"])
	var due []Item
	for name, into := range map[string]any{"due": &due, "broken": &r.Broken} {
		if err := json.Unmarshal([]byte(cmp.Or(out[name], "[]")), into); err != nil {
			return fmt.Errorf("its plan's output %q: %w", name, err)
		}
	}
	for _, item := range due {
		r.Apps = append(r.Apps, AppRun{Item: item})
	}
	return nil
}

func (a *AppRun) read(nodes []node) error {
	a.Recheck, a.Build, a.Publish = last(nodes, Recheck, a.App), last(nodes, Build, a.App), last(nodes, Publish, a.App)
	for _, n := range nodes {
		if n.TemplateName == App && n.Inputs.all()["app"] == a.App && state(n.Phase) == Waiting {
			a.Lock = n.SynchronizationStatus.Waiting
		}
	}
	out := a.Recheck.out
	if out["superseded"] == "true" {
		a.SupersededBy = out["head"]
	}
	var idle []Item
	if err := json.Unmarshal([]byte(cmp.Or(out["idle"], "[]")), &idle); err != nil {
		return fmt.Errorf("the output \"idle\" of %s's recheck: %w", a.App, err)
	}
	for _, item := range idle {
		if item.App == a.App {
			a.NotDue, a.Digest = item.Reason, item.DeployedDigest
		}
	}
	var broken []Broken
	if err := json.Unmarshal([]byte(cmp.Or(out["broken"], "[]")), &broken); err != nil {
		return fmt.Errorf("the output \"broken\" of %s's recheck: %w", a.App, err)
	}
	for _, b := range broken {
		a.Problem = b.Record + ": " + b.Error
	}
	a.Unusable = out["count"] == "0" && a.NotDue == "" && a.SupersededBy == ""
	out = a.Build.out
	a.Digest = cmp.Or(out["digest"], a.Digest)
	a.Cached, _ = strconv.Atoi(out["cached"])
	a.Total, _ = strconv.Atoi(out["total"])
	a.Reused, a.Builder = out["reused"] == "true", out["builder"]
	out = a.Publish.out
	a.Result, a.Reason, a.Commit = out["result"], out["reason"], out["commit"]
	if a.Deployed() {
		a.Digest = cmp.Or(out["digest"], a.Digest) // the record may keep that of an earlier build
	}
	return nil
}

// Deployed tells whether the write-back left the record at this app's source.
func (a AppRun) Deployed() bool {
	return a.Result == "created" || a.Result == "updated" || a.Result == "unchanged"
}
