package reconcile

import (
	"context"
	"log/slog"

	"fabrique/steps/gitref"
)

// Result is the step's answer: the due part of a [Plan].
type Result struct {
	Head       gitref.Revision `json:"head"`
	Revision   gitref.Revision `json:"revision"`
	Superseded bool            `json:"superseded"`
	Due        []App           `json:"due"`
	Count      int             `json:"count"` // how many are due
	Idle       []App           `json:"idle"`  // what was asked for by name and is not due
	Broken     []Broken        `json:"broken"`
	Apps       int             `json:"apps"` // how many are declared and whole
}

// Decide is [Run] for the step binary.
func Decide(ctx context.Context, log *slog.Logger, o Options) (Result, error) {
	plan, err := Run(ctx, log, o)
	due, idle := plan.Due(), []App{}
	for _, a := range plan.Apps {
		if !a.Due && len(o.Only) > 0 { // not all of them: that may be thousands
			idle = append(idle, a)
		}
	}
	return Result{
		Head: plan.Head, Revision: plan.Revision, Superseded: plan.Superseded,
		Due: due, Count: len(due), Idle: idle, Broken: append([]Broken{}, plan.Broken...), Apps: len(plan.Apps),
	}, err
}
