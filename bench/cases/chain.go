package cases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"fabrique/bench/action"
	"fabrique/bench/demo"
	"fabrique/manifests/zone"
)

// workflowCases are F1 to F3, and what a person may ask for.
var workflowCases = []Case{
	{Name: "F1", Title: "when nothing is due the Workflow succeeds without a build and without a commit", Run: nothingDue},
	{Name: "F2-controller", Title: "Argo's controller is restarted in mid-build: the push ends in its pod, by one commit", Run: interrupted(restartController)},
	{Name: "F2-evicted", Title: "the build's pod is evicted: the push ends in its pod, by one commit", Run: interrupted(evict)},
	{Name: "F2-drained", Title: "the worker is drained of Workflow pods in mid-build: the push ends in its pod, by one commit", Run: interrupted(drain)},
	{Name: "F3", Title: "a push and two runs by hand at the same moment: one build, one commit", Run: threeAtOnce},
	{Name: "terminated", Title: "a run that a person terminates is no success, and the next run deploys its commit", Run: terminated},
	{Name: "unknown-app", Title: "a run for an app that is not declared fails and says so", Run: unknownApp},
}

// nothingDue is F1.
func nothingDue(ctx context.Context, w *World) (string, error) {
	head, err := w.recordsHead(ctx)
	if err != nil {
		return "", err
	}
	name, err := w.byHand(ctx, nil)
	if err != nil {
		return "", err
	}
	workflow, err := w.succeeded(ctx, name, 3*time.Minute)
	if err != nil {
		return "", err
	}
	due, err := planned(workflow, "due")
	if err == nil && due != "[]" {
		err = fmt.Errorf("nothing should be due when this scenario begins; the plan says %s", due)
	}
	return "succeeded; no build pod, no publish pod, no commit", errors.Join(err, idle(workflow), w.unwritten(ctx, head))
}

// pod is the pod of a step.
type pod struct{ name, node string }

// interrupted pushes what takes half a minute to build, strikes in the middle of
// it, and checks that the push is deployed all the same, by one write-back (F2).
func interrupted(strike func(ctx context.Context, w *World, build pod) error) func(context.Context, *World) (string, error) {
	return func(ctx context.Context, w *World) (saw string, err error) {
		defer finally(ctx, &err, w.anew(func(ctx context.Context, w *World) error { return w.restore(ctx) }))
		text, err := slow(25)
		if err != nil {
			return "", err
		}
		if err := w.dockerfile(text); err != nil {
			return "", err
		}
		c, err := w.commit(ctx, first, "F2")
		if err != nil {
			return "", err
		}
		if err := w.send(ctx, &c); err != nil {
			return "", err
		}
		build, err := w.building(ctx, pushName(c.revision))
		if err != nil {
			return "", err
		}
		w.note("%s builds on %s", build.name, build.node)
		if err := strike(ctx, w, build); err != nil {
			return "", err
		}
		if _, err := w.follow(ctx, c); err != nil {
			return "", err
		}
		workflow, err := w.succeeded(ctx, pushName(c.revision), 5*time.Minute)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("deployed, in %d tries of the build, by one commit", len(workflow.Pods("build"))), w.once(ctx, c)
	}
}

// building waits until a Workflow is well in the middle of a build, and gives the
// pod. The wait is for what comes before the Dockerfile's slow instruction.
func (w *World) building(ctx context.Context, name string) (pod, error) {
	var build pod
	running := func(ctx context.Context) error {
		workflow, there, err := w.Workflow(ctx, name)
		if err != nil || !there {
			return errors.Join(err, errors.New("there is no Workflow "+name))
		}
		for _, n := range workflow.Pods("build") {
			if n.Phase == "Running" {
				build, err = w.pod(ctx, name, n.ID)
				return err
			}
		}
		err = fmt.Errorf("the Workflow %s builds nothing, it is %s", name, workflow.Status.Phase)
		if workflow.Over() {
			err = &action.Final{Err: fmt.Errorf("%w: %s", err, workflow.Status.Message)}
		}
		return err
	}
	if err := action.Poll(ctx, 4*time.Minute, running); err != nil {
		return build, err
	}
	if err := pause(ctx, 6*time.Second); err != nil {
		return build, err
	}
	if err := running(ctx); err != nil {
		return build, fmt.Errorf("the build was over too soon to be interrupted: %w", err)
	}
	return build, nil
}

// pod finds the pod of a Workflow's node.
func (w *World) pod(ctx context.Context, workflow, node string) (pod, error) {
	var list struct {
		Items []struct {
			Metadata struct {
				Name        string
				Annotations map[string]string
			}
			Spec struct{ NodeName string }
		}
	}
	if err := w.Kubectl.Get(ctx, &list, "pods", "-n", zone.Workflows, "-l", "workflows.argoproj.io/workflow="+workflow); err != nil {
		return pod{}, err
	}
	for _, p := range list.Items {
		if p.Metadata.Annotations["workflows.argoproj.io/node-id"] == node {
			return pod{p.Metadata.Name, p.Spec.NodeName}, nil
		}
	}
	return pod{}, errors.New("there is no pod of the node " + node)
}

