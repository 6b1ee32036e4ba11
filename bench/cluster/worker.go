package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"fabrique/bench/node"
)

// What a node's programs find in its own /var.
const (
	containerdSocket = "/run/containerd/containerd.sock"
	configDir        = "/var/lib/bench"
	kubeRouterPort   = "20244" // of its health endpoint
)

// writeConfig writes a file that the node's programs find below [configDir].
func (c Cluster) writeConfig(m machine, name, text string) error {
	path := filepath.Join(c.node(m).Dir, configDir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o600)
}

func (c Cluster) containerd(p programs, m machine, sandbox string) service {
	return service{
		Service: node.Service{Name: "containerd", Args: []string{filepath.Join(p.containerdDir, "containerd"), "--config", configDir + "/containerd.toml"}, Env: []string{p.path()}},
		files: map[string]string{
			// The nodes resolve it by their /etc/hosts; this says that it speaks plain HTTP.
			"certs.d/registry:80/hosts.toml": `server = "http://registry:80"

[host."http://registry:80"]
  capabilities = ["pull", "resolve"]
`,
			"containerd.toml": fmt.Sprintf(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = %q

[plugins.'io.containerd.internal.v1.opt']
path = "/var/lib/containerd/opt"

[plugins.'io.containerd.cri.v1.images']
snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = %q
[plugins.'io.containerd.cri.v1.images'.registry]
config_path = "%[3]s/certs.d"

[plugins.'io.containerd.cri.v1.runtime']
# Without CAP_SYS_RESOURCE, as in most containers, no score can be lowered.
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "%[3]s/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "%[4]s/runc"
`, containerdSocket, sandbox, configDir, p.runcDir),
			"cni/10-bench.conflist": fmt.Sprintf(`{
  "cniVersion": "1.0.0",
  "name": "bench",
  "plugins": [
    {
      "type": "bridge", "bridge": "pods", "isGateway": true, "hairpinMode": true,
      "ipam": {
        "type": "host-local", "dataDir": "/run/cni-ipam",
        "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`, m.podCIDR),
		},
	}
}

func (c Cluster) kubelet(p programs, m machine) service {
	crt := c.pki().path
	type object map[string]any
	config := componentConfig(object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"address": m.ip, "healthzBindAddress": "127.0.0.1",
		"authentication": object{
			"anonymous": object{"enabled": false},
			"webhook":   object{"enabled": true},
			"x509":      object{"clientCAFile": crt("ca.crt")},
		},
		"authorization":            object{"mode": "Webhook"},
		"tlsCertFile":              crt("kubelet-" + m.name + ".crt"),
		"tlsPrivateKeyFile":        crt("kubelet-" + m.name + ".key"),
		"clusterDomain":            "cluster.local",
		"clusterDNS":               []string{DNSIP},
		"resolvConf":               "/etc/resolv.conf",
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"podLogsDir":               "/var/log/pods",
		"volumePluginDir":          "/var/lib/kubelet/volumeplugins",
		"cgroupDriver":             "cgroupfs",
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"oomScoreAdj":              0,
		"serializeImagePulls":      false,
		// The disk is this machine's, and its owner's concern; the memory too.
		"evictionHard":                object{"memory.available": "100Mi", "nodefs.available": "1%", "nodefs.inodesFree": "1%", "imagefs.available": "1%"},
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		// Both nodes show all processors of one machine: be quick rather than thrifty.
		"nodeStatusUpdateFrequency": "5s",
		"registryPullQPS":           0,
		"eventRecordQPS":            0,
		"kubeAPIQPS":                100,
		"kubeAPIBurst":              200,
	})
	return service{
		Service: node.Service{Name: "kubelet", Env: []string{p.path()}, Args: flags(p.kubernetes("kubelet"),
			"config", configDir+"/kubelet.yaml", "kubeconfig", c.kubeconfig("kubelet-"+m.name),
			"hostname-override", m.name, "node-ip", m.ip, "root-dir", "/var/lib/kubelet",
		)},
		files: map[string]string{"kubelet.yaml": config},
	}
}

func (c Cluster) kubeProxy(p programs, m machine) service {
	type object map[string]any
	config := componentConfig(object{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"clientConnection": object{"kubeconfig": c.kubeconfig("kube-proxy")},
		"mode":             "nftables",
		"clusterCIDR":      podCIDR,
		"hostnameOverride": m.name,
		"bindAddress":      "0.0.0.0",
		// The limits are this machine's, not a node's to set.
		"oomScoreAdj": 0,
		"conntrack":   object{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	})
	return service{
		Service: node.Service{Name: "kube-proxy", Args: flags(p.kubernetes("kube-proxy"), "config", configDir+"/kube-proxy.yaml")},
		files:   map[string]string{"kube-proxy.yaml": config},
	}
}

func (c Cluster) kubeRouter(p programs, m machine) service {
	return service{Service: node.Service{Name: "kube-router", Args: flags(p.kubeRouter,
		"kubeconfig", c.kubeconfig("kube-router"), "hostname-override", m.name,
		"run-firewall", "true", "run-router", "false", "run-service-proxy", "false",
		"service-cluster-ip-range", serviceCIDR, "health-port", kubeRouterPort,
	)}}
}

func componentConfig(config any) string {
	text, err := json.MarshalIndent(config, "", "  ") // JSON is YAML
	if err != nil {
		panic(err) // it holds strings and numbers
	}
	return string(text) + "\n"
}

// loadImages puts images into a node's containerd: those that run before there
// is a registry to pull from.
func (c Cluster) loadImages(ctx context.Context, log io.Writer, p programs, m machine, archive string, refs []string) (bool, error) {
	ctr := func(args ...string) []string {
		return append([]string{filepath.Join(p.containerdDir, "ctr"), "--address", containerdSocket, "--namespace", "k8s.io"}, args...)
	}
	var there strings.Builder
	if err := c.node(m).Run(ctx, &there, nil, ctr("images", "list", "--quiet")...); err != nil {
		return false, err
	}
	missing := false
	for _, ref := range refs {
		missing = missing || !strings.Contains(there.String(), ref+"\n")
	}
	if !missing {
		return false, nil
	}
	return true, c.node(m).Run(ctx, log, nil, ctr("images", "import", archive)...)
}
