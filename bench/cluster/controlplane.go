package cluster

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"fabrique/bench/node"
)

// flags turns name and value pairs into arguments, in their order.
func flags(program string, pairs ...string) []string {
	args := []string{program}
	for i := 0; i < len(pairs); i += 2 {
		args = append(args, "--"+pairs[i]+"="+pairs[i+1])
	}
	return args
}

const etcdPort = "2379"

func (c Cluster) etcd(p programs) service {
	crt := c.pki().path
	return service{Service: node.Service{Name: "etcd", Args: flags(p.etcd,
		"name", ControlPlane,
		"data-dir", "/var/lib/etcd",
		"listen-client-urls", "https://127.0.0.1:"+etcdPort,
		"advertise-client-urls", "https://127.0.0.1:"+etcdPort,
		"listen-peer-urls", "https://127.0.0.1:2380",
		"initial-advertise-peer-urls", "https://127.0.0.1:2380",
		"initial-cluster", ControlPlane+"=https://127.0.0.1:2380",
		"listen-metrics-urls", "http://127.0.0.1:2381",
		"client-cert-auth", "true", "trusted-ca-file", crt("etcd-ca.crt"),
		"cert-file", crt("etcd.crt"), "key-file", crt("etcd.key"),
		"peer-client-cert-auth", "true", "peer-trusted-ca-file", crt("etcd-ca.crt"),
		"peer-cert-file", crt("etcd.crt"), "peer-key-file", crt("etcd.key"),
		// A bench that loses its power is made again.
		"unsafe-no-fsync", "true",
	)}}
}

func (c Cluster) apiserver(p programs) service {
	crt := c.pki().path
	return service{Service: node.Service{Name: "kube-apiserver", Args: flags(p.kubernetes("kube-apiserver"),
		"advertise-address", ControlPlaneIP,
		"secure-port", "6443",
		"anonymous-auth", "false",
		"authorization-mode", "Node,RBAC",
		"enable-admission-plugins", "NodeRestriction", // Pod Security is on by default
		"allow-privileged", "true", // what a pod may do is Pod Security's to say
		"service-cluster-ip-range", serviceCIDR,
		"client-ca-file", crt("ca.crt"),
		"tls-cert-file", crt("apiserver.crt"), "tls-private-key-file", crt("apiserver.key"),
		"etcd-servers", "https://127.0.0.1:"+etcdPort,
		"etcd-cafile", crt("etcd-ca.crt"),
		"etcd-certfile", crt("apiserver-etcd.crt"), "etcd-keyfile", crt("apiserver-etcd.key"),
		"kubelet-certificate-authority", crt("ca.crt"),
		"kubelet-client-certificate", crt("apiserver-kubelet.crt"), "kubelet-client-key", crt("apiserver-kubelet.key"),
		"kubelet-preferred-address-types", "InternalIP",
		"service-account-issuer", "https://kubernetes.default.svc.cluster.local",
		"service-account-key-file", crt("sa.pub"), "service-account-signing-key-file", crt("sa.key"),
		"requestheader-client-ca-file", crt("front-proxy-ca.crt"),
		"requestheader-allowed-names", "front-proxy-client",
		"requestheader-extra-headers-prefix", "X-Remote-Extra-",
		"requestheader-group-headers", "X-Remote-Group",
		"requestheader-username-headers", "X-Remote-User",
		"proxy-client-cert-file", crt("front-proxy.crt"), "proxy-client-key-file", crt("front-proxy.key"),
	)}}
}

func (c Cluster) controllerManager(p programs) service {
	crt, config := c.pki().path, c.kubeconfig("controller-manager")
	return service{Service: node.Service{Name: "kube-controller-manager", Args: flags(p.kubernetes("kube-controller-manager"),
		"kubeconfig", config, "authentication-kubeconfig", config, "authorization-kubeconfig", config,
		"bind-address", "127.0.0.1",
		"tls-cert-file", crt("controller-manager.crt"), "tls-private-key-file", crt("controller-manager.key"),
		"client-ca-file", crt("ca.crt"), "requestheader-client-ca-file", crt("front-proxy-ca.crt"),
		"leader-elect", "false", // there is one
		"use-service-account-credentials", "true",
		"service-account-private-key-file", crt("sa.key"),
		"root-ca-file", crt("ca.crt"),
		"cluster-signing-cert-file", crt("ca.crt"), "cluster-signing-key-file", crt("ca.key"),
		"allocate-node-cidrs", "false", // the nodes are registered with theirs
	)}}
}

