// Package cluster brings up a Kubernetes cluster of two nodes on this machine
// and takes it away without a trace. It has no container engine and fetches no
// image: every program is built from a pinned Go module, and each node is made of
// namespaces.
package cluster

import (
	enc "encoding/base64"
	"os"
	"path/filepath"

	"fabrique/bench/cache"
	"fabrique/bench/kubectl"
	"fabrique/bench/node"
)

// EnvDir names the environment variable that moves the cluster's files.
const EnvDir = "FABRIQUE_BENCH_STATE"

// DefaultDir holds the cluster's files. Every folder above it must let everyone
// through (mode 711), for the pods that run as somebody else.
const DefaultDir = "/var/lib/fabrique-bench"

// The nodes' names.
const (
	ControlPlane = "control-plane"
	Worker       = "worker"
)

// APIServer is the URL of the API server.
const APIServer = "https://" + ControlPlaneIP + ":6443"

type machine struct {
	name    string
	ip      string
	podCIDR string
	link    string // this machine's end of its cable
}

var machines = []machine{
	{ControlPlane, ControlPlaneIP, "10.196.64.0/24", "fabrique-cp"},
	{Worker, workerIP, "10.196.65.0/24", "fabrique-wk"},
}

// Cluster is the one cluster that a machine can have, in Dir.
type Cluster struct {
	Dir string
}

// Default gives the cluster in $FABRIQUE_BENCH_STATE or [DefaultDir].
func Default() (Cluster, error) {
	if dir := os.Getenv(EnvDir); dir != "" {
		abs, err := filepath.Abs(dir)
		return Cluster{abs}, err
	}
	return Cluster{DefaultDir}, nil
}

func (c Cluster) pki() pki { return pki{filepath.Join(c.Dir, "pki")} }

func (c Cluster) node(m machine) node.Node {
	keep := []string{c.Dir}
	if dir, err := cache.Dir(); err == nil {
		keep = append(keep, dir)
	}
	return node.Node{Name: m.name, Dir: filepath.Join(c.Dir, "nodes", m.name), Keep: keep}
}

// Nodes gives the machines of the cluster.
func (c Cluster) Nodes() []node.Node {
	var nodes []node.Node
	for _, m := range machines {
		nodes = append(nodes, c.node(m))
	}
	return nodes
}

func base64(text []byte) string { return enc.StdEncoding.EncodeToString(text) }

// Kubectl gives a kubectl for the cluster's administrator.
func (c Cluster) Kubectl() kubectl.Kubectl {
	return kubectl.Kubectl{Kubeconfig: c.Kubeconfig(), CacheDir: filepath.Join(c.Dir, "kubectl-cache")}
}
