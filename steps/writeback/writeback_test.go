package writeback

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fabrique/steps/gitea"
	"fabrique/steps/gitref"
	"fabrique/steps/step"
)

// An update is one commit with trailers, changes only the record's own fields
// and costs at most four requests.
func TestUpdate(t *testing.T) {
	w := newWorld(t)
	w.declare("citation", "other")
	r := w.commits(6, "")
	w.deploy("citation", deployment("citation", r[0]), Updated)

	requests := w.proxy(func(*http.Request) *fault { return nil })
	var d Deployment
	var result Result
	next := 1
	for ; next < len(r) && result.Attempts != 1; next++ { // a busy machine may take more than one
		requests.Store(0)
		d = deployment("citation", r[next])
		result = w.deploy("citation", d, Updated)
	}
	if n := requests.Load(); n > 4 {
		t.Errorf("%d requests", n)
	}
	if result.Attempts != 1 || result.Revision != d.Revision || result.Digest != d.Digest || len(result.Commit) != 40 {
		t.Errorf("result %+v", result)
	}
	got, text := w.record("citation")
	if got.Revision != d.Revision || got.SourceKey != d.SourceKey || got.Digest != d.Digest || got.TargetRevision != string(d.Revision) {
		t.Errorf("record %+v", got)
	}
	for line := range strings.SplitSeq(strings.TrimSpace(manifest("citation")), "\n") {
		if !strings.Contains(line, "targetRevision") && !strings.Contains(text, line+"\n") {
			t.Errorf("the line %q is gone", line)
		}
	}
	want := "citation: deploy " + d.Revision.Short() + "\n\nFabrique-App: citation\nFabrique-Revision: " + string(d.Revision) +
		"\nFabrique-Source-Key: " + string(d.SourceKey)
	if messages := w.history(); messages[0] != want || len(messages) != next+1 {
		t.Errorf("history %q", messages)
	}
	if who := w.git(w.appsClone(), "log", "-1", "--format=%an <%ae>, %cn"); who != "Fabrique <fabrique@example.org>, Fabrique" {
		t.Errorf("signed by %s", who)
	}

	// Again: nothing happens, also with the digest of another build.
	requests.Store(0)
	d.Digest = deployment("citation", r[0]).Digest
	result = w.deploy("citation", d, Unchanged)
	if n := requests.Load(); n > 2 || result.Commit != "" || result.Digest == d.Digest {
		t.Errorf("%d requests, %+v", n, result)
	}
	if messages := w.history(); len(messages) != next+1 {
		t.Errorf("history %q", messages)
	}
}

// R6, R7: what may replace what.
func TestOrder(t *testing.T) {
	w := newWorld(t)
	w.declare("citation")
	r := w.commits(3, "")
	w.deploy("citation", deployment("citation", r[1]), Updated) // B first
	w.deploy("citation", deployment("citation", r[0]), Stale)   // then A
	w.deploy("citation", deployment("citation", r[2]), Updated)

	// A commit of another branch does not replace one of the branch.
	w.git(w.clone, "checkout", "--quiet", "--detach", string(r[1]))
	w.git(w.clone, "commit", "--quiet", "--allow-empty", "--message", "aside")
	aside := gitref.Revision(w.git(w.clone, "rev-parse", "HEAD"))
	w.push("aside")
	w.deploy("citation", deployment("citation", aside), Stale)

	// A force push drops the recorded commit.
	forced := w.commits(2, r[0])
	w.deploy("citation", deployment("citation", aside), Stale) // not on the branch either
	w.deploy("citation", deployment("citation", forced[1]), Updated)
	w.deploy("citation", deployment("citation", r[2]), Stale) // a build that was still running

	// One that goes back to an older commit as well.
	w.git(w.clone, "checkout", "--quiet", "--detach", string(forced[0]))
	w.push("main")
	w.deploy("citation", deployment("citation", forced[0]), Updated)

	// A revision that nobody knows any more is gone too.
	_, text := w.record("citation")
	gone := gitref.Revision(strings.Repeat("1234567890", 4))
	w.person("citation.yaml", strings.ReplaceAll(text, string(forced[0]), string(gone)))
	w.deploy("citation", deployment("citation", forced[0]), Held) // a person wrote that
	if _, err := Release(t.Context(), w.logger(), w.options("citation")); err != nil {
		t.Fatal(err)
	}
	w.deploy("citation", deployment("citation", forced[0]), Updated)
}

