package cases

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"fabrique/bench/action"
	"fabrique/bench/demo"
	"fabrique/manifests/zone"
	"fabrique/sensors"
)

// gateCases are the gates of adr-0095.
var gateCases = []Case{
	{Name: "manifests", Title: "the API server and argo lint take every file; apply changes nothing twice, mends and prunes", Run: manifests},
	{Name: "bundle", Title: "the API server takes every file of fabrique bundle, and trivy finds nothing in the roles but what the allow-list says", Run: operators, Limit: 30 * time.Minute},
	{Name: "new-app", Title: "a record is all that a new app needs", Run: newApp},
	{Name: "ten-pushes", Title: "ten pushes in a row over two apps each end in pods that run that commit by digest; the other app stays", Limit: 30 * time.Minute, Run: tenPushes},
	{Name: "bus-keeps", Title: "an event that waits in the bus outlives the bus's restart", Run: busKeeps},
	{Name: "no-events", Title: "five pushes come to life without EventSource, Sensor and EventBus", Limit: 25 * time.Minute, Run: noEvents},
}

// newApp adds the second app, unless an earlier run has.
func newApp(ctx context.Context, w *World) (string, error) {
	added, err := w.ensureSecond(ctx)
	switch {
	case err != nil:
		return "", fmt.Errorf("adding an app by its record alone: %w", err)
	case !added:
		return "an earlier run has added " + second, nil
	}
	return second + " was declared by one file and runs", nil
}

// Measured is what ten pushes took, in seconds after git push, by stage.
type Measured struct {
	Pushes []demo.Push        `json:"pushes"`
	Median map[string]float64 `json:"medianSeconds"`
	P95    map[string]float64 `json:"p95Seconds"`
}

// tenPushes pushes to both apps in turn.
func tenPushes(ctx context.Context, w *World) (string, error) {
	if _, err := w.ensureSecond(ctx); err != nil {
		return "", err
	}
	var pushes []demo.Push
	for i := range 10 {
		app, other := first, second
		if i%2 == 1 {
			app, other = other, app
		}
		before, err := w.Deployed(ctx, other)
		if err != nil {
			return "", err
		}
		p, err := w.Push(ctx, w.Out, w.Work, app, fmt.Sprintf("Gate %d %s", i+1, nonce()))
		if err != nil {
			return "", err
		}
		if after, err := w.Deployed(ctx, other); err != nil || after != before {
			return "", errors.Join(err, fmt.Errorf("the push to %s changed %s from %s to %s", app, other, before, after))
		}
		pushes = append(pushes, p)
	}
	m := measure(pushes)
	w.measured = &m
	if err := demo.Table(w.Out, pushes); err != nil {
		return "", err
	}
	fmt.Fprintln(w.Out, "\n  median     p95  stage, seconds after git push")
	for _, s := range pushes[0].Stages {
		fmt.Fprintf(w.Out, "  %6.1f  %6.1f  %s\n", m.Median[s.Name], m.P95[s.Name], s.Name)
	}
	last := pushes[0].Stages[len(pushes[0].Stages)-1].Name
	return fmt.Sprintf("%s after %.1f s (median), %.1f s (p95)", last, m.Median[last], m.P95[last]), nil
}

// measure takes each stage's figures over all pushes that reached it.
func measure(pushes []demo.Push) Measured {
	all := map[string][]float64{}
	for _, p := range pushes {
		for _, s := range p.Stages {
			all[s.Name] = append(all[s.Name], s.After.Seconds())
		}
	}
	m := Measured{Pushes: pushes, Median: map[string]float64{}, P95: map[string]float64{}}
	for name, seconds := range all {
		slices.Sort(seconds)
		m.Median[name], m.P95[name] = quantile(seconds, 0.5), quantile(seconds, 0.95)
	}
	return m
}

// quantile gives the smallest of the sorted values that a part of them does not
// exceed.
func quantile(sorted []float64, part float64) float64 {
	return sorted[max(0, int(math.Ceil(part*float64(len(sorted))))-1)]
}

// everyMinute is the schedule of the CronWorkflow where a scenario waits for it.
const everyMinute = "* * * * *"

// noEvents takes the whole event path away, also from the controller that would
// bring it back. The CronWorkflow alone brings five pushes to life.
func noEvents(ctx context.Context, w *World) (saw string, err error) {
	defer finally(ctx, &err, w.anew(func(ctx context.Context, w *World) error {
		return errors.Join(w.events(ctx, 1), w.Reconfigure(ctx, io.Discard, demo.Settings{}), w.arrives(ctx))
	}))
	if err := w.Reconfigure(ctx, io.Discard, demo.Settings{Schedule: everyMinute}); err != nil {
		return "", err
	}
	if err := w.events(ctx, 0); err != nil {
		return "", err
	}
	var seconds []float64
	var shown []string
	for i := range 5 {
		p, err := w.Push(ctx, w.Out, w.Work, first, fmt.Sprintf("Without events %d %s", i+1, nonce()))
		if err != nil {
			return "", err
		}
		if err := w.absent(ctx, pushName(p.Revision)); err != nil {
			return "", fmt.Errorf("an event arrived, so this shows nothing: %w", err)
		}
		seconds = append(seconds, p.Stages[len(p.Stages)-1].After.Seconds())
		shown = append(shown, fmt.Sprintf("%.0f", seconds[i]))
	}
	slices.Sort(seconds)
	return fmt.Sprintf("scheduled every minute, its pod answers after %s s; median %.0f s", strings.Join(shown, ", "), quantile(seconds, 0.5)), nil
}

