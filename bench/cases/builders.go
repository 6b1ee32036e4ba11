package cases

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"fabrique/bench/action"
	"fabrique/bench/demo"
	"fabrique/manifests/zone"
)

// builderCases are about where images are built.
var builderCases = []Case{
	{Name: "builder-placement", Title: "the builder never lands on the control plane, also when no worker takes it", Run: builderPlacement},
	{Name: "builders", Title: "of two builders each app keeps to its own, and a push survives that one's loss", Limit: 20 * time.Minute, Run: twoBuilders},
}

// builderPlacement takes the workers away from the builder (adr-0095 §1.b).
func builderPlacement(ctx context.Context, w *World) (saw string, err error) {
	workers, err := w.workers(ctx)
	if err != nil {
		return "", err
	}
	defer finally(ctx, &err, func(ctx context.Context) error {
		if err := w.uncordon(ctx, workers...); err != nil {
			return err
		}
		_, err := w.Ready("builder ready", zone.Builder).Do(ctx, w.Out)
		return err
	})
	if err := w.cordon(ctx, workers...); err != nil {
		return "", err
	}
	name := builder + "-0"
	if _, err := w.Kubectl.Run(ctx, nil, "delete", "pod", name, "-n", zone.Builder, "--wait"); err != nil {
		return "", err
	}
	if err := pause(ctx, quiet); err != nil {
		return "", err
	}
	var now struct {
		Metadata struct{ UID string }
		Spec     struct{ NodeName string }
		Status   struct{ Phase string }
	}
	if err := w.Kubectl.Get(ctx, &now, "pod", name, "-n", zone.Builder); err != nil {
		return "", err
	}
	if now.Status.Phase != "Pending" || now.Spec.NodeName != "" {
		return "", fmt.Errorf("%s should find no node; it is %s on %q", name, now.Status.Phase, now.Spec.NodeName)
	}
	event, err := w.Kubectl.Run(ctx, nil, "get", "events", "-n", zone.Builder, "--field-selector", "reason=FailedScheduling,involvedObject.uid="+now.Metadata.UID, "-o", "jsonpath={.items[0].message}")
	if err != nil {
		return "", fmt.Errorf("%s should have an event FailedScheduling: %w", name, err)
	}
	if err := w.uncordon(ctx, workers...); err != nil {
		return "", err
	}
	start := time.Now()
	if _, err := w.Ready("builder ready", zone.Builder).Do(ctx, w.Out); err != nil {
		return "", err
	}
	return fmt.Sprintf("Pending (%s); uncordoned, ready after %s", oneLine(event), time.Since(start).Round(time.Second)), nil
}

// ownName is a builder's pod in its address.
var ownName = regexp.MustCompile(`\b` + builder + `-\d+\b`)

// twoBuilders pushes to both apps in turn and looks which builder took each build.
// Then the first app's builder is killed as the next push begins.
func twoBuilders(ctx context.Context, w *World) (saw string, err error) {
	if _, err := w.ensureSecond(ctx); err != nil {
		return "", err
	}
	defer finally(ctx, &err, w.anew(func(ctx context.Context, w *World) error {
		if err := w.builders(ctx, 1); err != nil {
			return err
		}
		_, err := w.Kubectl.Run(ctx, nil, "delete", "pvc", cache+"-"+builder+"-1", "-n", zone.Builder, "--ignore-not-found", "--wait=false")
		return err
	}))
	if err := w.builders(ctx, 2); err != nil {
		return "", err
	}
	took := map[string]string{}
	for i, app := range []string{first, second, first, second, first} {
		c, err := w.deploy(ctx, app, fmt.Sprintf("Builders %d", i+1))
		if err != nil {
			return "", err
		}
		address, err := w.builtBy(ctx, c)
		if err != nil {
			return "", err
		}
		if before, again := took[app]; again && before != address {
			return "", fmt.Errorf("%s should always go to the same builder; it went to %s and then to %s", app, before, address)
		}
		took[app] = address
	}
	victim := ownName.FindString(took[first])
	if victim == "" {
		return "", fmt.Errorf("%s should be built by a builder of its own; the address is %q", first, took[first])
	}
	c, err := w.commit(ctx, first, "Without "+victim)
	if err != nil {
		return "", err
	}
	if _, err := w.Kubectl.Run(ctx, nil, "delete", "pod", victim, "-n", zone.Builder, "--wait=false"); err != nil {
		return "", err
	}
	if err := w.send(ctx, &c); err != nil {
		return "", err
	}
	if _, err := w.follow(ctx, c); err != nil {
		return "", err
	}
	address, err := w.builtBy(ctx, c)
	return fmt.Sprintf("%s always by %s, %s always by %s; with %s killed the push was built by %s", first, victim, second, ownName.FindString(took[second]), victim, ownName.FindString(address)), err
}

// builders gives the factory so many builders and waits until they are ready, and
// any others gone.
func (w *World) builders(ctx context.Context, count int) error {
	if err := w.Reconfigure(ctx, io.Discard, demo.Settings{Builders: count}); err != nil {
		return err
	}
	if _, err := w.Ready("builders ready", zone.Builder).Do(ctx, w.Out); err != nil {
		return err
	}
	return action.Poll(ctx, 2*time.Minute, func(ctx context.Context) error {
		out, err := w.Kubectl.Run(ctx, nil, "get", "pods", "-n", zone.Builder, "-o", "name")
		if pods := strings.Fields(out); err == nil && len(pods) != count {
			err = fmt.Errorf("there should be %d builders; there are %d", count, len(pods))
		}
		return err
	})
}

// builtBy gives the address of the builder that built a commit, in whichever
// Workflow.
func (w *World) builtBy(ctx context.Context, c commit) (string, error) {
	all, err := w.all(ctx)
	if err != nil {
		return "", err
	}
	for _, n := range builds(all, c.app, c.revision) {
		if address := n.Outputs.Get("builder"); n.Phase == "Succeeded" && address != "" {
			return address, nil
		}
	}
	return "", fmt.Errorf("a Workflow should say which builder built %s for %s; no build pod does", c.revision, c.app)
}
