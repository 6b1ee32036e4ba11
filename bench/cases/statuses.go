package cases

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"code.gitea.io/sdk/gitea"

	"fabrique/bench/action"
	"fabrique/bench/platform"
)

// whole is the context of a commit's status that stands for all apps; an app's is
// "fabrique/APP".
const whole = "fabrique"

// statuses gives the newest status of a commit of the source for each context.
func (w *World) statuses(ctx context.Context, revision string) (map[string]*gitea.Status, error) {
	client, err := w.Gitea.Client(ctx, w.Gitea.Token)
	if err != nil {
		return nil, err
	}
	owner, name, _ := strings.Cut(platform.SourceRepo, "/")
	all, _, err := client.ListStatuses(owner, name, revision, gitea.ListStatusesOption{ListOptions: gitea.ListOptions{PageSize: 50}})
	if err != nil {
		return nil, fmt.Errorf("listing the statuses of %s: %w", revision, err)
	}
	return newest(all), nil
}

// newest keeps the last status of each context; ids count up.
func newest(all []*gitea.Status) map[string]*gitea.Status {
	kept := map[string]*gitea.Status{}
	for _, s := range all {
		if there := kept[s.Context]; there == nil || there.ID < s.ID {
			kept[s.Context] = s
		}
	}
	return kept
}

// says waits until a commit's statuses of these contexts have the state, with a
// description that the regular expression matches.
func (w *World) says(ctx context.Context, revision, state, description string, contexts ...string) error {
	form := regexp.MustCompile(description)
	return action.Poll(ctx, time.Minute, func(ctx context.Context) error {
		all, err := w.statuses(ctx, revision)
		if err != nil {
			return err
		}
		for _, name := range contexts {
			switch s := all[name]; {
			case s == nil:
				return fmt.Errorf("the commit %s should have a status %q; it has none", revision, name)
			case string(s.State) != state, !form.MatchString(s.Description):
				return fmt.Errorf("the commit %s should say %s for %q, with words like %q; it says %s: %q", revision, state, name, description, s.State, s.Description)
			}
		}
		return nil
	})
}
