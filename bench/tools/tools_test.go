package tools

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Every tool's module names the packages that are built from it, and their
// version can be read from it.
func TestModulesNameTheirTools(t *testing.T) {
	for _, tool := range slices.Concat([]Tool{Runc, Registry, BuildKit, Gitea, Trivy}, Cluster) {
		module, err := moduleDir(tool.Name)
		if err != nil {
			t.Fatal(err)
		}
		mod, err := os.ReadFile(filepath.Join(module, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		for _, pkg := range tool.packages {
			if pkg == "fabrique/bench/tools/"+tool.Name {
				continue // a main of the bench's own
			}
			if version, err := required(string(mod), pkg); err != nil || !strings.HasPrefix(version, "v") {
				t.Errorf("%s: version %q, %v", pkg, version, err)
			}
			if !strings.Contains(string(mod), pkg+"\n") {
				t.Errorf("%s has no tool line for %s", module, pkg)
			}
		}
	}
}

func TestRequired(t *testing.T) {
	mod := `module m
require example.org/one v1.0.0
require (
	example.org/tw v0.0.1
	example.org/two v1.2.3 // indirect
)
`
	for pkg, want := range map[string]string{"example.org/one": "v1.0.0", "example.org/two/cmd/x": "v1.2.3", "example.org/three": ""} {
		got, err := required(mod, pkg)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", pkg, got, err, want)
		}
	}
}
