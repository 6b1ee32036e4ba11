package git

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"fabrique/steps/gitref"
)

// Commit is one commit of a history.
type Commit struct {
	ID      gitref.Revision
	Parents []gitref.Revision
	Time    time.Time // the committer's, as it stands in the commit
}

// FetchHistory brings the commit with all its ancestors; see [Repository.Fetch]
// for the filter and the errors.
func (r *Repository) FetchHistory(ctx context.Context, revision gitref.Revision, filter string) error {
	args := []string{"fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules"}
	if filter != "" {
		args = append(args, "--filter="+filter)
	}
	if _, err := r.Git(ctx, nil, append(args, remoteName, string(revision))...); err != nil {
		return fmt.Errorf("fetching the history of %s from %s: %w", revision, r.remote, err)
	}
	return nil
}

// History lists the commit and its ancestors, each after all its children.
func (r *Repository) History(ctx context.Context, revision gitref.Revision) ([]Commit, error) {
	out, err := r.Git(ctx, nil, "rev-list", "--topo-order", "--timestamp", "--parents", string(revision))
	if err != nil {
		return nil, fmt.Errorf("reading the history of %s: %w", revision, err)
	}
	return parseHistory(out)
}

// parseHistory reads lines of "seconds id parent…".
func parseHistory(out []byte) ([]Commit, error) {
	var commits []Commit
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			return nil, fmt.Errorf("reading git's list of commits: unexpected line %q", line)
		}
		seconds, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("reading git's list of commits: unexpected line %q", line)
		}
		c := Commit{Time: time.Unix(seconds, 0)}
		for i, field := range fields[1:] {
			id, err := gitref.ParseRevision(field)
			if err != nil {
				return nil, fmt.Errorf("reading git's list of commits: %w", err)
			}
			if i == 0 {
				c.ID = id
			} else {
				c.Parents = append(c.Parents, id)
			}
		}
		commits = append(commits, c)
	}
	return commits, nil
}

// Since gives those of a history, as [Repository.History] lists it, that may have
// been the branch's head at start or later: the newest, and every other whose child
// came after start. A commit counts as no older than its ancestors, so that a clock
// that was behind makes the answer longer and never shorter.
func Since(history []Commit, start time.Time) []gitref.Revision {
	came := map[gitref.Revision]time.Time{}
	for _, c := range slices.Backward(history) {
		came[c.ID] = c.Time
		for _, parent := range c.Parents {
			if came[parent].After(came[c.ID]) {
				came[c.ID] = came[parent]
			}
		}
	}
	wanted := map[gitref.Revision]bool{}
	var since []gitref.Revision
	for i, c := range history {
		if i == 0 || wanted[c.ID] {
			since = append(since, c.ID)
		}
		if !came[c.ID].Before(start) {
			for _, parent := range c.Parents {
				wanted[parent] = true
			}
		}
	}
	return since
}

// Files lists the ids of all files in the trees of the commits, each once.
func (r *Repository) Files(ctx context.Context, commits []gitref.Revision) ([]string, error) {
	var stdin bytes.Buffer
	for _, c := range commits {
		fmt.Fprintln(&stdin, c)
	}
	out, err := r.Git(ctx, stdin.Bytes(), "rev-list", "--objects", "--no-object-names", "--no-walk=unsorted",
		"--filter=object:type=blob", "--filter-provided-objects", "--stdin")
	if err != nil {
		return nil, fmt.Errorf("listing the files of %d commits: %w", len(commits), err)
	}
	return strings.Fields(string(out)), nil
}
