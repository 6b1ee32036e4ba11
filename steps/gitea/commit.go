package gitea

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	sdk "code.gitea.io/sdk/gitea"

	"fabrique/steps/gitref"
	"fabrique/steps/step"
)

// Dated is a commit with its author and time. The time is by the clock of whoever
// made the commit, which may be anyone's.
type Dated struct {
	Commit
	Author string
	Time   time.Time
}

func dated(c *sdk.Commit) (d Dated, ok bool) {
	if c == nil || c.CommitMeta == nil || c.RepoCommit == nil {
		return Dated{}, false
	}
	d = Dated{Commit: Commit{c.SHA, c.RepoCommit.Message}, Time: c.Created}
	if c.RepoCommit.Author != nil {
		d.Author = c.RepoCommit.Author.Name
	}
	return d, true
}

// Commit gives the commit whose id begins so. None, and more than one, give
// [ErrNotFound].
func (c *Client) Commit(ctx context.Context, repo Repository, prefix gitref.Prefix) (Dated, error) {
	what := fmt.Sprintf("reading the commit %s of %s", prefix, repo)
	owner, name := repo.split()
	api, err := c.api(ctx)
	if err != nil {
		return Dated{}, err
	}
	got, answer, err := api.GetSingleCommit(owner, name, string(prefix))
	if err != nil {
		return Dated{}, c.failure(what, answer, err)
	}
	d, ok := dated(got)
	if !ok {
		return Dated{}, step.Retryf("%s: Gitea's answer lacks the commit", what)
	}
	id, err := gitref.ParseRevision(d.ID)
	if err != nil {
		return Dated{}, fmt.Errorf("%s: %w", what, err)
	}
	if !prefix.Of(id) { // a branch or a tag has that name
		return Dated{}, step.Invalidf("%s: %w", what, ErrNotFound)
	}
	return d, nil
}

// Commits lists the commits of a branch, newest first: at least fifty, further ones
// until one is older than since, a thousand at most. A repository that is empty, as
// it also is for Gitea for a moment after its first push, has none. A branch that
// does not exist is an error; see [Client.History].
func (c *Client) Commits(ctx context.Context, repo Repository, branch gitref.Branch, since time.Time) ([]Dated, error) {
	what := fmt.Sprintf("listing the commits on %s of %s", branch, repo)
	owner, name := repo.split()
	api, err := c.api(ctx)
	if err != nil {
		return nil, err
	}
	var commits []Dated
	for page := 1; page <= historyPages; page++ {
		list, answer, err := api.ListRepoCommits(owner, name, sdk.ListCommitOptions{
			ListOptions: sdk.ListOptions{Page: page, PageSize: historyLength}, SHA: branch.Ref(),
		})
		if err != nil && answer != nil && answer.Response != nil && answer.StatusCode == http.StatusConflict {
			return nil, nil
		}
		if err != nil {
			return nil, c.failure(what, answer, err)
		}
		for _, item := range list {
			d, ok := dated(item)
			if !ok {
				return nil, step.Retryf("%s: Gitea's answer lacks the commits", what)
			}
			commits = append(commits, d)
		}
		if len(list) < historyLength || commits[len(commits)-1].Time.Before(since) {
			break
		}
	}
	return commits, nil
}

// Push is what Gitea noted when it was pushed to.
type Push struct {
	Time    time.Time
	By      string
	Head    gitref.Revision // the newest commit that was pushed
	Commits int
}

// pushPages bounds how far back a push is looked for, fifty activities each.
const pushPages = 6

// Push looks in the repository's activities, the newest few hundred, for the push
// that brought the commit to the branch. A push of many commits names only the
// newest few of them. found is false when there is none.
func (c *Client) Push(ctx context.Context, repo Repository, branch gitref.Branch, commit gitref.Revision) (push Push, found bool, err error) {
	what := fmt.Sprintf("listing the activities of %s", repo)
	owner, name := repo.split()
	api, err := c.api(ctx)
	if err != nil {
		return Push{}, false, err
	}
	for page := 1; page <= pushPages; page++ {
		list, answer, err := api.ListRepoActivityFeeds(owner, name, sdk.ListRepoActivityFeedsOptions{ListOptions: sdk.ListOptions{Page: page, PageSize: historyLength}})
		if err != nil {
			return Push{}, false, c.failure(what, answer, err)
		}
		for _, item := range list {
			if item == nil || item.OpType != "commit_repo" || item.RefName != branch.Ref() {
				continue
			}
			if p, ok := pushed(item, commit); ok {
				return p, true, nil
			}
		}
		if len(list) < historyLength {
			break
		}
	}
	return Push{}, false, nil
}

// pushed reads an activity (Gitea's modules/repository.PushCommits).
func pushed(item *sdk.Activity, commit gitref.Revision) (Push, bool) {
	type entry struct{ Sha1 gitref.Revision }
	var content struct {
		Commits    []entry
		HeadCommit entry
		Len        int
	}
	if json.Unmarshal([]byte(item.Content), &content) != nil {
		return Push{}, false
	}
	named := content.HeadCommit.Sha1 == commit
	for _, c := range content.Commits {
		named = named || c.Sha1 == commit
	}
	head, err := gitref.ParseRevision(string(content.HeadCommit.Sha1))
	if !named || err != nil {
		return Push{}, false
	}
	p := Push{Time: item.Created, Head: head, Commits: content.Len}
	if item.ActUser != nil {
		p.By = item.ActUser.UserName
	}
	return p, true
}
