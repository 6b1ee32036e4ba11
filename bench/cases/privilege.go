package cases

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	authn "k8s.io/api/authentication/v1"
	authz "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"fabrique/manifests/kubeconfig"
	"fabrique/manifests/zone"
	"fabrique/sensors"
	"fabrique/workflows"
)

// privilegeCases prove least privilege: what every account and token may do is in a
// table, all else is refused, and each of the few rights is needed.
var privilegeCases = []Case{
	{Name: "accounts", Title: "every service account may do what its table says and nothing else, asked with its own token", Run: accountsTried},
	{Name: "tokens", Title: "every Gitea token reaches its own repositories in its own way and nothing else", Run: tokensTried},
	{Name: "needed", Title: "each verb of an account and each right of a token, taken away, stops what it is for", Limit: 20 * time.Minute, Run: neededTried},
}

// right is one verb on one resource in one namespace. The resource may name a
// subresource, "pods/exec", or one object, "configmaps example".
type right struct{ namespace, group, resource, verb string }

func (r right) String() string { return r.verb + " " + r.what(" named ") + " in " + r.namespace }

// what gives the resource with its group, and the one object after that, if any.
func (r right) what(named string) string {
	resource, name, one := strings.Cut(r.resource, " ")
	resource = strings.TrimSuffix(resource+"."+r.group, ".")
	if one {
		resource += named + name
	}
	return resource
}

// account is a service account of the factory with all that it may do in the
// cluster.
type account struct {
	namespace, name string
	rights          []right
}

// user is what the API server calls the account.
func (a account) user() string { return "system:serviceaccount:" + a.namespace + ":" + a.name }

const argoGroup = "argoproj.io"

// addressesPolicy is the one object that egress-addresses may change.
const addressesPolicy = "networkpolicies " + zone.AddressesPolicy

// accounts are all there are in the factory's namespaces. "default" is Kubernetes' own;
// in [zone.Builder] buildkitd runs as it, without its token.
var accounts = []account{
	{zone.Workflows, "default", nil},
	{zone.Workflows, zone.WorkflowAccount, nil},
	{zone.Workflows, zone.ExecutorAccount, []right{
		{zone.Workflows, argoGroup, "workflowtaskresults", "create"},
		{zone.Workflows, argoGroup, "workflowtaskresults", "patch"},
	}},
	{zone.Workflows, zone.ReporterAccount, []right{
		{zone.Workflows, argoGroup, "workflows", "get"},
	}},
	{zone.Events, "default", nil},
	{zone.Events, zone.SensorAccount, []right{
		{zone.Workflows, argoGroup, "workflows", "get"},
		{zone.Workflows, argoGroup, "workflows", "create"},
		{zone.Workflows, argoGroup, "workflows", "patch"},
	}},
	{zone.Events, zone.BusAccount, nil},
	{zone.Builder, "default", nil},
	{zone.Egress, "default", nil},
	{zone.Egress, zone.EgressAccount, nil},
	{zone.Egress, zone.AddressesAccount, []right{
		{zone.Egress, "networking.k8s.io", addressesPolicy, "get"},
		{zone.Egress, "networking.k8s.io", addressesPolicy, "patch"},
	}},
}

// everyones is what Kubernetes lets every authenticated user do in every namespace
// (its ClusterRoles system:basic-user, system:discovery, system:public-info-viewer and
// system:service-account-issuer-discovery).
var everyones = []string{
	"create selfsubjectaccessreviews.authorization.k8s.io", "create selfsubjectreviews.authentication.k8s.io", "create selfsubjectrulesreviews.authorization.k8s.io",
	"get /.well-known/openid-configuration", "get /.well-known/openid-configuration/", "get /api", "get /api/*", "get /apis", "get /apis/*",
	"get /healthz", "get /livez", "get /openapi", "get /openapi/*", "get /openid/v1/jwks", "get /openid/v1/jwks/", "get /readyz", "get /version", "get /version/",
}

// request is one request to the API server for which a right is wanted. The name is
// empty for the whole collection.
type request struct {
	group, version, resource, kind, verb, name string
}

