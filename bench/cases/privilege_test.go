package cases

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"code.gitea.io/sdk/gitea"
	"github.com/google/go-cmp/cmp"
	authz "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"fabrique/bench/kubectl"
	"fabrique/bench/platform"
)

// rendered gives every object of the golden files, which are what fabrique render
// writes.
func rendered(t *testing.T) []map[string]any {
	t.Helper()
	var all []map[string]any
	for _, folder := range []string{"manifests", "workflows", "eventsources", "sensors"} {
		files, err := filepath.Glob(filepath.Join("../..", folder, "testdata", "*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no golden files: %v", folder, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			objects, err := kubectl.Objects(text, nil)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, objects...)
		}
	}
	return all
}

// decode reads an object as its type has it.
func decode(t *testing.T, object map[string]any, into any) {
	t.Helper()
	text, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The table that is tried on the cluster has every account and every right that the
// factory's manifests make, and no other.
func TestAccountsAreThoseRendered(t *testing.T) {
	roles := map[[2]string][]rbacv1.PolicyRule{}
	var bindings []rbacv1.RoleBinding
	got := map[string][]string{}
	for _, object := range rendered(t) {
		var meta struct {
			Metadata struct{ Namespace, Name string }
		}
		decode(t, object, &meta)
		switch object["kind"] {
		case "ServiceAccount":
			got[account{namespace: meta.Metadata.Namespace, name: meta.Metadata.Name}.user()] = nil
		case "Role":
			var role rbacv1.Role
			decode(t, object, &role)
			roles[[2]string{role.Namespace, role.Name}] = role.Rules
		case "RoleBinding":
			var binding rbacv1.RoleBinding
			decode(t, object, &binding)
			bindings = append(bindings, binding)
		case "ClusterRole", "ClusterRoleBinding":
			t.Errorf("the factory has no rights outside its namespaces; there is the %s %s", object["kind"], meta.Metadata.Name)
		}
	}
	for _, b := range bindings {
		rules, there := roles[[2]string{b.Namespace, b.RoleRef.Name}]
		if !there || b.RoleRef.Kind != "Role" {
			t.Errorf("the RoleBinding %s in %s gives the %s %s, which is not rendered", b.Name, b.Namespace, b.RoleRef.Kind, b.RoleRef.Name)
		}
		for _, s := range b.Subjects {
			if s.Kind != rbacv1.ServiceAccountKind {
				t.Errorf("the RoleBinding %s in %s is for the %s %s", b.Name, b.Namespace, s.Kind, s.Name)
			}
			user := account{namespace: s.Namespace, name: s.Name}.user()
			for _, rule := range rules {
				if len(rule.ResourceNames) > 1 || len(rule.NonResourceURLs) > 0 {
					t.Errorf("the table has no place for %v", rule)
				}
				for _, group := range rule.APIGroups {
					for _, resource := range rule.Resources {
						for _, name := range rule.ResourceNames {
							resource += " " + name
						}
						for _, verb := range rule.Verbs {
							got[user] = append(got[user], right{b.Namespace, group, resource, verb}.String())
						}
					}
				}
			}
		}
	}
	want := map[string][]string{}
	for _, a := range accounts {
		if a.name == "default" && len(a.rights) == 0 {
			continue // Kubernetes makes it
		}
		want[a.user()] = nil
		for _, r := range a.rights {
			want[a.user()] = append(want[a.user()], r.String())
		}
	}
	for _, rights := range []map[string][]string{got, want} {
		for _, list := range rights {
			slices.Sort(list)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-table +rendered:\n%s", diff)
	}
}

// A wildcard, or a rule for one name, is seen by its own words.
func TestRulesOf(t *testing.T) {
	got := rulesOf(authz.SubjectRulesReviewStatus{
		ResourceRules: []authz.ResourceRule{
			{Verbs: []string{"get", "create"}, APIGroups: []string{"argoproj.io"}, Resources: []string{"workflows"}},
			{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"one"}},
			{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
		},
		NonResourceRules: []authz.NonResourceRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/healthz"}}, {Verbs: []string{"get"}, NonResourceURLs: []string{"/healthz"}}},
	})
	want := []string{"* *.*", "create workflows.argoproj.io", "get /healthz", "get secrets named one", "get workflows.argoproj.io"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestRequestPath(t *testing.T) {
	for _, test := range []struct {
		request   request
		namespace string
		want      string
	}{
		{request{"", "v1", "pods/exec", "", "create", "a"}, "b", "/api/v1/namespaces/b/pods/a/exec"},
		{request{argoGroup, "v1alpha1", "workflows", "", "list", ""}, "b", "/apis/argoproj.io/v1alpha1/namespaces/b/workflows"},
		{request{"", "v1", "nodes/proxy", "", "get", "n"}, "", "/api/v1/nodes/n/proxy"},
	} {
		if got := test.request.path(test.namespace); got != test.want {
			t.Errorf("%v goes to %s, want %s", test.request, got, test.want)
		}
	}
}

// Each right of an account is taken away once, and none that it has not.
func TestLossesAreTheRights(t *testing.T) {
	for _, a := range accounts {
		if len(losses[a.name]) != len(a.rights) {
			t.Errorf("%s has %d rights, and %d are taken away", a.name, len(a.rights), len(losses[a.name]))
		}
		for _, r := range a.rights {
			if losses[a.name][r] == nil {
				t.Errorf("nothing tells what %s cannot do without the right to %s", a.name, r)
			}
		}
	}
}

// The factory has a token of every bot, and the manifests have the Secret for it.
func TestTokensAreTheBots(t *testing.T) {
	if len(tokenOf) != len(platform.Bots) {
		t.Errorf("there are %d bots and %d tokens", len(platform.Bots), len(tokenOf))
	}
	for _, b := range platform.Bots {
		if tokenOf[b.User] == "" {
			t.Errorf("the scenarios know no token of %s", b.User)
		}
		for repo := range b.Repos {
			if !slices.Contains(readers[repo], b.User) {
				t.Errorf("%s may read %s, which the table of calls does not know", b.User, repo)
			}
			if slices.Contains(writers[repo], b.User) != (b.Repos[repo] == gitea.AccessModeWrite) {
				t.Errorf("whether %s may write %s the table of calls has otherwise", b.User, repo)
			}
		}
	}
}
