package parts

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"fabrique/bench/tools"
)

// MinimalBuildKitConfig is the least that buildkitd needs to reach the
// registry.
const MinimalBuildKitConfig = `[registry."registry:80"]
  http = true
  insecure = true
`

// BuildKitDaemon is a buildkitd with an OCI worker that runs its steps with
// runc in the machine's network. It has a PID namespace of its own, as in a
// pod: killing it ends the steps that it runs.
type BuildKitDaemon struct {
	*Process
	Address  string // "unix://…", for clients
	Config   string // path of its buildkitd.toml; takes effect at the next start
	Root     string // its state
	Buildctl string // path of the buildctl program
}

var daemons atomic.Int32

// StartBuildKit starts a daemon with the text of a buildkitd.toml, empty for
// [MinimalBuildKitConfig]. What ties it to this machine (state, socket, runc, no
// garbage collection, and the network unless the text has a networkMode) is set by
// flags, which win over the text. Several can run at once.
func StartBuildKit(ctx context.Context, config string) (*BuildKitDaemon, error) {
	t, err := tools.Ensure(ctx, os.Stderr, false)
	if err != nil {
		return nil, err
	}
	if config == "" {
		config = MinimalBuildKitConfig
	}
	name := "buildkitd"
	if n := daemons.Add(1); n > 1 {
		name += "-" + strconv.Itoa(int(n))
	}
	dir := filepath.Join(Dir(), name)
	if err := os.Mkdir(dir, 0o711); err != nil {
		return nil, fmt.Errorf("making the folder of buildkitd: %w", err)
	}
	d := &BuildKitDaemon{
		Address:  "unix://" + filepath.Join(dir, "sock"),
		Config:   filepath.Join(dir, "buildkitd.toml"),
		Root:     filepath.Join(dir, "root"),
		Buildctl: t.Buildctl,
	}
	if err := os.WriteFile(d.Config, []byte(config), 0o644); err != nil {
		return nil, fmt.Errorf("configuring buildkitd: %w", err)
	}
	args := []string{
		t.Buildkitd, "--config", d.Config, "--root", d.Root, "--addr", d.Address,
		"--containerd-worker=false", "--oci-worker=true", "--oci-worker-binary", t.Runc, "--oci-worker-gc=false",
	}
	if !strings.Contains(config, "networkMode") {
		args = append(args, "--oci-worker-net", "host")
	}
	d.Process = &Process{
		name:    name,
		args:    args,
		ownPIDs: true,
		attr:    func() *syscall.SysProcAttr { return &syscall.SysProcAttr{} },
		probe:   d.probe,
	}
	if err := d.start(ctx); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *BuildKitDaemon) probe(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, d.Buildctl, "--addr", d.Address, "debug", "workers").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}
