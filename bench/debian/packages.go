// Package debian reads and completes the Debian machine that the bench runs on:
// its packages, and where its package mirrors are. No mirror is named in this
// repository; they are always those that the machine itself uses.
package debian

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"fabrique/bench/cache"
)

// Packages are what the bench needs, each with its reason.
var Packages = []string{
	"git", "ca-certificates", // the product's own needs
	"gcc", "libc6-dev", "pkg-config", "libseccomp-dev", // Gitea's SQLite and runc are built with cgo
	"debootstrap", "debian-archive-keyring", "busybox-static", // the base images
	"curl", "time", // the peers in the benchmarks
	"ansible-core", "ansible-lint", // the role of bench/ansible
	"yamllint", // reads the list that fabrique bundle writes for it
}

// ClusterPackages are what the cluster needs besides.
var ClusterPackages = []string{
	"iproute2", "iptables", "ipset", "nftables", "conntrack", "kmod", "mount", "util-linux", // the nodes' network, and nsenter
	"containernetworking-plugins", // bridge, host-local, portmap, loopback
	"redis-tools",                 // its redis-check-rdb is redis-server too, and starts no service
}

// lockTimeout lets apt wait, in seconds, for another one: also for one that a
// killed run has left.
const lockTimeout = "-oDPkg::Lock::Timeout=300"

// Install installs those of names that are missing. When none is, it asks dpkg
// and nothing else.
func Install(ctx context.Context, progress io.Writer, names ...string) error {
	missing, err := missing(ctx, names)
	if err != nil || len(missing) == 0 {
		return err
	}
	fmt.Fprintf(progress, "%-12s installing %s\n", "packages", strings.Join(missing, " "))
	env := []string{"DEBIAN_FRONTEND=noninteractive"}
	var log bytes.Buffer
	for _, args := range [][]string{
		{"update", "-q", lockTimeout},
		append([]string{"install", "-q", lockTimeout, "-y", "--no-install-recommends"}, missing...),
	} {
		if err := cache.Run(ctx, &log, "", env, "apt-get", args...); err != nil {
			return fmt.Errorf("installing Debian packages: %w\n%s", err, log.Bytes())
		}
	}
	return nil
}

func missing(ctx context.Context, names []string) ([]string, error) {
	args := append([]string{"-W", "-f", "${db:Status-Status} ${Package}\n"}, names...)
	// It exits 1 when it knows nothing of one of them, and still lists the rest.
	out, err := exec.CommandContext(ctx, "dpkg-query", args...).Output()
	if _, isExit := err.(*exec.ExitError); err != nil && !isExit {
		return nil, fmt.Errorf("asking dpkg for installed packages: %w; the bench needs Debian", err)
	}
	installed := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		if status, name, _ := strings.Cut(strings.TrimSpace(line), " "); status == "installed" {
			installed[name] = true
		}
	}
	var missing []string
	for _, name := range names {
		if !installed[name] {
			missing = append(missing, name)
		}
	}
	return missing, nil
}
