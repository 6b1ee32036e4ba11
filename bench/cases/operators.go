package cases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"go.yaml.in/yaml/v3"

	"fabrique/bench/images"
	"fabrique/bench/platform"
	"fabrique/bench/tools"
)

// operators proves what fabrique bundle writes: the cluster's API server takes every
// file, strictly; a second run changes nothing; verify is content. Trivy finds in the
// roles what the allow-list says and nothing more, and with the list nothing at all.
// The images are small ones in a registry of the case's own, as nothing is started.
func operators(ctx context.Context, w *World) (saw string, err error) {
	repository, err := os.MkdirTemp("", "fabrique-bundle-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(repository)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	defer server.Close()
	go server.Serve(listener)

	text, err := os.ReadFile(w.Config())
	if err != nil {
		return "", err
	}
	config := filepath.Join(repository, "fabrique.yaml")
	text = []byte(strings.NewReplacer("registry:80\n", listener.Addr().String()+"\n", `version: "`+platform.BusVersion+`"`, "version: latest").Replace(string(text)))
	if err := os.WriteFile(config, text, 0o600); err != nil {
		return "", err
	}
	out, err := w.fabriqueWith(ctx, config, "bundle", "images", "--json")
	if err != nil {
		return "", err
	}
	var pairs []struct{ Source, Mirror string }
	if err := json.Unmarshal([]byte(out), &pairs); err != nil {
		return "", err
	}
	for i, pair := range pairs {
		tag, err := name.NewTag(pair.Mirror, name.Insecure)
		if err != nil {
			return "", err
		}
		index, err := images.SmallIndex(int64(i))
		if err != nil {
			return "", err
		}
		if err := remote.WriteIndex(tag, index, remote.WithContext(ctx)); err != nil {
			return "", err
		}
	}

	const folder = "platform/bundles"
	dir := filepath.Join(repository, folder)
	bundle := []string{"bundle", "-o", dir, "--path", folder}
	if _, err := w.fabriqueWith(ctx, config, bundle...); err != nil {
		return "", err
	}
	again, err := w.fabriqueWith(ctx, config, bundle...)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(again) {
		if !strings.HasPrefix(line, "unchanged ") {
			return "", fmt.Errorf("a second run says %q", line)
		}
	}
	if _, err := w.fabriqueWith(ctx, config, "bundle", "verify", dir); err != nil {
		return "", err
	}

	files, err := filepath.Glob(filepath.Join(dir, "*", "*.yaml"))
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("fabrique bundle wrote no file: %w", err)
	}
	objects := 0
	for _, file := range files {
		out, err := w.Kubectl.Run(ctx, nil, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", file)
		if err != nil {
			return "", fmt.Errorf("the API server refuses %s: %w", filepath.Base(file), err)
		}
		objects += strings.Count(out, "serverside-applied")
	}
	allowed, err := allowedRights(ctx, w, repository, dir)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d objects in %d files pass the API server; trivy finds the %d allowed rights of the roles and no other", objects, len(files), allowed), nil
}

// allowedRights compares the allow-list for trivy with what trivy finds in the files of
// roles, and gives how many entries it has.
func allowedRights(ctx context.Context, w *World, repository, dir string) (int, error) {
	list := filepath.Join(dir, ".trivyignore.yaml.example")
	text, err := os.ReadFile(list)
	if err != nil {
		return 0, err
	}
	var entries struct {
		Misconfigurations []struct {
			ID    string
			Paths []string
		}
	}
	if err := yaml.Unmarshal(text, &entries); err != nil {
		return 0, err
	}
	var allowed []string
	for _, e := range entries.Misconfigurations {
		allowed = append(allowed, strings.TrimPrefix(e.ID, "AVD-")+" "+e.Paths[0])
	}
	slices.Sort(allowed)
	found, err := scan(ctx, w, repository)
	if err != nil {
		return 0, err
	}
	if !slices.Equal(found, allowed) {
		return 0, fmt.Errorf("trivy finds in the roles\n%s\nand the allow-list has\n%s", strings.Join(found, "\n"), strings.Join(allowed, "\n"))
	}
	if found, err = scan(ctx, w, repository, "--ignorefile", list); err != nil {
		return 0, err
	}
	if len(found) > 0 {
		return 0, fmt.Errorf("with the allow-list trivy still finds\n%s", strings.Join(found, "\n"))
	}
	if len(allowed) == 0 {
		return 0, errors.New("the allow-list is empty")
	}
	return len(allowed), nil
}

// scan gives what trivy, with the checks that it is compiled with, finds in the files of
// roles, each as "id file".
func scan(ctx context.Context, w *World, repository string, args ...string) ([]string, error) {
	trivy, err := tools.Trivy.Ensure(ctx, w.Out, false)
	if err != nil {
		return nil, err
	}
	own, err := os.MkdirTemp("", "fabrique-trivy-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(own)
	cmd := exec.CommandContext(ctx, filepath.Join(trivy, "trivy"),
		append([]string{"config", "--quiet", "--skip-check-update", "--skip-version-check", "--disable-telemetry", "--cache-dir", own, "--format", "json", "."}, args...)...)
	cmd.Dir = repository
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("running %s: %w", cmd, err)
	}
	var report struct {
		Results []struct {
			Target            string
			Misconfigurations []struct{ ID string }
		}
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return nil, err
	}
	var found []string
	for _, r := range report.Results {
		if filepath.Base(r.Target) == "install.yaml" {
			continue // no role is in it
		}
		for _, m := range r.Misconfigurations {
			found = append(found, m.ID+" "+r.Target)
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}
