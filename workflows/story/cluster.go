package story

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"fabrique/manifests/zone"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/step"
	"fabrique/workflows/run"
)

// Cluster is where the Workflows, Argo CD and the apps are.
type Cluster struct {
	workflows *run.Client
	objects   dynamic.Interface
	core      kubernetes.Interface
	argoCD    string // the namespace
}

// NewCluster makes clients without any request. Argo CD has its Applications in the
// namespace argoCD. Exit code 2 for a configuration without meaning.
func NewCluster(config *rest.Config, argoCD string) (*Cluster, error) {
	workflows, err := run.NewClient(config)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, step.Invalidf("making a client for the cluster: %w", err)
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, step.Invalidf("making a client for the cluster: %w", err)
	}
	return &Cluster{workflows, objects, core, argoCD}, nil
}

// patience bounds how long the cluster may take to list its Workflows, and to tell
// of all the rest.
const patience = 15 * time.Second

func (c *Cluster) runs(ctx context.Context) ([]run.Run, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the cluster did not answer within %s", patience))
	defer cancel()
	runs, err := c.workflows.List(ctx, zone.Workflows)
	return runs, step.WithCause(ctx, err)
}

// application is what the cluster knows of an app.
type application struct {
	trouble string // why nothing is known; the rest is empty then

	namespace  string // where it runs
	elsewhere  string // the cluster that it runs in, when that is another
	syncStatus string
	compared   string // revision that was last compared
	health     string
	problems   []string // that Argo CD complains of
	history    []synced
	operation  struct {
		phase, revision, message string
		finished                 time.Time
	}
	pods        []pod
	podsTrouble string
}

// synced is one sync of an Application.
type synced struct {
	at               time.Time
	revision, target string
	source           string // JSON
}

// pod is one of the destination's namespace.
type pod struct {
	name   string
	images []string
	since  time.Time // ready; zero when it is not
	waits  string    // what for, when it is not ready
}

// readCluster asks for the apps that were deployed at the commit.
func (f *facts) readCluster(ctx context.Context, c Cluster) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the cluster did not answer within %s", patience))
	defer cancel()
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(8)
	for _, name := range f.names() {
		if !f.deployed(name) {
			continue
		}
		group.Go(func() error {
			a, err := c.application(ctx, name)
			if err != nil {
				a.trouble = step.WithCause(ctx, err).Error()
			}
			mu.Lock()
			defer mu.Unlock()
			f.applications[name] = a
			return nil
		})
	}
	_ = group.Wait()
	pods := map[string][]pod{}
	troubles := map[string]string{}
	for name, a := range f.applications {
		if a.trouble != "" || a.elsewhere != "" {
			continue
		}
		if _, asked := troubles[a.namespace]; !asked {
			list, err := c.pods(ctx, a.namespace)
			if pods[a.namespace], troubles[a.namespace] = list, ""; err != nil {
				troubles[a.namespace] = step.WithCause(ctx, err).Error()
			}
		}
		a.pods, a.podsTrouble = pods[a.namespace], troubles[a.namespace]
		f.applications[name] = a
	}
}

var applications = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "applications"}

// inCluster are Argo CD's names for the cluster that it runs in itself.
var inCluster = map[string]bool{"https://kubernetes.default.svc": true, "in-cluster": true}

func (c Cluster) application(ctx context.Context, name string) (application, error) {
	got, err := c.objects.Resource(applications).Namespace(c.argoCD).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return application{}, fmt.Errorf("Argo CD has no Application %s in %s; is there one that brings it what is in the apps repository?", name, c.argoCD)
	}
	if err != nil {
		return application{}, fmt.Errorf("reading the Application %s in %s: %w", name, c.argoCD, err)
	}
	text, err := json.Marshal(got)
	if err != nil {
		return application{}, err
	}
	return parseApplication(text)
}

