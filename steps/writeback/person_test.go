package writeback

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fabrique/steps/gitref"
	"fabrique/steps/step"
)

// A person's rejection outlives a hold that came after it and was taken away with
// git, and any number of later commits to the file.
func TestRejectionIsNotForgotten(t *testing.T) {
	for name, later := range map[string]func(*world, string){
		"a hold, reverted with git": func(w *world, dir string) {
			if _, err := Hold(w.t.Context(), w.logger(), w.options("citation"), "thinking"); err != nil {
				w.t.Fatal(err)
			}
			w.git(dir, "pull", "--quiet", w.project.AppsURL(), "main")
			w.git(dir, "revert", "--no-edit", "HEAD")
		},
		"120 commits to the file": func(w *world, dir string) {
			for i := range 120 {
				file := filepath.Join(dir, "citation.yaml")
				text, err := os.ReadFile(file)
				if err == nil {
					err = os.WriteFile(file, fmt.Appendf(text, "# note %d\n", i), 0o644)
				}
				if err != nil {
					w.t.Fatal(err)
				}
				w.git(dir, "commit", "--quiet", "--all", "--message", fmt.Sprintf("Note %d", i))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.declare("citation")
			r := w.commits(3, "")
			w.deploy("citation", deployment("citation", r[0]), Updated)
			w.deploy("citation", deployment("citation", r[1]), Updated)
			dir := w.appsClone()
			w.git(dir, "revert", "--no-edit", "HEAD")
			w.git(dir, "push", "--quiet", w.project.AppsURL(), "HEAD:main")
			later(w, dir)
			w.git(dir, "push", "--quiet", w.project.AppsURL(), "HEAD:main")
			w.deploy("citation", deployment("citation", r[1]), Held)
			if got, _ := w.record("citation"); got.Revision != r[0] || got.RollbackOf != deployment("citation", r[1]).SourceKey {
				t.Errorf("the record: %+v", got)
			}
			w.deploy("citation", deployment("citation", r[2]), Updated)
		})
	}
}

// What a rollback cannot do is said before anything is built, and written nowhere.
func TestRollbackRefused(t *testing.T) {
	w := newWorld(t)
	w.declare("citation")
	r := w.commits(3, "")
	w.git(w.clone, "commit", "--quiet", "--allow-empty", "--message", "on a side branch")
	side := gitref.Revision(w.git(w.clone, "rev-parse", "HEAD"))
	w.push("side")
	w.deploy("citation", deployment("citation", r[1]), Updated)
	commits := len(w.history())
	for _, c := range []struct {
		to   gitref.Revision
		says string
	}{
		{r[2], "is not older than the deployed"},
		{side, "is not on main"},
		{r[1], "has the same source as the one to leave"},
		{gitref.Revision(strings.Repeat("1", 40)), "does not exist"},
	} {
		for name, run := range map[string]func() (Result, error){
			"check": func() (Result, error) {
				return CheckRollback(t.Context(), w.logger(), w.options("citation"), deployment("citation", c.to))
			},
			"rollback": func() (Result, error) {
				return Rollback(t.Context(), w.logger(), w.options("citation"), deployment("citation", c.to))
			},
		} {
			if _, err := run(); step.ExitCode(err) != step.ExitInvalid || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s to %.8s: %v; want exit code 2 and %q", name, c.to, err, c.says)
			}
		}
	}
	if got, err := CheckRollback(t.Context(), w.logger(), w.options("citation"), deployment("citation", r[0])); err != nil || got.Result != Updated {
		t.Errorf("checking a rollback that can be: %+v, %v", got, err)
	}
	if got := len(w.history()); got != commits {
		t.Errorf("%d commits were made", got-commits)
	}
	if _, err := Hold(t.Context(), w.logger(), w.options("citation"), "freeze"); err != nil {
		t.Fatal(err)
	}
	if got, err := Rollback(t.Context(), w.logger(), w.options("citation"), deployment("citation", r[0])); err != nil || got.Result != Held || got.Reason != "freeze" {
		t.Errorf("rolling back while it is held: %+v, %v; want held", got, err)
	}
}
