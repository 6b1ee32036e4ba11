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
	Broken     []Broken        `json:"broken"`
	Apps       int             `json:"apps"` // how many are declared and whole
}

// Decide is [Run] for the step binary.
func Decide(ctx context.Context, log *slog.Logger, o Options) (Result, error) {
	plan, err := Run(ctx, log, o)
	return Result{
		Head: plan.Head, Revision: plan.Revision, Superseded: plan.Superseded,
		Due: plan.Due(), Broken: append([]Broken{}, plan.Broken...), Apps: len(plan.Apps),
	}, err
}
