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
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"fabrique/bench/cache"
)

// Paths of the tools that the parts of a test run are.
type Paths struct {
	Gitea       string // program
	GiteaStatic string // folder with Gitea's options, templates and public
	Registry    string
	Buildkitd   string
	Buildctl    string
	Runc        string
}

// Ensure builds what is not in the cache yet (minutes) and gives the paths of
// a test run's tools (at once). Progress goes to progress; with verbose also for
// what was there already.
func Ensure(ctx context.Context, progress io.Writer, verbose bool) (Paths, error) {
	var p Paths
	for _, t := range []struct {
		Tool
		use func(dir string)
	}{
		{Runc, func(dir string) { p.Runc = filepath.Join(dir, "runc") }},
		{Registry, func(dir string) { p.Registry = filepath.Join(dir, "registry") }},
		{BuildKit, func(dir string) {
			p.Buildkitd, p.Buildctl = filepath.Join(dir, "buildkitd"), filepath.Join(dir, "buildctl")
		}},
		{Gitea, func(dir string) { p.Gitea, p.GiteaStatic = filepath.Join(dir, "gitea"), dir }},
	} {
		dir, err := t.Ensure(ctx, progress, verbose)
		if err != nil {
			return Paths{}, err
		}
		t.use(dir)
	}
	return p, nil
}

// Tool is one module under bench/tools and how it is compiled.
type Tool struct {
	Name     string
	packages []string
	program  string // its name, for the only package whose last element does not tell it
	cgo      bool
	tags     string
	ldflags  string
	// copies are folders and files of the first package's module that are used
	// at run time, as the program's own or as manifests.
	copies []string
	// mend puts back what the archive of the first package's module lacks, in a
	// copy of it.
	mend func(module string) error
	// cFile is a C source of the first package's module that is compiled beside it.
	cFile string
}

// The tools. Those of the cluster start with Kubernetes.
var (
	Runc = Tool{
		Name:     "runc",
		packages: []string{"github.com/opencontainers/runc"},
		cgo:      true,
		tags:     "seccomp netgo osusergo",
		ldflags:  "-s -w -extldflags -static",
	}
	Registry = Tool{
		Name:     "registry",
		packages: []string{"github.com/distribution/distribution/v3/cmd/registry"},
		ldflags:  "-s -w",
	}
	BuildKit = Tool{
		Name:     "buildkit",
		packages: []string{"github.com/moby/buildkit/cmd/buildkitd", "github.com/moby/buildkit/cmd/buildctl"},
		ldflags:  "-s -w -X github.com/moby/buildkit/version.Version=v{version}",
	}
	// Without its version the SDK refuses the server; without bindata (made with
	// npm) the program reads its folders from disk.
	Gitea = Tool{
		Name:     "gitea",
		packages: []string{"code.gitea.io/gitea"},
		cgo:      true,
		tags:     "sqlite sqlite_unlock_notify netgo osusergo",
		ldflags:  "-s -w -extldflags -static -X main.Version={version}",
		copies:   []string{"options", "templates", "public"},
	}

	Kubernetes = Tool{
		Name: "kubernetes",
		packages: []string{
			"k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes/cmd/kube-controller-manager",
			"k8s.io/kubernetes/cmd/kube-scheduler", "k8s.io/kubernetes/cmd/kubelet",
			"k8s.io/kubernetes/cmd/kube-proxy", "k8s.io/kubernetes/cmd/kubectl",
		},
		ldflags: "-s -w -X k8s.io/component-base/version.gitVersion=v{version}",
		cFile:   "build/pause/linux/pause.c",
	}
	Etcd = Tool{
		Name:     "etcd",
		packages: []string{"go.etcd.io/etcd/server/v3"},
		program:  "etcd",
		ldflags:  "-s -w",
	}
	Containerd = Tool{
		Name: "containerd",
		packages: []string{
			"github.com/containerd/containerd/v2/cmd/containerd",
			"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
			"github.com/containerd/containerd/v2/cmd/ctr",
		},
		ldflags: "-s -w -X github.com/containerd/containerd/v2/version.Version=v{version}",
	}
	KubeRouter = Tool{
		Name:     "kube-router",
		packages: []string{"github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"},
		ldflags:  "-s -w",
	}
	CoreDNS = Tool{
		Name:     "coredns",
		packages: []string{"fabrique/bench/tools/coredns"},
		ldflags:  "-s -w",
	}
	LocalPath = Tool{
		Name:     "local-path-provisioner",
		packages: []string{"github.com/rancher/local-path-provisioner"},
		ldflags:  "-s -w",
		copies:   []string{"deploy/local-path-storage.yaml"},
	}
	NATS = Tool{
		Name:     "nats",
		packages: []string{"github.com/nats-io/nats-server/v2"},
		program:  "nats-server",
		ldflags:  "-s -w",
	}
	ArgoEvents = Tool{
		Name:     "argo-events",
		packages: []string{"github.com/argoproj/argo-events/cmd"},
		program:  "argo-events",
		ldflags:  "-s -w",
		copies:   []string{"manifests"},
	}
	ArgoWorkflows = Tool{
		Name: "argo-workflows",
		packages: []string{
			"github.com/argoproj/argo-workflows/v3/cmd/workflow-controller",
			"github.com/argoproj/argo-workflows/v3/cmd/argoexec",
			"github.com/argoproj/argo-workflows/v3/cmd/argo",
		},
		ldflags: "-s -w",
		copies:  []string{"manifests"},
		mend:    mendArgoWorkflows,
	}
	ArgoCD = Tool{
		Name:     "argo-cd",
		packages: []string{"github.com/argoproj/argo-cd/v3/cmd"},
		program:  "argocd",
		ldflags:  "-s -w -X github.com/argoproj/argo-cd/v3/common.version={version}",
		copies:   []string{"manifests"},
	}
	Kustomize = Tool{
		Name:     "kustomize",
		packages: []string{"sigs.k8s.io/kustomize/kustomize/v5"},
		program:  "kustomize",
		ldflags:  "-s -w",
	}
)

