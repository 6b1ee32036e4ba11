package cases

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"fabrique/bench/demo"
	"fabrique/bench/giteaadmin"
	"fabrique/bench/parts"
	"fabrique/bench/platform"
	"fabrique/manifests/zone"
	"fabrique/steps/secret"
)

// stranger is a private repository that is none of the factory's.
const stranger = "cluster/privilege"

// tokenOf is where the factory has each bot's token.
var tokenOf = map[string]string{parts.ReaderName: zone.ReaderSecret, parts.WriterName: zone.WriterSecret, parts.StatusName: zone.StatusSecret}

// call is one request to Gitea's API. Whoever may send it is answered without that
// anything changes: what it asks for is there already, or makes no sense.
type call struct {
	method, path string
	body         any
	may          []string // bots; the administrator may always
}

// Who may what with a repository.
var (
	readers = map[string][]string{platform.SourceRepo: {parts.ReaderName, parts.StatusName}, platform.AppsRepo: {parts.ReaderName, parts.WriterName}}
	writers = map[string][]string{platform.SourceRepo: {parts.StatusName}, platform.AppsRepo: {parts.WriterName}}
)

// calls are what each bot tries. Gitea has no smaller right for a status than to write
// the repository: so the status bot may make a branch beside the protected one, and a
// release, neither of which starts anything.
func calls() []call {
	type m = map[string]any
	var all []call
	for _, repo := range []string{platform.SourceRepo, platform.AppsRepo, stranger} {
		base := "/repos/" + repo
		for _, path := range []string{"/contents/README.md", "/raw/README.md", "/branches", "/commits?limit=1", "/commits/main/statuses"} {
			all = append(all, call{http.MethodGet, base + path, nil, readers[repo]})
		}
		onMain := writers[repo]
		if repo == platform.SourceRepo {
			onMain = nil // it is protected
		}
		all = append(all,
			call{http.MethodPost, base + "/contents/README.md", m{"content": "eA==", "branch": "main"}, onMain},
			call{http.MethodPut, base + "/contents/README.md", m{"content": "eA==", "branch": "main", "sha": noCommit}, onMain},
			call{http.MethodPost, base + "/branches", m{"new_branch_name": "main"}, writers[repo]},
			call{http.MethodPost, base + "/releases", m{}, writers[repo]},
			// Only who administers it.
			call{http.MethodPatch, base, m{}, nil},
			call{http.MethodGet, base + "/hooks", nil, nil},
			call{http.MethodPost, base + "/hooks", m{}, nil},
			call{http.MethodGet, base + "/keys", nil, nil},
			call{http.MethodPost, base + "/keys", m{}, nil},
			call{http.MethodGet, base + "/branch_protections", nil, nil},
			call{http.MethodPost, base + "/branch_protections", m{}, nil},
			call{http.MethodGet, base + "/tag_protections", nil, nil},
			call{http.MethodPost, base + "/tag_protections", m{}, nil},
			call{http.MethodPut, base + "/collaborators/" + nobody, m{}, nil},
			call{http.MethodGet, base + "/actions/secrets", nil, nil},
			call{http.MethodPut, base + "/actions/secrets/X", m{}, nil},
			call{http.MethodPost, base + "/push_mirrors", m{}, nil},
			// What no token has the scope for.
			call{http.MethodGet, base + "/issues", nil, nil},
			call{http.MethodPost, base + "/issues", m{}, nil},
		)
	}
	for _, path := range []string{
		"/user", "/user/repos", "/user/keys", "/user/applications/oauth2", "/users/search", "/notifications", "/orgs/atlas", "/orgs/cluster/repos", "/orgs/cluster/teams",
		"/packages/atlas", "/admin/users", "/admin/hooks", "/admin/cron",
	} {
		all = append(all, call{http.MethodGet, path, nil, nil})
	}
	for _, path := range []string{
		"/user/repos", "/orgs", "/orgs/atlas/repos", "/user/keys", "/user/gpg_keys", "/user/hooks", "/user/applications/oauth2", "/admin/users",
	} {
		all = append(all, call{http.MethodPost, path, m{}, nil})
	}
	return append(all, call{http.MethodPatch, "/user/settings", m{}, nil})
}

// asBot sends a request to Gitea's API with a token, and gives the HTTP status and
// the answer.
func asBot(ctx context.Context, url string, token secret.Secret, method, path string, body any) (status int, answer []byte, err error) {
	var text io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return 0, nil, err
		}
		text = bytes.NewReader(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, method, url+"/api/v1"+path, text)
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "token "+token.Reveal())
	req.Header.Set("Content-Type", "application/json")
	got, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer got.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(got.Body, 1<<20))
	return got.StatusCode, answer, err
}

// isRefusal tells whether Gitea lets somebody do nothing: it does not show what he
// may not see.
func isRefusal(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusNotFound
}

