package platform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"

	"code.gitea.io/sdk/gitea"

	"fabrique/bench/giteaadmin"
	"fabrique/bench/parts"
	"fabrique/steps/secret"
)

// Where Gitea answers inside the cluster, and the repositories that it holds.
const (
	GiteaURL   = "http://gitea.gitea.svc:3000"
	SourceRepo = "atlas/atlas"
	AppsRepo   = "cluster/apps"

	webhookToArgoCD = "http://argocd-server.argocd.svc/api/webhook"
)

// The Secrets in the namespace gitea that hold what it gave, each under "token".
const (
	adminSecret = "gitea-admin"
	// These hold the bots' tokens.
	ReaderSecret = "gitea-reader"
	WriterSecret = "gitea-writer"
	StatusSecret = "gitea-status"
)

// Bot is a user of Gitea that the factory acts as, with all that it may do.
type Bot struct {
	User   string
	Secret string // in the namespace gitea
	Scope  gitea.AccessTokenScope
	Repos  map[string]gitea.AccessMode
}

// Bots are all there are. None may have a repository of its own.
var Bots = []Bot{
	{parts.ReaderName, ReaderSecret, "read:repository", map[string]gitea.AccessMode{SourceRepo: gitea.AccessModeRead, AppsRepo: gitea.AccessModeRead}},
	{parts.WriterName, WriterSecret, "write:repository", map[string]gitea.AccessMode{AppsRepo: gitea.AccessModeWrite}},
	// Who writes a status may write the repository; the branch is protected from it.
	{parts.StatusName, StatusSecret, "write:repository", map[string]gitea.AccessMode{SourceRepo: gitea.AccessModeWrite}},
}

// seed brings Gitea to what production has: two repositories, three bots, and
// webhook #1, by which a push to the records reaches Argo CD.
func (p Platform) seed(ctx context.Context, log io.Writer) (changed bool, err error) {
	admin, stop, created, err := p.admin(ctx)
	if err != nil {
		return false, err
	}
	defer stop()
	changed = created
	note := func(did bool, what string, err error) error {
		changed = changed || did
		fmt.Fprintf(log, "%s: created %v, %v\n", what, did, err)
		return err
	}
	for _, repo := range []string{SourceRepo, AppsRepo} {
		did, err := ensureRepo(ctx, admin, repo)
		if err := note(did, repo, err); err != nil {
			return changed, err
		}
	}
	for _, bot := range Bots {
		token, err := p.Secret(ctx, "gitea", bot.Secret, "token")
		if err != nil {
			return changed, err
		}
		if token.IsZero() {
			if token, err = admin.CreateUser(ctx, bot.User, bot.Scope); err != nil {
				return changed, err
			}
			_, err := p.SetSecret(ctx, "gitea", bot.Secret, nil, map[string]string{"token": token.Reveal()})
			if err := note(true, bot.User, err); err != nil {
				return changed, err
			}
		}
		if err := admin.LetOwnNothing(ctx, bot.User); err != nil {
			return changed, err
		}
		for repo, access := range bot.Repos {
			if err := admin.AddCollaborator(ctx, repo, bot.User, access); err != nil {
				return changed, err
			}
		}
		if bot.User == parts.ReaderName {
			// Argo CD reads the repositories as this bot.
			for name, repo := range map[string]string{"repo-apps": AppsRepo, "repo-source": SourceRepo} {
				did, err := p.SetSecret(ctx, nsArgoCD, name, map[string]string{"argocd.argoproj.io/secret-type": "repository"}, map[string]string{
					"type": "git", "url": GiteaURL + "/" + repo + ".git", "username": bot.User, "password": token.Reveal(),
				})
				if err := note(did, name, err); err != nil {
					return changed, err
				}
			}
		}
	}
	did, err := protect(ctx, admin, SourceRepo)
	if err := note(did, "protection of "+SourceRepo, err); err != nil {
		return changed, err
	}
	did, err = p.webhook(ctx, admin)
	return changed, note(did, "webhook #1", err)
}

// Admin gives an administrator of the cluster's Gitea, reached through the API
// server until stop is called.
func (p Platform) Admin(ctx context.Context) (admin giteaadmin.Admin, stop func(), err error) {
	admin, stop, _, err = p.admin(ctx)
	return admin, stop, err
}

func (p Platform) admin(ctx context.Context) (admin giteaadmin.Admin, stop func(), created bool, err error) {
	token, err := p.Secret(ctx, "gitea", adminSecret, "token")
	if err != nil {
		return admin, nil, false, err
	}
	if token.IsZero() {
		// An earlier run may have created the user and not kept the token.
		out, err := p.Kubectl.Run(ctx, nil, "exec", "-n", "gitea", "deploy/gitea", "-c", "gitea", "--", "sh", "-c",
			`g="/app/gitea/gitea --config /data/app.ini admin user"
			$g list --admin | grep -qw root || $g create --admin --username root --email root@bench.invalid --random-password --must-change-password=false >/dev/null
			$g generate-access-token --username root --token-name "bench-$(date +%s%N)" --scopes all --raw`)
		if err != nil {
			return admin, nil, false, fmt.Errorf("creating Gitea's administrator: %w", err)
		}
		found := tokenForm.FindString(out)
		if found == "" {
			return admin, nil, false, errors.New("creating Gitea's administrator: it printed no token")
		}
		token, created = secret.New(found), true
		if _, err := p.SetSecret(ctx, "gitea", adminSecret, nil, map[string]string{"token": found}); err != nil {
			return admin, nil, true, err
		}
	}
	address, stop, err := p.Kubectl.Forward(ctx, "gitea", "service/gitea", 3000)
	return giteaadmin.Admin{URL: "http://" + address, Token: token}, stop, created, err
}

