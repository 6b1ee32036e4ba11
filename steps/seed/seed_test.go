package seed_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	sdk "code.gitea.io/sdk/gitea"
	"github.com/google/go-cmp/cmp"

	"fabrique/bench/parts"
	"fabrique/eventsources"
	"fabrique/manifests/zone"
	"fabrique/steps/seed"
	"fabrique/steps/step"
)

// From nothing to all, and a second run changes nothing; what was made may do what it
// is for and no more.
func TestEmptyToReady(t *testing.T) {
	for _, mirror := range []bool{true, false} {
		t.Run(map[bool]string{true: "mirror", false: "plain"}[mirror], func(t *testing.T) {
			w := newWorld(t, map[bool]string{true: "mirrored", false: "plain"}[mirror], mirror)
			before := w.resourceVersions()
			report, err := w.run(seed.Options{}, true)
			if !drift(err) || report.Changes < len(report.Items)-len(zone.Namespaces()) {
				t.Errorf("a check of nothing: exit code %d, %v\n%v", step.ExitCode(err), err, changed(report))
			}
			if _, answer, _ := w.admin().GetOrg(w.name); answer.StatusCode != http.StatusNotFound {
				t.Error("a check made the organization")
			}
			if _, answer, _ := w.admin().GetUserInfo(w.name + "-reader"); answer.StatusCode != http.StatusNotFound {
				t.Error("a check made a user")
			}
			if !slices.Equal(before, w.resourceVersions()) {
				t.Error("a check wrote a Secret")
			}

			w.seed(seed.Options{})
			w.ready()
			w.still()

			for _, c := range []struct{ bot, source, apps, scope string }{
				{"reader", "read", "read", "read:repository"}, {"writer", "none", "write", "write:repository"}, {"status", "write", "none", "write:repository"},
			} {
				token := w.stored(c.bot)
				got := []string{w.may(token, w.name, "atlas"), w.may(token, w.name+"-cluster", "apps"), w.may(token, w.name+"-cluster", "more")}
				if diff := cmp.Diff([]string{c.source, c.apps, "none"}, got); diff != "" {
					t.Errorf("what %s may do: %s", c.bot, diff)
				}
				if diff := cmp.Diff([]sdk.AccessTokenScope{sdk.AccessTokenScope(c.scope)}, w.tokens(c.bot)[0].Scopes); diff != "" {
					t.Error(diff)
				}
			}
			auth := w.get(w.name, "auth")
			if got, want := string(auth.Data["uri"]), "postgresql://app:p%2540%20%2Fs%40w%3Ao%23r%3Fd%2B%C3%A9%26%3D%22%27@pg-rw.databases.svc:5432/pgvector"; got != want {
				t.Errorf("uri %s, want %s", got, want)
			}
			if string(w.get(w.name, "repo-apps").Data["password"]) != w.stored("reader").Reveal() {
				t.Error("the Secret that is derived from the reader's token does not have it")
			}
			repo, _, err := w.admin().GetRepo(w.name, "atlas")
			if err != nil || repo.Mirror != mirror || !repo.Private || repo.Empty == mirror {
				t.Errorf("the source: %+v, %v", repo, err)
			}
			if mirror {
				return
			}
			if err := push(w, "status", w.name+"/atlas"); err == nil {
				t.Error("the status bot may push to the source's branch")
			}
			if err := push(w, "writer", w.name+"-cluster/apps"); err != nil {
				t.Errorf("the writer may not push records: %v", err)
			}
		})
	}
}

// push tries to commit a file to main as a bot.
func push(w *world, bot, repo string) error {
	api, err := w.gitea.Client(w.Context(), w.stored(bot))
	if err != nil {
		return err
	}
	owner, name, _ := strings.Cut(repo, "/")
	_, _, err = api.CreateFile(owner, name, "by-"+bot, sdk.CreateFileOptions{
		FileOptions: sdk.FileOptions{Message: "Try", BranchName: "main"}, Content: "YQ==",
	})
	return err
}

// Gitea signs what it delivers with the secret that the EventSource is given, and
// webhook #1 of the same repository stays.
func TestDelivery(t *testing.T) {
	w := newWorld(t, "delivery", false)
	hosts, err := os.OpenFile(filepath.Join(parts.Dir(), "hosts"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer hosts.Close()
	host := strings.TrimPrefix(strings.TrimSuffix(eventsources.URL(), ":12000/push"), "http://")
	if _, err := hosts.WriteString(parts.Address() + " " + host + "\n"); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(parts.Address(), "12000"))
	if err != nil {
		t.Fatal(err)
	}
	type delivery struct {
		signature, kind string
		body            []byte
	}
	received := make(chan delivery, 10)
	server := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		received <- delivery{r.Header.Get("X-Hub-Signature-256"), r.Header.Get("X-GitHub-Event"), body}
	})}
	go server.Serve(listener)
	defer server.Close()

	w.seed(seed.Options{})
	if _, _, err := w.admin().CreateRepoHook(w.name, "atlas", sdk.CreateHookOption{
		Type: sdk.HookTypeGitea, Events: []string{"push"}, Active: true, Config: map[string]string{"url": "http://argocd.example.invalid/", "content_type": "json"},
	}); err != nil {
		t.Fatal(err)
	}
	w.still()
	if list, _, err := w.admin().ListRepoHooks(w.name, "atlas", sdk.ListHooksOptions{}); err != nil || len(list) != 2 {
		t.Errorf("%d webhooks, want #1 and #2; %v", len(list), err)
	}
	if _, err := w.gitea.PushTree(t.Context(), w.name+"/atlas", "main", fstest.MapFS{"a": {Data: []byte("a")}}, "Push"); err != nil {
		t.Fatal(err)
	}
	select {
	case d := <-received:
		mac := hmac.New(sha256.New, w.get(zone.Events, zone.WebhookSecret).Data["secret"])
		mac.Write(d.body)
		if want := "sha256=" + hex.EncodeToString(mac.Sum(nil)); d.signature != want || d.kind != "push" {
			t.Errorf("a delivery of %q, signed %s, want %s", d.kind, d.signature, want)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("nothing was delivered")
	}
	// A delivery leaves nothing that looks like a change.
	w.still()
}

// New tokens, the old ones revoked; what is derived from them follows.
func TestRotate(t *testing.T) {
	w := newWorld(t, "rotate", false)
	w.seed(seed.Options{})
	before := w.stored("reader")
	report := w.seed(seed.Options{Rotate: true})
	want := []string{
		"updated token of rotate-reader", "updated token of rotate-writer", "updated token of rotate-status", "updated secret rotate/repo-apps",
	}
	if diff := cmp.Diff(want, changed(report)); diff != "" {
		t.Error(diff)
	}
	if w.stored("reader") == before {
		t.Error("the token is the same")
	}
	if _, err := w.gitea.Client(t.Context(), before); err == nil {
		t.Error("the old token still works") // the client asks for the server's version
	}
	w.ready()
}

// An administrator's token needs the scopes that are documented, and no others.
func TestScopes(t *testing.T) {
	w := newWorld(t, "scopes", true)
	api, err := sdk.NewClient(w.gitea.URL, sdk.SetBasicAuth("root", w.gitea.Token.Reveal()))
	if err != nil {
		t.Fatal(err)
	}
	token, _, err := api.CreateAccessToken(sdk.CreateAccessTokenOption{
		Name: "scopes", Scopes: []sdk.AccessTokenScope{"write:admin", "write:organization", "write:repository", "write:user"},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.write(w.config.Seed.AdminTokenFile, token.Token)
	w.seed(seed.Options{})
	w.ready()
}
