package seed

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"strings"

	sdk "code.gitea.io/sdk/gitea"

	"fabrique/manifests/zone"
	"fabrique/steps/config"
	"fabrique/steps/secret"
)

// token is a bot's access token, in a Secret and nowhere else. Gitea tells a token's
// text only when it is made, so one whose text did not reach the Secret is of no use:
// ours are told by the prefix of their names, and all but the one in the Secret are
// revoked.
type token struct {
	*forge
	cluster
	user   string
	scope  sdk.AccessTokenScope
	to     config.SecretName
	rotate bool // make a new one even if the old one works
}

const tokenPrefix = "fabrique-seed-"

func (t *token) Name() string { return "token of " + t.user }

// ours lists the bot's tokens that were made here.
func (t *token) ours(ctx context.Context) ([]*sdk.AccessToken, error) {
	api, err := t.tokensOf(ctx, t.user)
	if err != nil {
		return nil, err
	}
	const page = 50
	var ours []*sdk.AccessToken
	for n := 1; ; n++ {
		list, answer, err := api.ListAccessTokens(sdk.ListAccessTokensOptions{ListOptions: sdk.ListOptions{Page: n, PageSize: page}})
		if notFound(answer) {
			return nil, nil // the user is not there yet
		}
		if err != nil {
			return nil, t.failure("listing its tokens", answer, err)
		}
		for _, one := range list {
			if strings.HasPrefix(one.Name, tokenPrefix) {
				ours = append(ours, one)
			}
		}
		if len(list) < page {
			return ours, nil
		}
	}
}

// works asks Gitea with a token. One without the scope for the question is refused with
// 403, one that is none with 401.
func (t *token) works(ctx context.Context, stored secret.Secret) (bool, error) {
	api, err := t.as(ctx, stored)
	if err != nil {
		return false, err
	}
	_, answer, err := api.GetMyUserInfo()
	switch {
	case err == nil:
		return true, nil
	case answer != nil && answer.Response != nil && answer.StatusCode == http.StatusUnauthorized:
		return false, nil
	case answer != nil && answer.Response != nil && answer.StatusCode == http.StatusForbidden:
		return true, nil
	}
	return false, t.failure("trying its token", answer, fmt.Errorf("%s", stored.Redact(err.Error())))
}

// look compares. current is the one in the Secret, if it is as it should be.
func (t *token) look(ctx context.Context) (state State, ours []*sdk.AccessToken, current *sdk.AccessToken, err error) {
	value, err := t.value(ctx, t.to, zone.TokenKey)
	if err != nil {
		return absent, nil, nil, err
	}
	if ours, err = t.ours(ctx); err != nil {
		return absent, nil, nil, err
	}
	if len(value) == 0 {
		return absent, ours, nil, nil
	}
	state.Exists = true
	stored := secret.New(strings.TrimSpace(string(value)))
	i := slices.IndexFunc(ours, func(o *sdk.AccessToken) bool { return o.TokenLastEight == lastEight(stored) })
	works, err := t.works(ctx, stored)
	switch {
	case err != nil:
		return absent, nil, nil, err
	case !works:
		state.Diff = append(state.Diff, "Gitea refuses what is in the Secret")
	case i < 0:
		state.Diff = append(state.Diff, "what is in the Secret was not made for it here")
	case !slices.Equal(ours[i].Scopes, []sdk.AccessTokenScope{t.scope}):
		state.Diff = append(state.Diff, fmt.Sprintf("scopes: %v, want %s", ours[i].Scopes, t.scope))
	default:
		current = ours[i]
	}
	if n := len(ours); current != nil && n > 1 {
		state.Diff = append(state.Diff, fmt.Sprintf("%d tokens, want 1", n))
	}
	if t.rotate {
		state.Diff = append(state.Diff, "a new one is wanted")
	}
	return state, ours, current, nil
}

func lastEight(s secret.Secret) string {
	text := s.Reveal()
	return text[max(0, len(text)-8):]
}

func (t *token) Check(ctx context.Context) (State, error) {
	state, _, _, err := t.look(ctx)
	return state, err
}

func (t *token) Mend(ctx context.Context) error {
	_, ours, keep, err := t.look(ctx)
	if err != nil {
		return err
	}
	api, err := t.tokensOf(ctx, t.user)
	if err != nil {
		return err
	}
	if keep == nil || t.rotate {
		if keep, _, err = t.renew(ctx, api); err != nil {
			return err
		}
		t.rotate = false
	}
	for _, one := range ours {
		if one.ID == keep.ID {
			continue
		}
		if answer, err := api.DeleteAccessToken(one.ID); err != nil && !notFound(answer) {
			return t.failure("revoking a token", answer, err)
		}
	}
	return nil
}

// renew makes a token and stores it. What is killed in between leaves a token whose
// text nobody has; the next run revokes it.
func (t *token) renew(ctx context.Context, api *sdk.Client) (*sdk.AccessToken, *sdk.Response, error) {
	made, answer, err := api.CreateAccessToken(sdk.CreateAccessTokenOption{
		Name: tokenPrefix + strings.ToLower(rand.Text()[:12]), Scopes: []sdk.AccessTokenScope{t.scope},
	})
	if err != nil {
		return nil, answer, t.failure("making a token", answer, err)
	}
	if err := t.put(ctx, t.to, map[string][]byte{zone.TokenKey: []byte(made.Token)}, nil, nil); err != nil {
		return nil, nil, err
	}
	return made, nil, nil
}
