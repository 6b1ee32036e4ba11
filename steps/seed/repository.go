package seed

import (
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"strings"
	"time"

	sdk "code.gitea.io/sdk/gitea"

	"fabrique/steps/config"
	"fabrique/steps/gitea"
	"fabrique/steps/gitref"
	"fabrique/steps/secret"
	"fabrique/steps/step"
)

// organization owns repositories. A user of that name does as well.
type organization struct {
	*forge
	name string
}

func (o *organization) Name() string { return "organization " + o.name }

func (o *organization) Check(ctx context.Context) (State, error) {
	api, err := o.admin(ctx)
	if err != nil {
		return absent, err
	}
	_, answer, err := api.GetOrg(o.name)
	if notFound(answer) {
		_, answer, err = api.GetUserInfo(o.name)
	}
	switch {
	case notFound(answer):
		return absent, nil
	case err != nil:
		return absent, o.failure("looking for the organization", answer, err)
	}
	return State{Exists: true}, nil
}

func (o *organization) Mend(ctx context.Context) error {
	api, err := o.admin(ctx)
	if err != nil {
		return err
	}
	if _, answer, err := api.CreateOrg(sdk.CreateOrgOption{Name: o.name}); err != nil {
		return o.failure("making the organization", answer, err)
	}
	return nil
}

// repository is private, and a pull mirror if it has an upstream. One that is there
// already stays what it is.
type repository struct {
	*forge
	repo     gitea.Repository
	branch   gitref.Branch // default branch of a new one
	upstream config.SeedRepository
	token    secret.Secret // for the upstream
	wait     time.Duration // for a first pull that an earlier run began
}

const (
	firstPull = 2 * time.Minute
	pollPull  = 500 * time.Millisecond
)

func (r *repository) Name() string { return "repository " + string(r.repo) }

func split(r gitea.Repository) (owner, name string) {
	owner, name, _ = strings.Cut(string(r), "/")
	return owner, name
}

func (r *repository) get(ctx context.Context) (*sdk.Repository, error) {
	api, err := r.admin(ctx)
	if err != nil {
		return nil, err
	}
	owner, name := split(r.repo)
	got, answer, err := api.GetRepo(owner, name)
	switch {
	case notFound(answer):
		return nil, nil
	case err != nil:
		return nil, r.failure("looking for the repository", answer, err)
	}
	return got, nil
}

func (r *repository) Check(ctx context.Context) (State, error) {
	got, err := r.get(ctx)
	if got == nil || err != nil {
		return absent, err
	}
	state := State{Exists: true}
	switch {
	case !got.Mirror && r.upstream.Upstream == "":
		return state, nil
	case !got.Mirror:
		return absent, step.Invalidf("it is there and no mirror, and Gitea makes none of it; remove it, or its upstream from the configuration")
	case r.upstream.Upstream == "":
		return absent, step.Invalidf("it is a mirror of %s; name its upstream under seed.repositories", step.RedactURLs(got.OriginalURL))
	case got.OriginalURL != r.upstream.Upstream:
		return absent, step.Invalidf("it is a mirror of %s, not of %s, and Gitea's API cannot change that; remove it, or change it on its settings page and in the configuration", step.RedactURLs(got.OriginalURL), r.upstream.Upstream)
	}
	if got.Empty {
		state.Diff = append(state.Diff, "it is empty: the first pull has not ended")
	}
	if interval, err := time.ParseDuration(got.MirrorInterval); err != nil || interval != r.upstream.Interval {
		state.Diff = append(state.Diff, fmt.Sprintf("interval: %s, want %s", step.Clip(got.MirrorInterval), r.upstream.Interval))
	}
	return state, nil
}

func (r *repository) Mend(ctx context.Context) error {
	api, err := r.admin(ctx)
	if err != nil {
		return err
	}
	owner, name := split(r.repo)
	got, err := r.get(ctx)
	switch {
	case err != nil:
		return err
	case got == nil && r.upstream.Upstream == "":
		if _, answer, err := api.CreateOrgRepo(owner, sdk.CreateRepoOption{Name: name, Private: true, DefaultBranch: string(r.branch)}); err != nil {
			return r.failure("making the repository", answer, err)
		}
		return nil
	case got == nil:
		user := r.upstream.User
		if user == "" && !r.token.IsZero() {
			user = secret.BasicUser
		}
		if _, answer, err := api.MigrateRepo(sdk.MigrateRepoOption{
			RepoOwner: owner, RepoName: name, Private: true, Service: sdk.GitServicePlain,
			CloneAddr: r.upstream.Upstream, AuthUsername: user, AuthPassword: r.token.Reveal(),
			Mirror: true, MirrorInterval: r.upstream.Interval.String(),
		}); err != nil {
			return r.failure("mirroring "+r.upstream.Upstream, answer, err)
		}
		return nil
	}
	// Gitea goes on with a pull whose client went away.
	for deadline := time.Now().Add(r.wait); got.Empty; {
		if time.Now().After(deadline) {
			return step.Retryf("it is empty after %s: if its first pull does not go on (Gitea was restarted, or %s is empty), remove it and run this again", r.wait, r.upstream.Upstream)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollPull):
		}
		if got, err = r.get(ctx); err != nil {
			return err
		}
		if got == nil {
			return step.Retryf("mirroring %s: the first pull, which an earlier run began, has failed; run this again", r.upstream.Upstream)
		}
	}
	interval := r.upstream.Interval.String()
	if _, answer, err := api.EditRepo(owner, name, sdk.EditRepoOption{MirrorInterval: &interval}); err != nil {
		return r.failure("changing the mirror's interval", answer, err)
	}
	return nil
}

// firstCommit gives the apps repository its branch, so that Argo CD has something to
// look at and the protection something to protect.
type firstCommit struct {
	client *gitea.Client
	repo   gitea.Repository
	branch gitref.Branch
	author gitea.Author
}

func (f *firstCommit) Name() string { return fmt.Sprintf("branch %s of %s", f.branch, f.repo) }

func (f *firstCommit) Check(ctx context.Context) (State, error) {
	_, err := f.client.Head(ctx, f.repo, f.branch)
	if errors.Is(err, gitea.ErrNotFound) {
		return absent, nil
	}
	return State{Exists: true}, err
}

func (f *firstCommit) Mend(ctx context.Context) error {
	exists, empty, err := f.client.Exists(ctx, f.repo)
	if err != nil {
		return err
	}
	if !exists {
		return step.Retryf("the repository is gone; run this again")
	}
	if !empty {
		return step.Invalidf("%s has commits but no branch %q; push it, or correct apps.branch", f.repo, f.branch)
	}
	first := gitea.Write{Path: "README.md", Message: "Begin", Author: f.author, Content: []byte(readme)}
	_, err = f.client.WriteFile(ctx, f.repo, f.branch, first)
	if errors.Is(err, gitea.ErrConflict) {
		// Gitea 1.26 stops half-way when its client goes away: git has the commit, and
		// to Gitea the repository is empty for good. Another commit mends that.
		first.SHA = fmt.Sprintf("%x", sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(readme), readme)))
		_, err = f.client.WriteFile(ctx, f.repo, f.branch, first)
	}
	if err != nil {
		return step.Retryf("%w", err) // Gitea also forbids a push that meets one of a killed run
	}
	return nil
}

const readme = `# Apps

One Argo CD Application for each app. Fabrique writes the deployed revision and digest into them.
`
