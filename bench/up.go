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

func up(ctx context.Context, progress, out io.Writer, o upOptions) (err error) {
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
	scratch, err := os.MkdirTemp("", cluster.ScratchPrefix)
	if err != nil {
		return err
	}
	defer func() {
		if err == nil { // else the error names a log in it; bench down removes it
			err = os.RemoveAll(scratch)
		}
	}()
	logs := scratch
	// Nothing has begun while this can fail.
	changed, err := action.Run(ctx, progress, logs, action.Action{Name: "packages, tools, images", Do: func(ctx context.Context, _ io.Writer) (bool, error) {
		return prepare(ctx, progress)
	}})
	if err != nil {
		return err
	}
	before := false
	if o.kubeconfig == "" {
		if before, err = c.Exists(); err != nil {
			return err
		}
		if err := c.Create(); err != nil {
			return err
		}
		logs = filepath.Join(c.Dir, "log")
	}
	did, err := run(ctx, progress, logs, c, o)
	changed += did
	switch {
	case err == nil:
	case o.kubeconfig != "":
		return err
	case o.keep, before:
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
		return nil
	}
	return usage(out, c)
}

func run(ctx context.Context, progress io.Writer, logs string, c cluster.Cluster, o upOptions) (changed int, err error) {
	p, err := describe(ctx, c)
	if err != nil {
		return 0, err
	}
	address := cluster.RegistryIP + ":80"
	var actions []action.Action
	if o.kubeconfig != "" {
		p.Kubectl, address = kubectl.Kubectl{Kubeconfig: o.kubeconfig}, o.registry
	} else {
		pre, err := preload(ctx, c, p)
		if err != nil {
			return 0, err
		}
		own, err := c.Up(ctx, pre)
		if err != nil {
			return 0, err
		}
		actions = append(own, p.Base()...)
	}
	actions = append(actions, action.Action{Name: "push images", Do: func(ctx context.Context, log io.Writer) (bool, error) {
		return pushImages(ctx, log, address)
	}})
	if !o.baseOnly {
		actions = append(actions, p.Services()...)
	}
	return action.Run(ctx, progress, logs, actions...)
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

// describe gives the platform with the references of its images.
func describe(ctx context.Context, c cluster.Cluster) (platform.Platform, error) {
	p := platform.Platform{
		Kubectl:   c.Kubectl(),
		Refs:      map[string]string{},
		Addresses: map[string]string{"REGISTRY_IP": cluster.RegistryIP, "DNS_IP": cluster.DNSIP, "BUS_VERSION": platform.BusVersion},
	}
	for _, image := range pushed() {
		_, digest, err := image.Load(ctx, os.Stderr)
		if err != nil {
			return p, err
		}
		repository, _, _ := strings.Cut(image.Name, ":")
		p.Refs[repository] = registryName + "/" + repository + "@" + digest
	}
	return p, nil
}

// preload puts the images that the nodes get before there is a registry into an
// archive, unless the one for these images is there.
func preload(ctx context.Context, c cluster.Cluster, p platform.Platform) (cluster.Preloaded, error) {
	pre := cluster.Preloaded{Sandbox: p.Refs["bench/pause"]}
	first := map[string]v1.Image{}
	for _, image := range images.Cluster() {
		if !images.Preloaded(image) {
			continue
		}
		content, _, err := image.Load(ctx, os.Stderr)
		if err != nil {
			return pre, err
		}
		repository, _, _ := strings.Cut(image.Name, ":")
		first[p.Refs[repository]] = content
		pre.Refs = append(pre.Refs, p.Refs[repository])
	}
	pre.Archive = filepath.Join(c.Dir, "preloaded-"+cache.Key(pre.Refs...)+".tar")
	if _, err := os.Stat(pre.Archive); err == nil {
		return pre, nil
	}
	partial, err := os.Create(pre.Archive + ".partial")
	if err != nil {
		return pre, err
	}
	defer partial.Close()
	if err := images.Archive(ctx, partial, first); err != nil {
		return pre, err
	}
	return pre, os.Rename(partial.Name(), pre.Archive)
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
	// The failure may be that ctx ended; what is up is taken down nevertheless.
	kept, keepErr := keepLogs(c, logs)
	text := failure.Error()
	for from, to := range kept {
		text = strings.ReplaceAll(text, from, to)
	}
	if err := errors.Join(keepErr, down(context.Background(), progress, c)); err != nil {
		return fmt.Errorf("%s\n%w", text, err)
	}
	return fmt.Errorf("%s\neverything was taken down again (--keep leaves it); all logs are in %s", text, filepath.Dir(kept[logs]))
}

// keepLogs copies the logs into the cache, where they stay until the next
// failure, and tells where each folder went.
func keepLogs(c cluster.Cluster, logs string) (kept map[string]string, err error) {
	root, err := cache.Dir()
	if err != nil {
		return nil, err
	}
	last := filepath.Join(root, "last-failure")
	if err := os.RemoveAll(last); err != nil {
		return nil, err
	}
	kept = map[string]string{logs: filepath.Join(last, "actions")}
	for _, n := range c.Nodes() {
		kept[n.LogDir()] = filepath.Join(last, n.Name)
		kept[filepath.Join(n.Dir, "var/log/pods")] = filepath.Join(last, n.Name+"-pods")
	}
	for from, to := range kept {
		if _, missing := os.Stat(from); missing == nil {
			err = errors.Join(err, os.CopyFS(to, os.DirFS(from)))
		}
	}
	return kept, err
}

// only makes sure that no other run changes the cluster at the same time.
func only(c cluster.Cluster) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(os.TempDir(), "fabrique-bench-"+cache.Key(c.Dir)+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
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
