// Package admission generates what the API server checks about the Workflows of the
// factory's namespace: nothing runs there but the factory's own template. Whoever may
// create a Workflow, as the Sensor may, else chooses images, Secrets to mount and the
// pods' specification.
//
// Argo's own setting for that, templateReferencing: Strict, holds for all namespaces of
// a controller and lets a Workflow that names a template patch its pods; this does not.
package admission

import (
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fabrique/manifests/zone"
	"fabrique/workflows"
)

// Name is that of the policy and its binding.
const Name = "fabrique-workflows"

// fields are those that a Workflow may give: which template, with what arguments, and
// what argo stop, terminate and suspend set.
var fields = []string{"arguments", "shutdown", "suspend", "workflowTemplateRef"}

// Objects gives the policy and what makes it hold in the namespace (Kubernetes 1.30).
func Objects() []any {
	fail, equivalent := admissionv1.Fail, admissionv1.Equivalent
	rules := func(resource string) []admissionv1.NamedRuleWithOperations {
		return []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
			Rule:       admissionv1.Rule{APIGroups: []string{"argoproj.io"}, APIVersions: []string{"*"}, Resources: []string{resource}},
		}}}
	}
	return []any{
		&admissionv1.ValidatingAdmissionPolicy{
			TypeMeta: zone.Type("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"), ObjectMeta: zone.Meta("", Name),
			Spec: admissionv1.ValidatingAdmissionPolicySpec{
				FailurePolicy:    &fail,
				MatchConstraints: &admissionv1.MatchResources{ResourceRules: rules("workflows"), MatchPolicy: &equivalent},
				Validations: []admissionv1.Validation{
					{
						Expression: fmt.Sprintf("has(object.spec.workflowTemplateRef) && has(object.spec.workflowTemplateRef.name) && object.spec.workflowTemplateRef.name == %q && object.spec.workflowTemplateRef.all(field, field == \"name\")", workflows.TemplateName),
						Message:    "only the factory's template runs here: give workflowTemplateRef {name: " + workflows.TemplateName + "} and no more of it",
					},
					{
						Expression: fmt.Sprintf(`object.spec.all(field, field in ["%s"])`, strings.Join(fields, `", "`)),
						Message:    "a Workflow gives here " + strings.Join(fields, ", ") + " and nothing else: no templates, no podSpecPatch, no serviceAccountName; the rest is the factory's template's",
					},
					{
						Expression: fmt.Sprintf(`!has(object.spec.arguments) || object.spec.arguments.all(field, field == "parameters") && (!has(object.spec.arguments.parameters) || object.spec.arguments.parameters.all(p, p.name in [%q, %q] && !has(p.valueFrom)))`, workflows.RevisionParameter, workflows.AppParameter),
						Message:    "the arguments are " + workflows.RevisionParameter + " and " + workflows.AppParameter + ", each a value",
					},
				},
			},
		},
		&admissionv1.ValidatingAdmissionPolicyBinding{
			TypeMeta: zone.Type("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"), ObjectMeta: zone.Meta("", Name),
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
				MatchResources: &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{
					MatchLabels: map[string]string{corev1.LabelMetadataName: zone.Workflows},
				}},
			},
		},
	}
}
