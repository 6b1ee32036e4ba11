package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"

	"fabrique/bench/action"
	"fabrique/bench/cache"
	"fabrique/bench/cluster"
	"fabrique/bench/debian"
	"fabrique/bench/images"
	"fabrique/bench/kubectl"
	"fabrique/bench/platform"
	"fabrique/bench/tools"
)

const registryName = "registry:80" // as it stands in every reference

type upOptions struct {
	kubeconfig string
	registry   string
	keep       bool
	baseOnly   bool
}

func upCommand() *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring up the cluster: two nodes, registry, Gitea, Argo CD, Argo Workflows, Argo Events",
		Long: `Brings up a Kubernetes cluster of two nodes on this machine, and in it what Fabrique finds in
production: the registry as registry:80, Gitea, Argo CD, Argo Workflows, Argo Events. Without a cache it
first compiles all of it, for most of an hour. A second run changes nothing.

With --kubeconfig it installs the same into a cluster that is there already. That cluster must have a
default StorageClass, enforce NetworkPolicies, and know a registry as registry:80 from its nodes and pods;
--registry tells how it is reached from here. The cluster itself is not changed, and "bench down" leaves it alone.`,
		Example: `  bench up
  bench up --keep                     # leave what came up when something fails
  bench up --kubeconfig ~/.kube/config --registry 192.168.1.20:80`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (o.kubeconfig == "") != (o.registry == "") {
				return errors.New("--kubeconfig and --registry go together: images are pushed to the cluster's own registry")
			}
			return up(cmd.Context(), cmd.ErrOrStderr(), cmd.OutOrStdout(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "install into this cluster instead of making one")
	f.StringVar(&o.registry, "registry", "", "host:port at which that cluster's registry:80 answers here, on plain HTTP")
	f.BoolVar(&o.keep, "keep", false, "when an action fails, leave the cluster as it is instead of taking it down")
	f.BoolVar(&o.baseOnly, "base-only", false, "stop when the cluster has DNS, storage and the registry")
	return cmd
}

func up(ctx context.Context, progress, out io.Writer, o upOptions) error {
	start := time.Now()
	c, err := cluster.Default()
	if err != nil {
		return err
	}
	unlock, err := only(c)
	if err != nil {
		return err
	}
	defer unlock()
	logs := filepath.Join(c.Dir, "log")
	if o.kubeconfig != "" {
		// Nothing of the cluster is on this machine, so neither are its logs to stay.
		if logs, err = os.MkdirTemp("", "fabrique-bench-up-"); err != nil {
			return err
		}
	} else if err := os.MkdirAll(c.Dir, 0o711); err != nil {
		return fmt.Errorf("making the cluster's folder: %w; run as root", err)
	}
	changed, err := run(ctx, progress, logs, c, o)
	switch {
	case err == nil:
	case o.kubeconfig != "":
		return err
	case o.keep:
		return fmt.Errorf("%w\nthe cluster is left as it is: %s; then bench up or bench down", err, c.Kubectl().Shell("get", "pods", "-A"))
	default:
		return tearDown(progress, c, logs, err)
	}
	state := fmt.Sprintf("%d actions changed something", changed)
	if changed == 0 {
		state = "unchanged"
	}
	fmt.Fprintf(progress, "%-26s %s, %s\n\n", "up", time.Since(start).Round(100*time.Millisecond), state)
	if o.kubeconfig != "" {
		return os.RemoveAll(logs)
	}
	return usage(out, c)
}

func run(ctx context.Context, progress io.Writer, logs string, c cluster.Cluster, o upOptions) (changed int, err error) {
	did, err := action.Run(ctx, progress, logs, action.Action{Name: "packages, tools, images", Do: func(ctx context.Context, _ io.Writer) (bool, error) {
		return prepare(ctx, progress)
	}})
	changed += did
	if err != nil {
		return changed, err
	}
	p, pre, err := describe(ctx, c, filepath.Join(c.Dir, "preloaded.tar"))
	if err != nil {
		return changed, err
	}
	address := cluster.RegistryIP + ":80"
	var actions []action.Action
	if o.kubeconfig != "" {
		p.Kubectl, address = kubectl.Kubectl{Kubeconfig: o.kubeconfig}, o.registry
	} else {
		own, err := c.Up(ctx, pre)
		if err != nil {
			return changed, err
		}
		actions = append(own, p.Base()...)
	}
	actions = append(actions, action.Action{Name: "push images", Do: func(ctx context.Context, log io.Writer) (bool, error) {
		return pushImages(ctx, log, address)
	}})
	if !o.baseOnly {
		actions = append(actions, p.Services()...)
	}
	did, err = action.Run(ctx, progress, logs, actions...)
	return changed + did, err
}

