package seed

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	sdk "code.gitea.io/sdk/gitea"

	"fabrique/steps/gitea"
	"fabrique/steps/secret"
	"fabrique/steps/step"
)

// forge is Gitea, as its administrator.
type forge struct {
	url   string
	token secret.Secret
	http  *http.Client
	// hidden are further secrets that no error may show.
	hidden []secret.Secret
}

// answerTimeout is how long Gitea may take to begin an answer; a migration answers when
// all is there.
const answerTimeout = itemTimeout

// newForge checks that the token is an administrator's. Exit code 2 if not.
func newForge(ctx context.Context, url string, token secret.Secret, hidden []secret.Secret) (*forge, error) {
	url, err := gitea.ParseURL(url)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = answerTimeout
	f := &forge{url, token, &http.Client{Transport: transport}, hidden}
	api, err := f.admin(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	api.SetContext(ctx)
	const what = "asking Gitea who the administrator is"
	me, answer, err := api.GetMyUserInfo()
	if err != nil {
		return nil, f.failure(what, answer, err)
	}
	if !me.IsAdmin {
		return nil, step.Invalidf("%s: %q is none; give the token of one, with the scopes write:admin, write:organization, write:repository and write:user", what, me.UserName)
	}
	return f, nil
}

func (f *forge) client(ctx context.Context, who sdk.ClientOption) (*sdk.Client, error) {
	api, err := sdk.NewClient(f.url, sdk.SetGiteaVersion(""), sdk.SetHTTPClient(f.http), sdk.SetContext(ctx), sdk.SetUserAgent("fabrique"), who)
	if err != nil {
		return nil, step.Invalidf("making a client for Gitea at %q: %w", f.url, err)
	}
	return api, nil
}

func (f *forge) admin(ctx context.Context) (*sdk.Client, error) {
	return f.client(ctx, sdk.SetToken(f.token.Reveal()))
}

// as gives a client with somebody's token.
func (f *forge) as(ctx context.Context, token secret.Secret) (*sdk.Client, error) {
	return f.client(ctx, sdk.SetToken(token.Reveal()))
}

// tokensOf gives a client for a user's tokens. Gitea wants basic authentication for
// them, where a token may take the password's place; the name is then only the SDK's.
func (f *forge) tokensOf(ctx context.Context, user string) (*sdk.Client, error) {
	return f.client(ctx, sdk.SetBasicAuth(user, f.token.Reveal()))
}

// behalf gives a client that does what the user would.
func (f *forge) behalf(ctx context.Context, user string) (*sdk.Client, error) {
	api, err := f.admin(ctx)
	if err == nil {
		api.SetSudo(user)
	}
	return api, err
}

// notFound reports whether what was asked for is not there.
func notFound(answer *sdk.Response) bool {
	return answer != nil && answer.Response != nil && answer.StatusCode == http.StatusNotFound
}

// failure turns a failed call into an error with exit code and without secrets.
func (f *forge) failure(what string, answer *sdk.Response, cause error) error {
	said := f.token.Redact(cause.Error())
	for _, s := range f.hidden {
		said = s.Redact(said)
	}
	said = step.Clip(strings.Join(strings.Fields(said), " "))
	if answer == nil || answer.Response == nil {
		var network net.Error
		if errors.As(cause, &network) {
			return step.Retryf("%s: Gitea at %s cannot be reached (%s); check the address and that Gitea runs", what, f.url, said)
		}
		return step.Retryf("%s: asking Gitea at %s: %s", what, f.url, said)
	}
	switch status := answer.StatusCode; {
	case status == http.StatusUnauthorized:
		return step.Invalidf("%s: Gitea refuses the administrator's token (401); make a new one", what)
	case status == http.StatusForbidden:
		return step.Invalidf("%s: Gitea forbids it (403 %s); the administrator's token needs the scopes write:admin, write:organization, write:repository and write:user", what, said)
	case status == http.StatusNotFound:
		// What an item expects not to be there it has asked about before.
		return step.Retryf("%s: it is not there, or not any more (404 %s)", what, said)
	case status == http.StatusConflict, status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests, status >= 500, status < 400:
		return step.Retryf("%s: Gitea answers %d: %s", what, status, said)
	default:
		return step.Invalidf("%s: Gitea answers %d: %s", what, status, said)
	}
}