// parseApplication reads what is needed of an Application
// (argoproj.io/v1alpha1, Argo CD's pkg/apis/application).
func parseApplication(text []byte) (application, error) {
	var got struct {
		Spec struct {
			Destination struct{ Namespace, Server, Name string }
		}
		Status struct {
			Sync       struct{ Status, Revision string }
			Health     struct{ Status, Message string }
			Conditions []struct{ Type, Message string }
			History    []struct {
				Revision   string
				DeployedAt time.Time
				Source     json.RawMessage
			}
			OperationState struct {
				Phase, Message string
				FinishedAt     time.Time
				Operation      struct{ Sync struct{ Revision string } }
				SyncResult     struct{ Revision string }
			}
		}
	}
	if err := json.Unmarshal(text, &got); err != nil {
		return application{}, fmt.Errorf("reading the Application: %w", err)
	}
	s := got.Status
	a := application{
		namespace: got.Spec.Destination.Namespace, syncStatus: s.Sync.Status, compared: s.Sync.Revision,
		health: strings.TrimSuffix(s.Health.Status+": "+s.Health.Message, ": "),
	}
	if where := got.Spec.Destination.Server + got.Spec.Destination.Name; !inCluster[where] {
		a.elsewhere = where
	}
	for _, c := range s.Conditions {
		if strings.HasSuffix(c.Type, "Error") {
			a.problems = append(a.problems, c.Type+": "+c.Message)
		}
	}
	for _, h := range s.History {
		var source struct{ TargetRevision string }
		_ = json.Unmarshal(h.Source, &source) // an Application of several sources has none
		a.history = append(a.history, synced{h.DeployedAt, h.Revision, source.TargetRevision, string(h.Source)})
	}
	o := s.OperationState
	a.operation.phase, a.operation.message, a.operation.finished = o.Phase, o.Message, o.FinishedAt
	if a.operation.revision = o.SyncResult.Revision; a.operation.revision == "" {
		a.operation.revision = o.Operation.Sync.Revision
	}
	return a, nil
}

// sync gives the first sync that deployed this revision, with this digest when one
// is known: what was synced before the write-back had the manifests alone.
func (a application) sync(revision gitref.Revision, digest image.Digest) (synced, bool) {
	for _, h := range a.history {
		if h.revision == string(revision) && (digest != "" && strings.Contains(h.source, string(digest)) || digest == "" && h.target == string(revision)) {
			return h, true
		}
	}
	return synced{}, false
}

// digest finds the app's digest in what was synced at the revision.
func (a application) digest(revision gitref.Revision) image.Digest {
	h, _ := a.sync(revision, "")
	_, after, found := strings.Cut(h.source, "sha256:")
	if !found || len(after) < 64 {
		return ""
	}
	digest, err := image.ParseDigest("sha256:" + after[:64])
	if err != nil {
		return ""
	}
	return digest
}

func (c Cluster) pods(ctx context.Context, namespace string) ([]pod, error) {
	list, err := c.core.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing the pods in %s: %w", namespace, err)
	}
	var pods []pod
	for i := range list.Items {
		pods = append(pods, podOf(&list.Items[i]))
	}
	return pods, nil
}

func podOf(p *corev1.Pod) pod {
	got := pod{name: p.Name, waits: string(p.Status.Phase)}
	for _, c := range append(p.Spec.InitContainers, p.Spec.Containers...) {
		got.images = append(got.images, c.Image)
	}
	for _, c := range p.Status.Conditions {
		switch {
		case c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue:
			got.since = c.LastTransitionTime.Time
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse:
			got.waits = c.Message
		}
	}
	for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
		got.images = append(got.images, c.ImageID)
		if w := c.State.Waiting; w != nil && w.Reason != "PodInitializing" {
			got.waits = strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
		}
	}
	if p.DeletionTimestamp != nil {
		got.since, got.waits = time.Time{}, "it is being removed"
	}
	return got
}

// of tells whether it runs the image, or is to run it.
func (p pod) of(digest image.Digest) bool {
	for _, i := range p.images {
		if strings.HasSuffix(i, "@"+string(digest)) {
			return true
		}
	}
	return false
}
