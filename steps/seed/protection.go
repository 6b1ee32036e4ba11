package seed

import (
	"context"
	"fmt"
	"slices"
	"strings"

	sdk "code.gitea.io/sdk/gitea"

	"fabrique/steps/gitea"
	"fabrique/steps/gitref"
)

// protection says who may push to a branch, and merge into it: these users, no team and
// no deploy key. Who else asks for reviews or checks there keeps them.
type protection struct {
	*forge
	repo   gitea.Repository
	branch gitref.Branch
	users  []string
}

func (p *protection) Name() string { return fmt.Sprintf("protection of %s of %s", p.branch, p.repo) }

func (p *protection) get(ctx context.Context) (*sdk.BranchProtection, error) {
	api, err := p.admin(ctx)
	if err != nil {
		return nil, err
	}
	owner, name := split(p.repo)
	rules, answer, err := api.ListBranchProtections(owner, name, sdk.ListBranchProtectionsOptions{})
	if err != nil && !notFound(answer) {
		return nil, p.failure("listing the branch protections", answer, err)
	}
	for _, r := range rules {
		if r.RuleName == string(p.branch) {
			return r, nil
		}
	}
	return nil, nil
}

func (p *protection) Check(ctx context.Context) (State, error) {
	got, err := p.get(ctx)
	if got == nil || err != nil {
		return absent, err
	}
	state := State{Exists: true}
	want := names(p.users)
	for _, f := range []struct{ field, got, want string }{
		{"push", fmt.Sprint(got.EnablePush), "true"},
		{"push for listed users only", fmt.Sprint(got.EnablePushWhitelist), "true"},
		{"who may push", names(got.PushWhitelistUsernames), want},
		{"teams that may push", names(got.PushWhitelistTeams), ""},
		{"deploy keys may push", fmt.Sprint(got.PushWhitelistDeployKeys), "false"},
		{"merge for listed users only", fmt.Sprint(got.EnableMergeWhitelist), "true"},
		{"who may merge", names(got.MergeWhitelistUsernames), want},
		{"teams that may merge", names(got.MergeWhitelistTeams), ""},
	} {
		if f.got != f.want {
			state.Diff = append(state.Diff, fmt.Sprintf("%s: %q, want %q", f.field, f.got, f.want))
		}
	}
	return state, nil
}

// names gives a list as one text; to Gitea names differ in more than their case only.
func names(list []string) string {
	sorted := strings.Fields(strings.ToLower(strings.Join(list, " ")))
	slices.Sort(sorted)
	return strings.Join(sorted, " ")
}

func (p *protection) Mend(ctx context.Context) error {
	got, err := p.get(ctx)
	if err != nil {
		return err
	}
	api, err := p.admin(ctx)
	if err != nil {
		return err
	}
	owner, name := split(p.repo)
	if got == nil {
		if _, answer, err := api.CreateBranchProtection(owner, name, sdk.CreateBranchProtectionOption{
			RuleName: string(p.branch), EnablePush: true, EnablePushWhitelist: true, PushWhitelistUsernames: p.users,
			EnableMergeWhitelist: true, MergeWhitelistUsernames: p.users,
		}); err != nil {
			return p.failure("protecting the branch", answer, err)
		}
		return nil
	}
	yes, no, none := true, false, []string{}
	if _, answer, err := api.EditBranchProtection(owner, name, string(p.branch), sdk.EditBranchProtectionOption{
		EnablePush: &yes, EnablePushWhitelist: &yes, PushWhitelistUsernames: p.users, PushWhitelistTeams: none, PushWhitelistDeployKeys: &no,
		EnableMergeWhitelist: &yes, MergeWhitelistUsernames: p.users, MergeWhitelistTeams: none,
	}); err != nil {
		return p.failure("changing the branch protection", answer, err)
	}
	return nil
}
