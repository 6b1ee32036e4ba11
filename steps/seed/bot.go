package seed

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"

	sdk "code.gitea.io/sdk/gitea"

	"fabrique/steps/gitea"
	"fabrique/steps/step"
)

// user is an ordinary user. Nobody knows its password.
type user struct {
	*forge
	name string
}

func (u *user) Name() string { return "user " + u.name }

func (u *user) get(ctx context.Context) (*sdk.User, error) {
	api, err := u.admin(ctx)
	if err != nil {
		return nil, err
	}
	got, answer, err := api.GetUserInfo(u.name)
	switch {
	case notFound(answer):
		return nil, nil
	case err != nil:
		return nil, u.failure("looking for the user", answer, err)
	}
	return got, nil
}

func (u *user) Check(ctx context.Context) (State, error) {
	got, err := u.get(ctx)
	if got == nil || err != nil {
		return absent, err
	}
	state := State{Exists: true}
	for what, is := range map[string]bool{
		"it is an administrator": got.IsAdmin, "it is not active": !got.IsActive, "it may not sign in": got.ProhibitLogin,
	} {
		if is {
			state.Diff = append(state.Diff, what)
		}
	}
	slices.Sort(state.Diff)
	return state, nil
}

func (u *user) Mend(ctx context.Context) error {
	api, err := u.admin(ctx)
	if err != nil {
		return err
	}
	got, err := u.get(ctx)
	if err != nil {
		return err
	}
	yes, no := true, false
	if got == nil {
		// The address is of a domain that does not exist (RFC 2606).
		if _, answer, err := api.AdminCreateUser(sdk.CreateUserOption{
			Username: u.name, Email: u.name + "@fabrique.invalid", Password: rand.Text(), MustChangePassword: &no,
		}); err != nil {
			return u.failure("making the user", answer, err)
		}
		return nil
	}
	if answer, err := api.AdminEditUser(u.name, sdk.EditUserOption{
		SourceID: got.SourceID, LoginName: got.LoginName, Admin: &no, Active: &yes, ProhibitLogin: &no,
	}); err != nil {
		return u.failure("changing the user", answer, err)
	}
	return nil
}

// rights are what a bot may do: of all repositories on the wanted ones only, as a
// collaborator.
type rights struct {
	*forge
	user   string
	wanted map[gitea.Repository]sdk.AccessMode
	known  []gitea.Repository // all that are seeded; on those not wanted it has none
}

func (r *rights) Name() string { return "rights of " + r.user }

// right is what a bot may do on one repository.
type right struct {
	repo      gitea.Repository
	got, want sdk.AccessMode
	given     bool // as a collaborator
}

func (r right) differs() bool {
	if r.want == sdk.AccessModeNone {
		// Everybody may read a public repository.
		return r.given || r.got != sdk.AccessModeNone && r.got != sdk.AccessModeRead
	}
	return !r.given || r.got != r.want
}

func (r *rights) all(ctx context.Context) (list []right, err error) {
	api, err := r.admin(ctx)
	if err != nil {
		return nil, err
	}
	for _, repo := range r.known {
		owner, name := split(repo)
		one := right{repo: repo, got: sdk.AccessModeNone, want: sdk.AccessModeNone}
		if want, ok := r.wanted[repo]; ok {
			one.want = want
		}
		got, answer, err := api.CollaboratorPermission(owner, name, r.user)
		if err != nil && !notFound(answer) {
			return nil, r.failure("reading what it may do on "+string(repo), answer, err)
		}
		if err == nil && got != nil {
			one.got = got.Permission
			if one.given, answer, err = api.IsCollaborator(owner, name, r.user); err != nil && !notFound(answer) {
				return nil, r.failure("reading the collaborators of "+string(repo), answer, err)
			}
		}
		list = append(list, one)
	}
	others, err := r.elsewhere(ctx)
	return append(list, others...), err
}

// elsewhere lists the repositories that nobody seeds and that let the user in.
func (r *rights) elsewhere(ctx context.Context) (list []right, err error) {
	const page = 50
	api, err := r.admin(ctx)
	if err != nil {
		return nil, err
	}
	if _, answer, err := api.GetUserInfo(r.user); notFound(answer) {
		return nil, nil
	} else if err != nil {
		return nil, r.failure("looking for the user", answer, err)
	}
	if api, err = r.behalf(ctx, r.user); err != nil {
		return nil, err
	}
	for n := 1; ; n++ {
		repos, answer, err := api.ListMyRepos(sdk.ListReposOptions{ListOptions: sdk.ListOptions{Page: n, PageSize: page}})
		if err != nil {
			return nil, r.failure("listing its repositories", answer, err)
		}
		for _, repo := range repos {
			id := gitea.Repository(repo.FullName)
			if repo.Owner == nil || strings.EqualFold(repo.Owner.UserName, r.user) || slices.ContainsFunc(r.known, func(k gitea.Repository) bool { return strings.EqualFold(string(k), repo.FullName) }) {
				continue
			}
			list = append(list, right{id, sdk.AccessModeRead, sdk.AccessModeNone, true})
		}
		if len(repos) < page {
			return list, nil
		}
	}
}

func (r *rights) Check(ctx context.Context) (State, error) {
	list, err := r.all(ctx)
	if err != nil {
		return absent, err
	}
	var state State
	for _, one := range list {
		state.Exists = state.Exists || one.given
		if one.differs() {
			got := string(one.got)
			if one.want != sdk.AccessModeNone && !one.given {
				got = "no collaborator"
			}
			state.Diff = append(state.Diff, fmt.Sprintf("%s: %s, want %s", one.repo, got, one.want))
		}
	}
	return state, nil
}

func (r *rights) Mend(ctx context.Context) error {
	api, err := r.admin(ctx)
	if err != nil {
		return err
	}
	list, err := r.all(ctx)
	if err != nil {
		return err
	}
	for _, one := range list {
		if !one.differs() {
			continue
		}
		owner, name := split(one.repo)
		if one.want == sdk.AccessModeNone {
			if !one.given {
				return step.Invalidf("it may %s %s without being a collaborator; take it out of the team that lets it in", one.got, one.repo)
			}
			if answer, err := api.DeleteCollaborator(owner, name, r.user); err != nil && !notFound(answer) {
				return r.failure("taking it out of "+string(one.repo), answer, err)
			}
			continue
		}
		mode := one.want
		if answer, err := api.AddCollaborator(owner, name, r.user, sdk.AddCollaboratorOption{Permission: &mode}); err != nil {
			return r.failure("letting it into "+string(one.repo), answer, err)
		}
	}
	return nil
}
