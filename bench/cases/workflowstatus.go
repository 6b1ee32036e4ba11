package cases

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"fabrique/bench/action"
	"fabrique/bench/demo"
	"fabrique/manifests/zone"
)

// pushName is the name of the Workflow that a push makes. "after" may have 64
// digits.
func pushName(after string) string { return "push-" + after[:min(40, len(after))] }

// appears waits until there is a Workflow of the name.
func (w *World) appears(ctx context.Context, name string) error {
	return action.Poll(ctx, time.Minute, func(ctx context.Context) error {
		_, there, err := w.Workflow(ctx, name)
		if err == nil && !there {
			err = fmt.Errorf("there is no Workflow %s", name)
		}
		return err
	})
}

// finished waits until a Workflow has ended, also for it to appear.
func (w *World) finished(ctx context.Context, name string, limit time.Duration) (demo.Workflow, error) {
	var found demo.Workflow
	err := action.Poll(ctx, limit, func(ctx context.Context) error {
		workflow, there, err := w.Workflow(ctx, name)
		switch {
		case err != nil:
			return err
		case !there:
			return fmt.Errorf("there is no Workflow %s", name)
		case !workflow.Over():
			return fmt.Errorf("the Workflow %s is %q", name, workflow.Status.Phase)
		}
		found = workflow
		return nil
	})
	return found, err
}

// succeeded waits until a Workflow has ended and checks that it succeeded.
func (w *World) succeeded(ctx context.Context, name string, limit time.Duration) (demo.Workflow, error) {
	workflow, err := w.finished(ctx, name, limit)
	if err == nil && workflow.Status.Phase != "Succeeded" {
		err = fmt.Errorf("the Workflow %s should have succeeded; it is %s: %s", name, workflow.Status.Phase, workflow.Status.Message)
	}
	return workflow, err
}

// failed waits until a Workflow has ended and checks that it failed, with a message
// that the regular expression matches.
func (w *World) failed(ctx context.Context, name, message string, limit time.Duration) (demo.Workflow, error) {
	workflow, err := w.finished(ctx, name, limit)
	switch {
	case err != nil:
	case workflow.Status.Phase != "Failed":
		err = fmt.Errorf("the Workflow %s should have failed; it is %s: %s", name, workflow.Status.Phase, workflow.Status.Message)
	case !regexp.MustCompile(message).MatchString(workflow.Status.Message):
		err = fmt.Errorf("the Workflow %s should give a reason like %q; it gives %q", name, message, workflow.Status.Message)
	}
	return workflow, err
}

// absent checks that none of the Workflows is there.
func (w *World) absent(ctx context.Context, names ...string) error {
	out, err := w.Kubectl.Run(ctx, nil, append([]string{"get", "workflow", "-n", zone.Workflows, "--ignore-not-found", "-o", "name"}, names...)...)
	if err == nil && strings.TrimSpace(out) != "" {
		err = fmt.Errorf("there should be no Workflow; there is %s", strings.Join(strings.Fields(out), ", "))
	}
	return err
}

// remove deletes Workflows if they are there.
func (w *World) remove(ctx context.Context, names ...string) error {
	_, err := w.Kubectl.Run(ctx, nil, append([]string{"delete", "workflow", "-n", zone.Workflows, "--ignore-not-found", "--wait"}, names...)...)
	return err
}

// all reads every Workflow of the factory.
func (w *World) all(ctx context.Context) ([]demo.Workflow, error) {
	var list struct{ Items []demo.Workflow }
	err := w.Kubectl.Get(ctx, &list, "workflows", "-n", zone.Workflows)
	return list.Items, err
}

// asked are the Workflows that were made for a revision.
func asked(all []demo.Workflow, revision string) []demo.Workflow {
	var found []demo.Workflow
	for _, workflow := range all {
		if workflow.Spec.Arguments.Get("revision") == revision {
			found = append(found, workflow)
		}
	}
	return found
}

// builds are the pods, all tries, that built an app at a revision.
func builds(all []demo.Workflow, app, revision string) []demo.Node {
	var found []demo.Node
	for _, workflow := range all {
		for _, n := range workflow.Pods("build") {
			if n.Inputs.Get("app") == app && n.Inputs.Get("revision") == revision {
				found = append(found, n)
			}
		}
	}
	return found
}

// idle checks that a Workflow has built and published nothing.
func idle(workflow demo.Workflow) error {
	if pods := append(workflow.Pods("build"), workflow.Pods("publish")...); len(pods) > 0 {
		return fmt.Errorf("the Workflow %s should build and publish nothing; it has the pod %s", workflow.Metadata.Name, pods[0].DisplayName)
	}
	return nil
}

// planned gives an output of a Workflow's plan.
func planned(workflow demo.Workflow, output string) (string, error) {
	for _, n := range workflow.Pods("plan") {
		if n.Phase == "Succeeded" {
			return n.Outputs.Get(output), nil
		}
	}
	return "", errors.New("the plan of the Workflow " + workflow.Metadata.Name + " did not succeed")
}

var exitCodeForm = regexp.MustCompile(`exit code (\d+)`)

// exitCode is how a step's pod ended, empty when it is not known. Argo has it among
// the outputs, and of a container before the main one in the message only.
func exitCode(n demo.Node) string {
	if n.Outputs.ExitCode != "" {
		return n.Outputs.ExitCode
	}
	if found := exitCodeForm.FindStringSubmatch(n.Message); found != nil {
		return found[1]
	}
	return ""
}
