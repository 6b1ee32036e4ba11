// Package giteaadmin sets up users and repositories of a Gitea, as its
// administrator.
package giteaadmin

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"

	"code.gitea.io/sdk/gitea"

	"fabrique/steps/secret"
)

// Admin is an administrator of the Gitea at URL.
type Admin struct {
	URL   string
	Token secret.Secret
}

// Client gives an API client that authenticates with token.
func (a Admin) Client(ctx context.Context, token secret.Secret) (*gitea.Client, error) {
	return gitea.NewClient(a.URL, gitea.SetToken(token.Reveal()), gitea.SetContext(ctx))
}

// CreateRepo creates an empty private repository "owner/name" with default
// branch main, and the owner, an organization, when it does not exist. Its ids
// are SHA-1: for SHA-256 Gitea wants git 2.42, Debian 12 has 2.39.
func (a Admin) CreateRepo(ctx context.Context, repo string) error {
	client, err := a.Client(ctx, a.Token)
	if err != nil {
		return err
	}
	owner, name, _ := strings.Cut(repo, "/")
	if _, answer, err := client.GetOrg(owner); err != nil {
		if answer == nil || answer.StatusCode != http.StatusNotFound {
			return fmt.Errorf("looking for the organization %q: %w", owner, err)
		}
		if _, _, err := client.CreateOrg(gitea.CreateOrgOption{Name: owner}); err != nil {
			return fmt.Errorf("creating the organization %q: %w", owner, err)
		}
	}
	if _, _, err := client.CreateOrgRepo(owner, gitea.CreateRepoOption{Name: name, Private: true, DefaultBranch: "main"}); err != nil {
		return fmt.Errorf("creating the repository %q: %w", repo, err)
	}
	return nil
}

// CreateUser creates an ordinary user unless there is one of that name, and gives
// a new token with these scopes ("read:repository", …).
func (a Admin) CreateUser(ctx context.Context, name string, scopes ...gitea.AccessTokenScope) (secret.Secret, error) {
	client, err := a.Client(ctx, a.Token)
	if err != nil {
		return secret.Secret{}, err
	}
	password := rand.Text()
	mustChange := false
	if _, _, err := client.AdminCreateUser(gitea.CreateUserOption{
		Username: name, Email: name + "@bench.invalid", Password: password, MustChangePassword: &mustChange,
	}); err != nil {
		// A run that was killed created the user and did not keep the token.
		if _, _, missing := client.GetUserInfo(name); missing != nil {
			return secret.Secret{}, fmt.Errorf("creating the user %q: %w", name, err)
		}
		if password, err = a.newPassword(ctx, name); err != nil {
			return secret.Secret{}, err
		}
	}
	token, err := a.token(ctx, name, password, scopes)
	return secret.New(token.Token), err
}

// NewToken gives a further token of a user with these scopes, and its id. It replaces
// the user's password, which no bot uses.
func (a Admin) NewToken(ctx context.Context, name string, scopes ...gitea.AccessTokenScope) (token secret.Secret, id int64, err error) {
	password, err := a.newPassword(ctx, name)
	if err != nil {
		return token, 0, err
	}
	made, err := a.token(ctx, name, password, scopes)
	return secret.New(made.Token), made.ID, err
}

// RevokeToken removes a token of a user. It replaces the user's password.
func (a Admin) RevokeToken(ctx context.Context, name string, id int64) error {
	password, err := a.newPassword(ctx, name)
	if err != nil {
		return err
	}
	self, err := gitea.NewClient(a.URL, gitea.SetBasicAuth(name, password), gitea.SetContext(ctx))
	if err != nil {
		return err
	}
	if _, err := self.DeleteAccessToken(id); err != nil {
		return fmt.Errorf("removing a token of %q: %w", name, err)
	}
	return nil
}

// newPassword gives a user another password.
func (a Admin) newPassword(ctx context.Context, name string) (string, error) {
	client, err := a.Client(ctx, a.Token)
	if err != nil {
		return "", err
	}
	password, mustChange := rand.Text(), false
	if _, err := client.AdminEditUser(name, gitea.EditUserOption{LoginName: name, Password: password, MustChangePassword: &mustChange}); err != nil {
		return "", fmt.Errorf("giving the user %q another password: %w", name, err)
	}
	return password, nil
}

// token creates a token as the user: Gitea gives one for a password only.
func (a Admin) token(ctx context.Context, name, password string, scopes []gitea.AccessTokenScope) (gitea.AccessToken, error) {
	self, err := gitea.NewClient(a.URL, gitea.SetBasicAuth(name, password), gitea.SetContext(ctx))
	if err != nil {
		return gitea.AccessToken{}, err
	}
	token, _, err := self.CreateAccessToken(gitea.CreateAccessTokenOption{Name: "bench-" + rand.Text(), Scopes: scopes})
	if err != nil {
		return gitea.AccessToken{}, fmt.Errorf("creating a token of %q: %w", name, err)
	}
	return *token, nil
}

// LetOwnNothing takes from a user the right to have repositories and organizations of
// its own: as an owner it could make webhooks, which Gitea delivers from where it
// stands. A fork counts only with ALLOW_FORK_WITHOUT_MAXIMUM_LIMIT = false in
// Gitea's app.ini.
func (a Admin) LetOwnNothing(ctx context.Context, name string) error {
	client, err := a.Client(ctx, a.Token)
	if err != nil {
		return err
	}
	none, no := 0, false
	if _, err := client.AdminEditUser(name, gitea.EditUserOption{LoginName: name, MaxRepoCreation: &none, AllowCreateOrganization: &no}); err != nil {
		return fmt.Errorf("letting the user %q own nothing: %w", name, err)
	}
	return nil
}

// AddCollaborator lets user into repo with "read", "write" or "admin".
func (a Admin) AddCollaborator(ctx context.Context, repo, user string, access gitea.AccessMode) error {
	client, err := a.Client(ctx, a.Token)
	if err != nil {
		return err
	}
	owner, name, _ := strings.Cut(repo, "/")
	if _, err := client.AddCollaborator(owner, name, user, gitea.AddCollaboratorOption{Permission: &access}); err != nil {
		return fmt.Errorf("letting %q into %q: %w", user, repo, err)
	}
	return nil
}
