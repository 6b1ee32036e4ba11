package kubeconfig_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fabrique/manifests/kubeconfig"
	"fabrique/steps/step"
)

const text = `apiVersion: v1
kind: Config
current-context: bench
contexts: [{name: bench, context: {cluster: bench, user: root}}]
clusters: [{name: bench, cluster: {server: "https://10.0.0.1:6443"}}]
users: [{name: root, user: {token: x}}]
`

func TestLoad(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(t.TempDir(), "broken.yaml")
	if err := os.WriteFile(broken, []byte("contexts: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other.yaml")
	if err := os.WriteFile(other, []byte(strings.Replace(text, "current-context: bench", "current-context: other", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, environment, file string
		none                    bool
		says                    string
	}{
		{name: "named", file: file},
		{name: "from the environment", environment: file},
		{name: "named before the environment", environment: broken, file: file},
		{name: "nowhere", none: true, says: "name one by --kubeconfig"},
		{name: "the environment names none that is there", environment: file + "x", none: true, says: "name one by --kubeconfig"},
		{name: "named and not there", file: file + "x", says: "config.yamlx"},
		{name: "broken", environment: broken, says: "reading the kubeconfig"},
		{name: "a context that is not there", file: other, says: "context was not found"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", c.environment)
			config, err := kubeconfig.Load(c.file)
			if c.says == "" {
				if err != nil || config.Host != "https://10.0.0.1:6443" {
					t.Fatalf("%+v, %v", config, err)
				}
				return
			}
			if err == nil || step.ExitCode(err) != step.ExitInvalid || errors.Is(err, kubeconfig.ErrNone) != c.none || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v (exit code %d)", err, step.ExitCode(err))
			}
		})
	}
}
