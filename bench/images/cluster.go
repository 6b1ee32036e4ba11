package images

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fabrique/bench/tools"
)

// The cluster's images. Their programs are compiled here, by package tools, or
// Debian's; none has a CA bundle, as nothing in the cluster speaks TLS to a
// server whose certificate an authority of the Internet signed. Their layers are
// compressed by zstd: containerd unpacks it several times faster than gzip, and a
// cluster's start waits for that.
var (
	Pause = program{tool: tools.Kubernetes, name: "pause", at: "pause", user: 65535}.image("pause")

	// CoreDNS binds a low port, if told to, without a capability: containerd lets the pods that
	// have a network of their own use all ports (enable_unprivileged_ports).
	CoreDNS = program{tool: tools.CoreDNS, name: "coredns", at: "coredns", user: 65532}.image("coredns")

	LocalPath = program{tool: tools.LocalPath, name: "local-path-provisioner", at: "usr/bin/local-path-provisioner",
		user: 65532}.image("local-path-provisioner")

	// Registry reads its configuration where upstream's image has it; mount one.
	Registry = program{tool: tools.Registry, name: "registry", at: "bin/registry", user: 65532,
		args: []string{"serve"}, cmd: []string{"/etc/distribution/config.yml"},
		env: []string{"OTEL_TRACES_EXPORTER=none"}, // its default sends traces to a port of the pod
	}.image("registry")

	NATS = program{tool: tools.NATS, name: "nats-server", at: "nats-server", user: 65532}.image("nats")

	// Idle does nothing until SIGTERM, whatever its arguments are. It stands in for
	// what Argo Events puts beside NATS, a configuration reloader and a metrics
	// exporter, which it starts by their images' entrypoints.
	Idle = program{tool: tools.Kubernetes, name: "pause", at: "pause", user: 65532}.image("idle")

	// ArgoEvents lacks upstream's argo program, which only the submit operation of
	// an Argo Workflow trigger runs, and its time zones.
	ArgoEvents = program{tool: tools.ArgoEvents, name: "argo-events", at: "bin/argo-events", user: 9731}.image("argo-events")

	WorkflowController = program{tool: tools.ArgoWorkflows, name: "workflow-controller", at: "bin/workflow-controller",
		user: 8737}.image("workflow-controller")

	// ArgoExec finds itself by its name when it copies itself into a pod's volume.
	// Upstream's MIME types and SSH hosts are for artifacts in object stores and git.
	ArgoExec = program{tool: tools.ArgoWorkflows, name: "argoexec", at: "bin/argoexec", user: 8737}.image("argoexec")

	Redis = assembled("bench/redis:latest", compression.ZStd, redis)

	ArgoCD = assembled("bench/argocd:latest", compression.ZStd, argoCD)

	// Probe is what the checks of the cluster run in pods.
	Probe = assembled("bench/probe:latest", compression.ZStd, func(ctx context.Context, _ io.Writer) (recipe, error) {
		text, err := build(ctx, "fabrique/bench/probe")
		return recipe{
			config: v1.Config{User: "65532", Entrypoint: []string{"/probe"}, Env: []string{"PATH=/"}, WorkingDir: "/"},
			layers: [][]file{{{name: "probe", mode: 0o755, text: text}}},
		}, err
	})

	// Buildkitd is the builder's daemon, with its client for the probes and runc.
	Buildkitd = assembled("fabrique/buildkitd:latest", compression.ZStd, buildkitd)

	// Gitea's folders are beside its program, /app/gitea is its STATIC_ROOT_PATH.
	Gitea = assembled("bench/gitea:latest", compression.ZStd, gitea)
)

// Preloaded tells whether a node must have the image before there is a registry
// to pull it from.
func Preloaded(i Image) bool {
	return slices.ContainsFunc(Cluster()[:5], func(first Image) bool { return first.Name == i.Name })
}

// Cluster gives all images that the cluster needs, the preloaded ones first.
func Cluster() []Image {
	return []Image{
		Pause, CoreDNS, LocalPath, Busybox, Registry,
		NATS, Idle, ArgoEvents, WorkflowController, ArgoExec, Redis, ArgoCD, Gitea, Probe,
	}
}

func buildkitd(ctx context.Context, progress io.Writer) (recipe, error) {
	files := []file{{name: "tmp/", mode: 0o1777}}
	for _, p := range []struct {
		tool tools.Tool
		name string
	}{{tools.BuildKit, "buildkitd"}, {tools.BuildKit, "buildctl"}, {tools.Runc, "runc"}} {
		dir, err := p.tool.Ensure(ctx, progress, false)
		if err != nil {
			return recipe{}, err
		}
		files = append(files, file{name: "usr/bin/" + p.name, mode: 0o755, from: filepath.Join(dir, p.name)})
	}
	return recipe{
		config: v1.Config{User: "0", Entrypoint: []string{"/usr/bin/buildkitd"}, Env: []string{debianPath}, WorkingDir: "/"},
		layers: [][]file{files},
	}, nil
}

// program is an image with one static program and nothing else.
type program struct {
	tool tools.Tool
	name string // in the tool's folder
	at   string // in the image
	user int
	args []string // of the entrypoint
	cmd  []string
	env  []string
}

