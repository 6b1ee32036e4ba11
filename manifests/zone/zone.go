// Package zone generates the namespaces that keep the factory's parts apart
// (design: zones), with their Pod Security level, quota, service accounts and
// roles, and holds what all generators agree on: names, labels, and the security
// context of pods.
package zone

import (
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fabrique/steps/config"
)

// The namespaces.
const (
	Workflows = "fabrique"        // Workflow pods
	Events    = "fabrique-events" // EventBus, EventSource, Sensor
	Builder   = "fabrique-build"  // buildkitd, which runs strangers' Dockerfiles
	Egress    = "fabrique-egress" // the gateway that lets builds out
)

// The service accounts. None of them has its token mounted in a pod but the
// executor, which Argo mounts for its own container only, the Sensor's, the
// reporter's, and that of what keeps the gateway's addresses.
const (
	WorkflowAccount = "workflow" // of the steps; may do nothing
	ExecutorAccount = "executor" // of Argo's container beside a step
	ReporterAccount = "reporter" // of the steps that report on a Workflow; reads Workflows
	SensorAccount   = "sensor"   // creates Workflows
	BusAccount      = "bus"      // of EventBus and EventSource; may do nothing
	EgressAccount   = "egress"   // of the gateway; may do nothing
	// AddressesAccount changes one NetworkPolicy.
	AddressesAccount = EgressAddresses
)

// The Secrets that the factory reads; fabrique seed makes them, fabrique apply does not.
const (
	ReaderSecret  = "gitea-reader"  // in Workflows: token
	WriterSecret  = "gitea-writer"  // in Workflows: token
	StatusSecret  = "gitea-status"  // in Workflows: token
	WebhookSecret = "gitea-webhook" // in Events: secret
	EgressSecret  = "egress-key"    // in Workflows and in Egress, the same: key
)

// EgressKey is the name in [EgressSecret].
const EgressKey = "key"

// TokenKey and WebhookKey are the names in the others.
const (
	TokenKey   = "token"
	WebhookKey = "secret"
)

// Labels that everything of the factory carries; [ManagedBy] tells what "fabrique
// apply" may remove.
const (
	ManagedBy = "app.kubernetes.io/managed-by"
	PartOf    = "app.kubernetes.io/part-of"
	Fabrique  = "fabrique"
)

// What is in [Egress].
const (
	EgressGateway   = "egress-gateway"
	EgressAddresses = "egress-addresses"  // keeps the next one
	AddressesPolicy = "gateway-addresses" // the NetworkPolicy with the addresses of the listed names
)

// Labels are those of the pods of that name.
func Labels(name string) map[string]string {
	return map[string]string{"app.kubernetes.io/name": name, PartOf: Fabrique}
}

// StepLabel tells of a Workflow pod which step it is; policies go by it.
const StepLabel = "fabrique/step"

// Meta gives the metadata of an object; namespace is empty for a Namespace.
func Meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{ManagedBy: Fabrique, PartOf: Fabrique}}
}

// Type gives an object's kind.
func Type(apiVersion, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: apiVersion, Kind: kind}
}

// User is who every step runs as; the images have no other user either.
const User int64 = 65532

