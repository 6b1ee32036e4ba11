package gitea

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fabrique/steps/gitref"
	"fabrique/steps/secret"
	"fabrique/steps/step"
)

func TestCommits(t *testing.T) {
	w := newWorld(t, "commits")
	ctx := t.Context()
	repo := Repository(w.project.Source)
	started := time.Now().Add(-time.Minute)

	if _, err := w.reader.Commit(ctx, repo, "7222512"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a commit of an empty repository: %v", err)
	}
	if got, err := w.reader.Commits(ctx, repo, "main", started); len(got) != 0 || err != nil {
		t.Errorf("the commits of an empty repository: %v, %v", got, err)
	}
	if _, err := w.reader.Commits(ctx, "atlas/nothing", "main", started); !errors.Is(err, ErrNotFound) {
		t.Errorf("the commits of no repository: %v", err)
	}

	var ids []gitref.Revision
	for i := range historyLength + 1 {
		w.git(t, "commit", "--quiet", "--allow-empty", "--message", fmt.Sprintf("commit %d\n\nbody", i), "--date", "2020-01-01T00:00:00Z")
		ids = append(ids, gitref.Revision(w.git(t, "rev-parse", "HEAD")))
	}
	w.git(t, "branch", "deadbee")
	head := ids[len(ids)-1]
	for _, to := range []string{"HEAD~4", "HEAD~1", "HEAD"} {
		w.git(t, "push", "--quiet", w.project.SourceURL(), to+":refs/heads/main")
	}
	w.git(t, "push", "--quiet", w.project.SourceURL(), "deadbee")

	for _, prefix := range []gitref.Prefix{gitref.Prefix(head), gitref.Prefix(head[:12]), gitref.Prefix(head[:10])} {
		got, err := w.reader.Commit(ctx, repo, prefix)
		if err != nil || got.ID != string(head) || got.Message != fmt.Sprintf("commit %d\n\nbody\n", historyLength) || got.Author == "" || got.Time.Before(started) {
			t.Errorf("%s: %+v, %v", prefix, got, err)
		}
	}
	for name, prefix := range map[string]gitref.Prefix{"unknown": "7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210", "unknown and short": "7222512", "the name of a branch": "deadbee"} {
		if _, err := w.reader.Commit(ctx, repo, prefix); !errors.Is(err, ErrNotFound) || step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}

	// A page holds what is not older than since; the next is read for the rest.
	for since, want := range map[time.Time]int{time.Now(): historyLength, started: historyLength + 1, {}: historyLength + 1} {
		got, err := w.reader.Commits(ctx, repo, "main", since)
		if err != nil || len(got) != want || got[0].ID != string(head) {
			t.Errorf("since %s: %d commits, want %d, %v", since, len(got), want, err)
		}
	}

	// Gitea notes a push a moment after it.
	var push Push
	var found bool
	var err error
	for deadline := time.Now().Add(30 * time.Second); !found && err == nil && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		push, found, err = w.reader.Push(ctx, repo, "main", head)
	}
	if err != nil || !found || push.Head != head || push.Commits != 1 || push.By == "" || push.Time.Before(started) {
		t.Errorf("the push: %+v, %v, %v", push, found, err)
	}
	below := ids[len(ids)-3]
	push, found, err = w.reader.Push(ctx, repo, "main", below)
	if err != nil || !found || push.Head != ids[len(ids)-2] || push.Commits != 3 {
		t.Errorf("a commit below the newest of a push: %+v, %v, %v", push, found, err)
	}
	for name, c := range map[string]struct {
		branch gitref.Branch
		commit gitref.Revision
	}{"another branch": {"other", head}, "another commit": {"main", "7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210"}} {
		if push, found, err := w.reader.Push(ctx, repo, c.branch, c.commit); found || err != nil {
			t.Errorf("%s: %+v, %v, %v", name, push, found, err)
		}
	}
	if _, _, err := w.reader.Push(ctx, "atlas/nothing", "main", head); !errors.Is(err, ErrNotFound) {
		t.Errorf("no repository: %v", err)
	}
}

// What an activity says is read with care.
func TestPushed(t *testing.T) {
	const commit = "7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210"
	const other = "1111111111111111111111111111111111111111"
	activity := func(op, ref, content string) string {
		return fmt.Sprintf(`{"op_type":%q,"ref_name":%q,"content":%q,"created":"2026-11-30T14:51:08Z","act_user":{"login":"ada"}}`, op, ref, content)
	}
	for _, c := range []struct {
		name, list string
		want       Push
		found      bool
		code       int
	}{
		{name: "the newest of a push", list: activity("commit_repo", "refs/heads/main", `{"HeadCommit":{"Sha1":"`+commit+`"},"Len":1}`),
			want: Push{time.Date(2026, 11, 30, 14, 51, 8, 0, time.UTC), "ada", commit, 1}, found: true},
		{name: "below it", list: activity("commit_repo", "refs/heads/main", `{"HeadCommit":{"Sha1":"`+other+`"},"Commits":[{"Sha1":"`+other+`"},{"Sha1":"`+commit+`"}],"Len":2}`),
			want: Push{time.Date(2026, 11, 30, 14, 51, 8, 0, time.UTC), "ada", other, 2}, found: true},
		{name: "another branch", list: activity("commit_repo", "refs/heads/maintenance", `{"HeadCommit":{"Sha1":"`+commit+`"}}`)},
		{name: "a tag", list: activity("push_tag", "refs/heads/main", `{"HeadCommit":{"Sha1":"`+commit+`"}}`)},
		{name: "a new branch", list: activity("commit_repo", "refs/heads/main", "")},
		{name: "no head", list: activity("commit_repo", "refs/heads/main", `{"Commits":[{"Sha1":"`+commit+`"}]}`)},
		{name: "null", list: "null"},
		{name: "cut off", list: `{"op_type":`, code: step.ExitRetry},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "[%s]", c.list) }))
			defer server.Close()
			client, err := New(server.URL, secret.Secret{})
			if err != nil {
				t.Fatal(err)
			}
			push, found, err := client.Push(t.Context(), "a/b", "main", commit)
			if found != c.found || step.ExitCode(err) != c.code {
				t.Fatalf("%v, %v", found, err)
			}
			if diff := cmp.Diff(c.want, push); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// An answer without what was asked for is worth another try.
func TestCommitAnswers(t *testing.T) {
	for answer, code := range map[string]int{
		"{}": step.ExitRetry, "null": step.ExitRetry, `{"sha":"` + strings.Repeat("1", 40) + `"}`: step.ExitRetry,
		`{"sha":"main","commit":{"message":"x"}}`: step.ExitInvalid,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) }))
		client, err := New(server.URL, secret.Secret{})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := client.Commit(t.Context(), "a/b", "1111111"); step.ExitCode(err) != code {
			t.Errorf("%s: %+v, %v", answer, got, err)
		}
		server.Close()
	}
}
