// Package tools builds the real parts that Fabrique runs against from pinned
// Go modules. Each folder beside this file is a module of its own that only
// names the tool, so that every tool is compiled with the versions that its own
// release locks and none of them reaches the product's go.mod.
package tools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"fabrique/bench/cache"
)

// Paths of the built tools.
type Paths struct {
	Gitea       string // program
	GiteaStatic string // folder with Gitea's options, templates and public
	Registry    string
	Buildkitd   string
	Buildctl    string
	Runc        string
}

// Ensure builds what is not in the cache yet (minutes) and gives the paths of
// all tools (at once). Progress goes to progress; with verbose also for what
// was there already.
func Ensure(ctx context.Context, progress io.Writer, verbose bool) (Paths, error) {
	var p Paths
	for _, t := range []struct {
		tool
		use func(dir string)
	}{
		{runc, func(dir string) { p.Runc = filepath.Join(dir, "runc") }},
		{registry, func(dir string) { p.Registry = filepath.Join(dir, "registry") }},
		{buildkit, func(dir string) {
			p.Buildkitd, p.Buildctl = filepath.Join(dir, "buildkitd"), filepath.Join(dir, "buildctl")
		}},
		{gitea, func(dir string) { p.Gitea, p.GiteaStatic = filepath.Join(dir, "gitea"), dir }},
	} {
		dir, cached, err := t.ensure(ctx, progress)
		if err != nil {
			return Paths{}, err
		}
		if cached && verbose {
			fmt.Fprintf(progress, "%-12s cached\n", t.name)
		}
		t.use(dir)
	}
	return p, nil
}

// tool is one module under bench/tools and how it is compiled.
type tool struct {
	name     string
	packages []string
	cgo      bool
	tags     string
	ldflags  string
	// copies are folders of the first package's module that the program reads
	// at run time.
	copies []string
}

var (
	runc = tool{
		name:     "runc",
		packages: []string{"github.com/opencontainers/runc"},
		cgo:      true,
		tags:     "seccomp netgo osusergo",
		ldflags:  "-s -w -extldflags -static",
	}
	registry = tool{
		name:     "registry",
		packages: []string{"github.com/distribution/distribution/v3/cmd/registry"},
		ldflags:  "-s -w",
	}
	buildkit = tool{
		name:     "buildkit",
		packages: []string{"github.com/moby/buildkit/cmd/buildkitd", "github.com/moby/buildkit/cmd/buildctl"},
		ldflags:  "-s -w -X github.com/moby/buildkit/version.Version=v{version}",
	}
	// Without its version the SDK refuses the server; without bindata (made with
	// npm) the program reads its folders from disk.
	gitea = tool{
		name:     "gitea",
		packages: []string{"code.gitea.io/gitea"},
		cgo:      true,
		tags:     "sqlite sqlite_unlock_notify netgo osusergo",
		ldflags:  "-s -w -extldflags -static -X main.Version={version}",
		copies:   []string{"options", "templates", "public"},
	}
)

func (t tool) ensure(ctx context.Context, progress io.Writer) (dir string, cached bool, err error) {
	module, err := moduleDir(t.name)
	if err != nil {
		return "", false, err
	}
	mod, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		return "", false, fmt.Errorf("reading the module of %s: %w", t.name, err)
	}
	sum, err := os.ReadFile(filepath.Join(module, "go.sum"))
	if err != nil {
		return "", false, fmt.Errorf("reading the module of %s: %w", t.name, err)
	}
	return cache.Get(ctx, cache.Entry{
		Name: t.name,
		Key:  cache.Key(string(mod), string(sum), runtime.Version(), runtime.GOARCH, fmt.Sprintf("%+v", t)),
		Make: func(ctx context.Context, dir string, log io.Writer) error {
			return t.build(ctx, module, string(mod), dir, log)
		},
	}, progress)
}

func (t tool) build(ctx context.Context, module, mod, dir string, log io.Writer) error {
	version, err := required(mod, t.packages[0])
	if err != nil {
		return err
	}
	cgo := "CGO_ENABLED=0"
	if t.cgo {
		cgo = "CGO_ENABLED=1"
	}
	args := []string{"build", "-trimpath", "-buildvcs=false", "-mod=readonly",
		"-ldflags", strings.ReplaceAll(t.ldflags, "{version}", strings.TrimPrefix(version, "v"))}
	if t.tags != "" {
		args = append(args, "-tags", t.tags)
	}
	args = append(append(args, "-o", dir+"/"), t.packages...)
	if err := cache.Run(ctx, log, module, []string{cgo, "GOFLAGS=", "GOWORK=off"}, "go", args...); err != nil {
		return err
	}
	if len(t.copies) == 0 {
		return nil
	}
	var source strings.Builder
	if err := cache.Run(ctx, &source, module, []string{"GOFLAGS=", "GOWORK=off"}, "go", "list", "-f", "{{.Dir}}", t.packages[0]); err != nil {
		return fmt.Errorf("%w\n%s", err, source.String())
	}
	lines := strings.Split(strings.TrimSpace(source.String()), "\n")
	for _, name := range t.copies {
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(lines[len(lines)-1], name))); err != nil {
			return fmt.Errorf("copying %s of %s: %w", name, t.packages[0], err)
		}
	}
	return nil
}

var requirement = regexp.MustCompile(`(?m)^\s*(?:require\s+)?(\S+) (v\S+)`)

// required finds the version of the module that holds pkg.
func required(mod, pkg string) (string, error) {
	for _, m := range requirement.FindAllStringSubmatch(mod, -1) {
		if pkg == m[1] || strings.HasPrefix(pkg, m[1]+"/") {
			return m[2], nil
		}
	}
	return "", fmt.Errorf("finding the version of %s: its module is not in go.mod", pkg)
}

// moduleDir finds bench/tools/<name> from the working folder upwards: tests run
// in their package's folder, make in the repository's root.
func moduleDir(name string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		module := filepath.Join(dir, "bench", "tools", name)
		if _, err := os.Stat(filepath.Join(module, "go.mod")); err == nil {
			return module, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("finding bench/tools: run this inside the fabrique repository")
		}
		dir = parent
	}
}