// Trivy scans the operators' bundle in a case.
var Trivy = Tool{
	Name:     "trivy",
	packages: []string{"github.com/aquasecurity/trivy/cmd/trivy"},
	ldflags:  "-s -w",
}

// experiments are the GOEXPERIMENT that a tool is compiled with, by its name.
var experiments = map[string]string{"trivy": "jsonv2"}

// Cluster lists what the bench's cluster is made of, the longest builds last.
var Cluster = []Tool{Etcd, NATS, Containerd, CoreDNS, LocalPath, Kustomize, KubeRouter, ArgoEvents, ArgoWorkflows, Kubernetes, ArgoCD}

// mendArgoWorkflows puts back what was a symbolic link, which a module's archive
// cannot hold, and a page in place of the web interface, which is made with npm.
func mendArgoWorkflows(module string) error {
	signals := filepath.Join(module, "workflow/executor/osspecific")
	text, err := os.ReadFile(filepath.Join(signals, "signal_darwin.go"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(signals, "signal_linux.go"), text, 0o644); err != nil {
		return err
	}
	app := filepath.Join(module, "ui/dist/app")
	if err := os.MkdirAll(app, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(app, "index.html"), []byte("<!doctype html><title>no web interface</title>"), 0o644)
}

// Ensure builds the tool unless the cache has it, and gives the folder with its
// programs and copies.
func (t Tool) Ensure(ctx context.Context, progress io.Writer, verbose bool) (dir string, err error) {
	module, err := moduleDir(t.Name)
	if err != nil {
		return "", err
	}
	inputs := []string{runtime.Version(), runtime.GOARCH, fmt.Sprintf("%+v", t.inputs())}
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		text, err := os.ReadFile(filepath.Join(module, name))
		if err != nil && !(name == "main.go" && errors.Is(err, fs.ErrNotExist)) {
			return "", fmt.Errorf("reading the module of %s: %w", t.Name, err)
		}
		inputs = append(inputs, string(text))
	}
	dir, cached, err := cache.Get(ctx, cache.Entry{
		Name: t.Name,
		Key:  cache.Key(inputs...),
		Make: func(ctx context.Context, dir string, log io.Writer) error { return t.build(ctx, module, dir, log) },
	}, progress)
	if cached && verbose {
		fmt.Fprintf(progress, "%-12s cached\n", t.Name)
	}
	return dir, err
}