var tokenForm = regexp.MustCompile(`\b[0-9a-f]{40}\b`)

func ensureRepo(ctx context.Context, admin giteaadmin.Admin, repo string) (created bool, err error) {
	client, err := admin.Client(ctx, admin.Token)
	if err != nil {
		return false, err
	}
	owner, name, _ := strings.Cut(repo, "/")
	_, answer, err := client.GetRepo(owner, name)
	if err != nil {
		if answer == nil || answer.StatusCode != http.StatusNotFound {
			return false, fmt.Errorf("looking for the repository %q: %w", repo, err)
		}
		if err := admin.CreateRepo(ctx, repo); err != nil {
			return false, err
		}
		created = true
	}
	// Argo CD wants a commit to look at.
	_, answer, err = client.GetContents(owner, name, "main", "README.md")
	if err == nil {
		return created, nil
	}
	if answer == nil || answer.StatusCode != http.StatusNotFound {
		return created, fmt.Errorf("reading %q: %w", repo, err)
	}
	_, _, err = client.CreateFile(owner, name, "README.md", gitea.CreateFileOptions{
		FileOptions: gitea.FileOptions{Message: "Begin", BranchName: "main"},
		Content:     "IyBCZW5jaAo=", // # Bench
	})
	return true, err
}

// protect lets nobody but the administrator push to the branch that is built.
func protect(ctx context.Context, admin giteaadmin.Admin, repo string) (created bool, err error) {
	client, err := admin.Client(ctx, admin.Token)
	if err != nil {
		return false, err
	}
	owner, name, _ := strings.Cut(repo, "/")
	rules, _, err := client.ListBranchProtections(owner, name, gitea.ListBranchProtectionsOptions{})
	if err != nil {
		return false, fmt.Errorf("listing the branch protections of %q: %w", repo, err)
	}
	for _, r := range rules {
		if r.RuleName == "main" {
			return false, nil
		}
	}
	_, _, err = client.CreateBranchProtection(owner, name, gitea.CreateBranchProtectionOption{
		RuleName: "main", EnablePush: true, EnablePushWhitelist: true, PushWhitelistUsernames: []string{"root"},
	})
	return true, err
}

func (p Platform) webhook(ctx context.Context, admin giteaadmin.Admin) (created bool, err error) {
	client, err := admin.Client(ctx, admin.Token)
	if err != nil {
		return false, err
	}
	owner, name, _ := strings.Cut(AppsRepo, "/")
	hooks, _, err := client.ListRepoHooks(owner, name, gitea.ListHooksOptions{})
	if err != nil {
		return false, fmt.Errorf("listing the webhooks of %q: %w", AppsRepo, err)
	}
	for _, h := range hooks {
		if h.Config["url"] == webhookToArgoCD {
			return false, nil
		}
	}
	_, _, err = client.CreateRepoHook(owner, name, gitea.CreateHookOption{
		Type: gitea.HookTypeGitea, Events: []string{"push"}, Active: true, BranchFilter: "main",
		Config: map[string]string{"url": webhookToArgoCD, "content_type": "json"},
	})
	return true, err
}

func (p Platform) appOfApps(ctx context.Context, log io.Writer) (bool, error) {
	objects, err := own("root.yaml", nil)
	if err != nil {
		return false, err
	}
	return p.Kubectl.Apply(ctx, log, objects)
}

// Secret gives one value of a Secret, zero when there is none.
func (p Platform) Secret(ctx context.Context, namespace, name, key string) (secret.Secret, error) {
	out, err := p.Kubectl.Run(ctx, nil, "get", "secret", "-n", namespace, name, "--ignore-not-found", "-o", "json")
	if err != nil || out == "" {
		return secret.Secret{}, err
	}
	var s struct{ Data map[string][]byte }
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		return secret.Secret{}, fmt.Errorf("reading the Secret %s in %s: %w", name, namespace, err)
	}
	return secret.New(string(s.Data[key])), nil
}

// SetSecret writes a Secret; its values go through stdin only.
func (p Platform) SetSecret(ctx context.Context, namespace, name string, labels, values map[string]string) (changed bool, err error) {
	return p.Kubectl.Apply(ctx, io.Discard, []object{{
		"apiVersion": "v1", "kind": "Secret",
		"metadata": object{"name": name, "namespace": namespace, "labels": labels},
		"data":     encoded(values),
	}})
}

// encoded gives the values as the API server keeps them, so that it can be told
// whether they changed.
func encoded(values map[string]string) map[string][]byte {
	data := map[string][]byte{}
	for key, value := range values {
		data[key] = []byte(value) // JSON has it in base64
	}
	return data
}