// R5: two apps at once and a person in between; all three survive.
func TestTwoAtOnce(t *testing.T) {
	w := newWorld(t)
	w.declare("one", "two", "three")
	r := w.commits(1, "")
	var once sync.Once
	w.proxy(func(req *http.Request) *fault {
		if req.Method == http.MethodPut {
			once.Do(func() { w.person("three.yaml", manifest("three")+"# a person was here\n") })
		}
		return nil
	})
	var group sync.WaitGroup
	for _, app := range []string{"one", "two"} {
		group.Go(func() { w.deploy(app, deployment(app, r[0]), Updated) })
	}
	group.Wait()
	for _, app := range []string{"one", "two"} {
		if got, _ := w.record(app); got.Revision != r[0] {
			t.Errorf("%s is at %q", app, got.Revision)
		}
	}
	if _, text := w.record("three"); !strings.Contains(text, "a person was here") {
		t.Error("the person's change is lost")
	}
	if messages := w.history(); len(messages) != 4 {
		t.Errorf("history %q", messages)
	}
}

// R5 in one file: a person edits the very record between read and write.
func TestPersonInBetween(t *testing.T) {
	w := newWorld(t)
	w.declare("citation")
	r := w.commits(1, "")
	var once sync.Once
	w.proxy(func(req *http.Request) *fault {
		if req.Method == http.MethodPut {
			once.Do(func() { w.person("citation.yaml", "# a person was here\n"+manifest("citation")) })
		}
		return nil
	})
	if result := w.deploy("citation", deployment("citation", r[0]), Updated); result.Attempts < 2 {
		t.Errorf("%d attempts", result.Attempts)
	}
	if got, text := w.record("citation"); got.Revision != r[0] || !strings.HasPrefix(text, "# a person was here\n") {
		t.Errorf("record\n%s", text)
	}
}

// R9: every trouble of the server, before and after the commit, ends in exactly
// one commit.
func TestServerTrouble(t *testing.T) {
	w := newWorld(t)
	w.declare("citation")
	const n = 21
	r := w.commits(n, "")
	var current atomic.Pointer[func(*http.Request) *fault]
	w.proxy(func(req *http.Request) *fault { return (*current.Load())(req) })

	write := func(req *http.Request) bool { return req.Method == http.MethodPut }
	contents := func(req *http.Request) bool {
		return req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/contents/")
	}
	commits := func(req *http.Request) bool { return strings.Contains(req.URL.Path, "/commits") }
	message := `{"message": "trouble"}`
	cases := []struct {
		name string
		when func(*http.Request) bool
		fault
	}{
		{"422 instead of the write", write, fault{422, false, message, false}},
		{"409 instead of the write", write, fault{409, false, message, false}},
		{"500 instead of the write", write, fault{500, false, message, false}},
		{"502 instead of the write", write, fault{502, false, "<html>bad gateway</html>", false}},
		{"lost race instead of the write", write, fault{403, false, `{"message": "cannot lock ref 'refs/heads/main': is at 1 but expected 2"}`, false}},
		{"broken connection instead of the write", write, fault{abort: true}},
		{"422 after the write", write, fault{422, true, message, false}},
		{"409 after the write", write, fault{409, true, message, false}},
		{"500 after the write", write, fault{500, true, message, false}},
		{"502 after the write", write, fault{502, true, message, false}},
		{"broken connection after the write", write, fault{passed: true, abort: true}},
		{"empty answer after the write", write, fault{200, true, "", false}},
		{"500 for the record", contents, fault{500, false, message, false}},
		{"429 for the record", contents, fault{429, false, message, false}},
		{"empty answer for the record", contents, fault{200, false, "", false}},
		{"empty object for the record", contents, fault{200, false, "{}", false}},
		{"empty content for the record", contents, fault{200, false, `{"type": "file", "encoding": "base64", "content": "", "size": 700, "sha": "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"}`, false}},
		{"no content for the record", contents, fault{200, false, `{"type": "file", "encoding": null, "content": null, "size": 700, "sha": "1"}`, false}},
		{"500 for the history or ancestry", commits, fault{500, false, message, false}},
		{"no count", commits, fault{200, false, "[]", false}},
		{"nonsense for the history or ancestry", commits, fault{200, false, `{"a": 1}`, false}},
	}
	if len(cases) != n {
		t.Fatalf("%d cases for %d commits", len(cases), n)
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var once sync.Once
			decide := func(req *http.Request) (f *fault) {
				if c.when(req) {
					once.Do(func() { f = &c.fault })
				}
				return f
			}
			current.Store(&decide)
			result := w.deploy("citation", deployment("citation", r[i]), Updated)
			if got, _ := w.record("citation"); got.Revision != r[i] {
				t.Errorf("the record is at %q", got.Revision)
			}
			if len(result.Commit) != 40 {
				t.Errorf("result %+v", result)
			}
		})
	}
	none := func(*http.Request) *fault { return nil }
	current.Store(&none)
	if got, want := len(w.history()), n+1; got != want {
		t.Errorf("%d commits, want %d", got, want)
	}
}

