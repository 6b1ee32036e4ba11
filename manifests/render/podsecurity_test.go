package render

import (
	"encoding/json"
	"slices"
	"testing"

	argo "github.com/argoproj/argo-workflows/v3/pkg/apis/workflow/v1alpha1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// TestPodSecurity holds every pod of the factory against the level restricted, by
// Kubernetes' own evaluation. Only the daemon's container deviates; that it is root of its
// own user namespace, the level allows.
func TestPodSecurity(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := Objects(configured(t))
	if err != nil {
		t.Fatal(err)
	}
	refused := map[string][]string{}
	evaluate := func(name string, spec corev1.PodSpec) {
		for _, r := range evaluator.EvaluatePod(api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}, &metav1.ObjectMeta{}, &spec) {
			if !r.Allowed {
				refused[name] = append(refused[name], r.ForbiddenReason)
			}
		}
		slices.Sort(refused[name])
	}
	pods := 0
	for _, o := range objects {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		kind, _ := o["kind"].(string)
		switch kind {
		case "StatefulSet", "Deployment":
			var workload struct {
				Metadata metav1.ObjectMeta
				Spec     struct{ Template corev1.PodTemplateSpec }
			}
			if err := json.Unmarshal(text, &workload); err != nil {
				t.Fatal(err)
			}
			evaluate(workload.Metadata.Name, workload.Spec.Template.Spec)
			pods++
			// Everything but the daemon itself.
			spec := workload.Spec.Template.Spec
			spec.Containers = slices.DeleteFunc(slices.Clone(spec.Containers), func(c corev1.Container) bool { return c.Name == "buildkitd" })
			evaluate(workload.Metadata.Name+" beside the daemon", spec)
		case "WorkflowTemplate":
			var template argo.WorkflowTemplate
			if err := json.Unmarshal(text, &template); err != nil {
				t.Fatal(err)
			}
			for _, step := range template.Spec.Templates {
				if step.Container == nil {
					continue
				}
				spec := corev1.PodSpec{SecurityContext: template.Spec.SecurityContext, Volumes: step.Volumes, Containers: []corev1.Container{*step.Container}}
				for _, c := range step.InitContainers {
					spec.InitContainers = append(spec.InitContainers, c.Container)
				}
				evaluate(step.Name, spec)
				pods++
			}
		}
	}
	if pods < 8 {
		t.Errorf("only %d pods were looked at", pods)
	}
	want := map[string][]string{"buildkitd": {
		"allowPrivilegeEscalation != false", "forbidden AppArmor profile", "seccompProfile", "unrestricted capabilities",
	}}
	if diff := cmp.Diff(want, refused, cmp.Transformer("present", func(m map[string][]string) map[string][]string {
		some := map[string][]string{}
		for name, reasons := range m {
			if len(reasons) > 0 {
				some[name] = reasons
			}
		}
		return some
	})); diff != "" {
		t.Error(diff)
	}
}
