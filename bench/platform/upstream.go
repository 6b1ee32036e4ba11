package platform

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"fabrique/bench/tools"
	"fabrique/manifests/bundle"
	k8s "fabrique/manifests/object"
)

// Namespaces of what comes from elsewhere; upstream's own choice.
const (
	nsArgo   = "argo"
	nsEvents = "argo-events"
	nsArgoCD = "argocd"
	nsLocal  = "local-path-storage"
)

// rendered gives the objects of a kustomization among a tool's copies.
func rendered(ctx context.Context, tool tools.Tool, folder string) ([]object, error) {
	dir, err := tool.Ensure(ctx, io.Discard, false)
	if err != nil {
		return nil, err
	}
	return bundle.Kustomize(filepath.Join(dir, folder))
}

func localPath(ctx context.Context, refs map[string]string) ([]object, error) {
	dir, err := tools.LocalPath.Ensure(ctx, io.Discard, false)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "local-path-storage.yaml"))
	if err != nil {
		return nil, err
	}
	objects, err := parse(text, nil)
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		switch {
		case o.Is("StorageClass/local-path"):
			o.At("metadata", "annotations")["storageclass.kubernetes.io/is-default-class"] = "true"
		case o.Is("ConfigMap/local-path-config"):
			data := o.At("data")
			data["config.json"] = `{"nodePathMap": [{"node": "DEFAULT_PATH_FOR_NON_LISTED_NODES", "paths": ["/var/lib/local-path"]}]}`
			data["helperPod.yaml"] = strings.ReplaceAll(data["helperPod.yaml"].(string), "image: busybox", "image: "+refs["base/busybox"])
		case o.Is("Namespace/local-path-storage"):
			// Its helper pods make and remove folders of the node, as root.
			o.At("metadata", "labels")["pod-security.kubernetes.io/enforce"] = "privileged"
		case o.Is("Deployment/local-path-provisioner"):
			o.At("spec")["strategy"] = object{"type": "Recreate"}
			o.Pod().At("securityContext")["seccompProfile"] = object{"type": "RuntimeDefault"}
			o.Pod().Containers("containers")[0]["securityContext"] = object{
				"runAsNonRoot": true, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": object{"drop": []any{"ALL"}},
			}
		}
	}
	return objects, nil
}

func workflows(ctx context.Context, refs map[string]string) ([]object, error) {
	all, err := rendered(ctx, tools.ArgoWorkflows, bundle.Folder)
	if err != nil {
		return nil, err
	}
	objects, err := bundle.WorkflowsInstall(all, "bench")
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		if o.Is("Deployment/workflow-controller") {
			c := o.Pod().Containers("containers")[0]
			c["args"] = []any{"--executor-image", refs["bench/argoexec"], "--executor-image-pull-policy", "IfNotPresent"}
			c.SetEnv("DEFAULT_REQUEUE_TIME", "1s") // 10 s else, in which a finished pod waits for the next
		}
	}
	return objects, nil
}

func events(ctx context.Context, refs map[string]string) ([]object, error) {
	all, err := rendered(ctx, tools.ArgoEvents, bundle.Folder)
	if err != nil {
		return nil, err
	}
	objects, err := bundle.EventsInstall(all)
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		switch {
		case o.Is("ConfigMap/argo-events-controller-config"):
			if err := setBusVersions(o.At("data"), refs); err != nil {
				return nil, err
			}
		case o.Is("Deployment/controller-manager"):
			c := o.Pod().Containers("containers")[0]
			c.SetEnv("ARGO_EVENTS_IMAGE", refs["bench/argo-events"])
			c.At("readinessProbe")["periodSeconds"] = 1
		}
	}
	return objects, nil
}

// BusVersion is the version that an EventBus of kind JetStream asks for.
const BusVersion = "2.15.3"

// setBusVersions makes [BusVersion] the only kind of bus. Its config reloader and
// its metrics exporter do nothing: their modules are not to be had.
func setBusVersions(data object, refs map[string]string) error {
	const key = "controller-config.yaml"
	var config object
	if err := yaml.Unmarshal([]byte(data[key].(string)), &config); err != nil {
		return fmt.Errorf("reading Argo Events' configuration: %w", err)
	}
	jetstream := config.At("eventBus", "jetstream")
	jetstream["versions"] = []any{object{
		"version":              BusVersion,
		"natsImage":            refs["bench/nats"],
		"metricsExporterImage": refs["bench/idle"],
		"configReloaderImage":  refs["bench/idle"],
		"startCommand":         "/nats-server",
	}}
	// One server keeps one copy.
	stream, _ := jetstream["streamConfig"].(string)
	jetstream["streamConfig"] = strings.ReplaceAll(stream, "replicas: 3", "replicas: 1")
	text, err := yaml.Marshal(config)
	data[key] = string(text)
	return err
}

func argoCD(ctx context.Context, _ map[string]string) ([]object, error) {
	all, err := rendered(ctx, tools.ArgoCD, bundle.Folder)
	if err != nil {
		return nil, err
	}
	objects := []object{k8s.Namespace(nsArgoCD, "restricted")}
	for _, o := range all {
		if o.Kind() != "CustomResourceDefinition" &&
			(strings.HasPrefix(o.Name(), "argocd-dex") || strings.HasPrefix(o.Name(), "argocd-notifications") || strings.HasPrefix(o.Name(), "argocd-applicationset")) {
			continue
		}
		switch {
		case o.Is("ConfigMap/argocd-cmd-params-cm"):
			o.At("data")["server.insecure"] = "true" // the webhook comes over plain HTTP, from inside
		case o.Is("ConfigMap/argocd-cm"):
			// What a webhook does not tell is looked at this often.
			o.At("data")["timeout.reconciliation"] = "180s"
		case o.Is("Deployment/argocd-repo-server"):
			// Plugins are not used, and their helper wants GNU cp.
			delete(o.Pod(), "initContainers")
		}
		if pod := o.Pod(); pod != nil {
			pod.At("securityContext")["runAsUser"] = 999
			delete(pod, "affinity") // it spreads over nodes; there is one for work
			for _, c := range pod.Containers("containers") {
				if args, ok := c["args"].([]any); ok && c["name"] != "redis" {
					c["command"] = args // upstream's image has an entrypoint that runs its arguments
					delete(c, "args")
				}
				if _, ok := c["readinessProbe"]; ok {
					probe := c.At("readinessProbe")
					probe["periodSeconds"], probe["initialDelaySeconds"] = 1, 1
				}
				c.SetEnv("ARGOCD_GPG_ENABLED", "false")
			}
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// upstreamImages tells which image of the bench stands for one of upstream's.
var upstreamImages = map[string]string{
	"rancher/local-path-provisioner":       "bench/local-path-provisioner",
	"quay.io/argoproj/workflow-controller": "bench/workflow-controller",
	"quay.io/argoproj/argo-events":         "bench/argo-events",
	"quay.io/argoproj/argocd":              "bench/argocd",
	"public.ecr.aws/docker/library/redis":  "bench/redis",
}

// own reads a manifest of the bench's, with its addresses filled in.
func own(file string, addresses map[string]string) ([]object, error) {
	text, err := manifests.ReadFile("manifests/" + file)
	if err != nil {
		return nil, err
	}
	return parse(text, addresses)
}
