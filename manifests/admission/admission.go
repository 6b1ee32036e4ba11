// Package admission generates what the API server checks about the Workflows of the
// factory's namespace: nothing runs there but the factory's own template. Whoever may
// create a Workflow, as the Sensor may, else chooses images, Secrets to mount and the
// pods' specification.
//
// What a Workflow carries as its status counts as well: Argo keeps the templates that it
// runs by there, and takes what it finds for its own. Only its controller writes it; argo
// submit puts the factory's templates there, as they are, and nobody may put others.
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
	"fabrique/steps/config"
	"fabrique/workflows"
)

// Name is that of the policy and its binding.
const Name = "fabrique-workflows"

// Argo evaluates expressions in arguments, so they are checked before it sees them.
const (
	revisionForm = "^([0-9a-f]{40}|[0-9a-f]{64})?$"
	appForm      = "^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$"
)

// fields are those that a Workflow may give: which template, with what arguments, and
// what argo stop, terminate and suspend set.
var fields = []string{"arguments", "shutdown", "suspend", "workflowTemplateRef"}

// Objects gives the policy and what makes it hold in the namespace (Kubernetes 1.30).
func Objects(c config.Config) []any {
	fail, equivalent, deny := admissionv1.Fail, admissionv1.Equivalent, admissionv1.DenyAction
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
				ParamKind:        &admissionv1.ParamKind{APIVersion: "argoproj.io/v1alpha1", Kind: "WorkflowTemplate"},
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
						Expression: fmt.Sprintf(`!has(object.spec.arguments) || object.spec.arguments.all(field, field == "parameters") && (!has(object.spec.arguments.parameters) || object.spec.arguments.parameters.all(p, !has(p.valueFrom) && has(p.value) && (p.name == %q && p.value.matches(%q) || p.name == %q && p.value.matches(%q))))`,
							workflows.RevisionParameter, revisionForm, workflows.AppParameter, appForm),
						Message: "the arguments are " + workflows.RevisionParameter + ", a full commit id, and " + workflows.AppParameter + ", an app's name; either may be empty",
					},
					{
						Expression: fmt.Sprintf(`request.userInfo.username == %q || (request.operation == "CREATE"
  ? !has(object.status) || object.status.all(field, field in ["startedAt", "finishedAt", "storedTemplates"]) && (
    !has(object.status.storedTemplates) || object.status.storedTemplates.all(key,
      params.spec.templates.exists(t, key == "namespaced/" + params.metadata.name + "/" + t.name && object.status.storedTemplates[key] == t)))
  : has(object.status) == has(oldObject.status) && (!has(object.status) || object.status == oldObject.status))`, c.Cluster.WorkflowController),
						Message: "the status of a Workflow is its controller's to write (cluster.workflowController names it), and argo submit puts the template as it is there; to run one again, submit a new one",
					},
				},
			},
		},
		&admissionv1.ValidatingAdmissionPolicyBinding{
			TypeMeta: zone.Type("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"), ObjectMeta: zone.Meta("", Name),
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
				// Found in the namespace of the Workflow.
				ParamRef: &admissionv1.ParamRef{Name: workflows.TemplateName, ParameterNotFoundAction: &deny},
				MatchResources: &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{
					MatchLabels: map[string]string{corev1.LabelMetadataName: zone.Workflows},
				}},
			},
		},
	}
}