// inputs gives the tool without its function, whose address differs from run to run.
func (t Tool) inputs() Tool {
	t.mend = nil
	return t
}

func (t Tool) build(ctx context.Context, module, dir string, log io.Writer) error {
	mod, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		return err
	}
	version := "devel" // of a main of the bench's own
	if !strings.HasPrefix(t.packages[0], "fabrique/") {
		if version, err = required(string(mod), t.packages[0]); err != nil {
			return err
		}
	}
	env := []string{"CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off"}
	if t.cgo {
		env[0] = "CGO_ENABLED=1"
	}
	if experiment := experiments[t.Name]; experiment != "" {
		env = append(env, "GOEXPERIMENT="+experiment)
	}
	if t.mend != nil {
		if module, err = t.mended(ctx, module, dir, env, log); err != nil {
			return err
		}
		defer os.RemoveAll(module)
	}
	args := []string{"build", "-trimpath", "-buildvcs=false", "-mod=readonly",
		"-ldflags", strings.ReplaceAll(t.ldflags, "{version}", strings.TrimPrefix(version, "v"))}
	if t.tags != "" {
		args = append(args, "-tags", t.tags)
	}
	output := dir + "/" + t.program // a folder when there is no name
	args = append(append(args, "-o", output), t.packages...)
	if err := cache.Run(ctx, log, module, env, "go", args...); err != nil {
		return err
	}
	if len(t.copies) == 0 && t.cFile == "" {
		return nil
	}
	return t.extras(ctx, module, dir, env, log)
}

// mended gives a copy of the tool's module that uses a mended copy of its first
// package's module. Go compiles nothing from a changed module cache.
func (t Tool) mended(ctx context.Context, module, dir string, env []string, log io.Writer) (string, error) {
	source, err := t.source(ctx, module, env)
	if err != nil {
		return "", err
	}
	work := filepath.Join(dir, "src")
	theirs := filepath.Join(work, "mended")
	if err := os.MkdirAll(work, 0o755); err != nil {
		return "", err
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(work, name), text, 0o644); err != nil {
			return "", err
		}
	}
	if err := copyFolder(theirs, source); err != nil {
		return "", err
	}
	if err := t.mend(theirs); err != nil {
		return "", err
	}
	var path strings.Builder
	if err := cache.Run(ctx, &path, theirs, env, "go", "list", "-m"); err != nil {
		return "", fmt.Errorf("%w\n%s", err, path.String())
	}
	return work, cache.Run(ctx, log, work, env, "go", "mod", "edit", "-replace", lastLine(path.String())+"=./mended")
}

// copyFolder copies a folder of the module cache, where all is read-only.
func copyFolder(to, from string) error {
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return err
	}
	return filepath.WalkDir(to, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(path, 0o755)
		}
		return err
	})
}

// source gives the folder of the first package's module.
func (t Tool) source(ctx context.Context, module string, env []string) (string, error) {
	var out strings.Builder
	if err := cache.Run(ctx, &out, module, env, "go", "list", "-mod=readonly", "-f", "{{.Module.Dir}}", t.packages[0]); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out.String())
	}
	return lastLine(out.String()), nil
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// extras copies and compiles what belongs to the tool besides its programs.
func (t Tool) extras(ctx context.Context, module, dir string, env []string, log io.Writer) error {
	source, err := t.source(ctx, module, env)
	if err != nil {
		return err
	}
	for _, name := range t.copies {
		info, err := os.Stat(filepath.Join(source, name))
		if err == nil && info.IsDir() {
			err = os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(source, name)))
		} else if err == nil {
			var text []byte
			if text, err = os.ReadFile(filepath.Join(source, name)); err == nil {
				err = os.WriteFile(filepath.Join(dir, filepath.Base(name)), text, 0o644)
			}
		}
		if err != nil {
			return fmt.Errorf("copying %s of %s: %w", name, t.packages[0], err)
		}
	}
	if t.cFile == "" {
		return nil
	}
	program := strings.TrimSuffix(filepath.Base(t.cFile), ".c")
	return cache.Run(ctx, log, dir, nil, "gcc", "-Os", "-Wall", "-static", "-s",
		"-DVERSION=bench", "-o", program, filepath.Join(source, t.cFile))
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
