package demo

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"fabrique/bench/platform"
	"fabrique/steps/config"
	"fabrique/steps/egress"
)

// Settings are what a scenario may change about the factory.
type Settings struct {
	Schedule string // of the CronWorkflow; empty for every ten minutes
	Builders int    // how many buildkitds; 0 for one
	// Allow and Apps are what builds may reach beside this machine's package sources.
	Allow []egress.Destination
	Apps  map[string][]egress.Destination
}

// Reconfigure renders and applies the factory with other settings. The images stay.
func (d Demo) Reconfigure(ctx context.Context, log io.Writer, s Settings) error {
	now, err := config.Load(d.Config())
	if err != nil {
		return err
	}
	references, byField := map[string]string{}, now.Cluster.Images.ByField()
	for _, r := range refs {
		references[r.repository] = byField[r.field]
	}
	if err := d.configure(ctx, references, s); err != nil {
		return err
	}
	_, err = d.apply(ctx, log)
	return err
}

// Config gives the path of fabrique.yaml.
func (d Demo) Config() string { return filepath.Join(d.Dir, config.FileName) }

// configure writes fabrique.yaml. The references name each image by digest.
func (d Demo) configure(ctx context.Context, references map[string]string, s Settings) error {
	var api struct {
		Endpoints []struct{ Addresses []string }
		Ports     []struct{ Port int }
	}
	if err := d.Kubectl.Get(ctx, &api, "endpointslices", "kubernetes", "-n", "default"); err != nil {
		return fmt.Errorf("looking for the API server: %w", err)
	}
	if len(api.Endpoints) == 0 || len(api.Ports) == 0 {
		return errors.New("looking for the API server: the EndpointSlice kubernetes names no address")
	}
	rules, err := outside(ctx)
	if err != nil {
		return err
	}
	rules.Allow = append(rules.Allow, s.Allow...)
	maps.Copy(rules.Apps, s.Apps)
	outside, err := json.Marshal(rules)
	if err != nil {
		return err
	}
	text := fmt.Sprintf(`gitea:
  url: %s
source:
  repository: %s
apps:
  repository: %s
registry:
  address: registry:80
  plainHTTP: true
builder:
  timeout: 30m
author:
  name: Fabrique
  email: fabrique@example.org
egress: %s
cluster:
  builders: %d
  schedule: "%s"
  # Nothing answers there: the bench has no Argo server.
  workflowsURL: http://argo-server.argo.svc:2746
  eventBus: {version: "%s", storage: 1Gi}
  network:
    gitea: {namespace: gitea, labels: {app: gitea}, port: 3000}
    registry: {namespace: registry, labels: {app: registry}, port: 5000}
    apiServer: {addresses: [%s], port: %d}
    dns: {namespace: kube-system, labels: {k8s-app: kube-dns}, port: 5353}
  images:
`, platform.GiteaURL, platform.SourceRepo, platform.AppsRepo, outside, max(s.Builders, 1), cmp.Or(s.Schedule, "*/10 * * * *"), platform.BusVersion, strings.Join(api.Endpoints[0].Addresses, ", "), api.Ports[0].Port)
	for _, r := range refs {
		text += fmt.Sprintf("    %s: %s\n", r.field, references[r.repository])
	}
	if err := os.MkdirAll(d.Dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(d.Config(), []byte(text), 0o600)
}

// forwarded is where a person reaches Gitea after `kubectl port-forward`.
const forwarded = "http://127.0.0.1:3000"

// Outside writes a configuration for a person at this machine, with the reader's
// token, and gives its path.
func (d Demo) Outside(ctx context.Context) (path string, err error) {
	text, err := os.ReadFile(d.Config())
	if err != nil {
		return "", err
	}
	token, err := d.Secret(ctx, "gitea", platform.ReaderSecret, "token")
	if err != nil {
		return "", err
	}
	path = filepath.Join(d.Dir, "outside.yaml")
	const file = "reader-token"
	if err := os.WriteFile(filepath.Join(d.Dir, file), []byte(token.Reveal()), 0o600); err != nil {
		return "", err
	}
	inside := "url: " + platform.GiteaURL + "\n"
	if !bytes.Contains(text, []byte(inside)) {
		return "", fmt.Errorf("%s does not name Gitea at %s", d.Config(), platform.GiteaURL)
	}
	text = bytes.Replace(text, []byte(inside), []byte("url: "+forwarded+"\n  reader: {tokenFile: "+file+"}\n"), 1)
	return path, os.WriteFile(path, text, 0o600)
}