func restartController(ctx context.Context, w *World, _ pod) error {
	namespace, selector, err := w.deployment(ctx, "workflow-controller")
	if err != nil {
		return err
	}
	_, err = w.Kubectl.Run(ctx, nil, "delete", "pods", "-n", namespace, "-l", selector)
	return err
}

func evict(ctx context.Context, w *World, build pod) error {
	text, err := json.Marshal(map[string]any{
		"apiVersion": "policy/v1", "kind": "Eviction",
		"metadata": map[string]string{"name": build.name, "namespace": zone.Workflows},
	})
	if err != nil {
		return err
	}
	_, err = w.Kubectl.Run(ctx, text, "create", "--raw", "/api/v1/namespaces/"+zone.Workflows+"/pods/"+build.name+"/eviction", "-f", "-")
	return err
}

func drain(ctx context.Context, w *World, build pod) (err error) {
	defer finally(ctx, &err, func(ctx context.Context) error { return w.uncordon(ctx, build.node) })
	_, err = w.Kubectl.Run(ctx, nil, "drain", build.node, "--ignore-daemonsets", "--delete-emptydir-data", "--force",
		"--pod-selector=workflows.argoproj.io/workflow", "--timeout=120s")
	return err
}

// threeAtOnce is F3.
func threeAtOnce(ctx context.Context, w *World) (string, error) {
	c, err := w.commit(ctx, first, "F3")
	if err != nil {
		return "", err
	}
	names := make([]string, 2)
	var group errgroup.Group
	group.Go(func() error { return w.send(ctx, &c) })
	for i := range names {
		group.Go(func() (err error) {
			names[i], err = w.byHand(ctx, nil)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return "", err
	}
	if _, err := w.follow(ctx, c); err != nil {
		return "", err
	}
	for _, name := range append(names, pushName(c.revision)) {
		if _, err := w.succeeded(ctx, name, 3*time.Minute); err != nil {
			return "", err
		}
	}
	all, err := w.all(ctx)
	if err != nil {
		return "", err
	}
	var built []demo.Node
	for _, n := range builds(all, first, c.revision) {
		if n.Outputs.Get("reused") != "true" {
			built = append(built, n)
		}
	}
	if len(built) != 1 {
		return "", fmt.Errorf("three Workflows at once should build %s once; they did %d times", c.revision, len(built))
	}
	return "three Workflows succeeded; one build, one commit", w.once(ctx, c)
}

func unknownApp(ctx context.Context, w *World) (saw string, err error) {
	name, err := w.byHand(ctx, map[string]string{"app": "nope"})
	if err != nil {
		return "", err
	}
	defer finally(ctx, &err, func(ctx context.Context) error { return w.remove(ctx, name) })
	workflow, err := w.failed(ctx, name, `"nope".*is not declared`, 3*time.Minute)
	return workflow.Status.Message, err
}

// terminated ends a run in mid-build as `argo terminate` does, without its exit
// handler, and starts another by hand.
func terminated(ctx context.Context, w *World) (saw string, err error) {
	defer finally(ctx, &err, w.anew(func(ctx context.Context, w *World) error { return w.restore(ctx) }))
	text, err := slow(20)
	if err != nil {
		return "", err
	}
	if err := w.dockerfile(text); err != nil {
		return "", err
	}
	c, err := w.commit(ctx, first, "Terminated")
	if err != nil {
		return "", err
	}
	if err := w.send(ctx, &c); err != nil {
		return "", err
	}
	name := pushName(c.revision)
	if _, err := w.building(ctx, name); err != nil {
		return "", err
	}
	if _, err := w.Kubectl.Run(ctx, nil, "patch", "workflow", name, "-n", zone.Workflows, "--type=merge", "-p", `{"spec":{"shutdown":"Terminate"}}`); err != nil {
		return "", err
	}
	workflow, err := w.finished(ctx, name, 3*time.Minute)
	if err != nil {
		return "", err
	}
	if workflow.Status.Phase == "Succeeded" {
		return "", errors.New("a terminated run should not be a success; it is Succeeded")
	}
	again, err := w.byHand(ctx, nil)
	if err != nil {
		return "", err
	}
	if _, err := w.succeeded(ctx, again, 5*time.Minute); err != nil {
		return "", err
	}
	if err := w.says(ctx, c.revision, "success", "is deployed", whole, whole+"/"+first); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s: %s; the next run deployed it", workflow.Status.Phase, oneLine(workflow.Status.Message)), w.once(ctx, c)
}
