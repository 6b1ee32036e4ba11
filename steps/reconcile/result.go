package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"

	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/step"
)

// Result is the step's answer: the due part of a [Plan].
type Result struct {
	Head       gitref.Revision `json:"head"`
	Revision   gitref.Revision `json:"revision"`
	Superseded bool            `json:"superseded"`
	Due        []App           `json:"due"`
	Items      []Item          `json:"items"` // the same apps, with what the next steps need and nothing else
	Count      int             `json:"count"` // how many these are
	Left       int             `json:"left"`  // how many more are due, beyond the limit
	Idle       []App           `json:"idle"`  // what was asked for by name and is not due
	Broken     []Broken        `json:"broken"`
	Apps       int             `json:"apps"` // how many are declared and whole
}

// Item is what the steps after this one are given of a due app. Every value has
// passed a strict parser and holds no "{{".
type Item struct {
	App        string           `json:"app"`
	Record     string           `json:"record"`
	Revision   gitref.Revision  `json:"revision"`
	Context    gitref.Path      `json:"context"`
	Dockerfile gitref.Path      `json:"dockerfile"`
	Image      image.Name       `json:"image"`
	BuildArgs  string           `json:"buildArgs"`
	Target     string           `json:"target"`
	SourceKey  gitref.SourceKey `json:"sourceKey"`
}

// maxBroken bounds what the answer tells of broken records, and maxProblem each
// one's error, in bytes: the answer becomes part of a Kubernetes object.
const (
	maxBroken  = 50
	maxProblem = 1000
)

// Decide is [Run] for the step binary. Of more than limit due apps (0: no limit) it
// takes some by chance, so that those that never succeed do not stand in the way of
// the others for ever; a later run takes the rest.
func Decide(ctx context.Context, log *slog.Logger, o Options, limit int) (Result, error) {
	plan, err := Run(ctx, log, o)
	r := Result{
		Head: plan.Head, Revision: plan.Revision, Superseded: plan.Superseded, Apps: len(plan.Apps),
		Due: plan.Due(), Items: []Item{}, Idle: []App{}, Broken: brief(plan.Broken),
	}
	if limit > 0 && len(r.Due) > limit {
		r.Left = len(r.Due) - limit
		rand.Shuffle(len(r.Due), func(i, j int) { r.Due[i], r.Due[j] = r.Due[j], r.Due[i] })
		r.Due = r.Due[:limit]
		slices.SortFunc(r.Due, func(a, b App) int { return strings.Compare(a.App, b.App) })
		log.Warn("more is due than one run takes", "limit", limit, "left", r.Left)
	}
	r.Count = len(r.Due)
	for _, a := range r.Due {
		r.Items = append(r.Items, Item{a.App, a.Record, a.Revision, a.Context, a.Dockerfile, a.Image, a.BuildArgs, a.Target, a.SourceKey})
	}
	for _, a := range plan.Apps {
		if !a.Due && len(o.Only) > 0 { // not all of them: that may be thousands
			r.Idle = append(r.Idle, a)
		}
	}
	return r, err
}

func brief(all []Broken) []Broken {
	some := []Broken{}
	for _, b := range all[:min(len(all), maxBroken)] {
		if len(b.Error) > maxProblem {
			b.Error = strings.ToValidUTF8(b.Error[:maxProblem], "") + "…"
		}
		some = append(some, b)
	}
	if left := len(all) - len(some); left > 0 {
		some = append(some, Broken{Record: "others", Error: fmt.Sprintf("%d more records are broken; fabrique status lists them", left), ExitCode: step.ExitInvalid})
	}
	return some
}
