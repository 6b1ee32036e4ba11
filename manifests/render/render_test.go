package render

import (
	"bytes"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fabrique/manifests/zone"
	"fabrique/steps/config"
)

var update = flag.Bool("update", false, "write the golden files")

// configured is the template with a cluster.
func configured(t *testing.T, extra ...string) config.Config {
	t.Helper()
	text := string(config.Template()) + `
egress:
  allow: [deb.example.net:80]
  apps:
    citation: [index.example.net:443, "*.example.net:443"]
  denyCIDRs: [198.51.100.0/24]
cluster:
  network:
    gitea: {namespace: gitea, labels: {app: gitea}, port: 3000}
    registry: {namespace: registry, labels: {app: registry}, port: 5000}
    apiServer: {addresses: [192.0.2.1, "2001:db8::1"], port: 6443}
    nodeLocalDNS: 169.254.20.10
  images:
`
	for i, name := range []string{"reconcileHead", "cloneAtSHA", "buildkitBuild", "digestInspect", "giteaWriteback", "commitStatus", "buildkitd", "egressGateway", "runNetwork", "egressAddresses"} {
		text += "    " + name + ": registry:80/fabrique/" + strings.ToLower(name) + "@sha256:" + strings.Repeat(string(rune('0'+i)), 64) + "\n"
	}
	c, err := config.Parse("fabrique.yaml", []byte(text+strings.Join(extra, "")))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestGolden compares every file with the golden one beside its generator.
func TestGolden(t *testing.T) {
	files, err := Files(configured(t))
	if err != nil {
		t.Fatal(err)
	}
	for path, got := range files {
		golden(t, filepath.Join("../..", filepath.Dir(path), "testdata", filepath.Base(path)), got)
	}
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (make golden writes it)", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s: %s", file, diff)
	}
}

// With Cilium a policy has the names, and nothing keeps their addresses: no image for
// it is wanted.
func TestCilium(t *testing.T) {
	c := configured(t)
	c.Cluster.Network.FQDNPolicies, c.Cluster.Images.EgressAddresses = config.CiliumPolicies, ""
	files, err := Files(c)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "../testdata/policies-cilium.yaml", files["manifests/policies.yaml"])
	for path, text := range files {
		for _, unwanted := range []string{zone.EgressAddresses, zone.AddressesPolicy} {
			if bytes.Contains(text, []byte(unwanted)) {
				t.Errorf("%s holds %s", path, unwanted)
			}
		}
	}
	// Without a name there is no rule: one for DNS without names is for every question.
	c.Egress.Allow, c.Egress.Apps = nil, nil
	if files, err = Files(c); err != nil || !bytes.Contains(files["manifests/policies.yaml"], []byte("  egress: []\n")) {
		t.Errorf("without names: %v\n%s", err, files["manifests/policies.yaml"])
	}
}

func TestSameBytes(t *testing.T) {
	first, err := Files(configured(t))
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		again, err := Files(configured(t))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(first, again); diff != "" {
			t.Fatal(diff)
		}
	}
	for path, text := range first {
		for _, unwanted := range []string{"creationTimestamp", "status:", "null"} {
			if bytes.Contains(text, []byte(unwanted)) {
				t.Errorf("%s holds %s", path, unwanted)
			}
		}
	}
}

// A configuration without a cluster names all that it lacks.
func TestWithoutACluster(t *testing.T) {
	c, err := config.Parse("fabrique.yaml", config.Template())
	if err != nil {
		t.Fatal(err)
	}
	if _, err = Files(c); err == nil || !strings.Contains(err.Error(), "lacks cluster.images.buildkitBuild, cluster.images.buildkitd") {
		t.Errorf("got %v", err)
	}
}

// The branch goes into a regular expression that matches anywhere.
func TestBranchIsQuotedAndAnchored(t *testing.T) {
	c := configured(t)
	c.Source.Branch = "release-1.2"
	objects, err := Objects(c)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(objects, func(o map[string]any) bool { return o["kind"] == "Sensor" })
	spec := objects[i]["spec"].(map[string]any)
	filters := spec["dependencies"].([]any)[0].(map[string]any)["filters"].(map[string]any)["data"].([]any)
	want := []any{`^refs/heads/release-1\.2$`}
	if diff := cmp.Diff(want, filters[0].(map[string]any)["value"]); diff != "" {
		t.Error(diff)
	}
}

// What is written is also applied, but the examples.
func TestEverythingIsApplied(t *testing.T) {
	files, err := Files(configured(t))
	if err != nil {
		t.Fatal(err)
	}
	written := slices.Sorted(maps.Keys(files))
	applied := append(slices.Clone(order), examples)
	slices.Sort(applied)
	if diff := cmp.Diff(written, applied); diff != "" {
		t.Error(diff)
	}
}

// No Secret is applied but the one that Kubernetes fills in.
func TestSecretsAreExamples(t *testing.T) {
	objects, err := Objects(configured(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if o["kind"] == "Secret" && (o["data"] != nil || o["stringData"] != nil) {
			t.Errorf("a Secret with a value is applied: %v", o["metadata"])
		}
	}
}

// Every namespace denies by default, and no policy lets everyone in or out: not by a
// range, nor by a rule that names nobody.
func TestPoliciesNameEveryPeer(t *testing.T) {
	objects, err := Objects(configured(t))
	if err != nil {
		t.Fatal(err)
	}
	denied, zones := map[string]bool{}, map[string]bool{}
	for _, o := range objects {
		meta := o["metadata"].(map[string]any)
		if o["kind"] == "Namespace" {
			zones[meta["name"].(string)] = true
		}
		if o["kind"] != "NetworkPolicy" {
			continue
		}
		spec := o["spec"].(map[string]any)
		if meta["name"] == "deny-all" && len(spec["podSelector"].(map[string]any)) == 0 && len(spec["policyTypes"].([]any)) == 2 {
			denied[meta["namespace"].(string)] = true
			continue
		}
		for direction, peers := range map[string]string{"ingress": "from", "egress": "to"} {
			rules, _ := spec[direction].([]any)
			for _, r := range rules {
				rule := r.(map[string]any)
				named, _ := rule[peers].([]any)
				ports, _ := rule["ports"].([]any)
				if len(named) == 0 || len(ports) == 0 {
					t.Errorf("%s %s: %v is for everyone", meta["namespace"], meta["name"], rule)
				}
				for _, p := range named {
					if block, ok := p.(map[string]any)["ipBlock"].(map[string]any); ok && !strings.HasSuffix(block["cidr"].(string), "/32") && !strings.HasSuffix(block["cidr"].(string), "/128") {
						t.Errorf("%s %s: %v is more than one address", meta["namespace"], meta["name"], block)
					}
				}
			}
		}
	}
	if diff := cmp.Diff(zones, denied); diff != "" {
		t.Error(diff)
	}
}