// tokensTried tries the tokens that the factory has against Gitea's API and by git.
func tokensTried(ctx context.Context, w *World) (saw string, err error) {
	tokens := map[string]secret.Secret{}
	for _, b := range platform.Bots {
		token, err := w.Secret(ctx, zone.Workflows, tokenOf[b.User], "token")
		if err != nil {
			return "", err
		}
		if token.IsZero() {
			return "", fmt.Errorf("the Secret %s in %s is missing", tokenOf[b.User], zone.Workflows)
		}
		tokens[b.User] = token
	}
	side := "refs/heads/privilege-" + nonce()
	defer finally(ctx, &err, w.anew(func(ctx context.Context, w *World) error { return w.withoutStranger(ctx, side) }))
	if err := w.withoutStranger(ctx, side); err != nil {
		return "", err
	}
	if err := w.Gitea.CreateRepo(ctx, stranger); err != nil {
		return "", err
	}
	if status, answer, err := asBot(ctx, w.Gitea.URL, w.Gitea.Token, http.MethodPost, "/repos/"+stranger+"/contents/README.md", map[string]any{"content": "eA==", "branch": "main"}); err != nil || status != http.StatusCreated {
		return "", errors.Join(err, fmt.Errorf("filling %s: the answer is %d: %s", stranger, status, answer))
	}

	all := calls()
	refused, allowed := 0, 0
	for _, c := range all {
		status, answer, err := asBot(ctx, w.Gitea.URL, w.Gitea.Token, c.method, c.path, c.body)
		if err != nil {
			return "", err
		}
		if isRefusal(status) {
			return "", fmt.Errorf("the administrator may %s %s; the answer is %d: %s", c.method, c.path, status, answer)
		}
		for _, b := range platform.Bots {
			status, answer, err := asBot(ctx, w.Gitea.URL, tokens[b.User], c.method, c.path, c.body)
			if err != nil {
				return "", err
			}
			switch may := slices.Contains(c.may, b.User); {
			case may && isRefusal(status):
				return "", fmt.Errorf("%s should be let %s %s; the answer is %d: %s", b.User, c.method, c.path, status, oneLine(string(answer)))
			case !may && !isRefusal(status):
				return "", fmt.Errorf("%s should not be let %s %s; the answer is %d: %s", b.User, c.method, c.path, status, oneLine(string(answer)))
			case may:
				allowed++
			default:
				refused++
			}
		}
	}
	pushes, err := w.pushesTried(ctx, tokens, side)
	if err != nil {
		return "", err
	}
	for _, b := range platform.Bots {
		if err := w.ownsNothing(ctx, b, tokens[b.User]); err != nil {
			return "", err
		}
		if err := w.seesItsOwn(ctx, b, tokens[b.User]); err != nil {
			return "", err
		}
	}
	if err := w.writesStatuses(ctx, tokens); err != nil {
		return "", err
	}
	return fmt.Sprintf("3 tokens, %d calls each: %d refused, %d, their own, let through, none of them refused to the administrator; %s; no fork, no token, no repository but their own in their lists",
		len(all), refused, allowed, pushes), nil
}

// withoutStranger removes what the scenario makes, as far as it is there.
func (w *World) withoutStranger(ctx context.Context, side string) error {
	paths := []string{"/repos/" + stranger}
	for _, repo := range []string{platform.SourceRepo, platform.AppsRepo} {
		paths = append(paths, "/repos/"+repo+"/branches/"+strings.TrimPrefix(side, "refs/heads/"))
	}
	for _, b := range platform.Bots {
		paths = append(paths, "/repos/"+b.User+"/"+nobody)
	}
	for _, path := range paths {
		status, answer, err := asBot(ctx, w.Gitea.URL, w.Gitea.Token, http.MethodDelete, path, nil)
		if err != nil {
			return err
		}
		if status != http.StatusNoContent && status != http.StatusNotFound {
			return fmt.Errorf("removing %s: the answer is %d: %s", path, status, answer)
		}
	}
	return nil
}

