package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"fabrique/bench/cache"
)

const (
	// OutsideProcess is the first argument of a process whose network namespace stands for
	// a network outside; [Cluster.Down] ends those that a killed run left.
	OutsideProcess = "fabrique-bench-outside"

	outsideLink = "fabrique-out"
	outsideIP   = "10.196.0.4"
)

// Attach joins the network namespace of the process pid to the nodes' bridge. The
// nodes, and so their pods, reach the networks there and nowhere else, and it reaches
// them and this machine; it has no way out. The kernel removes the link with the
// namespace.
func (c Cluster) Attach(ctx context.Context, log io.Writer, pid int, networks ...netip.Prefix) error {
	if _, err := net.InterfaceByName(bridge); err != nil {
		return fmt.Errorf("attaching %s: the bench's cluster is not up: %w", networks, err)
	}
	ip := func(args ...string) error { return cache.Run(ctx, log, "", nil, "ip", args...) }
	if err := ip("link", "add", outsideLink, "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprint(pid)); err != nil {
		return err
	}
	inside := [][]string{{"addr", "add", outsideIP + nodePrefix, "dev", "eth0"}, {"link", "set", "eth0", "up"}}
	for _, m := range machines {
		inside = append(inside, []string{"route", "add", m.podCIDR, "via", m.ip})
	}
	for _, args := range inside {
		if err := cache.Run(ctx, log, "", nil, "nsenter", append([]string{fmt.Sprintf("--net=/proc/%d/ns/net", pid), "ip"}, args...)...); err != nil {
			return err
		}
	}
	if err := ip("link", "set", outsideLink, "master", bridge, "up"); err != nil {
		return err
	}
	for _, m := range machines {
		for _, network := range networks {
			if err := c.node(m).Run(ctx, log, nil, "ip", "route", "replace", network.String(), "via", outsideIP); err != nil {
				return err
			}
		}
	}
	return nil
}

// Detach undoes [Cluster.Attach] of this or a killed run. What is not there is no
// error.
func (c Cluster) Detach(ctx context.Context, log io.Writer, networks ...netip.Prefix) error {
	err := endOutside(ctx)
	if _, missing := net.InterfaceByName(outsideLink); missing == nil {
		// The namespace, and the link with it, may go at this moment.
		if failed := cache.Run(ctx, log, "", nil, "ip", "link", "delete", outsideLink); failed != nil {
			if _, missing := net.InterfaceByName(outsideLink); missing == nil {
				err = errors.Join(err, failed)
			}
		}
	}
	for _, m := range machines {
		if c.node(m).PID() == 0 {
			continue
		}
		for _, network := range networks {
			var routes strings.Builder
			failed := c.node(m).Run(ctx, &routes, nil, "ip", "route", "show", network.String())
			if failed == nil && strings.Contains(routes.String(), "via "+outsideIP) {
				failed = c.node(m).Run(ctx, log, nil, "ip", "route", "delete", network.String())
			}
			err = errors.Join(err, failed)
		}
	}
	return err
}

// endOutside ends all processes that stand for a network outside and waits until
// they are gone.
func endOutside(ctx context.Context) error {
	for deadline := time.Now().Add(10 * time.Second); ; {
		running := outsiders()
		if len(running) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("ending the network outside: the processes %v are left after 10 s", running)
		}
		for _, pid := range running {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("ending the network outside: %w", err)
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// outsiders gives the processes that stand for a network outside.
func outsiders() []int {
	var found []int
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil
	}
	for _, file := range lines {
		text, err := os.ReadFile(file)
		var pid int
		if _, scanErr := fmt.Sscanf(file, "/proc/%d/", &pid); err != nil || scanErr != nil || ended(filepath.Dir(file)) {
			continue
		}
		if outside(text) {
			found = append(found, pid)
		}
	}
	return found
}

// outside tells whether the command line is that of such a process.
func outside(cmdline []byte) bool { return strings.HasPrefix(string(cmdline), OutsideProcess+"\x00") }