// sub cuts the resource from its subresource, which may be empty.
func (r request) sub() (resource, sub string) {
	resource, sub, _ = strings.Cut(r.resource, "/")
	return resource, sub
}

// path is where the request goes; namespace is empty for what has none.
func (r request) path(namespace string) string {
	path := "/api/" + r.version
	if r.group != "" {
		path = "/apis/" + r.group + "/" + r.version
	}
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	resource, sub := r.sub()
	for _, part := range []string{resource, r.name, sub} {
		if part != "" {
			path += "/" + part
		}
	}
	return path
}

// nobody is the name of what is not there: who may ask gets another answer than that
// it is forbidden, and nothing comes of it.
const nobody = "fabrique-nobody"

// dangerous is what would let somebody read a secret, run a program, change the
// factory or give himself more rights, in any namespace.
var dangerous = []request{
	{"", "v1", "secrets", "", "list", ""},
	{"", "v1", "secrets", "", "get", zone.WriterSecret},
	{"", "v1", "secrets", "", "get", zone.WebhookSecret},
	{"", "v1", "secrets", "Secret", "create", ""},
	{"", "v1", "secrets", "", "patch", zone.ReaderSecret},
	{"", "v1", "secrets", "", "delete", nobody},
	{"", "v1", "pods", "", "list", ""},
	{"", "v1", "pods", "Pod", "create", ""},
	{"", "v1", "pods", "", "patch", nobody},
	{"", "v1", "pods", "", "delete", nobody},
	{"", "v1", "pods/exec", "", "create", nobody},
	{"", "v1", "pods/exec", "", "get", nobody},
	{"", "v1", "pods/attach", "", "create", nobody},
	{"", "v1", "pods/portforward", "", "create", nobody},
	{"", "v1", "pods/proxy", "", "get", nobody},
	{"", "v1", "pods/log", "", "get", nobody},
	{"", "v1", "pods/ephemeralcontainers", "", "patch", nobody},
	{"", "v1", "pods/eviction", "Eviction", "create", nobody},
	{"", "v1", "services/proxy", "", "get", nobody},
	{"", "v1", "configmaps", "", "list", ""},
	{"", "v1", "configmaps", "", "get", "egress-gateway"},
	{"", "v1", "configmaps", "ConfigMap", "create", ""},
	{"", "v1", "configmaps", "", "patch", "egress-gateway"},
	{"", "v1", "serviceaccounts", "ServiceAccount", "create", ""},
	{"", "v1", "serviceaccounts", "", "impersonate", nobody},
	{"", "v1", "serviceaccounts/token", "TokenRequest", "create", nobody},
	{"", "v1", "resourcequotas", "", "delete", nobody},
	{"", "v1", "events", "Event", "create", ""},
	{"apps", "v1", "deployments", "", "patch", "egress-gateway"},
	{"apps", "v1", "statefulsets", "", "patch", builder},
	{"apps", "v1", "daemonsets", "DaemonSet", "create", ""},
	{"batch", "v1", "jobs", "Job", "create", ""},
	{"networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", "create", ""},
	{"networking.k8s.io", "v1", "networkpolicies", "", "patch", nobody},
	{"networking.k8s.io", "v1", "networkpolicies", "", "delete", nobody},
	{"rbac.authorization.k8s.io", "v1", "roles", "Role", "create", ""},
	{"rbac.authorization.k8s.io", "v1", "roles", "", "patch", zone.SensorAccount},
	{"rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", "create", ""},
	{"rbac.authorization.k8s.io", "v1", "rolebindings", "", "patch", zone.SensorAccount},
	{argoGroup, "v1alpha1", "workflows", "", "get", nobody},
	{argoGroup, "v1alpha1", "workflows", "", "list", ""},
	{argoGroup, "v1alpha1", "workflows", "Workflow", "create", ""},
	{argoGroup, "v1alpha1", "workflows", "", "patch", nobody},
	{argoGroup, "v1alpha1", "workflows", "", "delete", nobody},
	{argoGroup, "v1alpha1", "workflows", "", "deletecollection", ""},
	{argoGroup, "v1alpha1", "workflowtemplates", "", "get", workflows.TemplateName},
	{argoGroup, "v1alpha1", "workflowtemplates", "", "patch", workflows.TemplateName},
	{argoGroup, "v1alpha1", "cronworkflows", "", "patch", workflows.CronName},
	{argoGroup, "v1alpha1", "cronworkflows", "", "delete", nobody},
	{argoGroup, "v1alpha1", "workflowtaskresults", "", "list", ""},
	{argoGroup, "v1alpha1", "workflowtaskresults", "WorkflowTaskResult", "create", ""},
	{argoGroup, "v1alpha1", "workflowtaskresults", "", "patch", nobody},
	{argoGroup, "v1alpha1", "applications", "", "list", ""},
	{argoGroup, "v1alpha1", "applications", "", "patch", first},
	{argoGroup, "v1alpha1", "eventsources", "", "patch", "gitea"},
	{argoGroup, "v1alpha1", "eventsources", "EventSource", "create", ""},
	{argoGroup, "v1alpha1", "sensors", "", "patch", sensors.Name},
	{argoGroup, "v1alpha1", "sensors", "Sensor", "create", ""},
	{argoGroup, "v1alpha1", "eventbus", "", "patch", "default"},
	{"coordination.k8s.io", "v1", "leases", "", "list", ""},
}

