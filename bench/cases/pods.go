package cases

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"fabrique/bench/action"
)

// deployment finds a Deployment by its name in whichever namespace it is, and gives
// a selector of its pods.
func (w *World) deployment(ctx context.Context, name string) (namespace, selector string, err error) {
	var list struct {
		Items []struct {
			Metadata struct{ Name, Namespace string }
			Spec     struct {
				Selector struct{ MatchLabels map[string]string }
			}
		}
	}
	if err := w.Kubectl.Get(ctx, &list, "deployments", "-A"); err != nil {
		return "", "", err
	}
	for _, d := range list.Items {
		if d.Metadata.Name == name {
			var labels []string
			for _, key := range slices.Sorted(maps.Keys(d.Spec.Selector.MatchLabels)) {
				labels = append(labels, key+"="+d.Spec.Selector.MatchLabels[key])
			}
			return d.Metadata.Namespace, strings.Join(labels, ","), nil
		}
	}
	return "", "", errors.New("the cluster has no Deployment " + name)
}

// gone waits until a namespace has no pods with these labels, none at all without
// a selector.
func (w *World) gone(ctx context.Context, namespace, selector string) error {
	return action.Poll(ctx, 2*time.Minute, func(ctx context.Context) error {
		out, err := w.Kubectl.Run(ctx, nil, "get", "pods", "-n", namespace, "-l", selector, "-o", "name")
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("still there in %s: %s", namespace, strings.Join(strings.Fields(out), ", "))
		}
		return err
	})
}

// restarts tells which pods with these labels there are, and how often their
// containers have restarted.
func (w *World) restarts(ctx context.Context, namespace, selector string) (string, error) {
	return w.Kubectl.Run(ctx, nil, "get", "pods", "-n", namespace, "-l", selector, "--sort-by=.metadata.name", "-o",
		`jsonpath={range .items[*]}{.metadata.name} restarted {.status.containerStatuses[*].restartCount} times;{end}`)
}

// workers are the nodes on which pods of the factory may run.
func (w *World) workers(ctx context.Context) ([]string, error) {
	out, err := w.Kubectl.Run(ctx, nil, "get", "nodes", "-l", "!node-role.kubernetes.io/control-plane", "-o", "jsonpath={.items[*].metadata.name}")
	if err == nil && strings.TrimSpace(out) == "" {
		err = errors.New("the cluster has no worker")
	}
	return strings.Fields(out), err
}

// uncordon lets pods onto nodes again.
func (w *World) uncordon(ctx context.Context, nodes ...string) error {
	_, err := w.Kubectl.Run(ctx, nil, append([]string{"uncordon"}, nodes...)...)
	return err
}

// cordon keeps new pods off nodes.
func (w *World) cordon(ctx context.Context, nodes ...string) error {
	_, err := w.Kubectl.Run(ctx, nil, append([]string{"cordon"}, nodes...)...)
	return err
}
