package cases

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"fabrique/bench/tools"
	"fabrique/manifests/zone"
	"fabrique/workflows"
)

// byHand starts a Workflow with these parameters by argo submit, as a person does, and
// gives its name.
func (w *World) byHand(ctx context.Context, parameters map[string]string) (name string, err error) {
	dir, err := tools.ArgoWorkflows.Ensure(ctx, w.Out, false)
	if err != nil {
		return "", err
	}
	args := []string{"submit", "--kubeconfig", w.Kubectl.Kubeconfig, "-n", zone.Workflows, "--from", "workflowtemplate/" + workflows.TemplateName,
		"--generate-name", "by-hand-", "--output", "name"}
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		args = append(args, "--parameter", key+"="+parameters[key])
	}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "argo"), args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("argo %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(said.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}
