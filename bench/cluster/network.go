package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"fabrique/bench/cache"
)

// One range holds it all; nothing of it is seen outside this machine, as what
// leaves is masqueraded.
const (
	benchCIDR   = "10.196.0.0/16"
	hostIP      = "10.196.0.1"
	nodePrefix  = "/24"
	podCIDR     = "10.196.64.0/18"
	serviceCIDR = "10.196.128.0/20"

	// ControlPlaneIP is the control plane node's address.
	ControlPlaneIP = "10.196.0.2"
	workerIP       = "10.196.0.3"
	firstServiceIP = "10.196.128.1"
	// DNSIP is the service address of the cluster's DNS.
	DNSIP = "10.196.128.10"
	// RegistryIP is the service address of registry:80.
	RegistryIP = "10.196.128.80"

	bridge = "fabrique-bench"
	table  = "fabrique-bench" // of nftables, on this machine and in each node
)

// network joins the nodes by a bridge and leads them out of this machine. A file
// tells for which nodes it was finished; any other is made anew.
func (c Cluster) network(ctx context.Context, log io.Writer) (changed bool, err error) {
	mark, now := filepath.Join(c.Dir, "network"), ""
	for _, n := range c.Nodes() {
		now += fmt.Sprintln(n.Name, n.PID())
	}
	if done, err := os.ReadFile(mark); err == nil && string(done) == now && c.linked(ctx) {
		return false, nil
	}
	if err := c.unlink(ctx, log); err != nil {
		return true, err
	}
	if err := free(benchCIDR); err != nil {
		return false, err
	}
	ip := func(args ...string) error { return cache.Run(ctx, log, "", nil, "ip", args...) }
	for _, args := range [][]string{
		{"link", "add", bridge, "type", "bridge"},
		{"addr", "add", hostIP + nodePrefix, "dev", bridge},
		{"link", "set", bridge, "up"},
	} {
		if err := ip(args...); err != nil {
			return true, err
		}
	}
	for _, m := range machines {
		node := c.node(m)
		if err := ip("link", "add", m.link, "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprint(node.PID())); err != nil {
			return true, err
		}
		inside := [][]string{
			{"addr", "add", m.ip + nodePrefix, "dev", "eth0"},
			{"link", "set", "lo", "up"},
			{"link", "set", "eth0", "up"},
			{"route", "add", "default", "via", hostIP},
		}
		for _, other := range machines {
			if other.name != m.name {
				inside = append(inside, []string{"route", "add", other.podCIDR, "via", other.ip})
			}
		}
		for _, args := range inside {
			if err := node.Run(ctx, log, nil, append([]string{"ip"}, args...)...); err != nil {
				return true, err
			}
		}
		if err := node.Run(ctx, log, []byte("1"), "tee", setting(forwarding)); err != nil {
			return true, err
		}
		if err := ip("link", "set", m.link, "master", bridge, "up"); err != nil {
			return true, err
		}
		if err := ip("route", "replace", m.podCIDR, "via", m.ip); err != nil {
			return true, err
		}
	}
	if err := ip("route", "replace", serviceCIDR, "via", workerIP); err != nil {
		return true, err
	}
	if err := c.leadOut(ctx, log); err != nil {
		return true, err
	}
	return true, os.WriteFile(mark, []byte(now), 0o644)
}

// noIPv6 keeps IPv6 off a node's bridges. The chains come before what the kernel's
// br_netfilter does at priority 0: it takes the packets out of the bridge's hooks, and
// leads them past all others of that priority.
const noIPv6 = `table bridge ` + table + ` {
	chain forward {
		type filter hook forward priority -200;
		ether type ip6 drop
	}
	chain input {
		type filter hook input priority -200;
		ether type ip6 drop
	}
}
`

// onlyIPv4 drops what pods send by IPv6: each has an address of its link, by which
// pods of one node reach each other and the node past every NetworkPolicy, as the
// policy controller is told of IPv4 alone.
func (c Cluster) onlyIPv4(ctx context.Context, log io.Writer) (changed bool, err error) {
	for _, n := range c.Nodes() {
		var tables strings.Builder
		if err := n.Run(ctx, &tables, nil, "nft", "list", "tables"); err != nil {
			return changed, err
		}
		if strings.Contains(tables.String(), "table bridge "+table+"\n") {
			continue
		}
		changed = true
		if err := n.Run(ctx, log, []byte(noIPv6), "nft", "-f", "-"); err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// linked tells whether this machine's part of the network is still there: others
// make rules and links too.
func (c Cluster) linked(ctx context.Context) bool {
	for _, link := range []string{bridge, machines[0].link, machines[1].link} {
		if _, err := net.InterfaceByName(link); err != nil {
			return false
		}
	}
	there, err := hasTable(ctx)
	value, readErr := os.ReadFile(setting(forwarding))
	return there && err == nil && readErr == nil && strings.TrimSpace(string(value)) == "1"
}

// free tells whether any of this machine's networks overlaps with cidr.
func free(cidr string) error {
	_, ours, err := net.ParseCIDR(cidr)
	if err != nil {
		return err
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	for _, a := range addresses {
		if theirs, ok := a.(*net.IPNet); ok && (ours.Contains(theirs.IP) || theirs.Contains(ours.IP)) {
			return fmt.Errorf("making the bench's network: this machine has the address %s, and the bench uses %s; run the bench on another machine", theirs, cidr)
		}
	}
	return nil
}

// leadOut lets the nodes reach what this machine reaches.
func (c Cluster) leadOut(ctx context.Context, log io.Writer) error {
	if err := os.WriteFile(setting(forwarding), []byte("1"), 0o644); err != nil {
		return fmt.Errorf("letting this machine forward packets: %w", err)
	}
	rules := fmt.Sprintf(`table ip %[1]s
delete table ip %[1]s
table ip %[1]s {
	chain out {
		type nat hook postrouting priority srcnat;
		ip saddr %[2]s ip daddr != %[2]s masquerade
	}
	# Nobody outside this machine begins a connection to a node or a pod.
	chain in {
		type filter hook forward priority filter;
		oifname %[3]q iifname != %[3]q ct state new drop
	}
}
`, table, benchCIDR, bridge)
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	out, err := cmd.CombinedOutput()
	fmt.Fprintf(log, "$ nft -f -\n%s%s", rules, out)
	if err != nil {
		return fmt.Errorf("making the masquerade rule: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// unlink takes the network away again.
func (c Cluster) unlink(ctx context.Context, log io.Writer) error {
	for _, link := range []string{bridge, machines[0].link, machines[1].link, outsideLink} {
		if _, err := net.InterfaceByName(link); err != nil {
			continue
		}
		if err := cache.Run(ctx, log, "", nil, "ip", "link", "delete", link); err != nil {
			// The node's end may have gone at this moment, and it with it.
			if _, gone := net.InterfaceByName(link); gone == nil {
				return err
			}
		}
	}
	there, err := hasTable(ctx)
	if err != nil {
		return err
	}
	if there {
		if err := cache.Run(ctx, log, "", nil, "nft", "delete", "table", "ip", table); err != nil {
			return err
		}
	}
	return nil
}

func hasTable(ctx context.Context) (bool, error) {
	out, err := exec.CommandContext(ctx, "nft", "list", "tables").CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return false, nil // who has no nft has no table
	}
	if err != nil {
		return false, fmt.Errorf("listing the tables of nftables: %w: %s", err, bytes.TrimSpace(out))
	}
	return strings.Contains(string(out), "table ip "+table+"\n"), nil
}
