// Package kubeconfig finds the cluster that a person means.
package kubeconfig

import (
	"errors"
	"os"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"fabrique/steps/step"
)

// ErrNone is in the error of [Load] when no file was named and none is in the usual
// places.
var ErrNone = errors.New("there is no kubeconfig")

// Load reads a kubeconfig, empty for the usual places: $KUBECONFIG, else
// ~/.kube/config, else what a pod is given. Exit code 2 when there is none.
func Load(file string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if file == "" && clientcmd.IsEmptyConfig(err) {
		return nil, step.Invalidf("looking for a cluster: %w at $KUBECONFIG (%q) or ~/.kube/config; name one by --kubeconfig", ErrNone, os.Getenv("KUBECONFIG"))
	}
	if err != nil {
		return nil, step.Invalidf("reading the kubeconfig: %w; name one by --kubeconfig", err)
	}
	config.QPS, config.Burst = 50, 100
	return config, nil
}

// Flag declares --kubeconfig.
func Flag(flags *pflag.FlagSet, file *string) {
	flags.StringVar(file, "kubeconfig", "", "file that names the cluster (default: $KUBECONFIG, else ~/.kube/config)")
}
