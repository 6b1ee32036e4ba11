// Package gitea is the little of Gitea's API that Fabrique uses, on top of
// Gitea's own SDK: files of a branch with their history, and ancestry.
//
// What the SDK leaves open and this package settles:
//
//   - No request but the one asked for (the SDK asks for the server's version).
//   - Every call takes a context; every answer is bounded in size and time.
//   - Errors say what to do and have an exit code: 2 for what a retry cannot mend
//     (a refused token, a missing repository), 1 for the rest (network, 5xx, a
//     lost race). [ErrNotFound] and [ErrConflict] tell apart what callers decide on.
//   - No error holds the token.
package gitea

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	sdk "code.gitea.io/sdk/gitea"

	"fabrique/steps/gitref"
	"fabrique/steps/secret"
	"fabrique/steps/step"
)

// Limits of one request.
const (
	maxAnswer      = 16 << 20 // bytes
	requestTimeout = 2 * time.Minute
	historyLength  = 50 // commits that [Client.History] asks for at a time,
	historyPages   = 20 // and how often
)

var (
	// ErrNotFound is in the chain of an error about a file, commit, branch or
	// repository that is not there or that the token may not see.
	ErrNotFound = errors.New("not found")
	// ErrNoBase is in the chain of an error of [Client.Ahead] whose base does not
	// exist.
	ErrNoBase = errors.New("no such commit")
	// ErrConflict is in the chain of an error about a write that lost a race:
	// read again and decide again.
	ErrConflict = errors.New("conflict")
)

// Repository is "owner/name".
type Repository string

var repositoryForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}/[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$`)

// ParseRepository accepts "owner/name". Exit code 2.
func ParseRepository(s string) (Repository, error) {
	if !repositoryForm.MatchString(s) || strings.Contains(s, "..") || strings.HasSuffix(s, ".git") {
		return "", step.Invalidf("parsing the repository %q: want owner/name, as in cluster/apps, of letters, digits and ._-", step.Clip(s))
	}
	return Repository(s), nil
}

func (r Repository) split() (owner, name string) {
	owner, name, _ = strings.Cut(string(r), "/")
	return owner, name
}

// ParseURL accepts the address of a Gitea server, http(s)://host[:port][/path].
// A trailing slash is dropped. Exit code 2.
func ParseURL(s string) (string, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return "", step.Invalidf("parsing Gitea's URL: it is not a URL; want http://host:port or https://host")
	case u.User != nil:
		return "", step.Invalidf("parsing Gitea's URL %q: it holds a user or password; take that out and put a token into a token file", u.Redacted())
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return "", step.Invalidf("parsing Gitea's URL %q: want http://host:port or https://host", step.Clip(s))
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		return "", step.Invalidf("parsing Gitea's URL %q: want no query and no fragment", step.Clip(s))
	}
	return strings.TrimRight(s, "/"), nil
}

// Client talks to one Gitea with one token. It is safe for concurrent use.
type Client struct {
	url   string
	token secret.Secret
	http  *http.Client
}

// New makes a client without any request. A zero token is anonymous.
func New(address string, token secret.Secret) (*Client, error) {
	address, err := ParseURL(address)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 4
	return &Client{address, token, &http.Client{
		Transport: bounded{transport},
		Timeout:   requestTimeout,
	}}, nil
}

// bounded ends answers that are larger than maxAnswer with an error.
type bounded struct{ next http.RoundTripper }

func (b bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(request)
	if err == nil {
		response.Body = &boundedBody{response.Body, maxAnswer}
	}
	return response, err
}

type boundedBody struct {
	io.ReadCloser
	left int
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= n; b.left < 0 {
		return 0, fmt.Errorf("the answer is larger than %d bytes", maxAnswer)
	}
	return n, err
}

// api gives the SDK's client for one call; the SDK ties a client to a context.
func (c *Client) api(ctx context.Context) (*sdk.Client, error) {
	api, err := sdk.NewClient(c.url, sdk.SetGiteaVersion(""), sdk.SetHTTPClient(c.http),
		sdk.SetContext(ctx), sdk.SetToken(c.token.Reveal()), sdk.SetUserAgent("fabrique"))
	if err != nil {
		return nil, step.Invalidf("making a client for Gitea at %q: %w", c.url, err)
	}
	return api, nil
}

// File is a file at a commit or branch.
type File struct {
	Path       string
	Content    []byte
	SHA        string // blob id, which a write needs
	LastCommit string // last commit that touched it
}

// File reads a file at ref, a branch's short name or a commit id (a full ref name
// is not found). It checks the content against its size and blob
// id, as an empty answer with status 200 must not pass for an empty file.
// A folder, a link and a submodule are errors with exit code 2; so is a file that
// does not exist, with [ErrNotFound].
func (c *Client) File(ctx context.Context, repo Repository, ref string, path gitref.Path) (File, error) {
	what := fmt.Sprintf("reading the file %q at %s of %s", path, short(ref), repo)
	owner, name := repo.split()
	api, err := c.api(ctx)
	if err != nil {
		return File{}, err
	}
	got, answer, err := api.GetContents(owner, name, ref, string(path))
	if err != nil {
		if answer != nil && answer.StatusCode == http.StatusOK {
			if _, _, listErr := api.ListContents(owner, name, ref, string(path)); listErr == nil {
				return File{}, step.Invalidf("%s: it is a folder; name a file", what)
			}
			return File{}, step.Retryf("%s: Gitea's answer is cut off or not JSON", what)
		}
		return File{}, c.failure(what, answer, err)
	}
	switch {
	case got.Type == "":
		return File{}, step.Retryf("%s: Gitea's answer is empty", what)
	case got.Type != "file":
		return File{}, step.Invalidf("%s: it is a %s; name a file", what, step.Clip(got.Type))
	case got.Content == nil || got.Encoding == nil:
		return File{}, step.Retryf("%s: Gitea gave no content for a file of %d bytes", what, got.Size)
	case *got.Encoding != "base64":
		return File{}, step.Retryf("%s: the content is encoded as %q, want base64", what, step.Clip(*got.Encoding))
	}
	content, err := base64.StdEncoding.DecodeString(*got.Content)
	if err != nil {
		return File{}, step.Retryf("%s: the content is not base64", what)
	}
	if int64(len(content)) != got.Size || got.SHA != blobID(content, len(got.SHA)) {
		return File{}, step.Retryf("%s: Gitea gave %d bytes for a file of %d bytes with blob id %s", what, len(content), got.Size, step.Clip(got.SHA))
	}
	file := File{Path: string(path), Content: content, SHA: got.SHA}
	if got.LastCommitSha != nil {
		file.LastCommit = *got.LastCommitSha
	}
	return file, nil
}

// blobID is git's id of a file with this content, as long as SHA-1 or SHA-256
// repositories have it.
func blobID(content []byte, length int) string {
	header := fmt.Appendf(nil, "blob %d\x00", len(content))
	if length == hex.EncodedLen(sha256.Size) {
		sum := sha256.Sum256(append(header, content...))
		return hex.EncodeToString(sum[:])
	}
	sum := sha1.Sum(append(header, content...))
	return hex.EncodeToString(sum[:])
}

// Author signs a commit.
type Author struct{ Name, Email string }

// Write is one commit of one file.
type Write struct {
	Path    gitref.Path
	Content []byte
	SHA     string // blob id that is replaced; empty creates the file
	Message string
	Author  Author
}

// WriteFile commits to a branch and gives the commit. It replaces exactly the
// blob that the write names: when another stands there by now the error holds
// [ErrConflict]. After any error with exit code 1 the commit may have been made
// all the same (the answer was lost): read again.
func (c *Client) WriteFile(ctx context.Context, repo Repository, branch gitref.Branch, w Write) (commit string, err error) {
	what := fmt.Sprintf("writing the file %q on %s of %s", w.Path, branch, repo)
	owner, name := repo.split()
	api, err := c.api(ctx)
	if err != nil {
		return "", err
	}
	who := sdk.Identity{Name: w.Author.Name, Email: w.Author.Email}
	options := sdk.FileOptions{Message: w.Message, BranchName: string(branch), Author: who, Committer: who}
	content := base64.StdEncoding.EncodeToString(w.Content)
	var done *sdk.FileResponse
	var answer *sdk.Response
	if w.SHA == "" {
		done, answer, err = api.CreateFile(owner, name, string(w.Path), sdk.CreateFileOptions{FileOptions: options, Content: content})
	} else {
		done, answer, err = api.UpdateFile(owner, name, string(w.Path), sdk.UpdateFileOptions{FileOptions: options, SHA: w.SHA, Content: content})
	}
	if err != nil {
		return "", c.failure(what, answer, err)
	}
	if done == nil || done.Commit == nil || done.Commit.SHA == "" {
		return "", step.Retryf("%s: Gitea's answer names no commit", what)
	}
	return done.Commit.SHA, nil
}

// Ahead gives the number of commits that are reachable from head but not from
// base: 0 when head is base or one of its ancestors. Both are commit ids or full
// ref names. When head, or the repository, does not exist the error holds
// [ErrNotFound]; when only base does not, [ErrNoBase]. Exit code 2 for both.
func (c *Client) Ahead(ctx context.Context, repo Repository, base, head string) (int, error) {
	total, status, err := c.count(ctx, repo, base, head)
	if err != nil && status >= http.StatusInternalServerError && base != head {
		// Gitea answers 500 for a base that does not exist, as for trouble of
		// its own. The same question about base alone tells them apart.
		if _, _, baseErr := c.count(ctx, repo, base, base); errors.Is(baseErr, ErrNotFound) {
			return 0, step.Invalidf("looking for the commit %s in %s: %w", short(base), repo, ErrNoBase)
		}
	}
	return total, err
}

func (c *Client) count(ctx context.Context, repo Repository, base, head string) (total, status int, err error) {
	what := fmt.Sprintf("counting the commits of %s that %s has and %s has not", repo, short(head), short(base))
	owner, name := repo.split()
	api, err := c.api(ctx)
	if err != nil {
		return 0, 0, err
	}
	// The comparison endpoint would send every commit between the two, with its
	// statistics, and fail for unrelated histories; this one counts.
	commits, answer, err := api.ListRepoCommits(owner, name, sdk.ListCommitOptions{
		ListOptions: sdk.ListOptions{Page: 1, PageSize: 1},
		SHA:         head, Not: base,
	})
	if answer != nil && answer.Response != nil {
		status = answer.StatusCode
	}
	if err != nil {
		return 0, status, c.failure(what, answer, err)
	}
	total, err = strconv.Atoi(answer.Header.Get("X-Total-Count"))
	if err != nil || total < len(commits) {
		return 0, status, step.Retryf("%s: Gitea's answer has no count (header X-Total-Count)", what)
	}
	return total, status, nil
}

// Commit is one commit of a history.
type Commit struct {
	ID      string
	Message string
}

// History lists the newest commits of a branch that touch a file, newest first:
// fifty, and as many more, up to a thousand, as it takes to have one for which
// until says yes. A file without any gives [ErrNotFound]. An empty repository and
// a branch that does not exist are errors with exit code 1: Gitea answers 409 and
// 500, as for trouble of its own.
func (c *Client) History(ctx context.Context, repo Repository, branch gitref.Branch, path gitref.Path, until func(Commit) bool) ([]Commit, error) {
	what := fmt.Sprintf("listing the commits of the file %q on %s of %s", path, branch, repo)
	owner, name := repo.split()
	api, err := c.api(ctx)
	if err != nil {
		return nil, err
	}
	var commits []Commit
	for page := 1; page <= historyPages; page++ {
		list, answer, err := api.ListRepoCommits(owner, name, sdk.ListCommitOptions{
			ListOptions: sdk.ListOptions{Page: page, PageSize: historyLength},
			SHA:         branch.Ref(), Path: string(path),
		})
		if err != nil {
			return nil, c.failure(what, answer, err)
		}
		for _, item := range list {
			if item == nil || item.CommitMeta == nil || item.RepoCommit == nil {
				return nil, step.Retryf("%s: Gitea's answer lacks the commits", what)
			}
			commits = append(commits, Commit{item.SHA, item.RepoCommit.Message})
		}
		if len(list) < historyLength || slices.ContainsFunc(commits, until) {
			break
		}
	}
	return commits, nil
}

// Head gives the newest commit of a branch. A branch or repository that does not
// exist, and a repository without commits, give [ErrNotFound].
func (c *Client) Head(ctx context.Context, repo Repository, branch gitref.Branch) (gitref.Revision, error) {
	what := fmt.Sprintf("reading the head of %s of %s", branch, repo)
	owner, name := repo.split()
	api, err := c.api(ctx)
	if err != nil {
		return "", err
	}
	got, answer, err := api.GetRepoBranch(owner, name, string(branch))
	if err != nil {
		return "", c.failure(what, answer, err)
	}
	if got == nil || got.Commit == nil {
		return "", step.Retryf("%s: Gitea's answer names no commit", what)
	}
	return gitref.ParseRevision(got.Commit.ID)
}

// Exists reports whether the repository exists and whether it has no commits.
// Gitea hides a private repository that the token may not read.
func (c *Client) Exists(ctx context.Context, repo Repository) (exists, empty bool, err error) {
	owner, name := repo.split()
	api, err := c.api(ctx)
	if err != nil {
		return false, false, err
	}
	got, answer, err := api.GetRepo(owner, name)
	if err != nil {
		err = c.failure(fmt.Sprintf("looking for the repository %s", repo), answer, err)
		if errors.Is(err, ErrNotFound) {
			return false, false, nil
		}
		return false, false, err
	}
	return true, got.Empty, nil
}

// lostRace are the words of a git that could not move a branch because another
// push came first; Gitea answers 403 for these as for a hook that refuses.
var lostRace = regexp.MustCompile(`(?i)cannot lock ref|failed to update ref|reference already exists|fetch first|stale info|non-fast-forward|incorrect old value`)

// failure turns a failed call into an error with exit code and advice.
func (c *Client) failure(what string, answer *sdk.Response, cause error) error {
	said := step.Clip(oneLine(c.token.Redact(cause.Error())))
	if answer == nil || answer.Response == nil {
		var network net.Error
		switch {
		case errors.Is(cause, context.Canceled) || errors.Is(cause, context.DeadlineExceeded):
			return step.Retryf("%s: no answer from Gitea at %s: %w", what, c.url, redacted{said, cause})
		case errors.As(cause, &network):
			return step.Retryf("%s: Gitea at %s cannot be reached (%w); check the address and that Gitea runs", what, c.url, redacted{said, cause})
		}
		return step.Retryf("%s: asking Gitea at %s: %w", what, c.url, redacted{said, cause})
	}
	switch status := answer.StatusCode; {
	case status == http.StatusUnauthorized:
		return step.Invalidf("%s: Gitea refuses the token (401); make a new one for the bot user and put it into the token file", what)
	case status == http.StatusForbidden && lostRace.MatchString(cause.Error()):
		return step.Retryf("%s: another commit came first (403 %s): %w", what, said, ErrConflict)
	case status == http.StatusForbidden:
		return step.Invalidf("%s: Gitea forbids it (403 %s); let the bot user into the repository, give its token the scope for it, and look at the branch protection", what, said)
	case status == http.StatusNotFound:
		return step.Invalidf("%s: %w (404 %s)", what, ErrNotFound, said)
	case status == http.StatusConflict, status == http.StatusUnprocessableEntity:
		return step.Retryf("%s: another commit came first (%d %s): %w", what, status, said, ErrConflict)
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests, status >= 500:
		return step.Retryf("%s: Gitea answers %d: %s", what, status, said)
	case status == http.StatusLocked:
		return step.Invalidf("%s: the repository is archived (423); unarchive it", what)
	case status < 400:
		return step.Retryf("%s: Gitea's answer (%d) cannot be read: %s", what, status, said)
	default:
		return step.Invalidf("%s: Gitea answers %d: %s", what, status, said)
	}
}

// redacted keeps the cause for errors.Is and errors.As but not its text.
type redacted struct {
	text  string
	cause error
}

func (r redacted) Error() string { return r.text }
func (r redacted) Unwrap() error { return r.cause }

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func short(ref string) string {
	if revision, err := gitref.ParseRevision(ref); err == nil {
		return revision.Short()
	}
	return ref
}
