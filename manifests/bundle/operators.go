package bundle

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	k8s "fabrique/manifests/object"
	"fabrique/steps/image"
	"fabrique/steps/step"
)

// Names of the bundles: the folders that they are written to.
const (
	Workflows = "argo-workflows"
	Events    = "argo-events"
	NATS      = "nats"
)

// Folder is where both operators have their install for all namespaces, in their module.
const Folder = "manifests/cluster-install"

// Kustomize gives the objects of the kustomization in a folder, in the order in which
// one thing needs another.
func Kustomize(folder string) ([]k8s.Object, error) {
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionLegacy
	resources, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		return nil, step.Invalidf("reading the kustomization %q: %w", folder, err)
	}
	var objects []k8s.Object
	for _, r := range resources.Resources() {
		o, err := r.Map()
		if err != nil {
			return nil, step.Invalidf("reading the kustomization %q: %w", folder, err)
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// WorkflowsInstall gives Argo Workflows out of upstream's install for all namespaces:
//
//   - without argo-server, a web page that the factory does not use, and its role;
//   - in a namespace that enforces the Pod Security level restricted, which the
//     controller then meets, and with the executor's settings without which that level
//     refuses every Workflow's pods;
//   - with the executor's image named, which the controller else makes up, and the tag
//     version where upstream has "latest".
func WorkflowsInstall(upstream []k8s.Object, version string) ([]k8s.Object, error) {
	objects := []k8s.Object{k8s.Namespace("argo", "restricted")}
	for _, o := range upstream {
		if strings.HasPrefix(o.Name(), "argo-server") {
			continue
		}
		if o.Is("Deployment/workflow-controller") {
			c, err := restrict(o)
			if err != nil {
				return nil, err
			}
			repository := image.Untagged(c["image"].(string))
			c["image"] = repository + ":" + version
			c["args"] = append(list(c["args"]), "--executor-image", path.Dir(repository)+"/argoexec:"+version, "--executor-image-pull-policy", "IfNotPresent")
		}
		if o.Is("ConfigMap/workflow-controller-configmap") {
			o.At("data")["executor"] = restrictedExecutor
		}
		objects = append(objects, o)
	}
	return objects, need(objects, "Deployment/workflow-controller", "ConfigMap/workflow-controller-configmap")
}

const restrictedExecutor = `securityContext:
  runAsNonRoot: true
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
`

// EventsInstall gives Argo Events out of upstream's install for all namespaces, in a
// namespace that enforces the Pod Security level restricted, which the controller then
// meets.
func EventsInstall(upstream []k8s.Object) ([]k8s.Object, error) {
	objects := append([]k8s.Object{k8s.Namespace("argo-events", "restricted")}, upstream...)
	for _, o := range objects {
		if o.Is("Deployment/controller-manager") {
			if _, err := restrict(o); err != nil {
				return nil, err
			}
		}
	}
	return objects, need(objects, "Deployment/controller-manager", busConfig)
}

// busConfig holds the images of every version of the bus.
const busConfig = "ConfigMap/argo-events-controller-config"

// SetBus leaves one version of JetStream in Argo Events' configuration. The controller
// does not start without a version of NATS Streaming, the bus before JetStream, so one
// with a name that says what it is stays, which names JetStream's images: it costs no
// mirror, and serves nobody.
func SetBus(o k8s.Object, version string) error {
	const key = "controller-config.yaml"
	text, _ := o.At("data")[key].(string)
	var settings k8s.Object
	if err := yaml.Unmarshal([]byte(text), &settings); err != nil {
		return step.Invalidf("reading Argo Events' configuration: %w", err)
	}
	jetstream := settings.At("eventBus", "jetstream")
	var there []string
	var bus k8s.Object
	for _, v := range jetstream.Containers("versions") {
		name := fmt.Sprint(v["version"])
		there = append(there, name)
		if name == version {
			bus = v
		}
	}
	if bus == nil {
		return step.Invalidf("finding version %q of the bus (cluster.eventBus.version): Argo Events has %s", version, strings.Join(there, ", "))
	}
	jetstream["versions"] = []any{bus}
	settings.At("eventBus", "nats")["versions"] = []any{k8s.Object{
		"version": "unused", "natsStreamingImage": bus["natsImage"], "metricsExporterImage": bus["metricsExporterImage"],
	}}
	out, err := yaml.Marshal(settings)
	if err != nil {
		return fmt.Errorf("writing Argo Events' configuration: %w", err)
	}
	o.At("data")[key] = string(out)
	return nil
}

// restrict makes the only container of a workload meet the level restricted, pull what
// is named by digest once, and gives it.
func restrict(o k8s.Object) (k8s.Object, error) {
	pod := o.Pod()
	containers := pod.Containers("containers")
	if len(containers) != 1 {
		return nil, step.Invalidf("reading %s %s: it has %d containers, known is one; this version of Fabrique does not fit that module", o.Kind(), o.Name(), len(containers))
	}
	if _, ok := containers[0]["image"].(string); !ok {
		return nil, step.Invalidf("reading %s %s: its container has no image; this version of Fabrique does not fit that module", o.Kind(), o.Name())
	}
	pod.At("securityContext")["seccompProfile"] = k8s.Object{"type": "RuntimeDefault"}
	c := containers[0]
	c["securityContext"] = k8s.Object{
		"runAsNonRoot": true, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": k8s.Object{"drop": []any{"ALL"}},
	}
	c["imagePullPolicy"] = "IfNotPresent"
	return c, nil
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

// need fails when upstream has another install than the one that is known.
func need(objects []k8s.Object, ids ...string) error {
	for _, id := range ids {
		if !slices.ContainsFunc(objects, func(o k8s.Object) bool { return o.Is(id) }) {
			return step.Invalidf("reading the install: it has no %s; this version of Fabrique does not fit that module", id)
		}
	}
	return nil
}

// installs gives the objects of each bundle.
func installs(found map[string]Module, busVersion string) (map[string][]k8s.Object, error) {
	upstream := map[string][]k8s.Object{}
	for name, module := range found {
		var err error
		if upstream[name], err = Kustomize(filepath.Join(module.Dir, filepath.FromSlash(Folder))); err != nil {
			return nil, fmt.Errorf("rendering %s: %w", module, err)
		}
	}
	workflows, err := WorkflowsInstall(upstream[Workflows], found[Workflows].Version)
	if err != nil {
		return nil, fmt.Errorf("rendering %s: %w", found[Workflows], err)
	}
	all, err := EventsInstall(upstream[Events])
	if err != nil {
		return nil, fmt.Errorf("rendering %s: %w", found[Events], err)
	}
	bundles := map[string][]k8s.Object{Workflows: workflows}
	for _, o := range all {
		name := Events
		if o.Is(busConfig) {
			name = NATS
			if err := SetBus(o, busVersion); err != nil {
				return nil, err
			}
		}
		bundles[name] = append(bundles[name], o)
	}
	return bundles, nil
}
