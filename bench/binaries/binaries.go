// Package binaries builds the product's programs, for tests that run them as a
// Workflow does: with arguments, environment, signals and exit codes.
package binaries

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"fabrique/bench/cache"
	"fabrique/bench/parts"
)

var build = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(parts.Dir(), "bin")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	return dir, link(dir)
})

// link builds the programs in a folder that all test processes of this checkout
// share, where go links nothing twice, and links them from there into dir, so that
// a later build does not change what this process runs.
func link(dir string) error {
	module, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("finding the module: %w", err)
	}
	root, err := cache.Dir()
	if err != nil {
		return err
	}
	shared := filepath.Join(root, "programs-"+cache.Key(strings.TrimSpace(string(module))))
	if err := os.MkdirAll(shared, 0o755); err != nil {
		return err
	}
	turn, err := os.Open(shared)
	if err != nil {
		return err
	}
	defer turn.Close()
	if err := syscall.Flock(int(turn.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("locking %s: %w", shared, err)
	}
	if out, err := exec.Command("go", "build", "-o", shared+"/", "fabrique/cmd/...").CombinedOutput(); err != nil {
		return fmt.Errorf("building the programs: %w\n%s", err, out)
	}
	programs, err := os.ReadDir(shared)
	if err != nil {
		return err
	}
	for _, p := range programs {
		from, to := filepath.Join(shared, p.Name()), filepath.Join(dir, p.Name())
		err := os.Link(from, to)
		if errors.Is(err, syscall.EXDEV) {
			var program []byte
			if program, err = os.ReadFile(from); err == nil {
				err = os.WriteFile(to, program, 0o755)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Dir builds all programs in cmd/ and gives the folder that holds them.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Running gives the command lines of all processes that hold part.
func Running(part string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if line := strings.ReplaceAll(string(raw), "\x00", " "); err == nil && strings.Contains(line, part) {
			found = append(found, line)
		}
	}
	return found
}
