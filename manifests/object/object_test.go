package object

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

func object(t *testing.T, text string) Object {
	t.Helper()
	var o Object
	if err := yaml.UnmarshalStrict([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	return o
}

func text(t *testing.T, o Object) string {
	t.Helper()
	out, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestSetEnv(t *testing.T) {
	for _, test := range []struct{ name, before, after string }{
		{"none", "{name: c}", "{name: c, env: [{name: A, value: new}]}"},
		{"another", "{env: [{name: B, value: old}]}", "{env: [{name: B, value: old}, {name: A, value: new}]}"},
		{"the same", "{env: [{name: A, value: old}, {name: B, value: old}]}", "{env: [{name: A, value: new}, {name: B, value: old}]}"},
		{"from elsewhere", "{env: [{name: A, valueFrom: {configMapKeyRef: {name: m, key: k}}}]}", "{env: [{name: A, value: new}]}"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := object(t, test.before)
			got.SetEnv("A", "new")
			if diff := cmp.Diff(text(t, object(t, test.after)), text(t, got)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// What is not there reads as nothing, and never panics.
func TestAbsent(t *testing.T) {
	for _, broken := range []string{"{}", "{kind: 1, metadata: []}", "{kind: Deployment, spec: {template: text}}", "{kind: Deployment, spec: {template: {spec: {containers: [1]}}}}"} {
		o := object(t, broken)
		if o.Name() != "" || len(o.Pod().Containers("containers")) != 0 || len(o.Strings("args")) != 0 {
			t.Errorf("%s has a name, a container or arguments", broken)
		}
	}
}
