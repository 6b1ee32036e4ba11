package bundle

import (
	"fmt"
	"slices"
	"strings"

	k8s "fabrique/manifests/object"
)

// role is a Role or ClusterRole of a bundle.
type role struct {
	bundle string
	object k8s.Object
}

func isRole(o k8s.Object) bool { return o.Kind() == "Role" || o.Kind() == "ClusterRole" }

// check is one of trivy's checks of roles.
type check struct {
	id    string
	finds func(kind string, rules []k8s.Object) []k8s.Object // the rules at fault
	what  string                                             // what such a rule allows
}

// checks are those of trivy that look at the rules of roles, with the conditions of
// their Rego files in github.com/aquasecurity/trivy-checks, folder checks/kubernetes
// (v1.10.0, and v1.12.2-0.20251219190323-79d27547baf5, which trivy v0.74.0 holds). The
// ids are those of the first, and aliases in the second, whose own are KSV-0041 and so
// on; trivy's ignore file goes by either (pkg/result/filter.go, filterMisconfigurations).
var checks = []check{
	{"AVD-KSV-0041", any1("ClusterRole", []string{"secrets"}, append(reads, changes...)), "Secrets"},
	{"AVD-KSV-0042", any1("", []string{"pods/log"}, []string{"delete", "deletecollection", "*"}), "removal of pods' logs"},
	{"AVD-KSV-0043", inGroup("*", []string{"groups"}, []string{"impersonate"}), "impersonation of groups"},
	{"AVD-KSV-0044", inGroup("*", []string{"*"}, []string{"*"}), "everything"},
	{"AVD-KSV-0045", any1("", []string{"secrets", "pods", "deployments", "daemonsets", "statefulsets", "replicationcontrollers", "replicasets", "cronjobs", "jobs", "roles", "clusterroles", "rolebindings", "clusterrolebindings", "users", "groups"}, []string{"*"}), "every verb"},
	{"AVD-KSV-0046", any1("ClusterRole", []string{"*"}, []string{"create", "update", "delete", "deletecollection", "impersonate", "*", "list", "get"}), "every resource"},
	{"AVD-KSV-0047", any1("", []string{"nodes/proxy"}, []string{"get", "create"}), "the nodes' proxy"},
	{"AVD-KSV-0048", any1("", []string{"pods", "deployments", "jobs", "cronjobs", "statefulsets", "daemonsets", "replicasets", "replicationcontrollers"}, changes), "pods and what makes them"},
	{"AVD-KSV-0049", any1("", []string{"configmaps"}, changes), "ConfigMaps"},
	{"AVD-KSV-0050", any1("", []string{"roles", "rolebindings"}, []string{"create", "update", "delete", "deletecollection", "impersonate", "*"}), "roles and their bindings"},
	{"AVD-KSV-0051", binds("rolebindings", []string{"clusterroles", "roles"}), "binding of any role in a namespace"},
	{"AVD-KSV-0052", binds("clusterrolebindings", []string{"clusterroles"}), "binding of any role in the cluster"},
	{"AVD-KSV-0053", any1("", []string{"pods/exec"}, changes), "commands in pods"},
	{"AVD-KSV-0054", attaches, "attaching to pods"},
	{"AVD-KSV-0055", addsUsers, "adding of users to bindings"},
	{"AVD-KSV-0056", any1("", []string{"services", "endpoints", "endpointslices", "networkpolicies", "ingresses"}, changes), "services and the network"},
	{"AVD-KSV-0112", any1("Role", []string{"*"}, []string{"create", "update", "delete", "deletecollection", "impersonate", "*", "list", "get"}), "every resource of its namespace"},
	{"AVD-KSV-0113", any1("Role", []string{"secrets"}, append(reads, changes...)), "Secrets of its namespace"},
	{"AVD-KSV-0114", any1("", []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"}, changes), "admission webhooks"},
	{"AVD-KSV-0115", awsAuth, "the ConfigMap aws-auth"},
}

var (
	reads   = []string{"get", "list", "watch"}
	changes = []string{"create", "update", "patch", "delete", "deletecollection", "impersonate", "*"}
)

func has(rule k8s.Object, key string, wanted ...string) bool {
	return slices.ContainsFunc(rule.Strings(key), func(s string) bool { return slices.Contains(wanted, s) })
}

func where(rules []k8s.Object, holds func(k8s.Object) bool) []k8s.Object {
	var found []k8s.Object
	for _, r := range rules {
		if holds(r) {
			found = append(found, r)
		}
	}
	return found
}

// any1 finds rules that allow one of the verbs on one of the resources, in roles of
// the kind, empty for both.
func any1(kind string, resources, verbs []string) func(string, []k8s.Object) []k8s.Object {
	return func(of string, rules []k8s.Object) []k8s.Object {
		if kind != "" && kind != of {
			return nil
		}
		return where(rules, func(r k8s.Object) bool { return has(r, "resources", resources...) && has(r, "verbs", verbs...) })
	}
}

// inGroup is any1 for rules of one API group.
func inGroup(group string, resources, verbs []string) func(string, []k8s.Object) []k8s.Object {
	return func(_ string, rules []k8s.Object) []k8s.Object {
		return where(rules, func(r k8s.Object) bool {
			return has(r, "apiGroups", group) && has(r, "resources", resources...) && has(r, "verbs", verbs...)
		})
	}
}

// pairs finds rules that are at fault beside a later one.
func pairs(rules []k8s.Object, first, later func(k8s.Object) bool) []k8s.Object {
	var found []k8s.Object
	for i, r := range rules {
		if first(r) && slices.ContainsFunc(rules[i+1:], later) {
			found = append(found, r)
		}
	}
	return found
}

func binds(binding string, roles []string) func(string, []k8s.Object) []k8s.Object {
	const group = "rbac.authorization.k8s.io"
	return func(_ string, rules []k8s.Object) []k8s.Object {
		return pairs(rules,
			func(r k8s.Object) bool {
				return has(r, "apiGroups", group) && has(r, "resources", binding) && has(r, "verbs", "create")
			},
			func(r k8s.Object) bool {
				return has(r, "resources", roles...) && has(r, "verbs", "bind") && has(r, "resourceNames", "*")
			})
	}
}

func attaches(_ string, rules []k8s.Object) []k8s.Object {
	return pairs(rules,
		func(r k8s.Object) bool {
			return has(r, "apiGroups", "*") && has(r, "resources", "pods/attach") && has(r, "verbs", "create")
		},
		func(r k8s.Object) bool {
			return has(r, "apiGroups", "*") && has(r, "resources", "pods") && has(r, "verbs", "get")
		})
}

func addsUsers(_ string, rules []k8s.Object) []k8s.Object {
	return where(rules, func(r k8s.Object) bool {
		return has(r, "apiGroups", "*") && has(r, "resources", "rolebindings") && has(r, "verbs", "get") && has(r, "verbs", "patch")
	})
}

func awsAuth(_ string, rules []k8s.Object) []k8s.Object {
	return where(rules, func(r k8s.Object) bool {
		return has(r, "resources", "configmaps") && has(r, "verbs", changes...) && has(r, "resourceNames", "aws-auth")
	})
}

// reasons say why an operator's role inherently has what a check finds, by bundle, role
// and check. What is not here stays a finding.
var reasons = map[string]string{
	"argo-workflows/ClusterRole/argo-cluster-role/AVD-KSV-0041": "the one Secret that it names holds the authority of Argo's agents",
	"argo-workflows/ClusterRole/argo-cluster-role/AVD-KSV-0048": "the controller makes a pod for each step of a Workflow, and removes it",
	"argo-workflows/ClusterRole/argo-cluster-role/AVD-KSV-0053": "the controller ends a step's containers by a command in the pod",
	"argo-workflows/Role/argo-role/AVD-KSV-0113":                "the controller reads what its own configuration names, in its own namespace",
	"argo-events/ClusterRole/argo-events-role/AVD-KSV-0041":     "the controller makes the bus's credentials, in the namespace of each EventBus",
	"argo-events/ClusterRole/argo-events-role/AVD-KSV-0048":     "the controller makes the workloads of EventSources, Sensors and EventBuses",
	"argo-events/ClusterRole/argo-events-role/AVD-KSV-0049":     "the controller makes the bus's configuration, beside each EventBus",
	"argo-events/ClusterRole/argo-events-role/AVD-KSV-0053":     "upstream gives it with the other rights on pods; the factory does not need it",
	"argo-events/ClusterRole/argo-events-role/AVD-KSV-0056":     "the controller makes the Services of EventSources and EventBuses",
}

// allowance is an entry of trivy's ignore file.
type allowance struct{ id, file, statement string }

// allow gives the entries for what the roles inherently have, each for the one file of
// its role, and in words what has no reason to be.
func allow(roles []role) (allowed []allowance, unexplained []string) {
	for _, r := range roles {
		var rules []k8s.Object
		for _, v := range list(r.object["rules"]) {
			if rule, ok := k8s.As(v); ok {
				rules = append(rules, rule)
			}
		}
		id := r.bundle + "/" + r.object.Kind() + "/" + r.object.Name()
		for _, c := range checks {
			found := c.finds(r.object.Kind(), rules)
			if len(found) == 0 {
				continue
			}
			grants := grants(found)
			why, known := reasons[id+"/"+c.id]
			if !known {
				unexplained = append(unexplained, fmt.Sprintf("%s of %s grants %s (%s): %s", r.object.Name(), r.bundle, c.what, c.id, grants))
				continue
			}
			allowed = append(allowed, allowance{c.id, r.bundle + "/" + r.object.ID() + ".yaml",
				fmt.Sprintf("%s %s, %s: %s. It has: %s", r.object.Kind(), r.object.Name(), c.what, why, grants)})
		}
	}
	return allowed, unexplained
}

// grants gives rules in words, "get, list of secrets".
func grants(rules []k8s.Object) string {
	var texts []string
	for _, r := range rules {
		text := strings.Join(r.Strings("verbs"), ", ") + " of " + strings.Join(r.Strings("resources"), ", ")
		if names := r.Strings("resourceNames"); len(names) > 0 {
			text += " named " + strings.Join(names, ", ")
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "; ")
}