func (p program) image(name string) Image {
	return assembled("bench/"+name+":latest", compression.ZStd, func(ctx context.Context, progress io.Writer) (recipe, error) {
		dir, err := p.tool.Ensure(ctx, progress, false)
		if err != nil {
			return recipe{}, err
		}
		return recipe{
			config: v1.Config{
				User:       strconv.Itoa(p.user),
				Entrypoint: append([]string{"/" + p.at}, p.args...),
				Cmd:        p.cmd,
				Env:        append([]string{"PATH=/usr/bin:/bin"}, p.env...), // a manifest may name it without its folder
				WorkingDir: "/",
			},
			layers: [][]file{{{name: p.at, mode: 0o755, from: filepath.Join(dir, p.name)}}},
		}, nil
	})
}

// debianPath is the PATH of images with programs of Debian's.
const debianPath = "PATH=/usr/local/bin:/usr/bin"

// redis takes the server from the package that has it without a service that
// would start: all of redis is one program, which acts by the name that it is
// called by.
func redis(context.Context, io.Writer) (recipe, error) {
	c, err := closureOf("/usr/bin/redis-check-rdb", "/usr/bin/redis-cli")
	if err != nil {
		return recipe{}, fmt.Errorf("%w; install the package redis-tools", err)
	}
	return recipe{
		config: v1.Config{
			User:       "999",
			Entrypoint: []string{"/usr/local/bin/redis-server"},
			Env:        []string{debianPath},
			WorkingDir: "/data",
		},
		layers: [][]file{
			append(c.files(),
				file{name: "data/", mode: 0o755, uid: 999},
				file{name: "usr/local/bin/redis-server", link: "../../bin/redis-check-rdb"}),
		},
	}, nil
}

// argoCD follows upstream's Dockerfile, without Helm, GPG, Git LFS and SSH. It has
// no entrypoint either, as upstream's is an init; the manifests name the program
// by arguments alone.
func argoCD(ctx context.Context, progress io.Writer) (recipe, error) {
	dir, err := tools.ArgoCD.Ensure(ctx, progress, false)
	if err != nil {
		return recipe{}, err
	}
	kustomize, err := tools.Kustomize.Ensure(ctx, progress, false)
	if err != nil {
		return recipe{}, err
	}
	gitFiles, err := git()
	if err != nil {
		return recipe{}, err
	}
	shellFiles, err := shell(ctx)
	if err != nil {
		return recipe{}, err
	}
	const uid = 999
	own := append(account("argocd", uid, "/home/argocd"),
		file{name: "app/config/gpg/keys/", mode: 0o700, uid: uid},
		file{name: "app/config/gpg/source/", mode: 0o755},
		file{name: "app/config/ssh/ssh_known_hosts", mode: 0o644},
		file{name: "app/config/tls/", mode: 0o755},
		file{name: "etc/ssh/ssh_known_hosts", link: "/app/config/ssh/ssh_known_hosts"},
		file{name: "usr/local/bin/argocd", mode: 0o755, from: filepath.Join(dir, "argocd")},
	)
	for _, name := range []string{
		"application-controller", "applicationset-controller", "cmp-server", "commit-server", "dex",
		"k8s-auth", "notifications", "repo-server", "server",
	} {
		own = append(own, file{name: "usr/local/bin/argocd-" + name, link: "argocd"})
	}
	return recipe{
		config: v1.Config{
			User:       strconv.Itoa(uid),
			Env:        []string{debianPath, "HOME=/home/argocd", "USER=argocd"},
			WorkingDir: "/home/argocd",
		},
		layers: [][]file{
			gitFiles,
			shellFiles,
			{{name: "usr/local/bin/kustomize", mode: 0o755, from: filepath.Join(kustomize, "kustomize")}},
			own,
		},
	}, nil
}

func gitea(ctx context.Context, progress io.Writer) (recipe, error) {
	dir, err := tools.Gitea.Ensure(ctx, progress, false)
	if err != nil {
		return recipe{}, err
	}
	gitFiles, err := git()
	if err != nil {
		return recipe{}, err
	}
	// New repositories start from them; a step's do not.
	templates, err := tree("/usr/share/git-core/templates", "usr/share/git-core/templates")
	if err != nil {
		return recipe{}, err
	}
	shellFiles, err := shell(ctx)
	if err != nil {
		return recipe{}, err
	}
	bash, err := closureOf("/usr/bin/bash") // Gitea's hooks name it
	if err != nil {
		return recipe{}, err
	}
	programFiles, err := tree(dir, "app/gitea")
	if err != nil {
		return recipe{}, err
	}
	const uid = 1000
	own := append(account("git", uid, "/data/git"), file{name: "data/", mode: 0o755, uid: uid})
	return recipe{
		config: v1.Config{
			User:       strconv.Itoa(uid),
			Entrypoint: []string{"/app/gitea/gitea"},
			Cmd:        []string{"web"},
			Env:        []string{debianPath, "HOME=/data/git", "USER=git", "GITEA_WORK_DIR=/data/gitea"},
			WorkingDir: "/data",
		},
		layers: [][]file{gitFiles, shellFiles, append(bash.files(), templates...), programFiles, own},
	}, nil
}

// account makes a user with a home, beside root, and a /tmp.
func account(name string, uid int, home string) []file {
	return []file{
		{name: "etc/group", mode: 0o644, text: fmt.Appendf(nil, "root:x:0:\n%s:x:%d:\n", name, uid)},
		{name: "etc/passwd", mode: 0o644, text: fmt.Appendf(nil, "root:x:0:0:root:/root:/bin/sh\n%s:x:%d:%d::%s:/bin/sh\n", name, uid, uid, home)},
		{name: home[1:] + "/", mode: 0o755, uid: uid},
		{name: "tmp/", mode: 0o1777},
	}
}
