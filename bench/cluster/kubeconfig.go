package cluster

import (
	"fmt"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"
)

// Kubeconfig gives the path of the administrator's kubeconfig.
func (c Cluster) Kubeconfig() string { return c.kubeconfig("admin") }

func (c Cluster) kubeconfig(user string) string {
	return filepath.Join(c.Dir, "kubeconfig", user+".yaml")
}

// writeKubeconfig writes a kubeconfig that holds the user's certificate, so that
// it works wherever it is copied.
func (c Cluster) writeKubeconfig(user string) error {
	read := func(file string) []byte {
		text, _ := os.ReadFile(c.pki().path(file)) // an empty one is refused below
		return text
	}
	type named map[string]any
	ca, crt, key := read("ca.crt"), read(user+".crt"), read(user+".key")
	if len(ca) == 0 || len(crt) == 0 || len(key) == 0 {
		return fmt.Errorf("writing the kubeconfig of %s: a certificate is missing in %s", user, c.pki().dir)
	}
	text, err := yaml.Marshal(named{
		"apiVersion": "v1", "kind": "Config", "current-context": "bench",
		"clusters": []named{{"name": "bench", "cluster": named{"server": APIServer, "certificate-authority-data": base64(ca)}}},
		"users":    []named{{"name": user, "user": named{"client-certificate-data": base64(crt), "client-key-data": base64(key)}}},
		"contexts": []named{{"name": "bench", "context": named{"cluster": "bench", "user": user}}},
	})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.kubeconfig(user)), 0o700); err != nil {
		return err
	}
	partial := c.kubeconfig(user) + ".partial"
	if err := os.WriteFile(partial, text, 0o600); err != nil {
		return err
	}
	return os.Rename(partial, c.kubeconfig(user))
}
