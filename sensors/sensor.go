// Package sensors generates the Sensor that turns a push to the source branch
// into a Workflow (adr-0095 §1.b).
package sensors

import (
	"encoding/json"
	"fmt"
	"regexp"

	events "github.com/argoproj/argo-events/pkg/apis/events/v1alpha1"
	"k8s.io/apimachinery/pkg/types"

	"fabrique/eventsources"
	"fabrique/manifests/zone"
	"fabrique/steps/config"
	"fabrique/workflows"
	"fabrique/workflows/run"
)

// Name of the Sensor.
const Name = "gitea-push"

// Objects gives the Sensor. Of a delivery it uses "after" and nothing else: the
// Workflow finds out by itself what is due. The Workflow's name is made of it, so
// that a repeated delivery finds the Workflow there, patches nothing and so counts
// as a success.
func Objects(c config.Config) ([]any, error) {
	const dependency = "push"
	resource, err := json.Marshal(map[string]any{
		"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow",
		"metadata": map[string]any{
			"name": "push-", "namespace": zone.Workflows,
			"labels": map[string]string{zone.PartOf: zone.Fabrique, run.CauseLabel: run.Push},
		},
		"spec": map[string]any{
			"workflowTemplateRef": map[string]string{"name": workflows.TemplateName},
			"arguments":           map[string]any{"parameters": []map[string]string{{"name": workflows.RevisionParameter, "value": ""}}},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("generating the Sensor: %w", err)
	}
	after := &events.TriggerParameterSource{DependencyName: dependency, DataKey: "body.after"}
	// A name, and a label, has at most 63 characters; an id of SHA-256 has 64.
	name := &events.TriggerParameterSource{DependencyName: dependency, DataTemplate: "{{ .Input.body.after | trunc 40 }}"}
	second, factor := events.FromString("1s"), events.NewAmount("2")
	return []any{&events.Sensor{
		TypeMeta: zone.Type("argoproj.io/v1alpha1", "Sensor"), ObjectMeta: zone.Meta(zone.Events, Name),
		Spec: events.SensorSpec{
			Template: &events.Template{
				ServiceAccountName: zone.SensorAccount,
				SecurityContext:    zone.PodSecurity(),
				Container:          &events.Container{SecurityContext: zone.ContainerSecurity()},
			},
			Dependencies: []events.EventDependency{{
				Name: dependency, EventSourceName: eventsources.Name, EventName: eventsources.Event,
				Filters: &events.EventDependencyFilter{
					DataLogicalOperator: events.AndLogicalOperator,
					// Values are regular expressions that match anywhere: each is anchored.
					Data: []events.DataFilter{
						{Path: "body.ref", Type: events.JSONTypeString, Value: []string{"^refs/heads/" + regexp.QuoteMeta(string(c.Source.Branch)) + "$"}},
						{Path: "body.after", Type: events.JSONTypeString, Value: []string{"^([0-9a-f]{40}|[0-9a-f]{64})$"}},
						// All zeros: the branch was deleted.
						{Path: "body.after", Type: events.JSONTypeString, Comparator: events.NotEqualTo, Value: []string{"^0+$"}},
					},
				},
			}},
			Triggers: []events.Trigger{{
				AtLeastOnce:   true,
				RetryStrategy: &events.Backoff{Steps: 8, Duration: &second, Factor: &factor},
				Template: &events.TriggerTemplate{
					Name: "workflow",
					K8s: &events.StandardK8STrigger{
						Operation: events.Patch, PatchStrategy: types.MergePatchType,
						Source: &events.ArtifactLocation{Resource: &events.K8SResource{Value: resource}},
						Parameters: []events.TriggerParameter{
							{Src: name, Dest: "metadata.name", Operation: events.TriggerParameterOpAppend},
							{Src: after, Dest: "spec.arguments.parameters.0.value"},
						},
					},
				},
				// An event that brings about no Workflow shows in the Sensor's log; the
				// CronWorkflow builds its commit nevertheless.
				DlqTrigger: &events.Trigger{AtLeastOnce: true, Template: &events.TriggerTemplate{Name: "lost", Log: &events.LogTrigger{IntervalSeconds: 1}}},
			}},
		},
	}}, nil
}
