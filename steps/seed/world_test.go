package seed_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	sdk "code.gitea.io/sdk/gitea"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fabrique/bench/parts"
	"fabrique/eventsources"
	"fabrique/manifests/zone"
	"fabrique/steps/config"
	"fabrique/steps/secret"
	"fabrique/steps/seed"
	"fabrique/steps/step"
)

func TestMain(m *testing.M) { parts.Main(m) }

// world is a Gitea and a cluster in which names of one test are free. The factory's
// namespaces are the same in all tests, so each begins without Secrets there.
type world struct {
	*testing.T
	gitea  *parts.GiteaServer
	kube   *parts.KubeAPIServer
	name   string
	file   string // fabrique.yaml
	config config.Config
	mirror bool
}

// password is a hard one for URIs.
const password = "p%40 /s@w:o#r?d+é&=\"'"

func newWorld(t *testing.T, name string, mirror bool) *world {
	t.Helper()
	w := &world{T: t, gitea: parts.Gitea(t), kube: parts.KubeAPI(t), name: name, mirror: mirror}
	for _, n := range zone.Namespaces() {
		w.clear(n.Name)
	}
	dir := t.TempDir()
	w.file = filepath.Join(dir, "fabrique.yaml")
	w.write(filepath.Join(dir, "admin"), w.gitea.Token.Reveal())
	upstream := ""
	if mirror {
		if err := w.gitea.CreateRepo(t.Context(), "up-"+name+"/code"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.gitea.PushTree(t.Context(), "up-"+name+"/code", "main", fstest.MapFS{"a": {Data: []byte("a")}}, "Begin"); err != nil {
			t.Fatal(err)
		}
		token, err := w.gitea.CreateUser(t.Context(), "pull-"+name, "read:repository")
		if err != nil {
			t.Fatal(err)
		}
		w.write(filepath.Join(dir, "upstream"), token.Reveal())
		if err := w.gitea.AddCollaborator(t.Context(), "up-"+name+"/code", "pull-"+name, "read"); err != nil {
			t.Fatal(err)
		}
		upstream = fmt.Sprintf("    - {repository: %s/atlas, upstream: %s, interval: 30m, user: pull-%s, tokenFile: upstream}\n", name, parts.CloneURL("up-"+name+"/code"), name)
	}
	w.write(w.file, fmt.Sprintf(`gitea: {url: %[1]s}
source: {repository: %[2]s/atlas}
apps: {repository: %[2]s-cluster/apps}
registry: {address: registry:80, plainHTTP: true}
seed:
  adminTokenFile: admin
  bots: {reader: %[2]s-reader, writer: %[2]s-writer, status: %[2]s-status}
  appsPushers: [root]
  sourcePushers: [root]
  repositories:
    - repository: %[2]s-cluster/more
%[3]s  derive:
    - from: {namespace: %[2]s, name: role}
      to: {namespace: %[2]s, name: auth}
      labels: {example.org/kind: database}
      data:
        user: {key: username}
        host: {text: pg-rw.databases.svc}
        uri: {uri: {scheme: postgresql, userKey: username, passwordKey: password, host: pg-rw.databases.svc, port: 5432, database: pgvector}}
    - from: {namespace: fabrique, name: gitea-reader}
      to: {namespace: %[2]s, name: repo-apps}
      data: {password: {key: token}}
`, parts.GiteaURL, name, upstream))
	var err error
	if w.config, err = config.Load(w.file); err != nil {
		t.Fatal(err)
	}
	_, err = w.kube.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	w.set(name, "role", map[string]string{"username": "app", "password": password})
	return w
}

func (w *world) write(file, text string) {
	w.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
}

// clear removes all Secrets of a namespace.
func (w *world) clear(namespace string) {
	w.Helper()
	if err := w.kube.Client.CoreV1().Secrets(namespace).DeleteCollection(w.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		w.Fatal(err)
	}
}

func (w *world) remove(namespace, name string) {
	w.Helper()
	if err := w.kube.Client.CoreV1().Secrets(namespace).Delete(w.Context(), name, metav1.DeleteOptions{}); err != nil {
		w.Fatal(err)
	}
}

func (w *world) get(namespace, name string) *corev1.Secret {
	w.Helper()
	s, err := w.kube.Client.CoreV1().Secrets(namespace).Get(w.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return s
}

// set makes these the only values of a Secret.
func (w *world) set(namespace, name string, values map[string]string) {
	w.Helper()
	api := w.kube.Client.CoreV1().Secrets(namespace)
	s, err := api.Get(w.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(w.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: values}, metav1.CreateOptions{})
	} else if err == nil {
		s.Data, s.StringData = nil, values
		_, err = api.Update(w.Context(), s, metav1.UpdateOptions{})
	}
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) admin() *sdk.Client {
	w.Helper()
	api, err := w.gitea.Client(w.Context(), w.gitea.Token)
	if err != nil {
		w.Fatal(err)
	}
	return api
}

// run seeds, and wants that no secret is said.
func (w *world) run(o seed.Options, check bool) (seed.Report, error) {
	w.Helper()
	var said bytes.Buffer
	o.Cluster = w.kube.Client
	items, err := seed.Items(w.Context(), w.config, o)
	if err != nil {
		w.Fatal(err)
	}
	report, err := seed.Run(w.Context(), slog.New(slog.NewTextHandler(&said, nil)), items, check, func(o seed.Outcome) { fmt.Fprintln(&said, o) })
	text, jsonErr := json.Marshal(report)
	if jsonErr != nil {
		w.Fatal(jsonErr)
	}
	fmt.Fprintf(&said, "%s\n%v\n", text, err)
	for _, s := range w.secrets() {
		if strings.Contains(said.String(), s) {
			w.Errorf("a secret is said:\n%s", strings.ReplaceAll(said.String(), s, "<HERE>"))
		}
	}
	return report, err
}

// secrets gives all values of Secrets that must not be said.
func (w *world) secrets() []string {
	all := []string{w.gitea.Token.Reveal(), password}
	for _, namespace := range []string{zone.Workflows, zone.Events, zone.Egress, w.name} {
		list, err := w.kube.Client.CoreV1().Secrets(namespace).List(w.Context(), metav1.ListOptions{})
		if err != nil {
			w.Fatal(err)
		}
		for _, s := range list.Items {
			for key, value := range s.Data {
				if key != "user" && key != "username" && key != "host" && len(value) > 0 {
					all = append(all, string(value))
				}
			}
		}
	}
	return all
}

// seed runs and wants success.
func (w *world) seed(o seed.Options) seed.Report {
	w.Helper()
	report, err := w.run(o, false)
	if err != nil {
		w.Fatal(err)
	}
	return report
}

// changed lists the items that were, or would be, as "result item".
func changed(r seed.Report) (list []string) {
	for _, o := range r.Items {
		if o.Result != seed.Unchanged {
			list = append(list, o.Result+" "+o.Item)
		}
	}
	return list
}

// still wants that nothing differs.
func (w *world) still() {
	w.Helper()
	report, err := w.run(seed.Options{}, true)
	if err != nil || report.Changed || report.Changes != 0 {
		w.Errorf("a check after seeding: %v, %v", changed(report), err)
	}
	report, err = w.run(seed.Options{}, false)
	if err != nil || report.Changed {
		w.Errorf("a second run: %v, %v", changed(report), err)
	}
}

// tokens lists what tokens a bot has.
func (w *world) tokens(bot string) []*sdk.AccessToken {
	w.Helper()
	api, err := sdk.NewClient(w.gitea.URL, sdk.SetBasicAuth(w.name+"-"+bot, w.gitea.Token.Reveal()))
	if err != nil {
		w.Fatal(err)
	}
	list, _, err := api.ListAccessTokens(sdk.ListAccessTokensOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return list
}

// stored gives a bot's token in the cluster.
func (w *world) stored(bot string) secret.Secret {
	w.Helper()
	return secret.New(string(w.get(zone.Workflows, "gitea-"+bot).Data["token"]))
}

// hooks lists webhook #2.
func (w *world) hooks() (ours []*sdk.Hook) {
	w.Helper()
	list, _, err := w.admin().ListRepoHooks(w.name, "atlas", sdk.ListHooksOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return slices.DeleteFunc(list, func(h *sdk.Hook) bool { return h.Config["url"] != eventsources.URL() })
}

// ready wants the end state.
func (w *world) ready() {
	w.Helper()
	if n := len(w.hooks()); n != 1 {
		w.Errorf("%d webhooks, want 1", n)
	}
	for _, bot := range []string{"reader", "writer", "status"} {
		list := w.tokens(bot)
		if len(list) != 1 || !strings.HasSuffix(w.stored(bot).Reveal(), list[0].TokenLastEight) {
			w.Errorf("%s has %d tokens, want 1, the stored one", bot, len(list))
		}
	}
	key := w.get(zone.Workflows, zone.EgressSecret).Data["key"]
	if !regexp.MustCompile(`^[0-9a-f]{64}$`).Match(key) || !bytes.Equal(key, w.get(zone.Egress, zone.EgressSecret).Data["key"]) {
		w.Errorf("the egress keys are not the same 32 bytes")
	}
	if report, err := w.run(seed.Options{}, true); err != nil {
		w.Errorf("a check: %v, %v", changed(report), err)
	}
}

// may tells what a token may do on a repository: "none", "read" or "write".
func (w *world) may(token secret.Secret, owner, repo string) string {
	w.Helper()
	api, err := w.gitea.Client(w.Context(), token)
	if err != nil {
		w.Fatal(err)
	}
	got, answer, err := api.GetRepo(owner, repo)
	switch {
	case answer != nil && answer.StatusCode == 404:
		return "none"
	case err != nil:
		w.Fatal(err)
	case got.Permissions.Admin:
		return "admin"
	case got.Permissions.Push:
		return "write"
	}
	return "read"
}

// drift wants a check to end with exit code 4.
func drift(err error) bool { return step.ExitCode(err) == step.ExitDrift }
