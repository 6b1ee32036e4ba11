// Package check proves that a cluster is what the bench claims it to be. Each
// check does the thing itself in a namespace of its own, which it removes.
package check

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"fabrique/bench/action"
	"fabrique/bench/kubectl"
	"fabrique/bench/platform"
)

//go:embed manifests
var manifests embed.FS

// Check is one property of the cluster. Probe gives what it saw.
type Check struct {
	Name string
	// alone marks a check that other pods would disturb, or be disturbed by.
	alone bool
	probe func(ctx context.Context, c cluster) (saw string, err error)
}

// cluster is what a check works with; its namespace is its own and empty.
type cluster struct {
	platform.Platform
	namespace string
	log       io.Writer
}

// All are the checks.
var All = []Check{
	{Name: "pods reach each other across nodes, and DNS", probe: reach},
	{Name: "a NetworkPolicy blocks, its removal unblocks", probe: policy},
	{Name: "restricted Pod Security refuses a pod", probe: podSecurity},
	{Name: "a volume keeps its data across a pod's restart", probe: volume},
	{Name: "a pod pulls from registry:80 by digest", probe: pull},
	{Name: "hostUsers: false maps to an unprivileged id", probe: hostUsers},
	{Name: "the API server and kubelets refuse strangers", probe: strangers},
	{Name: "a two-step Workflow runs", probe: workflow},
	{Name: "an event outlives a kill of the EventBus", probe: eventBus},
	{Name: "an Application runs and follows a commit", probe: application},
	{Name: "no pod lands on the control plane untolerated", alone: true, probe: controlPlane},
}

// together is how many checks run at once: most of their time they wait.
const together = 4

// limit is for one check on a busy machine.
const limit = 6 * time.Minute

// Run runs all checks, prints a line for each as it ends, and fails if any did.
// Every failure is shown; one does not stop the others.
func Run(ctx context.Context, out io.Writer, p platform.Platform) error {
	if err := uncordon(ctx, p.Kubectl); err != nil {
		return err
	}
	var mu sync.Mutex
	failed := 0
	start := time.Now()
	one := func(i int, c Check) {
		began := time.Now()
		saw, err := c.run(ctx, p, fmt.Sprintf("bench-check-%d", i))
		mu.Lock()
		defer mu.Unlock()
		took := time.Since(began).Round(100 * time.Millisecond)
		if err != nil {
			failed++
			fmt.Fprintf(out, "FAIL  %-48s %6s  %v\n", c.Name, took, err)
			return
		}
		fmt.Fprintf(out, "ok    %-48s %6s  %s\n", c.Name, took, saw)
	}
	var group errgroup.Group
	group.SetLimit(together)
	for i, c := range All {
		if !c.alone {
			group.Go(func() error { one(i, c); return nil })
		}
	}
	group.Wait()
	for i, c := range All {
		if c.alone {
			one(i, c)
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	fmt.Fprintf(out, "%d of %d checks passed in %s\n", len(All)-failed, len(All), time.Since(start).Round(time.Second))
	if failed > 0 {
		return fmt.Errorf("%d of %d checks failed", failed, len(All))
	}
	return nil
}

func (c Check) run(ctx context.Context, p platform.Platform, namespace string) (saw string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done after %s", limit))
	defer cancel()
	var log bytes.Buffer
	k := cluster{p, namespace, &log}
	// What an interrupted run left of it goes first.
	if err := k.removeNamespace(ctx); err != nil {
		return "", err
	}
	if err := k.apply(ctx, "namespace.yaml", nil); err != nil {
		return "", err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, k.removeNamespace(end))
	}()
	saw, err = c.probe(ctx, k)
	if err != nil && log.Len() > 0 {
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		err = fmt.Errorf("%w\n      %s", err, strings.Join(lines[max(0, len(lines)-action.LogLines):], "\n      "))
	}
	return saw, err
}

func (c cluster) removeNamespace(ctx context.Context) error {
	_, err := c.Kubectl.Run(ctx, nil, "delete", "namespace", c.namespace, "--ignore-not-found", "--wait")
	return err
}

// text gives a manifest with ${NAMESPACE}, ${PROBE} and ${BUSYBOX} filled in, and values.
func (c cluster) text(file string, values map[string]string) (string, error) {
	text, err := manifests.ReadFile("manifests/" + file)
	replace := []string{"${NAMESPACE}", c.namespace, "${PROBE}", c.Refs["bench/probe"], "${BUSYBOX}", c.Refs["base/busybox"]}
	for name, value := range values {
		replace = append(replace, "${"+name+"}", value)
	}
	return strings.NewReplacer(replace...).Replace(string(text)), err
}

// apply applies a manifest.
func (c cluster) apply(ctx context.Context, file string, values map[string]string) error {
	text, err := c.text(file, values)
	if err != nil {
		return err
	}
	objects, err := kubectl.Objects([]byte(text), nil)
	if err != nil {
		return err
	}
	_, err = c.Kubectl.Apply(ctx, io.Discard, objects)
	return err
}

// run runs kubectl in the check's namespace and gives its trimmed output.
func (c cluster) run(ctx context.Context, args ...string) (string, error) {
	out, err := c.Kubectl.Run(ctx, nil, append([]string{"-n", c.namespace}, args...)...)
	return strings.TrimSpace(out), err
}

// ready waits until objects are ready, "pod/a" and so on.
func (c cluster) ready(ctx context.Context, objects ...string) error {
	_, err := c.run(ctx, append([]string{"wait", "--for=condition=Ready", "--timeout=180s"}, objects...)...)
	if err != nil {
		out, _ := c.run(ctx, "describe", "pods")
		fmt.Fprintln(c.log, out)
	}
	return err
}

// probe runs the probe in a pod.
func (c cluster) probe(ctx context.Context, pod string, args ...string) (string, error) {
	return c.run(ctx, append([]string{"exec", pod, "--", "/probe"}, args...)...)
}

// nodes gives the names of a control plane node and of another one.
func (c cluster) nodes(ctx context.Context) (controlPlane, worker string, err error) {
	for label, name := range map[string]*string{
		"node-role.kubernetes.io/control-plane":  &controlPlane,
		"!node-role.kubernetes.io/control-plane": &worker,
	} {
		out, err := c.run(ctx, "get", "nodes", "-l", label, "-o", "jsonpath={.items[0].metadata.name}")
		if err != nil {
			return "", "", fmt.Errorf("finding a node with the label %s: %w", label, err)
		}
		*name = out
	}
	return controlPlane, worker, nil
}
