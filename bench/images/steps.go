package images

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fabrique/bench/cache"
)

// Steps gives the images of the step programs, "fabrique/<program>": a static
// program, its entrypoint, run as user 65532. They hold nothing else, no shell and
// no CA bundle (inside the cluster all is plain HTTP; where it is not, a bundle is
// mounted and named by SSL_CERT_FILE); those that run git have git and a /tmp.
//
// Their digests depend on the programs' source, the Go release and, for git, this
// machine's packages; not on the commit or folder they are built from.
func Steps() []Image {
	return []Image{
		step("reconcile-head", true),
		step("clone-at-sha", true),
		step("buildkit-build", false),
		step("digest-inspect", false),
		step("gitea-writeback", false),
		step("commit-status", false),
		step("egress-gateway", false),
		step("egress-addresses", false),
		step("run-network", false),
	}
}

func step(program string, runsGit bool) Image {
	return assembled("fabrique/"+program+":latest", compression.GZip, func(ctx context.Context, _ io.Writer) (recipe, error) {
		text, err := build(ctx, "fabrique/cmd/"+program)
		if err != nil {
			return recipe{}, err
		}
		r := recipe{config: v1.Config{
			User:       "65532",
			Entrypoint: []string{"/" + program},
			WorkingDir: "/",
		}}
		if runsGit {
			files, err := git()
			if err != nil {
				return recipe{}, err
			}
			r.layers = append(r.layers, append(files, file{name: "tmp/", mode: 0o1777}))
			r.config.Env = []string{"PATH=/usr/bin"}
		}
		r.layers = append(r.layers, []file{{name: program, mode: 0o755, text: text}})
		return r, nil
	})
}

// build gives a program of this repository, built so that only its source and the Go release
// count. Unlike fabrique itself they have no version to set: setting one changes
// nothing but the build's id, and with it the digest at every commit.
//
// It is built in a folder that all processes of this checkout share, where go
// links nothing twice.
func build(ctx context.Context, pkg string) ([]byte, error) {
	module, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return nil, fmt.Errorf("finding the module: %w", err)
	}
	root, err := cache.Dir()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(root, "steps-"+cache.Key(strings.TrimSpace(string(module))))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	turn, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer turn.Close()
	if err := syscall.Flock(int(turn.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("locking %s: %w", dir, err)
	}
	var log bytes.Buffer
	if err := cache.Run(ctx, &log, "", []string{"CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off"}, "go", "build",
		"-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", dir+"/", pkg); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, log.Bytes())
	}
	return os.ReadFile(filepath.Join(dir, path.Base(pkg)))
}
