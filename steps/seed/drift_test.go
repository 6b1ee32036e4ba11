package seed_test

import (
	"slices"
	"testing"

	sdk "code.gitea.io/sdk/gitea"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fabrique/eventsources"
	"fabrique/manifests/zone"
	"fabrique/steps/seed"
)

// Each thing that is seeded is removed or changed by hand: a check names it and changes
// nothing, seeding mends exactly it.
func TestDrift(t *testing.T) {
	w := newWorld(t, "drift", true)
	w.seed(seed.Options{})
	if err := w.gitea.CreateRepo(t.Context(), "drift-other/private"); err != nil {
		t.Fatal(err)
	}
	api := w.admin()
	must := func(_ *sdk.Response, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	collaborate := func(owner, repo, bot string, mode sdk.AccessMode) {
		t.Helper()
		must(api.AddCollaborator(owner, repo, "drift-"+bot, sdk.AddCollaboratorOption{Permission: &mode}))
	}
	hook := func(o sdk.EditHookOption) {
		t.Helper()
		if o.Events == nil {
			o.Events = []string{"push"}
		}
		if o.BranchFilter == "" {
			o.BranchFilter = "main"
		}
		must(api.EditRepoHook("drift", "atlas", w.hooks()[0].ID, o))
	}
	again := func() {
		t.Helper()
		_, answer, err := api.CreateRepoHook("drift", "atlas", sdk.CreateHookOption{
			Type: sdk.HookTypeGitea, Events: []string{"push"}, Active: true, BranchFilter: "main",
			Config: map[string]string{"url": eventsources.URL(), "content_type": "json", "secret": "another"},
		})
		must(answer, err)
	}
	unhook := func() { t.Helper(); must(api.DeleteRepoHook("drift", "atlas", w.hooks()[0].ID)) }
	protect := func(o sdk.EditBranchProtectionOption) {
		t.Helper()
		_, answer, err := api.EditBranchProtection("drift-cluster", "apps", "main", o)
		must(answer, err)
	}
	edit := func(namespace, name, key, value string) {
		t.Helper()
		s := w.get(namespace, name)
		s.Data[key] = []byte(value)
		if value == "" {
			delete(s.Data, key)
		}
		if _, err := w.kube.Client.CoreV1().Secrets(namespace).Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	own := func(bot string) *sdk.Client {
		t.Helper()
		c, err := sdk.NewClient(w.gitea.URL, sdk.SetBasicAuth("drift-"+bot, w.gitea.Token.Reveal()))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	yes, no := true, false
	for _, c := range []struct {
		name string
		do   func()
		want []string // "result item"
		// mended is what seeding says, where that differs: what one item mends mends
		// another too, or changes what a third is made of.
		mended []string
	}{
		{"a repository is removed", func() { must(api.DeleteRepo("drift-cluster", "more")) },
			[]string{"created repository drift-cluster/more"}, nil},
		{"the mirror is removed", func() { must(api.DeleteRepo("drift", "atlas")) }, []string{
			"created repository drift/atlas", "updated rights of drift-reader", "created rights of drift-status", "created webhook #2 of drift/atlas"}, nil},
		{"the records are removed", func() { must(api.DeleteRepo("drift-cluster", "apps")) }, []string{
			"created repository drift-cluster/apps", "created branch main of drift-cluster/apps", "updated rights of drift-reader",
			"created rights of drift-writer", "created protection of main of drift-cluster/apps"}, nil},
		{"the mirror is pulled less often", func() {
			interval := "8h"
			_, answer, err := api.EditRepo("drift", "atlas", sdk.EditRepoOption{MirrorInterval: &interval})
			must(answer, err)
		}, []string{"updated repository drift/atlas"}, nil},

		{"a bot may not read", func() { must(api.DeleteCollaborator("drift", "atlas", "drift-reader")) }, []string{"updated rights of drift-reader"}, nil},
		{"a bot may too much", func() { collaborate("drift-cluster", "apps", "reader", "write") }, []string{"updated rights of drift-reader"}, nil},
		{"a bot may too little", func() { collaborate("drift-cluster", "apps", "writer", "read") }, []string{"updated rights of drift-writer"}, nil},
		{"the writer may read the source", func() { collaborate("drift", "atlas", "writer", "read") }, []string{"updated rights of drift-writer"}, nil},
		{"the writer may write a third one", func() { collaborate("drift-cluster", "more", "writer", "write") }, []string{"updated rights of drift-writer"}, nil},
		{"a bot may read what is not seeded", func() { collaborate("drift-other", "private", "status", "read") }, []string{"updated rights of drift-status"}, nil},
		{"a bot is an administrator", func() {
			must(api.AdminEditUser("drift-status", sdk.EditUserOption{LoginName: "drift-status", Admin: &yes}))
		}, []string{"updated user drift-status", "updated rights of drift-status"}, []string{"updated user drift-status"}},
		{"a bot may not sign in", func() {
			must(api.AdminEditUser("drift-writer", sdk.EditUserOption{LoginName: "drift-writer", ProhibitLogin: &yes}))
		}, []string{"updated user drift-writer"}, nil},
		{"a bot is removed", func() { must(api.AdminDeleteUser("drift-reader")) },
			[]string{"created user drift-reader", "created rights of drift-reader", "updated token of drift-reader"},
			[]string{"created user drift-reader", "created rights of drift-reader", "updated token of drift-reader", "updated secret drift/repo-apps"}},

		{"a token is revoked", func() { must(own("writer").DeleteAccessToken(w.tokens("writer")[0].ID)) }, []string{"updated token of drift-writer"}, nil},
		{"a token is lost", func() { w.remove(zone.Workflows, zone.WriterSecret) }, []string{"created token of drift-writer"}, nil},
		{"a token is garbage", func() { edit(zone.Workflows, zone.StatusSecret, "token", "garbage") }, []string{"updated token of drift-status"}, nil},
		{"a token is another bot's", func() { edit(zone.Workflows, zone.StatusSecret, "token", w.stored("writer").Reveal()) },
			[]string{"updated token of drift-status"}, nil},
		{"a token is left over", func() {
			_, answer, err := own("writer").CreateAccessToken(sdk.CreateAccessTokenOption{Name: "fabrique-seed-x", Scopes: []sdk.AccessTokenScope{"all"}})
			must(answer, err)
		}, []string{"updated token of drift-writer"}, nil},

		{"the webhook is removed", unhook, []string{"created webhook #2 of drift/atlas"}, nil},
		{"the webhook is off", func() { hook(sdk.EditHookOption{Active: &no}) }, []string{"updated webhook #2 of drift/atlas"}, nil},
		{"the webhook tells of other events", func() { hook(sdk.EditHookOption{Events: []string{"push", "issues"}}) }, []string{"updated webhook #2 of drift/atlas"}, nil},
		{"the webhook tells of other branches", func() { hook(sdk.EditHookOption{BranchFilter: "*"}) }, []string{"updated webhook #2 of drift/atlas"}, nil},
		{"the webhook sends forms", func() { hook(sdk.EditHookOption{Config: map[string]string{"content_type": "form"}}) }, []string{"updated webhook #2 of drift/atlas"}, nil},
		{"the webhook is there twice", again, []string{"updated webhook #2 of drift/atlas"}, nil},
		{"the webhook is made anew with another secret", func() { unhook(); again() }, []string{"updated webhook #2 of drift/atlas"}, nil},
		{"the webhook's secret is changed", func() { edit(zone.Events, zone.WebhookSecret, "secret", "another") }, []string{"updated webhook #2 of drift/atlas"}, nil},
		{"the webhook's secret is lost", func() { w.remove(zone.Events, zone.WebhookSecret) },
			[]string{"created secret fabrique-events/gitea-webhook", "updated webhook #2 of drift/atlas"}, nil},

		{"the builds' key is lost", func() { w.remove(zone.Workflows, zone.EgressSecret) }, []string{"created secret fabrique/egress-key"}, nil},
		{"the gateway's key is lost", func() { w.remove(zone.Egress, zone.EgressSecret) }, []string{"created secret fabrique-egress/egress-key"}, nil},
		{"the gateway's key is changed", func() { edit(zone.Egress, zone.EgressSecret, "key", "another") }, []string{"updated secret fabrique-egress/egress-key"}, nil},

		{"the protection is removed", func() { must(api.DeleteBranchProtection("drift-cluster", "apps", "main")) },
			[]string{"created protection of main of drift-cluster/apps"}, nil},
		{"everybody may push", func() { protect(sdk.EditBranchProtectionOption{EnablePush: &yes, EnablePushWhitelist: &no}) },
			[]string{"updated protection of main of drift-cluster/apps"}, nil},
		{"somebody may not push", func() {
			protect(sdk.EditBranchProtectionOption{EnablePush: &yes, EnablePushWhitelist: &yes, PushWhitelistUsernames: []string{"root"}})
		}, []string{"updated protection of main of drift-cluster/apps"}, nil},
		{"a team may push", func() {
			protect(sdk.EditBranchProtectionOption{EnablePush: &yes, EnablePushWhitelist: &yes, PushWhitelistTeams: []string{"Owners"}})
		}, []string{"updated protection of main of drift-cluster/apps"}, nil},
		{"everybody may merge", func() { protect(sdk.EditBranchProtectionOption{EnableMergeWhitelist: &no}) },
			[]string{"updated protection of main of drift-cluster/apps"}, nil},

		{"a derived Secret is removed", func() { w.remove("drift", "auth") }, []string{"created secret drift/auth"}, nil},
		{"a derived value is changed", func() { edit("drift", "auth", "uri", "postgresql://elsewhere") }, []string{"updated secret drift/auth"}, nil},
		{"a derived key is removed", func() { edit("drift", "auth", "host", "") }, []string{"updated secret drift/auth"}, nil},
		{"a label is removed", func() {
			s := w.get("drift", "auth")
			s.Labels = nil
			if _, err := w.kube.Client.CoreV1().Secrets("drift").Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}, []string{"updated secret drift/auth"}, nil},
		{"the source is rotated", func() { edit("drift", "role", "password", "new:"+password) }, []string{"updated secret drift/auth"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.do()
			before := w.resourceVersions()
			report, err := w.run(seed.Options{}, true)
			if !drift(err) {
				t.Errorf("a check ends with %v", err)
			}
			if diff := cmp.Diff(c.want, changed(report)); diff != "" {
				t.Errorf("a check names: %s", diff)
			}
			if !slices.Equal(before, w.resourceVersions()) {
				t.Error("a check changed a Secret")
			}
			if c.mended == nil {
				c.mended = c.want
			}
			mended, err := w.run(seed.Options{}, false)
			if err != nil {
				t.Errorf("seeding: %v", err)
			}
			if diff := cmp.Diff(c.mended, changed(mended)); diff != "" {
				t.Errorf("seeding mends: %s", diff)
			}
			if report, err := w.run(seed.Options{}, true); err != nil {
				t.Errorf("a check afterwards: %v, %v", changed(report), err)
			}
		})
	}
	w.ready()
}

// resourceVersions tells whether any Secret was written.
func (w *world) resourceVersions() (list []string) {
	w.Helper()
	secrets, err := w.kube.Client.CoreV1().Secrets("").List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	for _, s := range secrets.Items {
		list = append(list, s.Namespace+"/"+s.Name+"@"+s.ResourceVersion)
	}
	return list
}

// A value that other keys of the Secret stand beside is mended; these stay.
func TestOthersKeysStay(t *testing.T) {
	w := newWorld(t, "keys", false)
	w.set("keys", "auth", map[string]string{"user": "old", "mine": "kept"})
	w.seed(seed.Options{})
	got := w.get("keys", "auth")
	if string(got.Data["mine"]) != "kept" || string(got.Data["user"]) != "app" {
		t.Errorf("the derived Secret has mine %q and user %q", got.Data["mine"], got.Data["user"])
	}
}