// PodSecurity gives the security context of a pod that meets the level restricted
// (kubernetes.io/docs/concepts/security/pod-security-standards).
func PodSecurity() *corev1.PodSecurityContext {
	yes, user := true, User
	return &corev1.PodSecurityContext{
		RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user, FSGroup: &user,
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// ContainerSecurity gives the security context of a container that meets the
// level restricted and writes only into its volumes.
func ContainerSecurity() *corev1.SecurityContext {
	yes, no := true, false
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, RunAsNonRoot: &yes,
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// Objects gives the namespaces and what is in them before anything runs.
func Objects(c config.Config) []any {
	var objects []any
	for _, n := range Namespaces() {
		objects = append(objects, n)
	}
	objects = append(objects, quota(Workflows, "60"), quota(Events, "10"), quota(Builder, "10"), quota(Egress, "5"))
	type account struct {
		namespace, name string
		mounted         bool
	}
	accounts := []account{
		{Workflows, WorkflowAccount, false}, {Workflows, ExecutorAccount, false}, {Workflows, ReporterAccount, true}, {Events, SensorAccount, true}, {Events, BusAccount, false}, {Egress, EgressAccount, false},
	}
	addresses := c.Cluster.Network.FQDNPolicies == config.NoFQDNPolicies
	if addresses {
		accounts = append(accounts, account{Egress, AddressesAccount, true})
	}
	for _, a := range accounts {
		objects = append(objects, &corev1.ServiceAccount{
			TypeMeta: Type("v1", "ServiceAccount"), ObjectMeta: Meta(a.namespace, a.name), AutomountServiceAccountToken: &a.mounted,
		})
	}
	token := &corev1.Secret{
		TypeMeta: Type("v1", "Secret"), ObjectMeta: Meta(Workflows, ExecutorAccount+".service-account-token"),
		Type: corev1.SecretTypeServiceAccountToken,
	}
	// Argo looks for it by this name, and Kubernetes fills it in.
	token.Annotations = map[string]string{corev1.ServiceAccountNameKey: ExecutorAccount}
	objects = append(objects, token,
		role(Workflows, ExecutorAccount, "argoproj.io", "workflowtaskresults", "create", "patch"),
		bind(Workflows, ExecutorAccount, Workflows, ExecutorAccount),
		role(Workflows, ReporterAccount, "argoproj.io", "workflows", "get"),
		bind(Workflows, ReporterAccount, Workflows, ReporterAccount),
		role(Workflows, SensorAccount, "argoproj.io", "workflows", "get", "create", "patch"),
		bind(Workflows, SensorAccount, Events, SensorAccount),
	)
	if addresses {
		// It makes none: a right to create cannot be limited to a name.
		one := role(Egress, AddressesAccount, "networking.k8s.io", "networkpolicies", "get", "patch")
		one.Rules[0].ResourceNames = []string{AddressesPolicy}
		objects = append(objects, one, bind(Egress, AddressesAccount, Egress, AddressesAccount))
	}
	return objects
}

func namespace(name, level string) *corev1.Namespace {
	meta := Meta("", name)
	meta.Labels["pod-security.kubernetes.io/enforce"] = level
	meta.Labels["pod-security.kubernetes.io/warn"] = level // about what would make such pods
	return &corev1.Namespace{TypeMeta: Type("v1", "Namespace"), ObjectMeta: meta}
}

// quota bounds how many pods there may be at once, whoever makes them.
func quota(namespace, pods string) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{
		TypeMeta: Type("v1", "ResourceQuota"), ObjectMeta: Meta(namespace, "fabrique"),
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse(pods)}},
	}
}

func role(namespace, name, group, resource string, verbs ...string) *rbacv1.Role {
	return &rbacv1.Role{
		TypeMeta: Type("rbac.authorization.k8s.io/v1", "Role"), ObjectMeta: Meta(namespace, name),
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}},
	}
}

// bind gives the role of that name to an account.
func bind(namespace, role, accountNamespace, account string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		TypeMeta: Type("rbac.authorization.k8s.io/v1", "RoleBinding"), ObjectMeta: Meta(namespace, role),
		RoleRef:  rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: role},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: accountNamespace, Name: account}},
	}
}

// Examples gives the Secrets that an operator makes, with values to replace. They
// are never applied.
func Examples() []any {
	example := func(namespace, name, key, value string) *corev1.Secret {
		return &corev1.Secret{TypeMeta: Type("v1", "Secret"), ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, StringData: map[string]string{key: value}}
	}
	return []any{
		example(Workflows, ReaderSecret, "token", "REPLACE: token of the bot that reads both repositories"),
		example(Workflows, WriterSecret, "token", "REPLACE: token of the bot that writes the apps repository"),
		example(Workflows, StatusSecret, "token", "REPLACE: token of the bot that writes statuses on the source's commits"),
		example(Events, WebhookSecret, "secret", "REPLACE: the secret of webhook #2 in Gitea"),
		example(Workflows, EgressSecret, EgressKey, "REPLACE: what openssl rand -hex 32 prints"),
		example(Egress, EgressSecret, EgressKey, "REPLACE: the same"),
	}
}

// Namespaces gives the namespaces alone.
func Namespaces() []*corev1.Namespace {
	return []*corev1.Namespace{
		namespace(Workflows, "restricted"), namespace(Events, "restricted"), namespace(Egress, "restricted"),
		// The daemon's deviations from restricted stand at its own manifest.
		namespace(Builder, "privileged"),
	}
}
