package seed

import (
	"context"
	"fmt"
	"slices"
	"strings"

	sdk "code.gitea.io/sdk/gitea"
	"k8s.io/client-go/kubernetes"

	"fabrique/eventsources"
	"fabrique/manifests/zone"
	"fabrique/steps/config"
	"fabrique/steps/gitea"
	"fabrique/steps/secret"
	"fabrique/steps/step"
)

// Options of [Items].
type Options struct {
	GiteaURL string // where Gitea answers from here; empty for the configuration's
	Cluster  kubernetes.Interface
	Rotate   bool // make new tokens for the bots and revoke the old ones
}

// Items gives all that the configuration wants, in the order in which one needs the
// other. It reads the credentials, and asks Gitea whether the token is an
// administrator's. Exit code 2 when something is missing.
func Items(ctx context.Context, c config.Config, o Options) ([]Item, error) {
	if err := c.CheckSeed(); err != nil {
		return nil, err
	}
	if err := checkTargets(c.Seed.Derive); err != nil {
		return nil, err
	}
	admin, err := c.AdminToken()
	if err != nil {
		return nil, err
	}
	if admin.IsZero() {
		return nil, step.Invalidf("seeding Gitea: there is no administrator's token; name its file as seed.adminTokenFile, or set %s", secret.EnvAdminToken)
	}
	upstreams := map[gitea.Repository]secret.Secret{}
	var hidden []secret.Secret
	for _, r := range c.Seed.Repositories {
		token, err := r.Token()
		if err != nil {
			return nil, err
		}
		upstreams[r.Repository], hidden = token, append(hidden, token)
	}
	url := o.GiteaURL
	if url == "" {
		url = c.Gitea.URL
	}
	f, err := newForge(ctx, url, admin, hidden)
	if err != nil {
		return nil, err
	}
	client, err := gitea.New(url, admin)
	if err != nil {
		return nil, err
	}
	k := cluster{o.Cluster}

	var items []Item
	for _, n := range zone.Namespaces() {
		items = append(items, &namespace{k, n})
	}
	repos := []gitea.Repository{c.Source.Repository, c.Apps.Repository}
	for _, r := range c.Seed.Repositories {
		if !slices.Contains(repos, r.Repository) {
			repos = append(repos, r.Repository)
		}
	}
	var owners []string
	for _, r := range repos {
		if owner, _ := split(r); !slices.Contains(owners, owner) {
			owners = append(owners, owner)
			items = append(items, &organization{f, owner})
		}
	}
	for _, r := range repos {
		branch := c.Source.Branch
		if r == c.Apps.Repository {
			branch = c.Apps.Branch
		}
		upstream, _ := c.Seed.Upstream(r)
		items = append(items, &repository{f, r, branch, upstream, upstreams[r], firstPull})
	}
	items = append(items, &firstCommit{client, c.Apps.Repository, c.Apps.Branch, gitea.Author(c.Author)})

	bots := c.Seed.Bots
	for _, b := range []struct {
		name, secret string
		scope        sdk.AccessTokenScope
		rights       map[gitea.Repository]sdk.AccessMode
	}{
		{bots.Reader, zone.ReaderSecret, "read:repository", map[gitea.Repository]sdk.AccessMode{c.Source.Repository: sdk.AccessModeRead, c.Apps.Repository: sdk.AccessModeRead}},
		{bots.Writer, zone.WriterSecret, "write:repository", map[gitea.Repository]sdk.AccessMode{c.Apps.Repository: sdk.AccessModeWrite}},
		// Gitea has no smaller right for statuses; the branch is protected from it below.
		{bots.Status, zone.StatusSecret, "write:repository", map[gitea.Repository]sdk.AccessMode{c.Source.Repository: sdk.AccessModeWrite}},
	} {
		items = append(items,
			&user{f, b.name},
			&rights{f, b.name, b.rights, repos},
			&token{f, k, b.name, b.scope, config.SecretName{Namespace: zone.Workflows, Name: b.secret}, o.Rotate},
		)
	}

	items = append(items, &protection{f, c.Apps.Repository, c.Apps.Branch, append([]string{bots.Writer}, c.Seed.AppsPushers...)})
	if _, mirror := c.Seed.Upstream(c.Source.Repository); !mirror {
		items = append(items, &protection{f, c.Source.Repository, c.Source.Branch, c.Seed.SourcePushers})
	}

	hookSecret := config.SecretName{Namespace: zone.Events, Name: zone.WebhookSecret}
	key := config.SecretName{Namespace: zone.Workflows, Name: zone.EgressSecret}
	gatewayKey := config.SecretName{Namespace: zone.Egress, Name: zone.EgressSecret}
	items = append(items,
		&generated{cluster: k, to: hookSecret, key: zone.WebhookKey},
		&webhook{f, k, c.Source.Repository, c.Source.Branch, eventsources.URL(), hookSecret},
		&generated{cluster: k, to: key, key: zone.EgressKey, peers: []config.SecretName{gatewayKey}},
		&generated{cluster: k, to: gatewayKey, key: zone.EgressKey, peers: []config.SecretName{key}, same: true},
	)
	made := own()
	for _, d := range c.Seed.Derive {
		items = append(items, &derived{k, d, slices.Contains(made, d.From)})
		made = append(made, d.To)
	}
	return items, nil
}

// own lists the Secrets that are made here in any case.
func own() []config.SecretName {
	return []config.SecretName{
		{Namespace: zone.Workflows, Name: zone.ReaderSecret}, {Namespace: zone.Workflows, Name: zone.WriterSecret},
		{Namespace: zone.Workflows, Name: zone.StatusSecret}, {Namespace: zone.Events, Name: zone.WebhookSecret},
		{Namespace: zone.Workflows, Name: zone.EgressSecret}, {Namespace: zone.Egress, Name: zone.EgressSecret},
	}
}

// checkTargets refuses to derive what is made here.
func checkTargets(list []config.Derivation) error {
	for i, d := range list {
		if slices.Contains(own(), d.To) {
			return step.Invalidf("reading the configuration: seed.derive[%d].to: %s is one of the factory's own; derive another", i, d.To)
		}
	}
	return nil
}

// String is for people: the result, the item, and why.
func (o Outcome) String() string {
	line := fmt.Sprintf("%-9s %s", o.Result, o.Item)
	if o.Error != "" {
		line += ": " + strings.ReplaceAll(o.Error, "\n", " ")
	}
	return line
}
