// Package binaries builds the product's programs, for tests that run them as a
// Workflow does: with arguments, environment, signals and exit codes.
package binaries

import (
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"fabrique/bench/parts"
)

var build = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(parts.Dir(), "bin")
	out, err := exec.Command("go", "build", "-o", dir+"/", "fabrique/cmd/...").CombinedOutput()
	if err != nil {
		return string(out), err
	}
	return dir, nil
})

// Dir builds all programs in cmd/ and gives the folder that holds them.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := build()
	if err != nil {
		t.Fatalf("building the programs: %v\n%s", err, dir)
	}
	return dir
}
