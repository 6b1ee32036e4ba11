package cases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"

	"fabrique/bench/action"
	"fabrique/manifests/admission"
	"fabrique/manifests/buildkitd"
	"fabrique/manifests/zone"
	"fabrique/workflows"
)

// securityCases are what the API server lets into the zones.
var securityCases = []Case{
	{Name: "workflow-restrictions", Title: "nothing runs in the Workflows' namespace but the factory's own template, unpatched", Run: restrictions},
	{Name: "pod-security", Title: "every pod meets the level restricted, but for the builder's listed deviations", Run: podSecurity},
	{Name: "deviations-needed", Title: "without any one of the builder's deviations it does not come up, or runs no instruction", Run: deviationsNeeded},
}

// restrictions tries Workflows that are not the factory's. The API server checks them
// and stores none (dry run); without the policy it takes each.
func restrictions(ctx context.Context, w *World) (saw string, err error) {
	const own = `"workflowTemplateRef":{"name":"` + workflows.TemplateName + `"}`
	with := func(more string) string { return `{` + own + `,` + more + `}` }
	// The status is after the specification, as in "},"status":{…".
	const stored = `},"status":{"storedWorkflowTemplateSpec":{"entrypoint":"x","templates":[{"name":"x","container":{"image":"registry:80/x","command":["/x"]}}]}`
	refused := []struct{ name, spec string }{
		{"a template in its status", `{` + own + stored + `}`},
		{"another step's template, in its status", `{` + own + `},"status":{"storedTemplates":{"namespaced/` + workflows.TemplateName + `/build":{"name":"build","container":{"image":"registry:80/x","command":["/x"]}}}}`},
		{"steps that were done, in its status", `{` + own + `},"status":{"nodes":{}}`},
		{"an expression for an argument", with(`"arguments":{"parameters":[{"name":"revision","value":"{{=1+41}}"}]}`)},
		{"an app of no name", with(`"arguments":{"parameters":[{"name":"app","value":"{{workflow.name}}"}]}`)},
		{"templates of its own", `{"entrypoint":"x","templates":[{"name":"x","container":{"image":"registry:80/x","command":["/x"]}}]}`},
		{"templates beside the reference", with(`"templates":[{"name":"x","container":{"image":"registry:80/x","command":["/x"]}}]`)},
		{"another template", `{"workflowTemplateRef":{"name":"other"}}`},
		{"a template of the whole cluster", `{"workflowTemplateRef":{"name":"` + workflows.TemplateName + `","clusterScope":true}}`},
		{"no template", `{"entrypoint":"main"}`},
		{"a patch of its pods", with(`"podSpecPatch":"{\"hostNetwork\":true}"`)},
		{"another account", with(`"serviceAccountName":"executor"`)},
		{"another executor", with(`"executor":{"serviceAccountName":"reporter"}`)},
		{"a mounted token", with(`"automountServiceAccountToken":true`)},
		{"another entrypoint", with(`"entrypoint":"publish"`)},
		{"an exit handler", with(`"onExit":"publish"`)},
		{"hooks", with(`"hooks":{"running":{"template":"publish","expression":"true"}}`)},
		{"volumes", with(`"volumes":[{"name":"x","secret":{"secretName":"gitea-writer"}}]`)},
		{"the node's network", with(`"hostNetwork":true`)},
		{"a security context", with(`"securityContext":{"runAsUser":0}`)},
		{"another node", with(`"nodeSelector":{"kubernetes.io/os":"linux"}`)},
		{"tolerations", with(`"tolerations":[{"operator":"Exists"}]`)},
		{"labels for its pods", with(`"podMetadata":{"labels":{"fabrique/step":"publish"}}`)},
		{"another argument", with(`"arguments":{"parameters":[{"name":"image","value":"x"}]}`)},
		{"an argument from elsewhere", with(`"arguments":{"parameters":[{"name":"app","valueFrom":{"configMapKeyRef":{"name":"x","key":"y"}}}]}`)},
		{"an artifact", with(`"arguments":{"artifacts":[{"name":"x","raw":{"data":"y"}}]}`)},
	}
	allowed := []struct{ name, spec string }{
		{"only the reference", `{` + own + `}`},
		{"a time in its status, as Go clients send it", `{` + own + `},"status":{"startedAt":null,"finishedAt":null}`},
		{"both arguments", with(`"arguments":{"parameters":[{"name":"revision","value":""},{"name":"app","value":"hello"}]}`)},
		{"one that is stopped", with(`"shutdown":"Stop"`)},
	}
	try := func(spec string) error {
		_, err := w.Kubectl.Run(ctx, []byte(`{"apiVersion":"argoproj.io/v1alpha1","kind":"Workflow","metadata":{"generateName":"try-","namespace":"`+zone.Workflows+`"},"spec":`+spec+`}`),
			"create", "--dry-run=server", "-f", "-")
		return err
	}
	for _, c := range refused {
		if err := try(c.spec); err == nil || !strings.Contains(err.Error(), admission.Name) {
			return "", fmt.Errorf("a Workflow with %s should be refused by %s; the API server says: %w", c.name, admission.Name, err)
		}
	}
	for _, c := range allowed {
		if err := try(c.spec); err != nil {
			return "", fmt.Errorf("a Workflow with %s should be taken: %w", c.name, err)
		}
	}
	// One that is there cannot be altered either.
	name, err := w.byHand(ctx, map[string]string{workflows.AppParameter: first})
	if err != nil {
		return "", err
	}
	if _, err := w.Kubectl.Run(ctx, nil, "patch", "workflow", "-n", zone.Workflows, name, "--type=merge", "--dry-run=server", "-p", `{"spec":{"podSpecPatch":"{}"}}`); err == nil || !strings.Contains(err.Error(), admission.Name) {
		return "", fmt.Errorf("a Workflow that runs should not be patched; the API server says: %w", err)
	}
	if _, err := w.Kubectl.Run(ctx, nil, "patch", "workflow", "-n", zone.Workflows, name, "--type=merge", "--dry-run=server", "-p", `{"status":{"storedWorkflowTemplateSpec":{"entrypoint":"x"}}}`); err == nil || !strings.Contains(err.Error(), admission.Name) {
		return "", fmt.Errorf("the template that a Workflow runs by should not be changed; the API server says: %w", err)
	}
	if _, err := w.succeeded(ctx, name, limit); err != nil {
		return "", err
	}

	// Without the lock each of them goes through.
	if _, err := w.Kubectl.Run(ctx, nil, "delete", "validatingadmissionpolicybinding", admission.Name); err != nil {
		return "", err
	}
	defer finally(ctx, &err, func(ctx context.Context) error {
		_, err := w.fabrique(ctx, "apply", "--kubeconfig", w.Kubectl.Kubeconfig)
		return err
	})
	for _, c := range refused {
		// The API server learns of a removed binding after a while.
		if err := action.Poll(ctx, time.Minute, func(context.Context) error { return try(c.spec) }); err != nil {
			return "", fmt.Errorf("a Workflow with %s should be taken once the policy does not hold: %w", c.name, err)
		}
	}
	return fmt.Sprintf("%d ways refused, %d taken, and each of the refused is taken without the policy", len(refused)+2, len(allowed)), nil
}

