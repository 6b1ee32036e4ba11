package cases

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"fabrique/manifests/zone"
	"fabrique/workflows"
)

// byHand starts a Workflow as `argo submit --from workflowtemplate/fabrique` does,
// with these parameters, and gives its name.
func (w *World) byHand(ctx context.Context, parameters map[string]string) (name string, err error) {
	given := []map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		given = append(given, map[string]string{"name": key, "value": parameters[key]})
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow",
		"metadata": map[string]any{"generateName": "by-hand-", "namespace": zone.Workflows},
		"spec": map[string]any{
			"workflowTemplateRef": map[string]string{"name": workflows.TemplateName},
			"arguments":           map[string]any{"parameters": given},
		},
	})
	if err != nil {
		return "", err
	}
	return w.Kubectl.Run(ctx, text, "create", "-f", "-", "-o", "jsonpath={.metadata.name}")
}
