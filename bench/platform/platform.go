// Package platform installs into a cluster what Fabrique finds in production:
// registry, Gitea, Argo Workflows, Argo Events, Argo CD, and what those need. Their
// manifests come from their pinned Go modules, their images are the bench's own,
// by digest.
package platform

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	"fabrique/bench/action"
	"fabrique/bench/kubectl"
)

//go:embed manifests
var manifests embed.FS

// Platform is what is installed, into which cluster.
type Platform struct {
	Kubectl kubectl.Kubectl
	// Refs are the references by digest of the bench's images, by their
	// repository ("bench/gitea").
	Refs map[string]string
	// Addresses fill the bench's own manifests: REGISTRY_IP, DNS_IP.
	Addresses map[string]string
}

// component is a set of objects and the namespace for those that name none.
type component struct {
	name      string
	namespace string
	objects   func(ctx context.Context, refs map[string]string) ([]object, error)
}

func (p Platform) base() []component {
	return []component{
		{"dns", "kube-system", p.own("coredns.yaml")},
		{"storage", nsLocal, localPath},
		{"registry", "registry", p.own("registry.yaml")},
	}
}

func (p Platform) services() []component {
	return []component{
		{"gitea", "gitea", p.own("gitea.yaml")},
		{"argo cd", nsArgoCD, argoCD},
		{"argo workflows", nsArgo, workflows},
		{"argo events", nsEvents, events},
		{"event bus", nsEvents, p.own("eventbus.yaml")},
	}
}

// Base gives the actions that install what a cluster brings along: DNS, storage
// and the registry.
func (p Platform) Base() []action.Action {
	return append(p.install(p.base()), p.Ready("registry ready", "kube-system", nsLocal, "registry"))
}

// Services gives the actions that install the rest.
func (p Platform) Services() []action.Action {
	return append(p.install(p.services()),
		p.Ready("gitea ready", "gitea"),
		action.Action{Name: "repositories", Do: p.seed},
		action.Action{Name: "event bus deployed", Do: func(ctx context.Context, log io.Writer) (bool, error) {
			// Only then is there something of it to wait for.
			out, err := p.Kubectl.Run(ctx, nil, "wait", "--for=condition=Deployed", "--timeout=180s", "-n", nsEvents, "eventbus/default")
			io.WriteString(log, out)
			return false, err
		}},
		p.Ready("all ready", "gitea", nsArgoCD, nsArgo, nsEvents),
		action.Action{Name: "app of apps", Do: p.appOfApps},
	)
}

func (p Platform) own(file string) func(context.Context, map[string]string) ([]object, error) {
	return func(context.Context, map[string]string) ([]object, error) { return own(file, p.Addresses) }
}

func (p Platform) install(components []component) []action.Action {
	var actions []action.Action
	for _, c := range components {
		actions = append(actions, action.Action{Name: c.name, Do: func(ctx context.Context, log io.Writer) (bool, error) {
			objects, err := p.resolve(ctx, c)
			if err != nil {
				return false, err
			}
			return p.Kubectl.Apply(ctx, log, objects)
		}})
	}
	return actions
}

// resolve gives the component's objects with images and namespaces set.
func (p Platform) resolve(ctx context.Context, c component) ([]object, error) {
	refs := maps.Clone(p.Refs)
	for theirs, ours := range upstreamImages {
		refs[theirs] = p.Refs[ours]
	}
	objects, err := c.objects(ctx, refs)
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		if err := setImages(o, refs); err != nil {
			return nil, err
		}
		if !clusterScoped[o.Kind()] && o.At("metadata")["namespace"] == nil {
			o.At("metadata")["namespace"] = c.namespace
		}
	}
	return objects, restartOnChange(objects)
}

// restartOnChange puts a hash of the component's configuration on its pods, so
// that new ones take the place of those that have read another.
func restartOnChange(objects []object) error {
	hash := sha256.New()
	for _, o := range objects {
		if o.Kind() == "ConfigMap" {
			text, err := json.Marshal(o["data"])
			if err != nil {
				return err
			}
			hash.Write(text)
		}
	}
	for _, o := range objects {
		if o.Pod() != nil {
			o.At("spec", "template", "metadata", "annotations")["fabrique-bench/config"] = hex.EncodeToString(hash.Sum(nil))
		}
	}
	return nil
}

var clusterScoped = map[string]bool{
	"Namespace": true, "CustomResourceDefinition": true, "ClusterRole": true, "ClusterRoleBinding": true,
	"PriorityClass": true, "StorageClass": true,
}

// readyLimit is for pods whose images are pulled first, on two busy processors.
const readyLimit = 5 * time.Minute