// podSecurity holds the pods that run against what their specification and the list of
// deviations beside the builder say.
func podSecurity(ctx context.Context, w *World) (saw string, err error) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return "", err
	}
	// Workflow pods too.
	if _, err := w.byHand(ctx, nil); err != nil {
		return "", err
	}
	seen, problems := map[string]int{}, []string{}
	look := func(ctx context.Context) error {
		for _, namespace := range []string{zone.Workflows, zone.Events, zone.Builder, zone.Egress} {
			var pods struct{ Items []corev1.Pod }
			if err := w.Kubectl.Get(ctx, &pods, "pods", "-n", namespace); err != nil {
				return err
			}
			for _, pod := range pods.Items {
				seen[namespace]++
				spec := pod.Spec
				spec.Containers = slices.DeleteFunc(slices.Clone(spec.Containers), func(c corev1.Container) bool {
					return namespace == zone.Builder && c.Name == "buildkitd"
				})
				for _, r := range evaluator.EvaluatePod(psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}, &metav1.ObjectMeta{}, &spec) {
					if !r.Allowed {
						problems = append(problems, fmt.Sprintf("%s/%s: %s: %s", namespace, pod.Name, r.ForbiddenReason, r.ForbiddenDetail))
					}
				}
			}
		}
		if seen[zone.Workflows] == 0 {
			return errors.New("no pod of a Workflow is there")
		}
		return nil
	}
	if err := action.Poll(ctx, time.Minute, look); err != nil {
		return "", err
	}
	if len(problems) > 0 {
		return "", fmt.Errorf("these do not meet the level restricted: %s", strings.Join(problems, "; "))
	}

	listed, err := w.deviations(ctx)
	if err != nil {
		return "", err
	}
	var daemons struct{ Items []corev1.Pod }
	if err := w.Kubectl.Get(ctx, &daemons, "pods", "-n", zone.Builder, "-l", "app.kubernetes.io/name=buildkitd"); err != nil {
		return "", err
	}
	if len(daemons.Items) == 0 {
		return "", errors.New("there is no buildkitd")
	}
	for _, pod := range daemons.Items {
		i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == "buildkitd" })
		if i < 0 {
			return "", fmt.Errorf("%s has no container buildkitd", pod.Name)
		}
		if live := buildkitd.Differences(pod.Spec, pod.Spec.Containers[i].SecurityContext); !slices.Equal(live, listed) {
			return "", fmt.Errorf("%s deviates by %q, but listed are %q", pod.Name, live, listed)
		}
	}
	// The label is what makes the API server refuse a pod that does not.
	var namespaces struct{ Items []corev1.Namespace }
	if err := w.Kubectl.Get(ctx, &namespaces, "namespaces", "-l", zone.PartOf+"="+zone.Fabrique); err != nil {
		return "", err
	}
	for _, n := range namespaces.Items {
		want := "restricted"
		if n.Name == zone.Builder {
			want = "privileged"
		}
		if got := n.Labels["pod-security.kubernetes.io/enforce"]; got != want {
			return "", fmt.Errorf("the namespace %s enforces %q, want %q", n.Name, got, want)
		}
	}
	return fmt.Sprintf("pods looked at: %v; buildkitd deviates by the %d settings that are listed", seen, len(listed)), nil
}

// deviations gives the settings of the list beside the builder, sorted.
func (w *World) deviations(ctx context.Context) ([]string, error) {
	var list corev1.ConfigMap
	if err := w.Kubectl.Get(ctx, &list, "configmap", "-n", zone.Builder, buildkitd.DeviationsName); err != nil {
		return nil, err
	}
	text, err := yaml.YAMLToJSON([]byte(list.Data[buildkitd.DeviationsKey]))
	if err != nil {
		return nil, fmt.Errorf("reading the list of deviations: %w", err)
	}
	var all []buildkitd.Deviation
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("reading the list of deviations: %w", err)
	}
	var settings []string
	for _, d := range all {
		settings = append(settings, d.Setting)
	}
	slices.Sort(settings)
	return settings, nil
}