// A server that does not recover ends the attempts at --max-wait, or with the
// context.
func TestTroubleIsBounded(t *testing.T) {
	w := newWorld(t)
	w.declare("citation")
	r := w.commits(1, "")
	w.proxy(func(req *http.Request) *fault {
		if req.Method == http.MethodPut {
			return &fault{status: 500, body: `{"message": "trouble"}`}
		}
		return nil
	})
	o := w.options("citation")
	o.MaxWait = 2 * time.Second
	started := time.Now()
	result, err := Deploy(t.Context(), w.logger(), o, deployment("citation", r[0]))
	if step.ExitCode(err) != step.ExitRetry || !strings.Contains(err.Error(), "giving up after") || result.Attempts < 2 {
		t.Errorf("%+v, %v", result, err)
	}
	if took := time.Since(started); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
	if got, _ := w.record("citation"); got.Revision != "" {
		t.Errorf("the record is at %q", got.Revision)
	}
}

// R4: the record, its branch or its repository is not there.
func TestMissingRecord(t *testing.T) {
	w := newWorld(t)
	r := w.commits(1, "")
	d := deployment("citation", r[0])
	fails := func(o Options, d Deployment, want string) {
		t.Helper()
		_, err := Deploy(t.Context(), w.logger(), o, d)
		if step.ExitCode(err) != step.ExitInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("exit code %d, %v; want %q", step.ExitCode(err), err, want)
		}
	}
	fails(w.options("citation"), d, "the repository is empty; declare the app")

	o := w.options("citation")
	o.Apps = "cluster/nothing"
	fails(o, d, "cluster/nothing does not exist")

	// An empty repository takes the manifest.
	with := d
	with.CreateFrom = []byte(manifest("citation"))
	result := w.deploy("citation", with, Created)
	if got, text := w.record("citation"); got.Revision != r[0] || !strings.HasPrefix(text, "# citation, kept by people\n") || result.Revision != r[0] {
		t.Errorf("record\n%s", text)
	}
	w.deploy("citation", with, Unchanged)

	fails(w.options("other"), deployment("other", r[0]), `there is no file "other.yaml"`)
	o = w.options("citation")
	o.AppsBranch = "nothing"
	fails(o, d, `no branch "nothing"`)
	fails(o, with, `no branch "nothing"`)
	o = w.options("citation")
	o.App = "another"
	fails(o, d, `no app "another"`)
	broken := d
	broken.CreateFrom = []byte("kind: Application\n")
	fails(w.options("other"), broken, "--create-from")

}

// R4: a person removes the record between read and write.
func TestRemovedInBetween(t *testing.T) {
	w := newWorld(t)
	w.declare("one", "two", "keep")
	r := w.commits(1, "")
	var once [2]sync.Once
	w.proxy(func(req *http.Request) *fault {
		if req.Method == http.MethodPut {
			for i, app := range []string{"one", "two"} {
				if strings.HasSuffix(req.URL.Path, app+".yaml") {
					once[i].Do(func() { w.person(app+".yaml", "") })
				}
			}
		}
		return nil
	})
	_, err := Deploy(t.Context(), w.logger(), w.options("one"), deployment("one", r[0]))
	if step.ExitCode(err) != step.ExitInvalid || !strings.Contains(err.Error(), "declare the app") {
		t.Errorf("exit code %d, %v", step.ExitCode(err), err)
	}
	d := deployment("two", r[0])
	d.CreateFrom = []byte(manifest("two"))
	w.deploy("two", d, Created)
}

