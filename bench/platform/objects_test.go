package platform

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// objects reads YAML as the platform does.
func objects(t *testing.T, text string) []object {
	t.Helper()
	all, err := parse([]byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// text writes objects so that they can be compared.
func text(t *testing.T, all []object) string {
	t.Helper()
	var b strings.Builder
	for _, o := range all {
		one, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString("---\n" + string(one))
	}
	return b.String()
}

const digest = "@sha256:0000000000000000000000000000000000000000000000000000000000000000"

func TestLookUp(t *testing.T) {
	refs := map[string]string{"bench/gitea": "ours", "quay.io/argoproj/argocd": "theirs", "host:5000/a": "with a port", "redis": "short"}
	for image, want := range map[string]string{
		"bench/gitea":                         "ours",
		"bench/gitea:latest":                  "ours",
		"bench/gitea:1.2" + digest:            "ours",
		"bench/gitea" + digest:                "ours",
		"quay.io/argoproj/argocd:v3.2.11":     "theirs",
		"host:5000/a":                         "with a port",
		"host:5000/a:1":                       "with a port",
		"host:5000/a:1" + digest:              "with a port",
		"redis:8":                             "short",
		"":                                    "",
		"other/gitea:latest":                  "",
		"docker.io/bench/gitea:latest":        "",
		"host:5000":                           "",
		"bench/gitea/more":                    "",
		"quay.io:443/argoproj/argocd:v3.2.11": "",
		"quay.io/argoproj/argocd-extension:v3.2.11": "",
	} {
		got, err := lookUp(refs, image)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", image, got, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), `"`+image+`"`) {
			t.Errorf("%q: the error does not name it: %v", image, err)
		}
	}
}

func TestSetImages(t *testing.T) {
	const workload = `
apiVersion: apps/v1
kind: %KIND
metadata: {name: w}
spec:
  template:
    spec:
      initContainers:
      - {name: first, image: "a:1"}
      containers:
      - {name: one, image: "x.example:5000/b:2", imagePullPolicy: Always}
      - {name: two, image: a}
`
	refs := map[string]string{"a": "registry:80/a" + digest, "x.example:5000/b": "registry:80/b" + digest}
	for _, kind := range []string{"Deployment", "StatefulSet"} {
		all := objects(t, strings.ReplaceAll(workload, "%KIND", kind))
		if err := setImages(all[0], refs); err != nil {
			t.Fatal(err)
		}
		want := objects(t, `
apiVersion: apps/v1
kind: `+kind+`
metadata: {name: w}
spec:
  template:
    spec:
      initContainers:
      - {name: first, image: "registry:80/a`+digest+`", imagePullPolicy: IfNotPresent}
      containers:
      - {name: one, image: "registry:80/b`+digest+`", imagePullPolicy: IfNotPresent}
      - {name: two, image: "registry:80/a`+digest+`", imagePullPolicy: IfNotPresent}
`)
		if diff := cmp.Diff(text(t, want), text(t, all)); diff != "" {
			t.Errorf("%s: -want +got\n%s", kind, diff)
		}
	}
	delete(refs, "x.example:5000/b")
	err := setImages(objects(t, strings.ReplaceAll(workload, "%KIND", "Deployment"))[0], refs)
	if want := `Deployment w: the bench has no image for "x.example:5000/b:2"`; err == nil || err.Error() != want {
		t.Errorf("an image that is not there: %v, want %s", err, want)
	}
	if err := setImages(objects(t, "kind: ConfigMap\nmetadata: {name: c}\ndata: {image: other}\n")[0], nil); err != nil {
		t.Errorf("an object without pods: %v", err)
	}
}

func TestSetBusVersions(t *testing.T) {
	const key = "controller-config.yaml"
	data := object{key: `eventBus:
  nats:
    versions: [{version: 0.22.1, natsStreamingImage: nats-streaming:0.22.1}]
  jetstream:
    settings: |
      max_memory_store: -1
    streamConfig: |
      maxMsgs: 1000000
      replicas: 3
      duplicates: 300s
    versions:
    - {version: latest, natsImage: "nats:2.10.10", metricsExporterImage: e, configReloaderImage: r, startCommand: /nats-server}
    - {version: 2.8.1, natsImage: "nats:2.8.1", metricsExporterImage: e, configReloaderImage: r, startCommand: /nats-server}
`, "other": "stays"}
	if err := setBusVersions(data, map[string]string{"bench/nats": "our nats", "bench/idle": "our idle"}); err != nil {
		t.Fatal(err)
	}
	want := `eventBus:
  nats:
    versions: [{version: 0.22.1, natsStreamingImage: nats-streaming:0.22.1}]
  jetstream:
    settings: |
      max_memory_store: -1
    streamConfig: |
      maxMsgs: 1000000
      replicas: 1
      duplicates: 300s
    versions:
    - {version: ` + BusVersion + `, natsImage: our nats, metricsExporterImage: our idle, configReloaderImage: our idle, startCommand: /nats-server}
`
	if diff := cmp.Diff(text(t, objects(t, want)), text(t, objects(t, data[key].(string)))); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if data["other"] != "stays" {
		t.Errorf("another key became %v", data["other"])
	}
	err := setBusVersions(object{key: "eventBus: ["}, nil)
	if err == nil || !strings.HasPrefix(err.Error(), "reading Argo Events' configuration: ") {
		t.Errorf("a configuration that is no YAML: %v", err)
	}
}

// The pods' annotation is another one exactly when the configuration is.
func TestRestartOnChange(t *testing.T) {
	const component = `
kind: ConfigMap
metadata: {name: a, labels: {l: v}}
data: {one: first, two: second}
---
kind: Secret
metadata: {name: s}
data: {one: first}
---
kind: Deployment
metadata: {name: d}
spec: {replicas: 1, template: {metadata: {annotations: {kept: yes}}}}
---
kind: StatefulSet
metadata: {name: s}
spec: {template: {spec: {}}}
`
	annotations := func(text string) []string {
		all := objects(t, text)
		if err := restartOnChange(all); err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, o := range all {
			if o.Pod() != nil {
				found = append(found, o.At("spec", "template", "metadata", "annotations")["fabrique-bench/config"].(string))
			}
		}
		if kept := all[2].At("spec", "template", "metadata", "annotations")["kept"]; kept != "yes" {
			t.Errorf("an annotation became %v", kept)
		}
		return found
	}
	first := annotations(component)
	if len(first) != 2 || first[0] != first[1] || len(first[0]) != 64 {
		t.Fatalf("annotations %q", first)
	}
	for _, test := range []struct {
		name, old, new string
		same           bool
	}{
		{"nothing", "", "", true},
		{"the order of the keys", "one: first, two: second", "two: second, one: first", true},
		{"a label", "l: v", "l: w", true},
		{"the number of pods", "replicas: 1", "replicas: 2", true},
		{"a value", "two: second", "two: third", false},
		{"a key", "two: second", "three: second", false},
		{"one key less", ", two: second", "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := annotations(strings.Replace(component, test.old, test.new, 1)); cmp.Equal(got, first) != test.same {
				t.Errorf("it is %q, and was %q", got, first)
			}
		})
	}
}
