package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"fabrique/bench/cache"
	"fabrique/bench/cluster"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"bench": main}) }

// TestScripts runs the real program, with a cache and a cluster's folder of its
// own, both empty, as far as it comes without building anything.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv(cache.EnvDir, filepath.Join(env.WorkDir, "cache"))
			env.Setenv(cluster.EnvDir, filepath.Join(env.WorkDir, "state"))
			return nil
		},
	})
}

// Two runs never change the cluster at the same time.
func TestOnly(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	c := cluster.Cluster{Dir: "/the/state"}
	unlock, err := only(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := only(c); err == nil || !strings.Contains(err.Error(), "another run is changing the cluster in /the/state right now") {
		t.Errorf("while another one has it: %v", err)
	}
	unlock()
	unlock, err = only(c)
	if err != nil {
		t.Fatalf("after the other one: %v", err)
	}
	unlock()
}
