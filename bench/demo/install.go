// Package demo installs the factory into the bench's cluster and shows a git push
// become a pod that runs that commit.
package demo

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"code.gitea.io/sdk/gitea"

	"fabrique/bench/action"
	"fabrique/bench/images"
	"fabrique/bench/kubectl"
	"fabrique/bench/platform"
	"fabrique/eventsources"
	"fabrique/manifests/zone"
)

// Demo is the factory on one cluster.
type Demo struct {
	platform.Platform
	Registry string // where registry:80 answers on this machine
	Fabrique string // the program
	Dir      string // for fabrique.yaml and the clones
}

// Install gives the actions that install the factory. A second run changes
// nothing.
func (d Demo) Install() []action.Action {
	return []action.Action{
		{Name: "factory images", Do: d.images},
		{Name: "fabrique apply", Do: d.apply},
		{Name: "secrets", Do: d.secrets},
		{Name: "webhook #2", Do: d.webhook},
		{Name: "projects", Do: d.projects},
		{Name: "factory ready", Do: d.ready},
	}
}

// refs names the images of the configuration.
var refs = []struct{ field, repository string }{
	{"reconcileHead", "fabrique/reconcile-head"}, {"cloneAtSHA", "fabrique/clone-at-sha"},
	{"buildkitBuild", "fabrique/buildkit-build"}, {"digestInspect", "fabrique/digest-inspect"},
	{"giteaWriteback", "fabrique/gitea-writeback"}, {"commitStatus", "fabrique/commit-status"},
	{"egressGateway", "fabrique/egress-gateway"}, {"egressAddresses", "fabrique/egress-addresses"},
	{"runNetwork", "fabrique/run-network"}, {"buildkitd", "fabrique/buildkitd"},
}

// images pushes what the factory runs and writes its configuration.
func (d Demo) images(ctx context.Context, log io.Writer) (changed bool, err error) {
	references := map[string]string{}
	for _, image := range append(images.Steps(), images.Buildkitd) {
		ref, pushed, err := image.PushNew(ctx, d.Registry)
		if err != nil {
			return changed, err
		}
		fmt.Fprintln(log, ref, pushed)
		changed = changed || pushed
		repository, _, _ := strings.Cut(image.Name, ":")
		_, digest, _ := strings.Cut(ref, "@")
		references[repository] = "registry:80/" + repository + "@" + digest
	}
	return changed, d.configure(ctx, references, Settings{})
}

func (d Demo) apply(ctx context.Context, log io.Writer) (bool, error) {
	cmd := exec.CommandContext(ctx, d.Fabrique, "apply", "--config", d.Config(), "--kubeconfig", d.Kubectl.Kubeconfig)
	out, err := cmd.CombinedOutput()
	log.Write(out)
	if err != nil {
		return true, fmt.Errorf("running fabrique apply: %w", err)
	}
	return string(out[max(0, len(out)-len("\nunchanged\n")):]) != "\nunchanged\n", nil
}

// secrets brings the bots' tokens to where the factory reads them, and makes the
// webhook's secret and the gateway's key.
func (d Demo) secrets(ctx context.Context, _ io.Writer) (changed bool, err error) {
	for from, to := range map[string]string{platform.ReaderSecret: zone.ReaderSecret, platform.WriterSecret: zone.WriterSecret, platform.StatusSecret: zone.StatusSecret} {
		token, err := d.Secret(ctx, "gitea", from, "token")
		if err != nil {
			return changed, err
		}
		did, err := d.SetSecret(ctx, zone.Workflows, to, nil, map[string]string{"token": token.Reveal()})
		changed = changed || did
		if err != nil {
			return changed, err
		}
	}
	for _, made := range []struct {
		name, key  string
		namespaces []string
	}{
		{zone.WebhookSecret, "secret", []string{zone.Events}},
		{zone.EgressSecret, zone.EgressKey, []string{zone.Workflows, zone.Egress}},
	} {
		value, err := d.Secret(ctx, made.namespaces[0], made.name, made.key)
		if err != nil {
			return changed, err
		}
		text := value.Reveal()
		if text == "" {
			text = rand.Text()
		}
		for _, namespace := range made.namespaces {
			did, err := d.SetSecret(ctx, namespace, made.name, nil, map[string]string{made.key: text})
			changed = changed || did
			if err != nil {
				return changed, err
			}
		}
	}
	return changed, nil
}

func (d Demo) webhook(ctx context.Context, _ io.Writer) (bool, error) {
	admin, stop, err := d.Admin(ctx)
	if err != nil {
		return false, err
	}
	defer stop()
	client, err := admin.Client(ctx, admin.Token)
	if err != nil {
		return false, err
	}
	url := fmt.Sprintf("http://%s.%s.svc:%d%s", eventsources.Service, zone.Events, eventsources.Port, eventsources.Endpoint)
	owner, name, _ := strings.Cut(platform.SourceRepo, "/")
	hooks, _, err := client.ListRepoHooks(owner, name, gitea.ListHooksOptions{})
	if err != nil {
		return false, fmt.Errorf("listing the webhooks of %s: %w", platform.SourceRepo, err)
	}
	for _, h := range hooks {
		if h.Config["url"] == url {
			return false, nil
		}
	}
	secret, err := d.Secret(ctx, zone.Events, zone.WebhookSecret, "secret")
	if err != nil {
		return false, err
	}
	_, _, err = client.CreateRepoHook(owner, name, gitea.CreateHookOption{
		Type: gitea.HookTypeGitea, Events: []string{"push"}, Active: true,
		Config: map[string]string{"url": url, "content_type": "json", "secret": secret.Reveal()},
	})
	return true, err
}

// projects makes what the sample's records name: a project and a namespace.
func (d Demo) projects(ctx context.Context, log io.Writer) (bool, error) {
	objects, err := kubectl.Objects([]byte(`
apiVersion: argoproj.io/v1alpha1
kind: AppProject
metadata: {name: dataops, namespace: argocd}
spec:
  sourceRepos: ["*"]
  destinations: [{server: "*", namespace: "*"}]
  clusterResourceWhitelist: [{group: "", kind: Namespace}]
---
apiVersion: v1
kind: Namespace
metadata: {name: web, labels: {pod-security.kubernetes.io/enforce: restricted}}
`), nil)
	if err != nil {
		return false, err
	}
	return d.Kubectl.Apply(ctx, log, objects)
}

// ready waits until an event could be received and a build could begin.
func (d Demo) ready(ctx context.Context, log io.Writer) (bool, error) {
	if out, err := d.Kubectl.Run(ctx, nil, "wait", "--for=condition=Deployed", "--timeout=180s", "-n", zone.Events, "eventbus/default", "eventsource/"+eventsources.Name, "sensor/gitea-push"); err != nil {
		return true, fmt.Errorf("%w\n%s", err, out)
	}
	return d.Ready("factory ready", zone.Events, zone.Builder, zone.Egress).Do(ctx, log)
}

// answer asks a service of the cluster, through the API server.
func (d Demo) answer(ctx context.Context, namespace, service, path string) (string, error) {
	return d.Kubectl.Run(ctx, nil, "get", "--raw", "/api/v1/namespaces/"+namespace+"/services/"+service+":http/proxy"+path)
}
