// Package cases proves the event-driven chain on a real cluster: each scenario does
// what a person, a network or a fault may do to it, and checks what comes of it. The
// ids (W1, F2 …) are those of the list of cases that the factory is held to.
//
// A scenario begins on a healthy factory and leaves one behind: it undoes whatever
// it did, also when it fails or is interrupted.
package cases

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"fabrique/bench/demo"
)

// Case is one scenario.
type Case struct {
	Name  string
	Title string        // what is proven, in one line
	Limit time.Duration // 0 for [limit]
	// Run gives what it saw, in one line. The error says what was expected and what
	// was there instead.
	Run func(ctx context.Context, w *World) (saw string, err error)
}

// limit is for one scenario on a busy machine.
const limit = 10 * time.Minute

// All are the scenarios in the order in which they run.
var All = slices.Concat(gateCases, webhookCases, recordCases, workflowCases, faultCases, egressCases, securityCases, zoneCases, escapeCases, attackCases, costCases, builderCases, privilegeCases)

// Select gives the scenarios whose name matches the regular expression somewhere,
// as in "^W1$". It is an error when none does.
func Select(pattern string) ([]Case, error) {
	form, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("selecting scenarios: %w", err)
	}
	var selected []Case
	for _, c := range All {
		if form.MatchString(c.Name) {
			selected = append(selected, c)
		}
	}
	if len(selected) == 0 {
		return nil, fmt.Errorf("selecting scenarios: none has a name that %q matches", pattern)
	}
	return selected, nil
}

// Report is what came of a run.
type Report struct {
	Cases []Result `json:"cases"`
	// Pushes are the figures of the scenario ten-pushes, if it ran to its end.
	Pushes *Measured `json:"tenPushes,omitempty"`
	// Costs are those of the scenario egress-cost, as far as it came.
	Costs []Cost `json:"egressCost,omitempty"`
}

// Result is what came of one scenario.
type Result struct {
	Name    string  `json:"name"`
	Title   string  `json:"title"`
	OK      bool    `json:"ok"`
	Seconds float64 `json:"seconds"`
	Saw     string  `json:"saw,omitempty"`
	Error   string  `json:"error,omitempty"`
}

// Run runs the scenarios one after the other, writes to out what happens, and a
// table at the end. One that fails does not stop the others, and is an error. When
// ctx ends, the running one cleans up and no other begins.
func Run(ctx context.Context, out io.Writer, d demo.Demo, selected []Case) (Report, error) {
	report := Report{Cases: []Result{}}
	admin, stop, err := d.Admin(ctx)
	if err != nil {
		return report, err
	}
	err = d.Declare(ctx, demo.Clones{Admin: admin, Root: d.Dir})
	stop()
	if err != nil {
		return report, err
	}
	if err := begin(ctx, out, d); err != nil {
		return report, err
	}
	var failed []string
	for _, c := range selected {
		if ctx.Err() != nil {
			break
		}
		fmt.Fprintf(out, "\n=== %s: %s\n", c.Name, c.Title)
		result := c.run(ctx, out, d, &report)
		report.Cases = append(report.Cases, result)
		if result.OK {
			fmt.Fprintf(out, "\n    ok      %s  %.1f s  %s\n", c.Name, result.Seconds, result.Saw)
		} else {
			fmt.Fprintf(out, "\n    FAILED  %s  %.1f s  %s\n", c.Name, result.Seconds, result.Error)
			failed = append(failed, c.Name)
		}
	}
	if err := report.table(out); err != nil {
		return report, err
	}
	switch {
	case ctx.Err() != nil:
		return report, context.Cause(ctx)
	case len(failed) > 0:
		return report, fmt.Errorf("%d of %d scenarios failed: %s", len(failed), len(selected), strings.Join(failed, ", "))
	}
	return report, nil
}

// begin brings every app to the head, as on a new cluster none ever was. What is in
// the way of that the scenarios will show.
func begin(ctx context.Context, out io.Writer, d demo.Demo) error {
	w := &World{Demo: d, Out: out}
	name, err := w.byHand(ctx, nil)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "\nbringing every app to the head first, by the Workflow", name)
	workflow, err := w.finished(ctx, name, 20*time.Minute)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, workflow.Status.Phase, workflow.Status.Message)
	return nil
}

// run runs one scenario. Its time does not count what it waits for before it
// begins: that the Workflows of the last one end.
func (c Case) run(ctx context.Context, out io.Writer, d demo.Demo, report *Report) Result {
	result := Result{Name: c.Name, Title: c.Title}
	start := time.Now()
	saw, err := func() (string, error) {
		w, leave, err := enter(ctx, out, d)
		if err != nil {
			return "", fmt.Errorf("preparing: %w", err)
		}
		defer leave()
		if err := w.settle(ctx); err != nil {
			return "", fmt.Errorf("preparing: %w", err)
		}
		start = time.Now()
		span := c.Limit
		if span == 0 {
			span = limit
		}
		ctx, cancel := context.WithTimeoutCause(ctx, span, fmt.Errorf("not done after %s", span))
		defer cancel()
		saw, err := c.Run(ctx, w)
		if w.measured != nil {
			report.Pushes = w.measured
		}
		report.Costs = append(report.Costs, w.costs...)
		// kubectl and git, killed by the deadline, do not say that it was the deadline.
		if err != nil && ctx.Err() != nil && !errors.Is(err, context.Cause(ctx)) {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return saw, err
	}()
	result.Seconds = time.Since(start).Round(100 * time.Millisecond).Seconds()
	result.OK, result.Saw = err == nil, saw
	if err != nil {
		result.Error = err.Error()
	}
	return result
}

// table shows all results, each in one line.
func (r Report) table(out io.Writer) error {
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "scenario\t\tseconds\tseen")
	passed := 0
	for _, c := range r.Cases {
		state, seen := "ok", c.Saw
		if c.OK {
			passed++
		} else {
			state, seen = "FAILED", c.Error
		}
		fmt.Fprintf(w, "%s\t%s\t%.1f\t%s\n", c.Name, state, c.Seconds, oneLine(seen))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%d of %d scenarios passed\n", passed, len(r.Cases))
	return err
}

// oneLine makes one line of a text, of at most 200 characters.
func oneLine(text string) string {
	letters := []rune(strings.Join(strings.Fields(text), " "))
	if len(letters) > 200 {
		letters = append(letters[:199], '…')
	}
	return string(letters)
}
