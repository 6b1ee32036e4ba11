package seed

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"

	sdk "code.gitea.io/sdk/gitea"

	"fabrique/manifests/zone"
	"fabrique/steps/config"
	"fabrique/steps/gitea"
	"fabrique/steps/gitref"
	"fabrique/steps/step"
)

// webhook is webhook #2. It is told from others by its target.
//
// Gitea neither tells a webhook's secret nor changes it through the API, so which
// webhook has which secret is noted at the Secret, and one that differs in anything is
// made anew. A secret that a person changes on Gitea's page is not noticed.
type webhook struct {
	*forge
	cluster
	repo   gitea.Repository
	branch gitref.Branch
	target string
	from   config.SecretName
}

// hookNote is the annotation of the Secret: the webhook's id, and a hash of the secret
// that it was given.
const hookNote = "fabrique/webhook"

func (w *webhook) Name() string { return "webhook #2 of " + string(w.repo) }

func (w *webhook) events() []string { return []string{"push"} }

// ours lists the webhooks with the target; more than one is one too many.
func (w *webhook) ours(ctx context.Context) ([]*sdk.Hook, error) {
	const page = 50
	api, err := w.admin(ctx)
	if err != nil {
		return nil, err
	}
	owner, name := split(w.repo)
	var ours []*sdk.Hook
	for n := 1; ; n++ {
		list, answer, err := api.ListRepoHooks(owner, name, sdk.ListHooksOptions{ListOptions: sdk.ListOptions{Page: n, PageSize: page}})
		if notFound(answer) {
			return nil, nil
		}
		if err != nil {
			return nil, w.failure("listing the webhooks", answer, err)
		}
		for _, h := range list {
			if h.Config["url"] == w.target {
				ours = append(ours, h)
			}
		}
		if len(list) < page {
			return ours, nil
		}
	}
}

func (w *webhook) note(id int64, value []byte) string {
	sum := sha256.Sum256(value)
	return strconv.FormatInt(id, 10) + "-" + hex.EncodeToString(sum[:8])
}

func (w *webhook) Check(ctx context.Context) (State, error) {
	ours, err := w.ours(ctx)
	if len(ours) == 0 || err != nil {
		return absent, err
	}
	state := State{Exists: true}
	if len(ours) > 1 {
		state.Diff = append(state.Diff, fmt.Sprintf("%d webhooks to %s, want 1", len(ours), w.target))
	}
	differ := func(field string, got, want any) {
		if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
			state.Diff = append(state.Diff, fmt.Sprintf("%s: %s, want %s", field, step.Clip(g), w))
		}
	}
	h := ours[0]
	differ("type", h.Type, sdk.HookTypeGitea)
	differ("active", h.Active, true)
	differ("content type", h.Config["content_type"], "json")
	differ("branch filter", h.BranchFilter, w.branch)
	slices.Sort(h.Events)
	differ("events", h.Events, w.events())
	kept, err := w.secret(ctx, w.from)
	if err != nil {
		return absent, err
	}
	if kept == nil || kept.Annotations[hookNote] != w.note(h.ID, kept.Data[zone.WebhookKey]) {
		state.Diff = append(state.Diff, "it was not given the secret in "+w.from.String())
	}
	return state, nil
}

func (w *webhook) Mend(ctx context.Context) error {
	value, err := w.value(ctx, w.from, zone.WebhookKey)
	if err != nil {
		return err
	}
	if len(value) == 0 {
		return step.Retryf("the secret in %s is %w", w.from, ErrMissing)
	}
	ours, err := w.ours(ctx)
	if err != nil {
		return err
	}
	api, err := w.admin(ctx)
	if err != nil {
		return err
	}
	owner, name := split(w.repo)
	for _, h := range ours {
		if answer, err := api.DeleteRepoHook(owner, name, h.ID); err != nil && !notFound(answer) {
			return w.failure("removing the webhook that differs", answer, err)
		}
	}
	made, answer, err := api.CreateRepoHook(owner, name, sdk.CreateHookOption{
		Type: sdk.HookTypeGitea, Events: w.events(), Active: true, BranchFilter: string(w.branch),
		Config: map[string]string{"url": w.target, "content_type": "json", "secret": string(value)},
	})
	if err != nil {
		return w.failure("making the webhook", answer, err)
	}
	return w.put(ctx, w.from, nil, nil, map[string]string{hookNote: w.note(made.ID, value)})
}
