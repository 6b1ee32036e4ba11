package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fabrique/bench/action"
	"fabrique/bench/cache"
	"fabrique/bench/cgroup"
	"fabrique/bench/node"
	"fabrique/bench/tools"
)

// Preloaded are images that the nodes have before there is a registry.
type Preloaded struct {
	Archive string   // OCI layouts in a tar file
	Refs    []string // the names under which it holds them
	Sandbox string   // the one that holds a pod's namespaces
}

// Up gives the actions that bring up the cluster, without anything in it.
func (c Cluster) Up(ctx context.Context, images Preloaded) ([]action.Action, error) {
	p, err := findPrograms(ctx)
	if err != nil {
		return nil, err
	}
	cp := machines[0]
	if !cgroup.Supported() {
		return nil, fmt.Errorf("this machine has no cgroup v1 hierarchies in %s, which the nodes are made of (cgroup v2 alone is not supported); boot it with systemd.unified_cgroup_hierarchy=0", cgroup.Root)
	}
	actions := []action.Action{
		{Name: "certificates", Do: func(context.Context, io.Writer) (bool, error) { return c.certificates() }},
		{Name: "settings", Do: func(context.Context, io.Writer) (bool, error) { return false, c.saveSettings() }},
		{Name: "nodes", Do: c.startNodes},
		{Name: "network", Do: c.network},
		{Name: "no IPv6", Do: c.onlyIPv4},
		c.service(cp, c.etcd(p), 30*time.Second, func(ctx context.Context) error {
			return c.listens(ctx, cp, etcdPort)
		}),
		c.service(cp, c.apiserver(p), time.Minute, func(ctx context.Context) error {
			_, err := c.Kubectl().Run(ctx, nil, "get", "--raw", "/readyz")
			return err
		}),
		c.service(cp, c.controllerManager(p), time.Minute, c.port(cp, "10257")),
		c.service(cp, c.scheduler(p), time.Minute, c.port(cp, "10259")),
		{Name: "node objects", Do: c.nodeObjects},
		{Name: "roles", Do: c.roles},
	}
	for _, m := range machines {
		actions = append(actions,
			c.service(m, c.containerd(p, m, images.Sandbox), 30*time.Second, func(ctx context.Context) error {
				return c.node(m).Run(ctx, io.Discard, nil, filepath.Join(p.containerdDir, "ctr"), "--address", containerdSocket, "version")
			}),
			action.Action{Name: m.name + " images", Do: func(ctx context.Context, log io.Writer) (bool, error) {
				return c.loadImages(ctx, log, p, m, images.Archive, images.Refs)
			}},
			c.service(m, c.kubelet(p, m), time.Minute, c.port(m, "10248")),
			c.service(m, c.kubeProxy(p, m), time.Minute, c.port(m, "10256")),
		)
	}
	actions = append(actions, action.Action{Name: "nodes ready", Do: c.nodesReady})
	for _, m := range machines {
		// It ends when it starts before the kubelet has told the node's address.
		actions = append(actions, c.service(m, c.kubeRouter(p, m), 30*time.Second, func(ctx context.Context) error {
			return c.listens(ctx, m, kubeRouterPort)
		}))
	}
	return actions, nil
}

