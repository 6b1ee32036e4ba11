package gitea

import (
	"context"
	"fmt"

	sdk "code.gitea.io/sdk/gitea"

	"fabrique/steps/gitref"
)

// Status is what a commit's page shows of one context. State is Gitea's: pending,
// success, failure, error, warning or skipped.
type Status struct {
	Context     string
	State       string
	Description string
	Link        string
}

// statusPages bounds how many statuses are read, fifty each.
const statusPages = 20

// Statuses gives the newest status of each context of a commit.
func (c *Client) Statuses(ctx context.Context, repo Repository, commit gitref.Revision) (map[string]Status, error) {
	what := fmt.Sprintf("reading the statuses of %s in %s", commit.Short(), repo)
	owner, name := repo.split()
	api, err := c.api(ctx)
	if err != nil {
		return nil, err
	}
	newest, ids := map[string]Status{}, map[string]int64{}
	for page := 1; page <= statusPages; page++ {
		list, answer, err := api.ListStatuses(owner, name, string(commit), sdk.ListStatusesOption{ListOptions: sdk.ListOptions{Page: page, PageSize: 50}})
		if err != nil {
			return nil, c.failure(what, answer, err)
		}
		for _, s := range list {
			if s != nil && s.ID >= ids[s.Context] {
				newest[s.Context] = Status{s.Context, string(s.State), s.Description, s.TargetURL}
				ids[s.Context] = s.ID
			}
		}
		if len(list) < 50 {
			break
		}
	}
	return newest, nil
}

// SetStatus adds a status to a commit; the newest of a context counts. The token's
// user must be allowed to write the repository. A commit that does not exist is an
// error with exit code 2.
func (c *Client) SetStatus(ctx context.Context, repo Repository, commit gitref.Revision, s Status) error {
	what := fmt.Sprintf("writing the status %s of %s in %s", s.Context, commit.Short(), repo)
	owner, name := repo.split()
	api, err := c.api(ctx)
	if err != nil {
		return err
	}
	_, answer, err := api.CreateStatus(owner, name, string(commit), sdk.CreateStatusOption{
		State: sdk.StatusState(s.State), TargetURL: s.Link, Description: s.Description, Context: s.Context,
	})
	if err != nil {
		return c.failure(what, answer, err)
	}
	return nil
}
