package cluster

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fabrique/bench/action"
	"fabrique/bench/cgroup"
	"fabrique/bench/node"
)

// Down gives the actions that take the cluster away, whatever state it is in.
func (c Cluster) Down() []action.Action {
	var actions []action.Action
	for _, n := range c.Nodes() {
		actions = append(actions, action.Action{Name: n.Name, Do: func(ctx context.Context, _ io.Writer) (bool, error) {
			_, err := os.Stat(n.Dir)
			changed := err == nil || n.PID() != 0
			return changed, n.Destroy(ctx)
		}})
	}
	return append(actions,
		action.Action{Name: "network", Do: func(ctx context.Context, log io.Writer) (bool, error) {
			for _, n := range c.Nodes() {
				if len(n.Processes()) > 0 {
					return false, fmt.Errorf("taking the network away: the node %s still runs", n.Name)
				}
			}
			if err := endOutside(ctx); err != nil {
				return true, err
			}
			_, err := net.InterfaceByName(bridge)
			return err == nil, c.unlink(ctx, log)
		}},
		action.Action{Name: "settings", Do: func(context.Context, io.Writer) (bool, error) { return c.restoreSettings() }},
		action.Action{Name: "files", Do: func(context.Context, io.Writer) (bool, error) {
			there, err := c.Exists()
			if err != nil || !there {
				return false, err
			}
			return true, c.remove()
		}},
	)
}

// remove removes the cluster's folder, what marks it as ours last: a run that is
// ended meanwhile can be repeated.
func (c Cluster) remove() error {
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == marker {
			continue
		}
		if err := os.RemoveAll(filepath.Join(c.Dir, e.Name())); err != nil {
			return err
		}
	}
	return os.RemoveAll(c.Dir)
}

// ScratchPrefix begins the names of the temporary folders of the bench's verbs.
const ScratchPrefix = "fabrique-bench-scratch-"

// Leftovers counts what is left of a cluster on this machine, by kind. All are 0
// when it is down. A network namespace lives by the processes in it.
func (c Cluster) Leftovers(ctx context.Context) (map[string][]string, error) {
	left := map[string][]string{"processes": nil, "mounts": nil, "links": nil, "network namespaces": nil, "rules": nil, "control groups": nil, "files": nil}
	add := func(kind, what string) { left[kind] = append(left[kind], what) }

	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	namespaces := map[string]bool{}
	for _, e := range entries {
		proc := filepath.Join("/proc", e.Name())
		groups, err := os.ReadFile(filepath.Join(proc, "cgroup"))
		line, _ := os.ReadFile(filepath.Join(proc, "cmdline"))
		if err != nil || !ours(string(groups)) && !outside(line) || ended(proc) {
			continue
		}
		name, _ := os.ReadFile(filepath.Join(proc, "comm"))
		add("processes", e.Name()+" "+strings.TrimSpace(string(name)))
		if ns, err := os.Readlink(filepath.Join(proc, "ns/net")); err == nil && ns != own && !namespaces[ns] {
			namespaces[ns] = true
			add("network namespaces", ns)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && (f[4] == c.Dir || strings.HasPrefix(f[4], c.Dir+"/")) {
			add("mounts", f[4])
		}
	}
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if strings.HasPrefix(l.Name, "fabrique-") {
			add("links", l.Name)
		}
	}
	there, err := hasTable(ctx)
	if err != nil {
		return nil, err
	}
	if there {
		add("rules", "nftables table "+table)
	}
	if err := filepath.WalkDir(cgroup.Root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && ours(path) {
			add("control groups", path)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	for _, pattern := range []string{c.Dir, filepath.Join(os.TempDir(), ScratchPrefix+"*")} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, path := range found {
			add("files", path)
		}
	}
	return left, nil
}

// ours tells whether the path of a control group is below one of the cluster's
// nodes. There may be other nodes, of tests.
func ours(path string) bool {
	return slices.ContainsFunc(machines, func(m machine) bool { return strings.Contains(path, node.Prefix+m.name) })
}

// ended tells of a process that only waits for its parent to ask how it ended; the
// parent of a killed run's is this machine's first process.
func ended(proc string) bool {
	stat, err := os.ReadFile(filepath.Join(proc, "stat"))
	// proc_pid_stat(5): the state stands behind the name, which may hold anything.
	state := strings.TrimSpace(string(stat[strings.LastIndex(string(stat), ")")+1:]))
	return err != nil || strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
}

// Describe gives one line per kind of leftovers, in a fixed order, and whether
// there are any.
func Describe(left map[string][]string) (lines []string, any bool) {
	for _, kind := range []string{"processes", "mounts", "network namespaces", "links", "rules", "control groups", "files"} {
		line := fmt.Sprintf("%-20s %d", kind, len(left[kind]))
		if len(left[kind]) > 0 {
			any = true
			line += "  " + strings.Join(left[kind][:min(5, len(left[kind]))], ", ")
		}
		lines = append(lines, line)
	}
	return lines, any
}