// The source side: a revision, branch or repository that does not exist.
func TestMissingSource(t *testing.T) {
	w := newWorld(t)
	w.declare("citation")
	r := w.commits(2, "")
	w.deploy("citation", deployment("citation", r[0]), Updated)
	unknown := gitref.Revision(strings.Repeat("1234567890", 4))
	for name, c := range map[string]struct {
		change func(*Options, *Deployment)
		want   string
	}{
		"revision":         {func(_ *Options, d *Deployment) { d.Revision = unknown }, "does not exist there; push it first"},
		"repository":       {func(o *Options, _ *Deployment) { o.Source = "atlas/nothing" }, "source repository atlas/nothing does not exist"},
		"not the reader's": {func(o *Options, _ *Deployment) { o.Reader = w.client(w.project.Writer) }, "or the reader may not see it"},
		"branch": {func(o *Options, d *Deployment) {
			o.SourceBranch = "nothing"
			w.git(w.clone, "checkout", "--quiet", "--orphan", "aside")
			w.git(w.clone, "commit", "--quiet", "--allow-empty", "--message", "aside")
			d.Revision = gitref.Revision(w.git(w.clone, "rev-parse", "HEAD"))
			w.push("aside")
		}, `the branch "nothing" does not exist`},
	} {
		o, d := w.options("citation"), deployment("citation", r[1])
		c.change(&o, &d)
		_, err := Deploy(t.Context(), w.logger(), o, d)
		if step.ExitCode(err) != step.ExitInvalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: exit code %d, %v", name, step.ExitCode(err), err)
		}
	}
	if got, _ := w.record("citation"); got.Revision != r[0] {
		t.Errorf("the record is at %q", got.Revision)
	}
}

func TestHoldAndRelease(t *testing.T) {
	w := newWorld(t)
	w.declare("citation")
	r := w.commits(2, "")
	w.deploy("citation", deployment("citation", r[0]), Updated)
	hold := func(reason, want string) {
		t.Helper()
		result, err := Hold(t.Context(), w.logger(), w.options("citation"), reason)
		if err != nil || result.Result != want {
			t.Fatalf("%+v, %v", result, err)
		}
	}
	hold("bad \"migration\"\nFabrique-Revision: x\x1b[31m", Updated)
	hold("bad \"migration\"\nFabrique-Revision: x\x1b[31m", Unchanged)
	if subject := strings.SplitN(w.history()[0], "\n", 2)[0]; subject != `citation: hold: bad "migration" Fabrique-Revision: x [31m` {
		t.Errorf("subject %q", subject)
	}
	result := w.deploy("citation", deployment("citation", r[1]), Held)
	if !strings.Contains(result.Reason, "migration") || result.Revision != r[0] {
		t.Errorf("%+v", result)
	}
	if _, err := Hold(t.Context(), w.logger(), w.options("citation"), " \n"); step.ExitCode(err) != step.ExitInvalid {
		t.Errorf("a hold without reason: %v", err)
	}
	for _, want := range []string{Updated, Unchanged} {
		result, err := Release(t.Context(), w.logger(), w.options("citation"))
		if err != nil || result.Result != want {
			t.Fatalf("%+v, %v", result, err)
		}
	}
	w.deploy("citation", deployment("citation", r[1]), Updated)
}

func TestRollback(t *testing.T) {
	w := newWorld(t)
	w.declare("citation")
	r := w.commits(5, "")
	if _, err := Rollback(t.Context(), w.logger(), w.options("citation"), deployment("citation", r[0])); step.ExitCode(err) != step.ExitInvalid {
		t.Errorf("rolling back what was never deployed: %v", err)
	}
	for i := range 3 {
		w.deploy("citation", deployment("citation", r[i]), Updated)
	}
	rollback := func(to gitref.Revision, want string) {
		t.Helper()
		result, err := Rollback(t.Context(), w.logger(), w.options("citation"), deployment("citation", to))
		if err != nil || result.Result != want || result.Revision != to {
			t.Fatalf("%+v, %v", result, err)
		}
	}
	rollback(r[1], Updated)
	rollback(r[1], Unchanged)
	rollback(r[0], Updated) // further back: it is still r[2] that is rejected
	if got, _ := w.record("citation"); got.RollbackOf != deployment("citation", r[2]).SourceKey {
		t.Errorf("rolled back: %+v", got)
	}
	if _, err := Rollback(t.Context(), w.logger(), w.options("citation"), deployment("citation", r[2])); step.ExitCode(err) != step.ExitInvalid {
		t.Errorf("rolling back to what was rejected: %v", err)
	}
	commits := len(w.history())
	w.deploy("citation", deployment("citation", r[2]), Held)
	w.deploy("citation", deployment("citation", r[3], string(r[2])), Held) // a newer commit, the same source
	w.deploy("citation", deployment("citation", r[1]), Stale)              // older than what was rejected
	if got := len(w.history()); got != commits {
		t.Errorf("%d commits more", got-commits)
	}
	w.deploy("citation", deployment("citation", r[4]), Updated)
	if got, _ := w.record("citation"); got.RollbackOf != "" || got.Revision != r[4] {
		t.Errorf("record %+v", got)
	}
}