// eventsController is the Deployment that makes EventSource, Sensor and EventBus.
const eventsController = "controller-manager"

// events takes the event path away (replicas 0), or brings it back (1) and waits
// until it is ready.
func (w *World) events(ctx context.Context, replicas int) error {
	namespace, selector, err := w.deployment(ctx, eventsController)
	if err != nil {
		return err
	}
	to := fmt.Sprintf("--replicas=%d", replicas)
	controller := []string{"scale", "deployment", eventsController, to, "-n", namespace}
	path := [][]string{
		{"scale", "statefulsets", "--all", to, "-n", zone.Events},
		{"scale", "deployments", "--all", to, "-n", zone.Events},
	}
	if replicas > 0 {
		for _, args := range append(path, controller) {
			if _, err := w.Kubectl.Run(ctx, nil, args...); err != nil {
				return err
			}
		}
		_, err := w.Ready("event path ready", zone.Events, namespace).Do(ctx, w.Out)
		return err
	}
	if _, err := w.Kubectl.Run(ctx, nil, controller...); err != nil {
		return err
	}
	if err := w.gone(ctx, namespace, selector); err != nil {
		return err
	}
	for _, args := range path {
		if _, err := w.Kubectl.Run(ctx, nil, args...); err != nil {
			return err
		}
	}
	return w.gone(ctx, zone.Events, "")
}

// arrives delivers the head of main until a Workflow comes of it: a Sensor does not
// tell when it listens again.
func (w *World) arrives(ctx context.Context) error {
	head, err := w.head(ctx)
	if err != nil {
		return err
	}
	if err := w.remove(ctx, pushName(head)); err != nil {
		return err
	}
	return action.Poll(ctx, 3*time.Minute, func(ctx context.Context) error {
		r, stop, err := w.receiver(ctx)
		if err != nil {
			return err
		}
		defer stop()
		if err := r.deliverPush(ctx, pushOf(mainRef, noCommit, head)); err != nil {
			return err
		}
		return action.Poll(ctx, 5*time.Second, func(ctx context.Context) error {
			_, there, err := w.Workflow(ctx, pushName(head))
			if err == nil && !there {
				err = errors.New("no Workflow comes of a delivery")
			}
			return err
		})
	})
}

// busKeeps has a push wait in the bus, as its Sensor is away, and kills the bus. The
// Workflow comes when the Sensor is back.
func busKeeps(ctx context.Context, w *World) (saw string, err error) {
	namespace, selector, err := w.deployment(ctx, eventsController)
	if err != nil {
		return "", err
	}
	defer finally(ctx, &err, func(ctx context.Context) error { return w.events(ctx, 1) })
	if _, err := w.Kubectl.Run(ctx, nil, "scale", "deployment", eventsController, "--replicas=0", "-n", namespace); err != nil {
		return "", err
	}
	if err := w.gone(ctx, namespace, selector); err != nil {
		return "", err
	}
	const sensor = "sensor-name=" + sensors.Name
	if _, err := w.Kubectl.Run(ctx, nil, "scale", "deployment", "-l", sensor, "--replicas=0", "-n", zone.Events); err != nil {
		return "", err
	}
	if err := w.gone(ctx, zone.Events, sensor); err != nil {
		return "", err
	}
	c, err := w.commit(ctx, first, "Kept by the bus")
	if err != nil {
		return "", err
	}
	if err := w.send(ctx, &c); err != nil {
		return "", err
	}
	// Time for the delivery; Gitea does not tell when it is there.
	if err := pause(ctx, 15*time.Second); err != nil {
		return "", err
	}
	if err := w.absent(ctx, pushName(c.revision)); err != nil {
		return "", fmt.Errorf("the Sensor is not away, so this shows nothing: %w", err)
	}
	if _, err := w.Kubectl.Run(ctx, nil, "delete", "pods", "-n", zone.Events, "-l", "eventbus-name=default", "--grace-period=0", "--force"); err != nil {
		return "", err
	}
	if err := w.events(ctx, 1); err != nil {
		return "", err
	}
	if err := w.appears(ctx, pushName(c.revision)); err != nil {
		return "", err
	}
	p, err := w.follow(ctx, c)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("its pod answers %.0f s after the push", p.Stages[len(p.Stages)-1].After.Seconds()), nil
}