// Ready waits until all workloads of the namespaces have all their pods ready.
func (p Platform) Ready(name string, namespaces ...string) action.Action {
	return action.Action{Name: name, Do: func(ctx context.Context, log io.Writer) (bool, error) {
		waited := false
		var missing []workload
		err := action.Poll(ctx, readyLimit, func(ctx context.Context) error {
			var err error
			if missing, err = p.missing(ctx, namespaces); err != nil {
				return err
			}
			if len(missing) == 0 {
				return nil
			}
			waited = true
			for _, w := range missing {
				if why := p.broken(ctx, w); why != "" {
					missing = []workload{w}
					return &action.Final{Err: errors.New(why)}
				}
			}
			return fmt.Errorf("%s in %s is not ready", missing[0].id, missing[0].namespace)
		})
		if err == nil || ctx.Err() != nil || len(missing) == 0 {
			return waited, err
		}
		w := missing[0]
		p.dump(ctx, log, w)
		return waited, &action.Failure{
			Err:   fmt.Errorf("%s in %s does not come up: %w", w.id, w.namespace, err),
			Lines: p.lastWords(ctx, w),
		}
	}}
}

type workload struct{ namespace, id string }

// missing gives the workloads whose pods are not all new and ready.
func (p Platform) missing(ctx context.Context, namespaces []string) ([]workload, error) {
	var list struct {
		Items []struct {
			Kind     string
			Metadata struct {
				Name, Namespace string
				Generation      int
			}
			Spec   struct{ Replicas *int }
			Status struct{ ObservedGeneration, ReadyReplicas, UpdatedReplicas int }
		}
	}
	if err := p.Kubectl.Get(ctx, &list, "deployments,statefulsets", "-A"); err != nil {
		return nil, err
	}
	var found []workload
	for _, namespace := range namespaces {
		for _, w := range list.Items {
			want := 1
			if w.Spec.Replicas != nil {
				want = *w.Spec.Replicas
			}
			if w.Metadata.Namespace == namespace &&
				(w.Status.ObservedGeneration < w.Metadata.Generation || w.Status.UpdatedReplicas < want || w.Status.ReadyReplicas < want) {
				found = append(found, workload{namespace, strings.ToLower(w.Kind) + "/" + w.Metadata.Name})
			}
		}
	}
	return found, nil
}

// broken tells why a workload's pods will not come up however long one waits.
func (p Platform) broken(ctx context.Context, w workload) string {
	var pods struct {
		Items []struct {
			Metadata struct {
				Name            string
				OwnerReferences []struct{ Name string }
			}
			Status struct {
				InitContainerStatuses, ContainerStatuses []struct {
					Name         string
					RestartCount int
					State        struct {
						Waiting *struct{ Reason, Message string }
					}
				}
			}
		}
	}
	if err := p.Kubectl.Get(ctx, &pods, "pods", "-n", w.namespace); err != nil {
		return ""
	}
	_, name, _ := strings.Cut(w.id, "/")
	for _, pod := range pods.Items {
		if !strings.HasPrefix(pod.Metadata.Name, name+"-") {
			continue
		}
		for _, c := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
			waiting := c.State.Waiting
			if waiting != nil && (c.RestartCount > 4 || waiting.Reason == "InvalidImageName") {
				return fmt.Sprintf("its container %s restarted %d times: %s: %s", c.Name, c.RestartCount, waiting.Reason, waiting.Message)
			}
		}
	}
	return ""
}

// dump writes all that the cluster knows of a workload.
func (p Platform) dump(ctx context.Context, log io.Writer, w workload) {
	for _, args := range [][]string{
		{"get", "pods", "-A", "-o", "wide"},
		{"describe", w.id, "-n", w.namespace},
		{"describe", "pods", "-n", w.namespace},
		{"logs", w.id, "-n", w.namespace, "--all-containers", "--prefix"},
	} {
		out, err := p.Kubectl.Run(ctx, nil, args...)
		fmt.Fprintf(log, "$ kubectl %s\n%s", strings.Join(args, " "), out)
		if err != nil {
			fmt.Fprintln(log, err)
		}
	}
}

// lastWords gives the end of the workload's log, or else its events.
func (p Platform) lastWords(ctx context.Context, w workload) string {
	out, err := p.Kubectl.Run(ctx, nil, "logs", "-n", w.namespace, w.id, "--all-containers", fmt.Sprintf("--tail=%d", action.LogLines))
	if err == nil && strings.TrimSpace(out) != "" {
		return out
	}
	if out, err = p.Kubectl.Run(ctx, nil, "get", "events", "-n", w.namespace, "--sort-by=.lastTimestamp", "-o", `jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}`); err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return strings.Join(lines[max(0, len(lines)-action.LogLines):], "\n")
}