func (c Cluster) startNodes(ctx context.Context, _ io.Writer) (changed bool, err error) {
	hosts := "127.0.0.1 localhost\n" + RegistryIP + " registry\n"
	for _, m := range machines {
		hosts += m.ip + " " + m.name + "\n"
	}
	resolv, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(resolv)) {
		if strings.HasPrefix(line, "nameserver 127.") {
			return false, fmt.Errorf("making the nodes: this machine asks its own resolver (%s), which no node can reach; name one with another address in /etc/resolv.conf", strings.TrimSpace(line))
		}
	}
	for _, n := range c.Nodes() {
		did, err := n.Up(ctx, hosts, string(resolv))
		changed = changed || did
		if err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// service is a program of a node and the files that it reads, by their path below
// [configDir].
type service struct {
	node.Service
	files map[string]string
}

// service starts one program of a node and waits until it answers.
func (c Cluster) service(m machine, s service, limit time.Duration, probe func(context.Context) error) action.Action {
	file := c.log(m, s.Name)
	return action.Action{Name: m.name + " " + s.Name, Do: func(ctx context.Context, log io.Writer) (bool, error) {
		fmt.Fprintln(log, "its log:", file)
		for name, text := range s.files {
			if err := c.writeConfig(m, name, text); err != nil {
				return false, err
			}
			// A changed file makes it another service, which is started anew.
			s.Env = append(s.Env, "BENCH_CONFIG="+cache.Key(name, text))
		}
		slices.Sort(s.Env)
		before, err := c.restarts(m, s.Name)
		if err != nil {
			return false, err
		}
		changed, err := c.node(m).Start(s.Service)
		if err == nil && probe != nil {
			err = action.Poll(ctx, limit, func(ctx context.Context) error {
				if err := c.crashing(m, s.Name, before); err != nil {
					return err
				}
				return probe(ctx)
			})
		}
		if err != nil && ctx.Err() == nil {
			err = action.FileFailure(fmt.Errorf("%s on %s does not come up: %w", s.Name, m.name, err), file)
		}
		return changed, err
	}}
}

// port gives a probe for a program's health endpoint.
func (c Cluster) port(m machine, port string) func(context.Context) error {
	return func(ctx context.Context) error { return c.listens(ctx, m, port) }
}

// listens tells whether a program of the node listens on a port of its loopback.
func (c Cluster) listens(ctx context.Context, m machine, port string) error {
	return c.node(m).Run(ctx, io.Discard, nil, "bash", "-c", ": >/dev/tcp/127.0.0.1/"+port)
}

// restarts tells how often a service was started again so far.
func (c Cluster) restarts(m machine, name string) (int, error) {
	states, err := c.node(m).State()
	return states[name].Restarts, err
}

// crashing tells of a service that ended again and again since it had been
// restarted that many times.
func (c Cluster) crashing(m machine, name string, before int) error {
	states, err := c.node(m).State()
	if err != nil {
		return err
	}
	if s := states[name]; s.Restarts-before > 2 {
		return &action.Final{Err: fmt.Errorf("it ended %d times, the last time with %s", s.Restarts-before, s.Last)}
	}
	return nil
}

func (c Cluster) nodesReady(ctx context.Context, log io.Writer) (bool, error) {
	waited := false
	for _, m := range machines {
		before, err := c.node(m).State()
		if err != nil {
			return false, err
		}
		err = action.Poll(ctx, time.Minute, func(ctx context.Context) error {
			for _, name := range []string{"kubelet", "kube-proxy"} {
				if err := c.crashing(m, name, before[name].Restarts); err != nil {
					return &action.Final{Err: action.FileFailure(fmt.Errorf("%s on %s: %w", name, m.name, err), c.log(m, name))}
				}
			}
			out, err := c.Kubectl().Run(ctx, nil, "get", "node", m.name, "-o", `jsonpath={range .status.conditions[?(@.type=="Ready")]}{.status} {.message}{end}`)
			if err != nil {
				return err
			}
			if !strings.HasPrefix(out, "True") {
				waited = true
				return fmt.Errorf("the node says: %s", out)
			}
			return nil
		})
		if err != nil {
			var shown *action.Failure
			if ctx.Err() == nil && !errors.As(err, &shown) {
				err = action.FileFailure(fmt.Errorf("the node %s does not become ready: %w", m.name, err), c.log(m, "kubelet"))
			}
			return waited, err
		}
	}
	return waited, nil
}

func findPrograms(ctx context.Context) (p programs, err error) {
	var etcd, router string
	for _, t := range []struct {
		tool tools.Tool
		dir  *string
	}{
		{tools.Kubernetes, &p.kubernetesDir}, {tools.Containerd, &p.containerdDir}, {tools.Runc, &p.runcDir},
		{tools.Etcd, &etcd}, {tools.KubeRouter, &router},
	} {
		if *t.dir, err = t.tool.Ensure(ctx, io.Discard, false); err != nil {
			return p, err
		}
	}
	p.etcd, p.kubeRouter = filepath.Join(etcd, "etcd"), filepath.Join(router, "kube-router")
	return p, nil
}
