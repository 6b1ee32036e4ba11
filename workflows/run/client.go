package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"fabrique/steps/step"
)

// ErrNotFound is in the error of a run that the cluster does not have.
var ErrNotFound = errors.New("there is no such Workflow")

// Client reads runs from a cluster.
type Client struct {
	workflows dynamic.NamespaceableResourceInterface
}

// NewClient makes a client without any request. Exit code 2 for a configuration
// without meaning.
func NewClient(config *rest.Config) (*Client, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, step.Invalidf("making a client for the cluster: %w", err)
	}
	return &Client{client.Resource(schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "workflows"})}, nil
}

// Get reads one run. One that is not there gives [ErrNotFound]. Exit codes: 2 when
// the API server refuses it, 1 when it cannot be reached.
func (c *Client) Get(ctx context.Context, namespace, name string) (Run, error) {
	what := fmt.Sprintf("reading the Workflow %s in %s", name, namespace)
	got, err := c.workflows.Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Run{}, step.Invalidf("%s: %w", what, ErrNotFound)
	}
	if err != nil {
		return Run{}, Refused(what, err)
	}
	return parse(got)
}

// List reads all runs of a namespace, the newest first. What is no run of the
// chain is among them: [Run.Template] tells. One that cannot be read stands in
// nobody's way; see [Run.Unreadable].
func (c *Client) List(ctx context.Context, namespace string) ([]Run, error) {
	return c.list(ctx, namespace, metav1.ListOptions{})
}

// completedLabel is what Argo puts on a Workflow that is over.
const completedLabel = "workflows.argoproj.io/completed"

// InFlight is [Client.List] of those that are not over.
func (c *Client) InFlight(ctx context.Context, namespace string) ([]Run, error) {
	runs, err := c.list(ctx, namespace, metav1.ListOptions{LabelSelector: completedLabel + "!=true"})
	return slices.DeleteFunc(runs, Run.Over), err
}

func (c *Client) list(ctx context.Context, namespace string, options metav1.ListOptions) ([]Run, error) {
	what := "listing the Workflows in " + namespace
	var runs []Run
	options.Limit = 100
	for {
		list, err := c.workflows.Namespace(namespace).List(ctx, options)
		if apierrors.IsNotFound(err) {
			return nil, step.Invalidf("%s: the cluster does not know Workflows; install Argo Workflows: %w", what, err)
		}
		if err != nil {
			return nil, Refused(what, err)
		}
		for i := range list.Items {
			r, err := parse(&list.Items[i])
			if err != nil && r.Unreadable == "" {
				return nil, err
			}
			runs = append(runs, r)
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			break
		}
	}
	slices.SortStableFunc(runs, func(a, b Run) int {
		if c := b.Created.Compare(a.Created); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return runs, nil
}

func parse(o *unstructured.Unstructured) (Run, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return Run{}, fmt.Errorf("reading a Workflow: %w", err)
	}
	return Parse(text)
}

// Refused gives what the API server answered an exit code: 2 when it does not let
// this be done, 1 for all that a retry may mend.
func Refused(what string, err error) error {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return step.Invalidf("%s: %w", what, err)
	}
	return step.Retryf("%s: %w", what, err)
}