// prepare makes what is needed before anything starts; it is all in the cache
// the second time.
func prepare(ctx context.Context, progress io.Writer) (changed bool, err error) {
	if err := debian.Install(ctx, progress, append(debian.Packages, debian.ClusterPackages...)...); err != nil {
		return false, err
	}
	if _, err := tools.Ensure(ctx, progress, false); err != nil {
		return false, err
	}
	for _, tool := range tools.Cluster {
		if _, err := tool.Ensure(ctx, progress, false); err != nil {
			return false, err
		}
	}
	for _, image := range pushed() {
		_, cached, err := image.Ensure(ctx, progress)
		if err != nil {
			return changed, err
		}
		changed = changed || !cached
	}
	return changed, nil
}

// describe gives the platform with the references of its images, and the images
// that the nodes get before there is a registry, in an archive that is made when it
// is not there.
func describe(ctx context.Context, c cluster.Cluster, archive string) (platform.Platform, cluster.Preloaded, error) {
	p := platform.Platform{
		Kubectl:   c.Kubectl(),
		Refs:      map[string]string{},
		Addresses: map[string]string{"REGISTRY_IP": cluster.RegistryIP, "DNS_IP": cluster.DNSIP},
	}
	pre := cluster.Preloaded{Archive: archive}
	first := map[string]v1.Image{}
	for _, image := range pushed() {
		content, digest, err := image.Load(ctx, io.Discard)
		if err != nil {
			return p, pre, err
		}
		repository, _, _ := strings.Cut(image.Name, ":")
		ref := registryName + "/" + repository + "@" + digest
		p.Refs[repository] = ref
		if images.Preloaded(image) {
			first[ref] = content
			pre.Refs = append(pre.Refs, ref)
		}
	}
	pre.Sandbox = p.Refs["bench/pause"]
	if _, err := os.Stat(archive); err == nil {
		return p, pre, nil
	}
	partial, err := os.Create(archive + ".partial")
	if err != nil {
		return p, pre, err
	}
	defer partial.Close()
	if err := images.Archive(ctx, partial, first); err != nil {
		return p, pre, err
	}
	return p, pre, os.Rename(partial.Name(), archive)
}

// pushed are the images that the registry holds: the cluster's, and those that
// builds start from.
func pushed() []images.Image { return append(images.Cluster(), images.Debian) }

func pushImages(ctx context.Context, log io.Writer, address string) (changed bool, err error) {
	for _, image := range pushed() {
		ref, did, err := image.PushNew(ctx, address)
		if err != nil {
			return changed, err
		}
		fmt.Fprintln(log, ref, did)
		changed = changed || did
	}
	return changed, nil
}

// tearDown takes the cluster down after a failure, but keeps its logs.
func tearDown(progress io.Writer, c cluster.Cluster, logs string, failure error) error {
	root, err := cache.Dir()
	if err != nil {
		return errors.Join(failure, err)
	}
	kept := filepath.Join(root, "last-failure")
	if err := os.RemoveAll(kept); err != nil {
		return errors.Join(failure, err)
	}
	text := failure.Error()
	for name, dir := range map[string]string{
		"actions": logs, cluster.ControlPlane: c.Nodes()[0].LogDir(), cluster.Worker: c.Nodes()[1].LogDir(),
	} {
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if err := os.CopyFS(filepath.Join(kept, name), os.DirFS(dir)); err != nil {
			return errors.Join(failure, fmt.Errorf("keeping the logs: %w", err))
		}
		text = strings.ReplaceAll(text, dir, filepath.Join(kept, name))
	}
	// The failure may be that ctx ended; what is up is taken down nevertheless.
	if err := down(context.Background(), progress, c); err != nil {
		return errors.Join(failure, err)
	}
	return fmt.Errorf("%s\neverything was taken down again (--keep leaves it); all logs are in %s", text, kept)
}

// only makes sure that no other run changes the cluster at the same time.
func only(c cluster.Cluster) (unlock func(), err error) {
	root, err := cache.Dir()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(root, "cluster.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("another run is changing the cluster in %s right now; wait for it, or end it", c.Dir)
	}
	return func() { f.Close() }, nil
}

func usage(out io.Writer, c cluster.Cluster) error {
	program, err := kubectl.Program(context.Background(), io.Discard)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, `The cluster is up.

  export KUBECONFIG=%s PATH=%s:$PATH
  kubectl get pods -A

  API server   %s
  registry     http://%s (inside: %s)
  Gitea        kubectl port-forward -n gitea svc/gitea 3000 (inside: %s)
  Argo CD      kubectl port-forward -n argocd svc/argocd-server 8080:80
  node logs    %s/nodes/*/log/
  what next    bench status, bench check, bench down
`, c.Kubeconfig(), filepath.Dir(program), cluster.APIServer, cluster.RegistryIP, registryName, platform.GiteaURL, c.Dir)
	return nil
}