func (c Cluster) scheduler(p programs) service {
	crt, config := c.pki().path, c.kubeconfig("scheduler")
	return service{Service: node.Service{Name: "kube-scheduler", Args: flags(p.kubernetes("kube-scheduler"),
		"kubeconfig", config, "authentication-kubeconfig", config, "authorization-kubeconfig", config,
		"bind-address", "127.0.0.1",
		"tls-cert-file", crt("scheduler.crt"), "tls-private-key-file", crt("scheduler.key"),
		"client-ca-file", crt("ca.crt"), "requestheader-client-ca-file", crt("front-proxy-ca.crt"),
		"leader-elect", "false",
	)}}
}

// nodeObjects registers the nodes before their kubelets do, as a kubelet may
// not give itself a role, and as nothing here hands out pod ranges. Those that are
// registered stay as they are: controllers write into the same fields.
func (c Cluster) nodeObjects(ctx context.Context, log io.Writer) (bool, error) {
	type object map[string]any
	var items []object
	there, err := c.Kubectl().Run(ctx, nil, "get", "nodes", "-o", "name")
	if err != nil {
		return false, err
	}
	for _, m := range machines {
		if strings.Contains(there, "node/"+m.name+"\n") {
			continue
		}
		labels := object{"kubernetes.io/hostname": m.name, "kubernetes.io/os": "linux"}
		spec := object{"podCIDR": m.podCIDR, "podCIDRs": []string{m.podCIDR}}
		if m.name == ControlPlane {
			labels["node-role.kubernetes.io/control-plane"] = ""
			spec["taints"] = []object{{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}}
		}
		items = append(items, object{"apiVersion": "v1", "kind": "Node", "metadata": object{"name": m.name, "labels": labels}, "spec": spec})
	}
	if len(items) == 0 {
		return false, nil
	}
	return c.Kubectl().Apply(ctx, log, items)
}

// roles lets the policy controller see what it enforces, and the API server use
// the kubelets, for logs and exec.
func (c Cluster) roles(ctx context.Context, log io.Writer) (bool, error) {
	type object map[string]any
	const group = "rbac.authorization.k8s.io"
	router := object{"name": "bench:kube-router"}
	read := []string{"get", "list", "watch"}
	bind := func(name, role, user string) object {
		return object{"apiVersion": group + "/v1", "kind": "ClusterRoleBinding", "metadata": object{"name": name},
			"roleRef":  object{"apiGroup": group, "kind": "ClusterRole", "name": role},
			"subjects": []object{{"apiGroup": group, "kind": "User", "name": user}}}
	}
	return c.Kubectl().Apply(ctx, log, []object{
		{"apiVersion": group + "/v1", "kind": "ClusterRole", "metadata": router, "rules": []object{
			{"apiGroups": []string{""}, "resources": []string{"namespaces", "pods", "services", "nodes", "endpoints"}, "verbs": read},
			{"apiGroups": []string{"networking.k8s.io"}, "resources": []string{"networkpolicies"}, "verbs": read},
			{"apiGroups": []string{"discovery.k8s.io"}, "resources": []string{"endpointslices"}, "verbs": read},
		}},
		bind("bench:kube-router", "bench:kube-router", "bench:kube-router"),
		bind("bench:apiserver-kubelet", "system:kubelet-api-admin", apiserverUser),
	})
}

func (c Cluster) log(m machine, service string) string {
	return c.node(m).LogFile(service)
}

// programs are the paths of what the nodes run.
type programs struct {
	kubernetesDir, containerdDir, runcDir string
	etcd, kubeRouter                      string
}

func (p programs) kubernetes(name string) string { return filepath.Join(p.kubernetesDir, name) }

// path is PATH inside a node: containerd looks its shim up there.
func (p programs) path() string {
	return fmt.Sprintf("PATH=%s:%s:/usr/sbin:/usr/bin:/sbin:/bin", p.containerdDir, p.runcDir)
}
