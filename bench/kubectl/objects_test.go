package kubectl

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestObjects(t *testing.T) {
	type m = map[string]any
	values := map[string]string{"NAME": "one", "IP": "10.0.0.1", "NAME_OF_MORE": "two"}
	for _, test := range []struct {
		name, text string
		want       []map[string]any
	}{
		{"nothing", "", nil},
		{"only comments", "# a\n---\n# b\n", nil},
		{"several, the empty ones dropped", "---\nkind: A\n---\n---\n# c\n---\n{}\n---\nkind: B\nlist: [1, x]\n", []map[string]any{
			{"kind": "A"}, {"kind": "B", "list": []any{1, "x"}},
		}},
		{"values filled in wherever they stand", "metadata: {name: ${NAME}, ${NAME}: ${NAME_OF_MORE}}\ntext: |\n  ${IP} registry\n", []map[string]any{
			{"metadata": m{"name": "one", "one": "two"}, "text": "10.0.0.1 registry\n"},
		}},
		{"other dollars stay", "text: $NAME ${OTHER} $${NAME}\n", []map[string]any{{"text": "$NAME ${OTHER} $one"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := Objects([]byte(test.text), values)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestObjectsRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"no YAML":        "kind: A\n---\nkind: [\n",
		"no map":         "- a\n",
		"a key twice":    "kind: A\nkind: B\n",
		"a tab to begin": "kind: A\n\tb: c\n",
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Objects([]byte(text), nil)
			if err == nil || !strings.HasPrefix(err.Error(), "reading a manifest: ") {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

func TestShell(t *testing.T) {
	k := Kubectl{Kubeconfig: "/a folder/admin.yaml"}
	want := `kubectl --kubeconfig '/a folder/admin.yaml' get pods -A`
	if got := k.Shell("get", "pods", "-A"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
