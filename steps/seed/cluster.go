package seed

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"fabrique/steps/config"
	"fabrique/steps/step"
)

// cluster is where the Secrets are.
type cluster struct{ api kubernetes.Interface }

// manager owns the fields that are written here.
const manager = "fabrique-seed"

// secret gives a Secret, nil when it is not there.
func (c cluster) secret(ctx context.Context, n config.SecretName) (*corev1.Secret, error) {
	s, err := c.api.CoreV1().Secrets(n.Namespace).Get(ctx, n.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, explain(fmt.Sprintf("reading the Secret %s", n), err)
	}
	return s, nil
}

// value gives one value of a Secret, nil when it is not there.
func (c cluster) value(ctx context.Context, n config.SecretName, key string) ([]byte, error) {
	s, err := c.secret(ctx, n)
	if s == nil || err != nil {
		return nil, err
	}
	return s.Data[key], nil
}

// put sets what is given of a Secret, which it makes if need be, and leaves the rest of
// it alone.
func (c cluster) put(ctx context.Context, n config.SecretName, data map[string][]byte, labels, annotations map[string]string) error {
	set := func(s *corev1.Secret) {
		s.Data = with(s.Data, data)
		s.Labels, s.Annotations = with(s.Labels, labels), with(s.Annotations, annotations)
	}
	api := c.api.CoreV1().Secrets(n.Namespace)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		s, err := api.Get(ctx, n.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			s = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: n.Name}, Type: corev1.SecretTypeOpaque}
			set(s)
			_, err = api.Create(ctx, s, metav1.CreateOptions{FieldManager: manager})
			return err
		}
		if err != nil {
			return err
		}
		set(s)
		_, err = api.Update(ctx, s, metav1.UpdateOptions{FieldManager: manager})
		return err
	})
	if apierrors.IsNotFound(err) {
		return step.Retryf("writing the Secret %s: the namespace %s is %w", n, n.Namespace, ErrMissing)
	}
	if err != nil {
		return explain(fmt.Sprintf("writing the Secret %s", n), err)
	}
	return nil
}

func with[V any](all, some map[string]V) map[string]V {
	for key, value := range some {
		if all == nil {
			all = map[string]V{}
		}
		all[key] = value
	}
	return all
}

// explain gives an error of the API server its exit code.
func explain(what string, err error) error {
	switch {
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return step.Invalidf("%s: %w", what, err)
	}
	return step.Retryf("%s: %w", what, err)
}

// namespace is one of the factory's own, made before fabrique apply so that there is a
// place for the Secrets.
type namespace struct {
	cluster
	wanted *corev1.Namespace
}

func (n *namespace) Name() string { return "namespace " + n.wanted.Name }

func (n *namespace) Check(ctx context.Context) (State, error) {
	_, err := n.api.CoreV1().Namespaces().Get(ctx, n.wanted.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return absent, nil
	}
	if err != nil {
		return absent, explain("reading the namespace", err)
	}
	return State{Exists: true}, nil
}

func (n *namespace) Mend(ctx context.Context) error {
	_, err := n.api.CoreV1().Namespaces().Create(ctx, n.wanted, metav1.CreateOptions{FieldManager: manager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return explain("making the namespace", err)
	}
	return nil
}
