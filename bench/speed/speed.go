// Package speed measures the product's programs against what they replace, in
// one run and on the same servers, and says whether the aims of the project are
// met. A figure never makes it fail; only a program that fails does.
package speed

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"fabrique/bench/cache"
	"fabrique/bench/parts"
)

// Names of the measurements, in the order in which they run.
var Names = []string{"start", "clone", "build", "reconcile", "writeback"}

// Measure runs the named measurements, or all when none is named, and gives the
// report. It must run inside [parts.Run].
func Measure(ctx context.Context, progress io.Writer, names ...string) (Report, error) {
	for _, name := range names {
		if !slices.Contains(Names, name) {
			return Report{}, fmt.Errorf("looking for the measurement %q: there are %s", name, strings.Join(Names, ", "))
		}
	}
	report := Report{Machine: machine()}
	b, err := setUp(ctx, progress)
	if err != nil {
		return Report{}, err
	}
	all := map[string]func(context.Context, *Report) error{
		"start": b.start, "clone": b.clone, "build": b.build, "reconcile": b.reconcile, "writeback": b.writeback,
	}
	for _, name := range Names {
		if len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		if err := all[name](ctx, &report); err != nil {
			return Report{}, fmt.Errorf("measuring %s: %w", name, err)
		}
	}
	return report, nil
}

// bench is what all measurements share.
type bench struct {
	progress io.Writer
	dir      string // for temporary files
	programs string // folder with the product's programs
	gogit    string // the peer program
	gitea    *parts.GiteaServer
	project  parts.Project
	history  history
}

func setUp(ctx context.Context, progress io.Writer) (*bench, error) {
	b := &bench{progress: progress, dir: filepath.Join(parts.Dir(), "speed")}
	if err := os.Mkdir(b.dir, 0o755); err != nil {
		return nil, err
	}
	// In memory, as a disk would make each run pay for the removal of what the
	// run before it left: ext4 does not give out the inodes of files that were
	// deleted in the last minutes, and searches through all of them for every
	// file that is created. The mount is this process's own and ends with it.
	if err := syscall.Mount("tmpfs", b.dir, "tmpfs", 0, "mode=755"); err != nil {
		return nil, fmt.Errorf("mounting a tmpfs: %w", err)
	}
	root, err := repositoryRoot(ctx)
	if err != nil {
		return nil, err
	}
	if b.programs, err = buildPrograms(ctx, root, filepath.Join(b.dir, "programs")); err != nil {
		return nil, err
	}
	if b.gogit, err = buildGoGit(ctx, root, progress); err != nil {
		return nil, err
	}
	if b.history, err = openHistory(ctx, progress); err != nil {
		return nil, err
	}
	if b.gitea, err = parts.StartGitea(ctx); err != nil {
		return nil, err
	}
	if b.project, err = b.gitea.NewProject(ctx, "atlas/atlas", "cluster/apps"); err != nil {
		return nil, err
	}
	fmt.Fprintf(progress, "%-17s pushing %d MB of history\n", "setting up", b.history.packed/1_000_000)
	_, err = b.gitea.Git(ctx, b.history.dir, "push", "--quiet", b.project.SourceURL(), "main")
	return b, err
}

// repositoryRoot finds the folder with the product's go.mod.
func repositoryRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "fabrique").Output()
	if err != nil {
		return "", fmt.Errorf("finding the product's module: %w; run this inside its repository", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// stripped are the settings of a release.
var stripped = []string{"build", "-trimpath", "-ldflags", "-s -w"}

func buildPrograms(ctx context.Context, root, dir string) (string, error) {
	_, err := program{
		args: append(append([]string{"go"}, stripped...), "-o", dir+"/", "./cmd/..."),
		dir:  root, env: []string{"CGO_ENABLED=0"},
	}.run(ctx)
	return dir, err
}

func buildGoGit(ctx context.Context, root string, progress io.Writer) (string, error) {
	module := filepath.Join(root, "bench", "peers", "gogit")
	var sources []string
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		raw, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", fmt.Errorf("reading the peer: %w", err)
		}
		sources = append(sources, string(raw))
	}
	dir, _, err := cache.Get(ctx, cache.Entry{
		Name: "speed-gogit", Key: cache.Key(sources...),
		Make: func(ctx context.Context, dir string, log io.Writer) error {
			return cache.Run(ctx, log, module, []string{"CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off"},
				"go", append(stripped, "-o", dir+"/", ".")...)
		},
	}, progress)
	return filepath.Join(dir, "gogit"), err
}

// tokenFile writes a token where a step reads it.
func (b *bench) tokenFile(name, token string) (string, error) {
	path := filepath.Join(b.dir, name)
	return path, os.WriteFile(path, []byte(token), 0o600)
}

func (b *bench) program(name string) string { return filepath.Join(b.programs, name) }
