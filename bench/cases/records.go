package cases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"code.gitea.io/sdk/gitea"

	"fabrique/bench/action"
	"fabrique/bench/demo"
	"fabrique/bench/platform"
	"fabrique/bench/sample"
)

// recordCases are R6 to R8.
var recordCases = []Case{
	{Name: "bad-records", Title: "records with impossible names are reported by file and rule, and stop no other app", Run: badRecords},
	{Name: "R8", Title: "an app whose name has 50 characters is declared and deployed", Run: fiftyCharacters},
	{Name: "R6", Title: "of two pushes at once the newer stays deployed, also when the older is run again", Run: olderAgain},
	{Name: "R7", Title: "a force push that drops the recorded revision is deployed", Run: forcePush},
}

// badRecords is R8's other half: names that no app can have.
func badRecords(ctx context.Context, w *World) (saw string, err error) {
	original, err := fs.ReadFile(sample.Apps(), first+".yaml")
	if err != nil {
		return "", err
	}
	bad := map[string]string{"bad-1.yaml": `"A_b"`, "bad-2.yaml": `"ünïcode"`, "bad-3.yaml": `"../x"`}
	remove := func(ctx context.Context, w *World) error {
		return w.changeRecords(ctx, "Remove the records with impossible names", func(dir string) error {
			for file := range bad {
				if err := os.RemoveAll(filepath.Join(dir, file)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	defer finally(ctx, &err, w.anew(remove))
	if err := w.changeRecords(ctx, "Declare apps with impossible names", func(dir string) error {
		for file, name := range bad {
			// Argo CD would refuse to apply such an Application, and with it all others
			// beside it. That is not what is looked at, so it is told to skip these.
			text := strings.NewReplacer(
				"  name: "+first+"\n", "  name: "+name+"\n",
				"  annotations:\n", "  annotations:\n    argocd.argoproj.io/hook: Skip\n",
			).Replace(demo.GiteaInCluster.Replace(string(original)))
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return "", err
	}
	c, err := w.deploy(ctx, first, "Beside bad records")
	if err != nil {
		return "", err
	}
	files := slices.Sorted(maps.Keys(bad))
	workflow, err := w.failed(ctx, pushName(c.revision), strings.Join(files, "|"), 3*time.Minute)
	if err != nil {
		return "", err
	}
	text, err := planned(workflow, "broken")
	if err != nil {
		return "", err
	}
	var broken []struct{ App, Record, Error string }
	if err := json.Unmarshal([]byte(text), &broken); err != nil {
		return "", fmt.Errorf("reading the plan's broken records %q: %w", text, err)
	}
	for _, file := range files {
		found := false
		for _, b := range broken {
			found = found || b.Record == file && strings.Contains(b.Error, "DNS-1123 label")
		}
		if !found {
			return "", fmt.Errorf("the plan should name %s and the rule that it breaks; it says %s", file, text)
		}
		if err := w.says(ctx, c.revision, "failure", file, whole); err != nil {
			return "", err
		}
	}
	if err := w.says(ctx, c.revision, "success", "sha256:", whole+"/"+first); err != nil {
		return "", err
	}
	if err := remove(ctx, w); err != nil {
		return "", err
	}
	good, err := w.deploy(ctx, first, "Without bad records")
	if err != nil {
		return "", err
	}
	return "all three named with the rule, in the plan and on the commit; " + first + " was deployed beside them; removed: success",
		w.says(ctx, good.revision, "success", "", whole, whole+"/"+first)
}

// fiftyCharacters is R8: no name that is made of the app's becomes too long.
func fiftyCharacters(ctx context.Context, w *World) (saw string, err error) {
	app := longName()
	defer finally(ctx, &err, w.anew(func(ctx context.Context, w *World) error { return w.removeApp(ctx, app) }))
	if err := w.addApp(ctx, app); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s (%d characters) runs", app, len(app)), nil
}

// olderAgain is R6. The older push takes longer to build than the newer, which has
// the app's own Dockerfile.
func olderAgain(ctx context.Context, w *World) (saw string, err error) {
	defer finally(ctx, &err, w.anew(func(ctx context.Context, w *World) error { return w.restore(ctx) }))
	text, err := slow(20)
	if err != nil {
		return "", err
	}
	fast, err := original()
	if err != nil {
		return "", err
	}
	var pushes [2]commit
	for i, dockerfile := range []string{text, fast} {
		if err := w.dockerfile(dockerfile); err != nil {
			return "", err
		}
		if pushes[i], err = w.commit(ctx, first, "R6 "+string(rune('A'+i))); err != nil {
			return "", err
		}
		if err := w.send(ctx, &pushes[i]); err != nil {
			return "", err
		}
	}
	a, b := pushes[0], pushes[1]
	if _, err := w.follow(ctx, b); err != nil {
		return "", err
	}
	if _, err := w.succeeded(ctx, pushName(a.revision), 5*time.Minute); err != nil {
		return "", err
	}
	name, err := w.byHand(ctx, map[string]string{"revision": a.revision})
	if err != nil {
		return "", err
	}
	workflow, err := w.succeeded(ctx, name, 3*time.Minute)
	if err != nil {
		return "", err
	}
	if superseded, err := planned(workflow, "superseded"); err != nil || superseded != "true" {
		return "", errors.Join(err, fmt.Errorf("run again, A should be superseded; the plan says %q", superseded))
	}
	if err := idle(workflow); err != nil {
		return "", err
	}
	if now, err := w.recorded(ctx, first); err != nil || now != b.revision {
		return "", errors.Join(err, fmt.Errorf("the record should stay at B, %s; it is at %s", b.revision, now))
	}
	var shown []string
	err = action.Poll(ctx, time.Minute, func(ctx context.Context) error {
		shown = nil
		all, err := w.statuses(ctx, a.revision)
		if err == nil && all[whole] == nil {
			err = errors.New("the commit A has no status")
		}
		for name, s := range all {
			superseded := s.State == "skipped" && strings.HasPrefix(s.Description, "superseded by")
			if s.State != gitea.StatusSuccess && !superseded {
				return fmt.Errorf("the commit A should say success, or that it is superseded; it says %s for %q: %q", s.State, name, s.Description)
			}
			shown = append(shown, fmt.Sprintf("%s %s", name, s.State))
		}
		return err
	})
	slices.Sort(shown)
	return "B is deployed and stays when A is run again, superseded; A says " + strings.Join(shown, ", "), err
}

// forcePush is R7. The branch is protected from it, so that a person lifts that for
// the moment.
func forcePush(ctx context.Context, w *World) (saw string, err error) {
	head, err := w.head(ctx)
	if err != nil {
		return "", err
	}
	recorded, err := w.recorded(ctx, first)
	if err != nil {
		return "", err
	}
	if recorded != head {
		c, err := w.deploy(ctx, first, "R7, to be dropped")
		if err != nil {
			return "", err
		}
		recorded = c.revision
	}
	// The files stay: what came before may be the commit of a fault.
	if _, err := w.Work.Git(ctx, platform.SourceRepo, "reset", "--quiet", "--soft", "HEAD~1"); err != nil {
		return "", err
	}
	c, err := w.commit(ctx, first, "R7")
	if err != nil {
		return "", err
	}
	protect, err := w.unprotect(ctx)
	if err != nil {
		return "", err
	}
	c.pushed = time.Now()
	err = w.Work.Push(ctx, platform.SourceRepo, "+HEAD:"+mainRef)
	finally(ctx, &err, w.anew(protect))
	if err != nil {
		return "", err
	}
	if _, err := w.follow(ctx, c); err != nil {
		return "", err
	}
	return fmt.Sprintf("%.12s was recorded and is no longer on main; %.12s is deployed", recorded, c.revision), w.once(ctx, c)
}

// unprotect removes the protection of the source's main, and gives what brings it
// back as it was.
func (w *World) unprotect(ctx context.Context) (protect func(context.Context, *World) error, err error) {
	client, err := w.Gitea.Client(ctx, w.Gitea.Token)
	if err != nil {
		return nil, err
	}
	owner, name, _ := strings.Cut(platform.SourceRepo, "/")
	rules, _, err := client.ListBranchProtections(owner, name, gitea.ListBranchProtectionsOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing the branch protections of %s: %w", platform.SourceRepo, err)
	}
	var again []gitea.CreateBranchProtectionOption
	for _, rule := range rules {
		// The two types have the same fields by the same names.
		text, err := json.Marshal(rule)
		if err != nil {
			return nil, err
		}
		var options gitea.CreateBranchProtectionOption
		if err := json.Unmarshal(text, &options); err != nil {
			return nil, err
		}
		again = append(again, options)
	}
	protect = func(ctx context.Context, w *World) error {
		client, err := w.Gitea.Client(ctx, w.Gitea.Token)
		if err != nil {
			return err
		}
		for _, options := range again {
			if _, _, err := client.CreateBranchProtection(owner, name, options); err != nil {
				return fmt.Errorf("protecting the branch %s of %s again: %w", options.RuleName, platform.SourceRepo, err)
			}
		}
		return nil
	}
	for _, rule := range rules {
		if _, err := client.DeleteBranchProtection(owner, name, rule.RuleName); err != nil {
			return nil, fmt.Errorf("removing the protection of the branch %s of %s: %w", rule.RuleName, platform.SourceRepo, err)
		}
	}
	return protect, nil
}