// dangerousAnywhere is the same for what is in no namespace. The last few are asked
// as "get" of a path.
var dangerousAnywhere = []request{
	{"", "v1", "secrets", "", "list", ""},
	{"", "v1", "pods", "", "list", ""},
	{argoGroup, "v1alpha1", "workflows", "", "list", ""},
	{"", "v1", "namespaces", "", "list", ""},
	{"", "v1", "namespaces", "Namespace", "create", ""},
	{"", "v1", "namespaces", "", "patch", zone.Workflows},
	{"", "v1", "namespaces", "", "delete", nobody},
	{"", "v1", "nodes", "", "list", ""},
	{"", "v1", "nodes", "", "patch", nobody},
	{"", "v1", "nodes/proxy", "", "get", nobody},
	{"", "v1", "nodes/proxy", "", "create", nobody},
	{"", "v1", "persistentvolumes", "", "list", ""},
	{"", "v1", "users", "", "impersonate", "admin"},
	{"", "v1", "groups", "", "impersonate", "system:masters"},
	{"rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", "create", ""},
	{"rbac.authorization.k8s.io", "v1", "clusterroles", "", "patch", "view"},
	{"rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", "create", ""},
	{"admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", "create", ""},
	{"admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "", "delete", nobody},
	{"admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", "", "delete", nobody},
	{"admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", "", "delete", nobody},
	{"admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", "create", ""},
	{"apiextensions.k8s.io", "v1", "customresourcedefinitions", "", "patch", "workflows." + argoGroup},
	{"certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", "create", ""},
	{"authentication.k8s.io", "v1", "tokenreviews", "TokenReview", "create", ""},
	{"apiregistration.k8s.io", "v1", "apiservices", "", "delete", nobody},
	{"storage.k8s.io", "v1", "storageclasses", "", "list", ""},
	{"", "", "/metrics", "", "get", ""},
	{"", "", "/logs/", "", "get", ""},
	{"", "", "/debug/pprof/", "", "get", ""},
}

// may tells whether one of the rights covers the request. None is for an object that is
// named.
func may(rights []right, namespace string, r request) bool {
	return slices.Contains(rights, right{namespace, r.group, r.resource, r.verb})
}

// api is the API server as one user sees it.
type api struct {
	host   string
	client *http.Client
}

// newAPI reaches the API server as the user of config.
func newAPI(config *rest.Config) (api, error) {
	client, err := rest.HTTPClientFor(config)
	return api{strings.TrimSuffix(config.Host, "/"), client}, err
}

// ask sends the request, a change as a dry run, and gives the HTTP status and the
// message of the answer.
func (a api) ask(ctx context.Context, namespace string, r request) (status int, message string, err error) {
	path, method, body := r.path(namespace), http.MethodGet, map[string]any{}
	header := http.Header{"Content-Type": {"application/json"}}
	if strings.HasPrefix(r.resource, "/") {
		path = r.resource
	}
	switch r.verb {
	case "create":
		method = http.MethodPost
		if r.kind != "" {
			body = map[string]any{"apiVersion": strings.TrimPrefix(r.group+"/"+r.version, "/"), "kind": r.kind, "metadata": map[string]string{"name": nobody}}
		}
	case "patch":
		method = http.MethodPatch
		header.Set("Content-Type", "application/merge-patch+json")
	case "delete", "deletecollection":
		// Of what is not there, and the dry run in the body: the API server does not look
		// at the query when there is one.
		method, body = http.MethodDelete, map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "dryRun": []string{metav1.DryRunAll}}
	case "impersonate":
		// In somebody else's name, to ask what that one may do anyway.
		path, method = "/version", http.MethodGet
		switch resource, _ := r.sub(); resource {
		case "serviceaccounts":
			header.Set("Impersonate-User", "system:serviceaccount:"+namespace+":"+r.name)
		case "groups":
			header.Set("Impersonate-User", nobody)
			header.Set("Impersonate-Group", r.name)
		default:
			header.Set("Impersonate-User", r.name)
		}
	}
	var text io.Reader
	if method != http.MethodGet {
		path += "?dryRun=" + metav1.DryRunAll
		if r.verb == "deletecollection" {
			path += "&labelSelector=" + nobody
		}
		encoded, err := json.Marshal(body)
		if err != nil {
			return 0, "", err
		}
		text = bytes.NewReader(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.host+path, text)
	if err != nil {
		return 0, "", err
	}
	req.Header = header
	answer, err := a.client.Do(req)
	if err != nil {
		return 0, "", fmt.Errorf("asking the API server: %w", err)
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
	var s metav1.Status
	if json.Unmarshal(said, &s) == nil && s.Message != "" {
		return answer.StatusCode, s.Message, err
	}
	return answer.StatusCode, "", err
}

// refusal checks that the API server refuses a request for want of a right, and not,
// as a quota or a Pod Security level does, for what is in it.
func (a api) refusal(ctx context.Context, namespace string, r request) error {
	status, message, err := a.ask(ctx, namespace, r)
	if err == nil && (status != http.StatusForbidden || !strings.Contains(message, " cannot "+r.verb+" ")) {
		err = fmt.Errorf("it is answered with %d: %s", status, message)
	}
	return err
}

// accountsTried compares what the API server says that each account may do with the
// table, in every namespace, and tries what is dangerous with the account's own token.
func accountsTried(ctx context.Context, w *World) (string, error) {
	config, err := kubeconfig.Load(w.Kubectl.Kubeconfig)
	if err != nil {
		return "", err
	}
	config.QPS = -1
	cluster, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	admin, err := newAPI(config)
	if err != nil {
		return "", err
	}
	all, err := cluster.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	zones := []string{zone.Workflows, zone.Events, zone.Builder, zone.Egress}
	for _, namespace := range zones {
		if err := known(ctx, cluster, namespace); err != nil {
			return "", err
		}
	}
	tried := append(slices.Clone(zones), metav1.NamespaceSystem, "argocd")
	each := func(do func(namespace string, r request) error) error {
		var failed []error
		for _, namespace := range tried {
			for _, r := range dangerous {
				failed = append(failed, do(namespace, r))
			}
		}
		for _, r := range dangerousAnywhere {
			failed = append(failed, do("", r))
		}
		return errors.Join(failed...)
	}
	// The same requests are none that nobody may make.
	controls := 0
	if err := each(func(namespace string, r request) error {
		controls++
		status, message, err := admin.ask(ctx, namespace, r)
		if err == nil && (status == http.StatusUnauthorized || status == http.StatusForbidden) {
			err = fmt.Errorf("%d: %s", status, message)
		}
		if err != nil {
			err = fmt.Errorf("the administrator may %s %s %s in %q; %w", r.verb, r.resource, r.name, namespace, err)
		}
		return err
	}); err != nil {
		return "", err
	}

	refused, allowed, reviews := 0, 0, 0
	for _, a := range accounts {
		own, err := as(ctx, cluster, config, a)
		if err != nil {
			return "", err
		}
		theirs, err := newAPI(own)
		if err != nil {
			return "", err
		}
		asked, err := kubernetes.NewForConfig(own)
		if err != nil {
			return "", err
		}
		for _, namespace := range all.Items {
			if err := reviewed(ctx, asked, a, namespace.Name); err != nil {
				return "", err
			}
			reviews++
		}
		if err := each(func(namespace string, r request) error {
			if may(a.rights, namespace, r) {
				allowed++
				status, message, err := theirs.ask(ctx, namespace, r)
				if err == nil && (status == http.StatusUnauthorized || status == http.StatusForbidden) {
					err = fmt.Errorf("%s should be let %s %s in %s; the answer is %d: %s", a.user(), r.verb, r.resource, namespace, status, message)
				}
				return err
			}
			refused++
			if err := theirs.refusal(ctx, namespace, r); err != nil {
				return fmt.Errorf("%s should not be let %s %s %s in %q; %w", a.user(), r.verb, r.resource, r.name, namespace, err)
			}
			return nil
		}); err != nil {
			return "", err
		}
	}
	// What was asked as the administrator was asked for nothing.
	if err := w.applies(ctx, "unchanged"); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d accounts: in %d reviews no right but those of the table; of %d requests with their own tokens %d refused with 403 and %d, their own, let through; none of the %d of the administrator is forbidden",
		len(accounts), reviews, refused+allowed, refused, allowed, controls), nil
}

// known checks that the table has every account of a namespace, and that the
// namespace has the table's.
func known(ctx context.Context, cluster kubernetes.Interface, namespace string) error {
	there, err := cluster.CoreV1().ServiceAccounts(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var got, want []string
	for _, a := range there.Items {
		got = append(got, a.Name)
	}
	for _, a := range accounts {
		if a.namespace == namespace {
			want = append(want, a.name)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Errorf("the service accounts of %s should be %v; they are %v", namespace, want, got)
	}
	return nil
}

// as gives the way to the API server with a token of the account and nothing else.
func as(ctx context.Context, cluster kubernetes.Interface, admin *rest.Config, a account) (*rest.Config, error) {
	span := int64(1800)
	token, err := cluster.CoreV1().ServiceAccounts(a.namespace).CreateToken(ctx, a.name,
		&authn.TokenRequest{Spec: authn.TokenRequestSpec{ExpirationSeconds: &span}}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("requesting a token of %s: %w", a.user(), err)
	}
	own := rest.AnonymousClientConfig(admin)
	own.BearerToken, own.QPS = token.Status.Token, -1
	return own, nil
}

// reviewed asks the API server, as the account, for all that it may do in a
// namespace.
func reviewed(ctx context.Context, asked kubernetes.Interface, a account, namespace string) error {
	review, err := asked.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx,
		&authz.SelfSubjectRulesReview{Spec: authz.SelfSubjectRulesReviewSpec{Namespace: namespace}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("asking what %s may do: %w", a.user(), err)
	}
	want := slices.Clone(everyones)
	for _, r := range a.rights {
		if r.namespace == namespace {
			want = append(want, r.verb+" "+r.what(" named "))
		}
	}
	got := rulesOf(review.Status)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Errorf("in %s the account %s should be let\n%s\nit is let\n%s", namespace, a.user(), strings.Join(want, "\n"), strings.Join(got, "\n"))
	}
	return nil
}

// rulesOf gives each verb of each rule by itself, "get workflows.argoproj.io", sorted
// and each once.
func rulesOf(s authz.SubjectRulesReviewStatus) []string {
	var all []string
	for _, rule := range s.ResourceRules {
		names := ""
		if len(rule.ResourceNames) > 0 {
			names = " named " + strings.Join(rule.ResourceNames, ", ")
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					all = append(all, strings.TrimSuffix(verb+" "+resource+"."+group, ".")+names)
				}
			}
		}
	}
	for _, rule := range s.NonResourceRules {
		for _, url := range rule.NonResourceURLs {
			for _, verb := range rule.Verbs {
				all = append(all, verb+" "+url)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
