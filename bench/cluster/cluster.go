// Package cluster brings up a Kubernetes cluster of two nodes on this machine
// and takes it away without a trace. It has no container engine and fetches no
// image: every program is built from a pinned Go module, and each node is made of
// namespaces.
package cluster

import (
	enc "encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

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
	dir := os.Getenv(EnvDir)
	if dir == "" {
		return Cluster{DefaultDir}, nil
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return Cluster{}, err
	}
	if abs == "/run" || strings.HasPrefix(abs, "/run/") {
		return Cluster{}, fmt.Errorf("%s is %s: nodes have a /run of their own and do not see it; choose another folder", EnvDir, abs)
	}
	return Cluster{abs}, nil
}

// marker tells a folder of a cluster from any other, which nobody wants removed.
const marker = "fabrique-bench"

// Exists tells whether the folder holds a cluster, in whatever state. A folder
// with anything else in it is an error.
func (c Cluster) Exists() (bool, error) {
	if _, err := os.Stat(filepath.Join(c.Dir, marker)); err == nil {
		return true, nil
	}
	entries, err := os.ReadDir(c.Dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return false, nil
	}
	if err == nil {
		err = errors.New("it holds something else")
	}
	return false, fmt.Errorf("%s is no folder of a bench cluster: %w; name another by %s", c.Dir, err, EnvDir)
}

// Create makes the cluster's folder.
func (c Cluster) Create() error {
	if _, err := c.Exists(); err != nil {
		return err
	}
	if err := os.MkdirAll(c.Dir, 0o711); err != nil {
		return fmt.Errorf("making the cluster's folder: %w; run as root", err)
	}
	return os.WriteFile(filepath.Join(c.Dir, marker), nil, 0o600)
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
