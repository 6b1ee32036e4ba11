// Package apply brings a cluster to a set of objects.
package apply

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"fabrique/manifests/kubeconfig"
	"fabrique/manifests/zone"
	"fabrique/steps/step"
)

// Done is what was done to an object, or would be in a dry run.
type Done string

// The values of [Done].
const (
	Created   Done = "created"
	Updated   Done = "updated"
	Unchanged Done = "unchanged"
	Removed   Done = "removed"
)

// Cluster is one that can be changed.
type Cluster struct {
	client dynamic.Interface
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

// Options of [Cluster.Apply].
type Options struct {
	DryRun bool // the API server checks everything and stores nothing
	Prune  bool // remove what the factory owns and is not among the objects
}

// Connect reads a kubeconfig, empty for the usual places. Exit code 2 when there
// is none.
func Connect(file string) (*Cluster, error) {
	config, err := kubeconfig.Load(file)
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, step.Invalidf("reading the kubeconfig: %w", err)
	}
	found, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, step.Invalidf("reading the kubeconfig: %w", err)
	}
	return &Cluster{client, restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(found))}, nil
}

// manager owns the fields that are applied (server-side apply, KEP-555).
const manager = "fabrique"

// Apply applies the objects in their order, with strict validation, then prunes.
// It calls report for each object and gives how many changed. The first error ends
// it; a second run goes on from there.
func (c *Cluster) Apply(ctx context.Context, objects []map[string]any, o Options, report func(did Done, object string)) (changed int, err error) {
	keep := map[string]bool{}
	for _, plain := range objects {
		object := &unstructured.Unstructured{Object: plain}
		did, err := c.apply(ctx, object, o)
		if err != nil {
			return changed, fmt.Errorf("applying %s: %w", name(object), explain(err, object))
		}
		keep[name(object)] = true
		if did != Unchanged {
			changed++
		}
		report(did, name(object))
	}
	if !o.Prune {
		return changed, nil
	}
	removed, err := c.prune(ctx, keep, o, report)
	return changed + removed, err
}

func name(o *unstructured.Unstructured) string {
	if o.GetNamespace() == "" {
		return o.GetKind() + " " + o.GetName()
	}
	return o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
}

// explain says what to do about an API that is missing, and that a retry does not
// mend what the API server refuses.
func explain(err error, o *unstructured.Unstructured) error {
	switch {
	case apierrors.IsInvalid(err) && o.GetKind() == "StatefulSet":
		return step.Invalidf("%w; if it is the size or class of its volumes, Kubernetes changes neither: kubectl delete statefulset -n %s %s --cascade=orphan, and apply again", err, o.GetNamespace(), o.GetName())
	case meta.IsNoMatchError(err):
		return step.Invalidf("%w; install what defines %s first", err, o.GroupVersionKind().GroupKind())
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return step.Invalidf("%w", err)
	}
	return err
}

func (c *Cluster) resource(kind schema.GroupVersionKind, namespace string) (dynamic.ResourceInterface, error) {
	mapping, err := c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	return c.client.Resource(mapping.Resource).Namespace(namespace), nil
}

func (c *Cluster) apply(ctx context.Context, o *unstructured.Unstructured, options Options) (Done, error) {
	api, err := c.resource(o.GroupVersionKind(), o.GetNamespace())
	if err != nil {
		return "", err
	}
	before, err := api.Get(ctx, o.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		before, err = nil, nil
	}
	if err != nil {
		return "", err
	}
	if before == nil && options.DryRun && o.GetNamespace() != "" && !c.exists(ctx, o.GetNamespace()) {
		return Created, nil // the server cannot check what is in a namespace that is not there yet
	}
	text, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	force := true
	patch := metav1.PatchOptions{FieldManager: manager, Force: &force, FieldValidation: metav1.FieldValidationStrict}
	if options.DryRun {
		patch.DryRun = []string{metav1.DryRunAll}
	}
	after, err := api.Patch(ctx, o.GetName(), types.ApplyPatchType, text, patch)
	if err != nil {
		return "", err
	}
	switch {
	case before == nil:
		return Created, nil
	case reflect.DeepEqual(written(before), written(after)):
		return Unchanged, nil
	}
	return Updated, nil
}

func (c *Cluster) exists(ctx context.Context, namespace string) bool {
	_, err := c.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Get(ctx, namespace, metav1.GetOptions{})
	return err == nil
}

// written gives what a person writes of an object.
func written(o *unstructured.Unstructured) map[string]any {
	plain := o.DeepCopy()
	plain.SetManagedFields(nil)
	plain.SetResourceVersion("")
	plain.SetGeneration(0)
	delete(plain.Object, "status")
	return plain.Object
}

// pruned are the kinds that the factory makes and may remove. Namespaces, Secrets
// and volumes hold what nobody can make again, so a person removes them.
var pruned = []schema.GroupVersionKind{
	{Group: "argoproj.io", Version: "v1alpha1", Kind: "Sensor"},
	{Group: "argoproj.io", Version: "v1alpha1", Kind: "EventSource"},
	{Group: "argoproj.io", Version: "v1alpha1", Kind: "EventBus"},
	{Group: "argoproj.io", Version: "v1alpha1", Kind: "CronWorkflow"},
	{Group: "argoproj.io", Version: "v1alpha1", Kind: "WorkflowTemplate"},
	{Group: "apps", Version: "v1", Kind: "StatefulSet"},
	{Group: "apps", Version: "v1", Kind: "Deployment"},
	{Version: "v1", Kind: "Service"},
	{Version: "v1", Kind: "ConfigMap"},
	{Version: "v1", Kind: "ResourceQuota"},
	{Version: "v1", Kind: "ServiceAccount"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "Role"},
	{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"},
	{Group: "cilium.io", Version: "v2", Kind: "CiliumNetworkPolicy"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicyBinding"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicy"},
}

func (c *Cluster) prune(ctx context.Context, keep map[string]bool, o Options, report func(Done, string)) (removed int, err error) {
	for _, kind := range pruned {
		mapping, err := c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if meta.IsNoMatchError(err) {
			continue // what the cluster does not know it does not have
		}
		if err != nil {
			return removed, fmt.Errorf("looking for what is not needed any more: %w", err)
		}
		namespaces := []string{zone.Workflows, zone.Events, zone.Builder, zone.Egress}
		if mapping.Scope.Name() == meta.RESTScopeNameRoot {
			namespaces = []string{""}
		}
		for _, namespace := range namespaces {
			api := c.client.Resource(mapping.Resource).Namespace(namespace)
			list, err := api.List(ctx, metav1.ListOptions{LabelSelector: zone.ManagedBy + "=" + zone.Fabrique})
			if err != nil {
				return removed, fmt.Errorf("listing each %s in %s: %w", kind.Kind, cmp.Or(namespace, "the cluster"), err)
			}
			for i := range list.Items {
				// What a controller made of ours carries our labels too.
				if item := &list.Items[i]; !keep[name(item)] && len(item.GetOwnerReferences()) == 0 && item.GetDeletionTimestamp() == nil {
					options := metav1.DeleteOptions{}
					if o.DryRun {
						options.DryRun = []string{metav1.DryRunAll}
					}
					if err := api.Delete(ctx, item.GetName(), options); err != nil && !apierrors.IsNotFound(err) {
						return removed, fmt.Errorf("removing %s: %w", name(item), err)
					}
					removed++
					report(Removed, name(item))
				}
			}
		}
	}
	return removed, nil
}
