package cgroup

import (
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// groups makes groups of a name of their own, with a folder in each, in every
// hierarchy. [Isolate] is tested where it is used, by packages parts and node.
func groups(t *testing.T, prefix string) (name string) {
	t.Helper()
	name = prefix + strings.ToLower(rand.Text()[:8])
	all := hierarchies()
	if len(all) == 0 {
		t.Fatal("the bench wants cgroup v1 hierarchies, which this machine has not mounted")
	}
	t.Cleanup(func() { Remove(name) })
	for _, h := range all {
		if err := os.MkdirAll(filepath.Join(h.dir, name, "below", "deeper"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got := Named(name); len(got) != len(all) {
		t.Fatalf("the groups are %v, want one in each of %v", got, all)
	}
	return name
}

const prefix = "fabrique-test-cgroup-"

func TestHierarchies(t *testing.T) {
	for _, h := range hierarchies() {
		if _, err := os.Stat(filepath.Join(h.dir, "cgroup.procs")); err != nil {
			t.Error(err)
		}
		if named := filepath.Base(h.dir); h.fstype == "cgroup" && !strings.Contains(h.options, strings.Split(named, ",")[0]) {
			t.Errorf("%s has the options %q", h.dir, h.options)
		}
		if slices.Contains(strings.Split(h.options, ","), "rw") {
			t.Errorf("the options of %s hold a mount's: %q", h.dir, h.options)
		}
	}
}

func TestRemove(t *testing.T) {
	name, other := groups(t, prefix), groups(t, prefix)
	// No name leads elsewhere.
	for _, no := range []string{other + "/below", "../" + filepath.Base(hierarchies()[0].dir) + "/" + other, "./" + other} {
		Remove(no)
	}
	Remove(name)
	if got := Named(name); len(got) != 0 {
		t.Errorf("%v are left", got)
	}
	for _, group := range Named(other) {
		if _, err := os.Stat(filepath.Join(group, "below", "deeper")); err != nil {
			t.Errorf("the groups of another name: %v", err)
		}
	}
	Remove(name) // there is none
}

// Of the groups with the prefix only those go that are old and have no process.
func TestSweep(t *testing.T) {
	sweep := prefix + strings.ToLower(rand.Text()[:8]) + "-"
	young, old, living, other := groups(t, sweep), groups(t, sweep), groups(t, sweep), groups(t, prefix)
	sleeper := exec.Command("sleep", "3600")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		sleeper.Process.Kill()
		sleeper.Wait()
	}()
	for _, group := range Named(living) {
		// A new cpuset group takes no process; as in Isolate.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if parent, err := os.ReadFile(filepath.Join(filepath.Dir(group), file)); err == nil {
				if err := os.WriteFile(filepath.Join(group, file), parent, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(sleeper.Process.Pid)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before := time.Now().Add(-2 * time.Minute)
	for _, name := range []string{old, living, other} {
		for _, group := range Named(name) {
			if err := os.Chtimes(group, before, before); err != nil {
				t.Fatal(err)
			}
		}
	}
	Sweep(sweep)
	all := len(hierarchies())
	got := map[string]int{"young": len(Named(young)), "old": len(Named(old)), "living": len(Named(living)), "other": len(Named(other))}
	if diff := cmp.Diff(map[string]int{"young": all, "old": 0, "living": all, "other": all}, got); diff != "" {
		t.Errorf("groups: -want +got\n%s", diff)
	}
}
