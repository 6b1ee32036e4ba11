package platform

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fabrique/bench/images"
	"fabrique/bench/tools"
)

// values are what bench up gives.
var values = map[string]string{"REGISTRY_IP": "10.0.0.80", "DNS_IP": "10.0.0.10", "BUS_VERSION": BusVersion}

// built skips the test where the cache lacks what it needs: making it takes most
// of an hour, which is bench install --cluster's to spend.
func built(t *testing.T) {
	t.Helper()
	now, cancel := context.WithCancel(t.Context())
	cancel() // what is cached needs no time
	for _, tool := range []tools.Tool{tools.LocalPath, tools.ArgoWorkflows, tools.ArgoEvents, tools.ArgoCD, tools.Kubernetes, tools.NATS, tools.CoreDNS} {
		if _, err := tool.Ensure(now, io.Discard, false); errors.Is(err, context.Canceled) {
			t.Skipf("the cache has no %s; bin/bench install --cluster makes it", tool.Name)
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// everything gives the platform with its images' real references, and its
// components.
func everything(t *testing.T) (Platform, []component) {
	t.Helper()
	built(t)
	p := Platform{Refs: map[string]string{}, Addresses: values}
	for _, image := range images.Cluster() {
		_, digest, err := image.Load(t.Context(), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		repository, _, _ := strings.Cut(image.Name, ":")
		p.Refs[repository] = "registry:80/" + repository + "@" + digest
	}
	return p, slices.Concat(p.base(), p.services())
}

// Whatever a node will ever pull is ours, by digest, and everything has a place.
func TestEveryComponentResolves(t *testing.T) {
	p, components := everything(t)
	reference := regexp.MustCompile(`^registry:80/(bench|base)/[a-z-]+@sha256:[0-9a-f]{64}$`)
	// A node that is cut off reaches none of these.
	foreign := regexp.MustCompile(`\b(quay\.io|docker\.io|ghcr\.io|gcr\.io|public\.ecr\.aws|registry\.k8s\.io)/`)
	var workloads []string
	for _, c := range components {
		t.Run(c.name, func(t *testing.T) {
			objects, err := p.resolve(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if len(objects) == 0 {
				t.Fatal("it has no objects")
			}
			seen := map[string]bool{}
			for _, o := range objects {
				namespace, _ := o.At("metadata")["namespace"].(string)
				id := o.Kind() + "/" + o.Name()
				if clusterScoped[o.Kind()] != (namespace == "") {
					t.Errorf("%s is in the namespace %q", id, namespace)
				}
				if seen[namespace+" "+id] {
					t.Errorf("%s is there twice", id)
				}
				seen[namespace+" "+id] = true
				for _, part := range []string{"argo-server", "dex", "notifications", "applicationset"} {
					if strings.Contains(o.Name(), part) && o.Kind() != "CustomResourceDefinition" && o.Kind() != "ConfigMap" {
						t.Errorf("%s is there", id)
					}
				}
				if o.Kind() == "ConfigMap" {
					for key, value := range o.At("data") {
						if name := foreign.FindString(value.(string)); name != "" {
							t.Errorf("%s: %s names an image of %s", id, key, name)
						}
						if strings.Contains(value.(string), "${") {
							t.Errorf("%s: %s is not filled in:\n%s", id, key, value)
						}
					}
				}
				pod := o.Pod()
				if pod == nil {
					if _, ok := o.At("spec")["template"]; ok && slices.Contains([]string{"DaemonSet", "Job", "CronJob", "ReplicaSet"}, o.Kind()) {
						t.Errorf("%s has pods whose images nobody sets", id)
					}
					continue
				}
				workloads = append(workloads, namespace+" "+id)
				for _, key := range []string{"initContainers", "containers"} {
					for _, container := range pod.Containers(key) {
						if image, _ := container["image"].(string); !reference.MatchString(image) {
							t.Errorf("%s: the container %v has the image %q", id, container["name"], image)
						}
						words := text(t, []object{container})
						if name := foreign.FindString(words); name != "" {
							t.Errorf("%s: the container %v names an image of %s", id, container["name"], name)
						}
					}
				}
			}
		})
	}
	slices.Sort(workloads)
	if diff := cmp.Diff([]string{
		"argo Deployment/workflow-controller",
		"argo-events Deployment/controller-manager",
		"argocd Deployment/argocd-redis",
		"argocd Deployment/argocd-repo-server",
		"argocd Deployment/argocd-server",
		"argocd StatefulSet/argocd-application-controller",
		"gitea Deployment/gitea",
		"kube-system Deployment/coredns",
		"local-path-storage Deployment/local-path-provisioner",
		"registry Deployment/registry",
	}, workloads); diff != "" {
		t.Errorf("what runs in the cluster: -want +got\n%s", diff)
	}
}

// An image that the bench does not make stops the installation before anything
// is applied.
func TestResolveRefusesAnUnknownImage(t *testing.T) {
	_, err := Platform{Refs: map[string]string{}}.resolve(t.Context(), component{"own", "ns", func(context.Context, map[string]string) ([]object, error) {
		return objects(t, "kind: Deployment\nmetadata: {name: d}\nspec: {template: {spec: {containers: [{image: elsewhere/thing}]}}}"), nil
	}})
	if want := `Deployment d: the bench has no image for "elsewhere/thing"`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// The bench's own manifests ask for no value but those that are given.
func TestOwnManifestsAreFilledIn(t *testing.T) {
	used := map[string]bool{}
	asked := regexp.MustCompile(`\$\{([A-Z_]+)\}`)
	err := fs.WalkDir(manifests, "manifests", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := manifests.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range asked.FindAllStringSubmatch(string(raw), -1) {
			used[m[1]] = true
		}
		_, err = own(d.Name(), values)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(values)), slices.Sorted(maps.Keys(used))); diff != "" {
		t.Errorf("values: -given +asked\n%s", diff)
	}
}
