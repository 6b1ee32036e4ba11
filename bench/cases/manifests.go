package cases

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"fabrique/bench/tools"
	"fabrique/manifests/zone"
	"fabrique/workflows"
)

// manifests proves what fabrique render and apply promise against the cluster: the
// API server, with the real CRDs, and Argo's lint take every file; a second apply
// changes nothing; what somebody altered comes back; what the factory does not need
// any more goes, and a dry run only says so.
func manifests(ctx context.Context, w *World) (saw string, err error) {
	dir, err := os.MkdirTemp("", "fabrique-manifests-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if _, err := w.fabrique(ctx, "render", "-o", dir); err != nil {
		return "", err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "*.yaml"))
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("fabrique render wrote no file: %w", err)
	}
	objects := 0
	for _, file := range files {
		out, err := w.Kubectl.Run(ctx, nil, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", file)
		if err != nil {
			return "", fmt.Errorf("the API server refuses %s: %w", filepath.Base(file), err)
		}
		objects += strings.Count(out, "serverside-applied")
	}
	argo, err := tools.ArgoWorkflows.Ensure(ctx, w.Out, false)
	if err != nil {
		return "", err
	}
	if out, err := exec.CommandContext(ctx, filepath.Join(argo, "argo"), "lint", "--offline", filepath.Join(dir, "workflows")).CombinedOutput(); err != nil {
		return "", fmt.Errorf("argo lint: %w\n%s", err, out)
	}

	if err := w.applies(ctx, "unchanged"); err != nil {
		return "", err
	}
	if _, err := w.Kubectl.Run(ctx, nil, "patch", "cronworkflow", workflows.CronName, "-n", zone.Workflows, "--type=merge", "-p", `{"spec":{"schedules":["0 0 1 1 *"]}}`); err != nil {
		return "", err
	}
	if _, err := w.Kubectl.Run(ctx, nil, "create", "configmap", "left-over", "-n", zone.Workflows); err != nil {
		return "", err
	}
	if _, err := w.Kubectl.Run(ctx, nil, "label", "configmap", "left-over", "-n", zone.Workflows, zone.ManagedBy+"="+zone.Fabrique); err != nil {
		return "", err
	}
	wanted := []string{"updated   CronWorkflow " + zone.Workflows + "/" + workflows.CronName, "removed   ConfigMap " + zone.Workflows + "/left-over"}
	if err := w.applies(ctx, append(wanted, "2 objects would change")...); err != nil {
		return "", err
	}
	if err := w.applies(ctx, wanted...); err != nil {
		return "", err
	}
	if err := w.applies(ctx, "unchanged"); err != nil {
		return "", err
	}
	if _, err := w.Kubectl.Run(ctx, nil, "get", "configmap", "left-over", "-n", zone.Workflows); err == nil {
		return "", errors.New("what the factory does not need any more is still there")
	}
	return fmt.Sprintf("%d objects pass the API server and argo lint; applied twice: unchanged; what was altered came back, what was left over went", objects), nil
}

// applies runs fabrique apply and wants these lines and no other change. When they
// speak of what would change it is a dry run.
func (w *World) applies(ctx context.Context, lines ...string) error {
	args := []string{"apply", "--kubeconfig", w.Kubectl.Kubeconfig}
	if strings.HasSuffix(lines[len(lines)-1], "would change") {
		args = append(args, "--dry-run")
	}
	out, err := w.fabrique(ctx, args...)
	if err != nil {
		return err
	}
	var got []string
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		if !strings.HasPrefix(line, "unchanged ") {
			got = append(got, line)
		}
	}
	if strings.Join(got, "\n") != strings.Join(lines, "\n") {
		return fmt.Errorf("fabrique %s says\n%s\nwant\n%s", strings.Join(args, " "), strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
	return nil
}

// fabrique runs the program with the factory's configuration and gives what it
// writes to standard output.
func (w *World) fabrique(ctx context.Context, args ...string) (string, error) {
	return w.fabriqueWith(ctx, w.Config(), args...)
}

// fabriqueWith is fabrique with another configuration.
func (w *World) fabriqueWith(ctx context.Context, config string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, w.Fabrique, append(args, "--config", config)...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("running fabrique %s: %w\n%s", strings.Join(args, " "), err, said.Bytes())
	}
	return string(out), nil
}