// After a person takes a deployment back with git, it does not come again.
func TestPersonReverts(t *testing.T) {
	w := newWorld(t)
	w.declare("citation")
	r := w.commits(4, "")
	w.deploy("citation", deployment("citation", r[0]), Updated)
	w.deploy("citation", deployment("citation", r[2]), Updated)
	w.revert()

	result := w.deploy("citation", deployment("citation", r[2]), Held)
	if result.Commit == "" || result.Revision != r[0] {
		t.Errorf("%+v", result)
	}
	commits := w.history()
	if !strings.HasPrefix(commits[0], "citation: hold back "+r[2].Short()) {
		t.Errorf("history %q", commits)
	}
	w.deploy("citation", deployment("citation", r[2]), Held)
	w.deploy("citation", deployment("citation", r[3], string(r[2])), Held)
	w.deploy("citation", deployment("citation", r[1]), Stale)
	if got := w.history(); len(got) != len(commits) {
		t.Errorf("history %q", got)
	}
	_, before := w.record("citation")
	w.deploy("citation", deployment("citation", r[3]), Updated)
	if got, _ := w.record("citation"); got.RollbackOf != "" {
		t.Errorf("record %+v", got)
	}

	// A person who writes a newer revision by hand wins over a late build, and
	// nothing is rejected.
	hand := w.commits(1, r[3])
	_, text := w.record("citation")
	for _, pair := range [][2]string{{string(r[3]), string(hand[0])}, {string(deployment("citation", r[3]).SourceKey), string(deployment("citation", hand[0]).SourceKey)}} {
		text = strings.ReplaceAll(text, pair[0], pair[1])
	}
	w.person("citation.yaml", text)
	w.deploy("citation", deployment("citation", r[3]), Stale)
	w.revert()

	// Without an attempt in between: another source goes through at once, an
	// older one does not.
	w.person("citation.yaml", before)
	w.deploy("citation", deployment("citation", r[1]), Stale)
	more := w.commits(1, hand[0])
	w.deploy("citation", deployment("citation", more[0]), Updated)
}

// The first deployment can be taken back too; an app that is declared anew after
// its removal is not held.
func TestPersonRevertsTheFirst(t *testing.T) {
	w := newWorld(t)
	w.declare("citation", "other")
	r := w.commits(2, "")
	w.deploy("citation", deployment("citation", r[0]), Updated)
	w.revert()
	w.deploy("citation", deployment("citation", r[0]), Held)
	w.deploy("citation", deployment("citation", r[0]), Held)
	w.deploy("citation", deployment("citation", r[1]), Updated)

	w.person("citation.yaml", "")
	w.person("citation.yaml", manifest("citation"))
	w.deploy("citation", deployment("citation", r[1]), Updated)
}

func TestTokens(t *testing.T) {
	w := newWorld(t)
	w.declare("citation")
	r := w.commits(1, "")
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"reader writes": {func(o *Options) { o.Writer = w.client(w.project.Reader) }, "403"},
	} {
		o := w.options("citation")
		c.change(&o)
		_, err := Deploy(t.Context(), w.logger(), o, deployment("citation", r[0]))
		if step.ExitCode(err) != step.ExitInvalid || !strings.Contains(err.Error(), c.want) || errors.Is(err, gitea.ErrConflict) {
			t.Errorf("%s: exit code %d, %v", name, step.ExitCode(err), err)
		}
	}
}