// pushesTried pushes by git with every token to every repository, to main and beside
// it. What is allowed goes beside main.
func (w *World) pushesTried(ctx context.Context, tokens map[string]secret.Secret, side string) (string, error) {
	refused, allowed := 0, 0
	for _, b := range platform.Bots {
		as := demo.Clones{Admin: giteaadmin.Admin{URL: w.Gitea.URL, Token: tokens[b.User]}, Root: w.Work.Root}
		for _, repo := range []string{platform.SourceRepo, platform.AppsRepo, stranger} {
			copyOf := repo
			if repo == stranger {
				copyOf = platform.AppsRepo // it has none, and any commit will do
			}
			_, err := as.Git(ctx, copyOf, "ls-remote", "--quiet", as.URL(repo))
			if may := slices.Contains(readers[repo], b.User); may != (err == nil) {
				return "", errors.Join(fmt.Errorf("%s reads %s by git: it may: %v; it does: %v", b.User, repo, may, err == nil), err)
			}
			commit, err := w.Work.Git(ctx, copyOf, "commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "Not to be pushed")
			if err != nil {
				return "", err
			}
			for _, ref := range []string{mainRef, side} {
				may := slices.Contains(writers[repo], b.User)
				if may && ref == mainRef {
					if repo == platform.AppsRepo {
						continue // what the writer is for
					}
					may = false // protected
				}
				_, err := as.Git(ctx, copyOf, "push", "--quiet", as.URL(repo), "+"+commit+":"+ref)
				switch {
				case may && err != nil:
					return "", fmt.Errorf("%s should be let push %s to %s: %w", b.User, ref, repo, err)
				case !may && err == nil:
					return "", fmt.Errorf("%s should not be let push %s to %s; it is", b.User, ref, repo)
				case !may && !strings.Contains(err.Error(), "not found") && !strings.Contains(err.Error(), "403") && !strings.Contains(err.Error(), "declined"):
					return "", fmt.Errorf("%s should be told that it may not push %s to %s: %w", b.User, ref, repo, err)
				case may:
					allowed++
				default:
					refused++
				}
			}
		}
	}
	return fmt.Sprintf("of %d pushes by git %d refused and %d, beside main, let through", refused+allowed, refused, allowed), nil
}

// ownsNothing tries the ways in which a bot could come by a repository or a token.
func (w *World) ownsNothing(ctx context.Context, b platform.Bot, token secret.Secret) error {
	for repo := range b.Repos {
		status, answer, err := asBot(ctx, w.Gitea.URL, token, http.MethodPost, "/repos/"+repo+"/forks", map[string]any{"name": nobody})
		if err != nil {
			return err
		}
		// 409: "reached the limit of 0 repositories".
		if !isRefusal(status) && status != http.StatusConflict {
			return fmt.Errorf("%s should not be let fork %s; the answer is %d: %s", b.User, repo, status, oneLine(string(answer)))
		}
	}
	for _, c := range []call{
		{http.MethodPost, "/repos/migrate", map[string]any{"clone_addr": w.Gitea.URL + "/" + platform.AppsRepo + ".git", "repo_name": nobody}, nil},
		{http.MethodPost, "/users/" + b.User + "/tokens", map[string]any{"name": nobody, "scopes": []string{"all"}}, nil},
		{http.MethodGet, "/users/" + b.User + "/tokens", nil, nil},
	} {
		status, answer, err := asBot(ctx, w.Gitea.URL, token, c.method, c.path, c.body)
		if err != nil {
			return err
		}
		if !isRefusal(status) && status != http.StatusUnprocessableEntity {
			return fmt.Errorf("%s should not be let %s %s; the answer is %d: %s", b.User, c.method, c.path, status, oneLine(string(answer)))
		}
	}
	var owned []any
	status, answer, err := asBot(ctx, w.Gitea.URL, w.Gitea.Token, http.MethodGet, "/users/"+b.User+"/repos", nil)
	if err != nil || status != http.StatusOK {
		return errors.Join(err, fmt.Errorf("listing the repositories of %s: the answer is %d", b.User, status))
	}
	if err := json.Unmarshal(answer, &owned); err != nil || len(owned) > 0 {
		return errors.Join(err, fmt.Errorf("%s should have no repository; it has %d", b.User, len(owned)))
	}
	return nil
}

// seesItsOwn checks that a bot is listed its own repositories and no other.
func (w *World) seesItsOwn(ctx context.Context, b platform.Bot, token secret.Secret) error {
	var found struct {
		Data []struct {
			FullName string `json:"full_name"`
		}
	}
	status, answer, err := asBot(ctx, w.Gitea.URL, token, http.MethodGet, "/repos/search?limit=50", nil)
	if err == nil {
		err = json.Unmarshal(answer, &found)
	}
	if err != nil || status != http.StatusOK {
		return errors.Join(fmt.Errorf("listing what %s sees: the answer is %d", b.User, status), err)
	}
	for _, r := range found.Data {
		if _, its := b.Repos[r.FullName]; !its {
			return fmt.Errorf("%s should see its own repositories only; it sees %s", b.User, r.FullName)
		}
	}
	if len(found.Data) != len(b.Repos) {
		return fmt.Errorf("%s should see %d repositories; it sees %d", b.User, len(b.Repos), len(found.Data))
	}
	return nil
}

// writesStatuses writes one on the oldest commit of the source, which nobody looks at.
// Gitea takes any status from who may write, so that this is done and not asked for.
func (w *World) writesStatuses(ctx context.Context, tokens map[string]secret.Secret) error {
	oldest, err := w.Work.Git(ctx, platform.SourceRepo, "rev-list", "--max-parents=0", "HEAD")
	if err != nil {
		return err
	}
	body := map[string]any{"state": "success", "context": "privilege"}
	for user, token := range tokens {
		status, answer, err := asBot(ctx, w.Gitea.URL, token, http.MethodPost, "/repos/"+platform.SourceRepo+"/statuses/"+strings.Fields(oldest)[0], body)
		if err != nil {
			return err
		}
		if may := user == parts.StatusName; may != (status == http.StatusCreated) || !may && !isRefusal(status) {
			return fmt.Errorf("%s writes a status: it may: %v; the answer is %d: %s", user, may, status, oneLine(string(answer)))
		}
	}
	return nil
}
