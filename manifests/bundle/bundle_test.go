package bundle

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	k8s "fabrique/manifests/object"
	"fabrique/steps/image"
	"fabrique/steps/step"
)

// upstreamHost is that of an image's name, which golden files do not have.
var upstreamHost = regexp.MustCompile(`"source": "[a-z0-9-]+(\.[a-z0-9-]+)+/`)

// The lock, the examples and which objects there are, of the modules that go.mod names.
// What upstream wrote itself is in no golden file.
func TestGolden(t *testing.T) {
	p := planned(t, "golden")
	fill(t, p)
	rendered := render(t, p, Lock{}, false)
	golden(t, "bundle.lock", upstreamHost.ReplaceAll(rendered.Lock.Text(), []byte(`"source": "upstream.example/`)))
	var objects strings.Builder
	for _, f := range rendered.Lock.Files {
		text := rendered.Files[f.Path]
		if strings.HasSuffix(f.Path, ".example") {
			golden(t, filepath.Base(f.Path), text)
			continue
		}
		fmt.Fprintf(&objects, "%s\n", f.Path)
		for _, o := range parse(t, text) {
			fmt.Fprintf(&objects, "  %s %s\n", o.Kind(), o.Name())
		}
	}
	golden(t, "objects.txt", []byte(objects.String()))
	if len(rendered.Unexplained) > 0 {
		t.Errorf("upstream's roles have something new; say why it must be, or that it need not: %q", rendered.Unexplained)
	}
}

func TestGoldenFilesHaveNothingOfUpstream(t *testing.T) {
	files, err := filepath.Glob("testdata/*")
	if err != nil {
		t.Fatal(err)
	}
	hidden, err := filepath.Glob("testdata/.*.example")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 || len(hidden) != 4 {
		t.Fatalf("golden files: %q, %q", files, hidden)
	}
	for _, file := range append(files, hidden...) {
		if info, err := os.Stat(file); err == nil && info.IsDir() {
			continue // what a fuzz target found
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, theirs := range []string{"apiVersion:", "openAPIV3Schema", "containers:"} {
			if bytes.Contains(text, []byte(theirs)) {
				t.Errorf("%s has %q: it is a manifest", file, theirs)
			}
		}
	}
}

func parse(t testing.TB, text []byte) []k8s.Object {
	t.Helper()
	docs, err := documents(text)
	if err != nil {
		t.Fatal(err)
	}
	var objects []k8s.Object
	for _, doc := range docs {
		var o k8s.Object
		if err := doc.Decode(&o); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, o)
	}
	return objects
}

// find gives the object "Kind/name" of a rendered bundle.
func find(t testing.TB, r Rendered, file, id string) k8s.Object {
	t.Helper()
	for _, o := range parse(t, r.Files[file]) {
		if o.Is(id) {
			return o
		}
	}
	t.Fatalf("%s has no %s", file, id)
	return nil
}

// Wherever upstream names an image there is its mirror by the index's digest, seen
// without the finder that put it there.
func TestEveryImageIsPinned(t *testing.T) {
	p := planned(t, "pinned")
	fill(t, p)
	r := render(t, p, Lock{}, false)
	mirror := map[string]string{}
	for n, i := range r.Lock.Images {
		digest, err := index(t, int64(n)).Digest()
		if err != nil {
			t.Fatal(err)
		}
		if i.Digest != image.Digest(digest.String()) {
			t.Errorf("%s: the digest is %s, the index's is %s", i.Source, i.Digest, digest)
		}
		if diff := cmp.Diff([]image.Platform{"linux/amd64", "linux/arm64"}, i.Platforms); diff != "" {
			t.Errorf("%s: platforms: -want +got\n%s", i.Source, diff)
		}
		mirror[image.Untagged(i.Mirror)] = image.Untagged(i.Mirror) + "@" + digest.String()
		for file, text := range r.Files {
			if strings.HasSuffix(file, ".yaml") && bytes.Contains(text, []byte(i.Source)) {
				t.Errorf("%s still has %s", file, i.Source)
			}
		}
	}
	controller := find(t, r, "argo-workflows/install.yaml", "Deployment/workflow-controller").Pod().Containers("containers")[0]
	events := find(t, r, "argo-events/install.yaml", "Deployment/controller-manager").Pod().Containers("containers")[0]
	bus := find(t, r, "nats/install.yaml", "ConfigMap/argo-events-controller-config").At("data")["controller-config.yaml"].(string)
	var env string
	for _, e := range events.Containers("env") {
		if e["name"] == "ARGO_EVENTS_IMAGE" {
			env = e["value"].(string)
		}
	}
	var settings k8s.Object
	for _, o := range parse(t, []byte(bus)) {
		settings = o
	}
	jetstream, stan := settings.At("eventBus", "jetstream").Containers("versions"), settings.At("eventBus", "nats").Containers("versions")
	if len(jetstream) != 1 || len(stan) != 1 {
		t.Fatalf("versions of the bus: %v, %v; want one of each", jetstream, stan)
	}
	const at = "registry:80/pinned/"
	got := map[string]any{
		"controller": controller["image"], "executor": controller.Strings("args")[1], "executor's option": controller.Strings("args")[0],
		"events": events["image"], "EventSources": env,
		"nats": jetstream[0]["natsImage"], "exporter": jetstream[0]["metricsExporterImage"], "reloader": jetstream[0]["configReloaderImage"],
		"stan": stan[0]["natsStreamingImage"], "stan's exporter": stan[0]["metricsExporterImage"], "version": jetstream[0]["version"],
	}
	want := map[string]any{
		"controller": mirror[at+"argoproj/workflow-controller"], "executor": mirror[at+"argoproj/argoexec"], "executor's option": "--executor-image",
		"events": mirror[at+"argoproj/argo-events"], "EventSources": mirror[at+"argoproj/argo-events"],
		"nats": mirror[at+"library/nats"], "exporter": mirror[at+"natsio/prometheus-nats-exporter"], "reloader": mirror[at+"natsio/nats-server-config-reloader"],
		"stan": mirror[at+"library/nats"], "stan's exporter": mirror[at+"natsio/prometheus-nats-exporter"], "version": "latest",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// What README asks for of Argo Workflows is there, and what the factory does not use is not.
func TestInstall(t *testing.T) {
	p := planned(t, "install")
	fill(t, p)
	r := render(t, p, Lock{}, false)
	var executor struct{ SecurityContext k8s.Object }
	text := find(t, r, "argo-workflows/install.yaml", "ConfigMap/workflow-controller-configmap").At("data")["executor"].(string)
	for _, o := range parse(t, []byte(text)) {
		executor.SecurityContext = o.At("securityContext")
	}
	if diff := cmp.Diff(k8s.Object{
		"runAsNonRoot": true, "allowPrivilegeEscalation": false,
		"capabilities": k8s.Object{"drop": []any{"ALL"}}, "seccompProfile": k8s.Object{"type": "RuntimeDefault"},
	}, executor.SecurityContext); diff != "" {
		t.Errorf("the executor's security: -want +got\n%s", diff)
	}
	for file, text := range r.Files {
		if bytes.Contains(text, []byte("argo-server")) {
			t.Errorf("%s has argo-server", file)
		}
	}
}

func TestResolve(t *testing.T) {
	p := planned(t, "resolve")
	ctx := t.Context()

	mirrors := p.Images
	fill(t, p)
	first := render(t, p, Lock{}, false)

	// Nothing has changed.
	outcomes, err := p.Resolve(ctx, first.Lock, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range outcomes {
		if o.Did != "unchanged" || o.Moved != "" || o.Single {
			t.Errorf("%s: %+v, want unchanged", o.Image.Source, o)
		}
	}
	if again := render(t, p, first.Lock, false); cmp.Diff(first, again) != "" {
		t.Errorf("a second run gives something else: -first +second\n%s", cmp.Diff(first, again))
	}

	// A tag moves: the lock wins, and says so; --update takes the new digest.
	moved := push(t, mirrors[0].Mirror, index(t, 1000))
	outcomes, err = p.Resolve(ctx, first.Lock, false)
	if err != nil {
		t.Fatal(err)
	}
	if o := outcomes[0]; o.Did != "unchanged" || string(o.Moved) != moved || o.Image.Digest != first.Lock.Images[0].Digest {
		t.Errorf("the tag has moved: %+v", o)
	}
	if again := render(t, p, first.Lock, false); cmp.Diff(first, again) != "" {
		t.Errorf("the tag has moved: -first +second\n%s", cmp.Diff(first, again))
	}
	outcomes, err = p.Resolve(ctx, first.Lock, true)
	if err != nil {
		t.Fatal(err)
	}
	if o := outcomes[0]; o.Did != "updated" || string(o.Image.Digest) != moved || o.Moved != "" {
		t.Errorf("--update: %+v", o)
	}
	if o := outcomes[1]; o.Did != "unchanged" {
		t.Errorf("--update of a tag that has not moved: %+v", o)
	}

	// A tag goes: the lock needs it not, and --update does.
	remove(t, image.Untagged(mirrors[0].Mirror)+"@"+moved)
	outcomes, err = p.Resolve(ctx, first.Lock, false)
	if err != nil || outcomes[0].Did != "unchanged" {
		t.Errorf("the tag is gone: %+v, %v", outcomes, err)
	}
	_, err = p.Resolve(ctx, first.Lock, true)
	wants(t, err, step.ExitInvalid, "reading the mirrors in registry:80: "+mirrors[0].Mirror+" is not there; copy "+mirrors[0].Source+" to it, with all platforms")

	// One platform alone is taken, and told; one that lacks the nodes' is not.
	push(t, mirrors[0].Mirror, single(t, 2000, platforms[0]))
	outcomes, err = p.Resolve(ctx, Lock{}, false)
	if err != nil || !outcomes[0].Single || outcomes[1].Single {
		t.Errorf("one platform: %+v, %v", outcomes, err)
	}
	push(t, mirrors[0].Mirror, single(t, 2001, platforms[1]))
	_, err = p.Resolve(ctx, Lock{}, false)
	wants(t, err, step.ExitInvalid, mirrors[0].Mirror+" is for linux/arm64, and not for linux/amd64 (builder.platform)")

	// All that is missing is named at once.
	other := planned(t, "resolve-empty")
	_, err = other.Resolve(ctx, Lock{}, false)
	for _, i := range other.Images {
		wants(t, err, step.ExitInvalid, i.Mirror+" is not there")
	}

	// A registry that is not there is worth a retry.
	other.options.Config.Registry.Address = "registry:81"
	for i := range other.Images {
		other.Images[i].Mirror = strings.Replace(other.Images[i].Mirror, ":80/", ":81/", 1)
	}
	_, err = other.Resolve(ctx, Lock{}, false)
	wants(t, err, step.ExitRetry, "cannot be reached")
}

// wants checks an error's code and a part of its text.
func wants(t *testing.T, err error, code int, text string) {
	t.Helper()
	if err == nil || step.ExitCode(err) != code || !strings.Contains(err.Error(), text) {
		t.Errorf("exit code %d, %v; want %d, %q", step.ExitCode(err), err, code, text)
	}
}

// Another place of the mirrors keeps the digests.
func TestLockOutlivesTheRegistry(t *testing.T) {
	p := planned(t, "before")
	fill(t, p)
	before := render(t, p, Lock{}, false)
	after := render(t, planned(t, "after"), before.Lock, false)
	for i, was := range before.Lock.Images {
		now := after.Lock.Images[i]
		if now.Digest != was.Digest || now.Mirror != strings.Replace(was.Mirror, "/before/", "/after/", 1) {
			t.Errorf("%+v became %+v", was, now)
		}
	}
}

func TestPlanRefuses(t *testing.T) {
	versions := linkedVersions(t)
	for _, test := range []struct{ name, extra, want string }{
		{"a version of the bus that is not listed", "cluster: {eventBus: {version: 9.9.9}}\n", `finding version "9.9.9" of the bus (cluster.eventBus.version): Argo Events has latest, `},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := NewPlan(t.Context(), Options{Config: configured(t, test.extra), Versions: versions, Path: "x"})
			wants(t, err, step.ExitInvalid, test.want)
		})
	}
	_, err := NewPlan(t.Context(), Options{Config: configured(t, ""), Prefix: strings.Repeat("long", 12), Versions: versions, Path: "x"})
	wants(t, err, step.ExitInvalid, "at most 63 are allowed")

	t.Run("other manifests", func(t *testing.T) {
		if _, err := WorkflowsInstall(nil, "v1.0.0"); err == nil || step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("no controller: %v", err)
		}
		if _, err := EventsInstall(nil); err == nil || step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("no controller: %v", err)
		}
		two := k8s.Object{"kind": "Deployment", "metadata": k8s.Object{"name": "controller-manager"}, "spec": k8s.Object{"template": k8s.Object{"spec": k8s.Object{"containers": []any{k8s.Object{}, k8s.Object{}}}}}}
		_, err := EventsInstall([]k8s.Object{two})
		wants(t, err, step.ExitInvalid, "reading Deployment controller-manager: it has 2 containers, known is one")
		_, err = Kustomize(t.TempDir())
		wants(t, err, step.ExitInvalid, "reading the kustomization")
	})
}

func TestFind(t *testing.T) {
	ctx, path := t.Context(), modules[Events]
	version := linkedVersions(t)
	m, err := Find(ctx, path, version)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(m.Dir, filepath.FromSlash(Folder), "kustomization.yaml")); err != nil {
		t.Error(err)
	}
	_, err = Find(ctx, path, nil)
	wants(t, err, step.ExitInvalid, "this program does not say what it was built with; name it: --module "+path+"@v…")
	t.Run("nothing to download from", func(t *testing.T) {
		t.Setenv("GOPROXY", "off")
		_, err := Find(ctx, path, []Version{{path, "v0.0.1-never"}})
		wants(t, err, step.ExitRetry, "downloading "+path+"@v0.0.1-never with the go program")
	})
	t.Run("without go", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		_, err := Find(ctx, path, version)
		wants(t, err, step.ExitInvalid, "run this where Go is installed")
	})
}

func TestParseVersion(t *testing.T) {
	for _, good := range []string{modules[Events] + "@v1.9.10", modules[Workflows] + "@v3.7.14", modules[Workflows] + "@v3.8.0-rc1"} {
		if v, err := ParseVersion(good); err != nil || v.Path+"@"+v.Version != good {
			t.Errorf("%q: %v, %v", good, v, err)
		}
	}
	for _, bad := range []string{"", "@", modules[Events], modules[Events] + "@latest", modules[Events] + "@v1", modules[Events] + "@v1.2.3 -x", "example.org/other@v1.2.3", "-json@v1.2.3"} {
		if _, err := ParseVersion(bad); step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// yamllint, with what it is told, leaves the folder alone; without, it finds something,
// so that the list is not for nothing.
func TestYamllintIgnoresTheFolder(t *testing.T) {
	p := planned(t, "lint")
	fill(t, p)
	r := render(t, p, Lock{}, false)
	repository := t.TempDir()
	write(t, filepath.Join(repository, "platform/bundles"), r)
	if err := os.WriteFile(filepath.Join(repository, "own.yaml"), []byte("---\na: 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	lint := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "yamllint", args...)
		cmd.Dir = repository
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := lint("."); err == nil || !strings.Contains(out, "platform/bundles/") {
		t.Errorf("without the list: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(repository, ".yamllint.yaml"), r.Files[".yamllint.yaml.example"], 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := lint("--strict", "."); err != nil {
		t.Errorf("with the list: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(repository, "own.yaml"), []byte("a:   1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := lint("--strict", "."); err == nil {
		t.Errorf("the list hides a file of the repository's own\n%s", out)
	}
}

// What holds for every role: a right that has no reason is told and not allowed.
func TestAllow(t *testing.T) {
	rule := func(group, resources, verbs string, names ...any) k8s.Object {
		return k8s.Object{"apiGroups": []any{group}, "resources": anys(resources), "verbs": anys(verbs), "resourceNames": names}
	}
	const rbac = "rbac.authorization.k8s.io"
	for _, test := range []struct {
		name, kind string
		rules      []k8s.Object
		want       string // ids
	}{
		{"nothing", "ClusterRole", []k8s.Object{rule("", "events", "create,patch"), rule("argoproj.io", "sensors", "delete")}, ""},
		{"Secrets of the cluster", "ClusterRole", []k8s.Object{rule("", "secrets", "get")}, "0041"},
		{"Secrets of a namespace", "Role", []k8s.Object{rule("", "secrets", "get")}, "0113"},
		{"logs", "Role", []k8s.Object{rule("", "pods/log", "delete")}, "0042"},
		{"reading logs", "Role", []k8s.Object{rule("", "pods/log", "get")}, ""},
		{"impersonation", "ClusterRole", []k8s.Object{rule("*", "groups", "impersonate")}, "0043"},
		{"everything", "ClusterRole", []k8s.Object{rule("*", "*", "*")}, "0044 0046"},
		{"everything in a namespace", "Role", []k8s.Object{rule("*", "*", "*")}, "0044 0112"},
		{"every verb", "Role", []k8s.Object{rule("", "pods", "*")}, "0045 0048"},
		{"nodes", "ClusterRole", []k8s.Object{rule("", "nodes/proxy", "get")}, "0047"},
		{"pods", "ClusterRole", []k8s.Object{rule("", "pods", "get,create")}, "0048"},
		{"reading pods", "ClusterRole", []k8s.Object{rule("", "pods", "get,list,watch")}, ""},
		{"ConfigMaps", "ClusterRole", []k8s.Object{rule("", "configmaps", "patch")}, "0049"},
		{"aws", "ClusterRole", []k8s.Object{rule("", "configmaps", "patch", "aws-auth")}, "0049 0115"},
		{"roles", "ClusterRole", []k8s.Object{rule(rbac, "roles", "create")}, "0050"},
		{"binding", "ClusterRole", []k8s.Object{rule(rbac, "rolebindings", "create"), rule(rbac, "clusterroles", "bind", "*")}, "0050 0051"},
		{"binding in the cluster", "ClusterRole", []k8s.Object{rule(rbac, "clusterrolebindings", "create"), rule(rbac, "clusterroles", "bind", "*")}, "0052"},
		{"exec", "Role", []k8s.Object{rule("", "pods/exec", "create")}, "0053"},
		{"attach", "Role", []k8s.Object{rule("*", "pods/attach", "create"), rule("*", "pods", "get")}, "0054"},
		{"adding users", "Role", []k8s.Object{rule("*", "rolebindings", "get,patch")}, "0055"},
		{"services", "Role", []k8s.Object{rule("", "services", "update")}, "0056"},
		{"webhooks", "ClusterRole", []k8s.Object{rule("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "update")}, "0114"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var rules []any
			for _, r := range test.rules {
				rules = append(rules, r)
			}
			allowed, unexplained := allow([]role{{"argo-events", k8s.Object{"kind": test.kind, "metadata": k8s.Object{"name": "new"}, "rules": rules}}})
			if len(allowed) > 0 {
				t.Errorf("a role that nobody has looked at is allowed: %v", allowed)
			}
			var ids []string
			for _, text := range unexplained {
				ids = append(ids, regexp.MustCompile(`AVD-KSV-(\d+)`).FindStringSubmatch(text)[1])
			}
			if got := strings.Join(ids, " "); got != test.want {
				t.Errorf("found %q, want %q: %q", got, test.want, unexplained)
			}
		})
	}
	if unused := unusedReasons(t); len(unused) > 0 {
		t.Errorf("upstream's roles have these rights no more: %q", unused)
	}
}

func anys(commas string) []any {
	var all []any
	for _, s := range strings.Split(commas, ",") {
		all = append(all, s)
	}
	return all
}

func unusedReasons(t *testing.T) []string {
	allowed, _ := allow(planned(t, "reasons").roles)
	var unused []string
	for key := range reasons {
		if !slices.ContainsFunc(allowed, func(a allowance) bool {
			return strings.HasSuffix(key, a.id) && strings.HasPrefix(a.file, strings.Split(key, "/")[0])
		}) {
			unused = append(unused, key)
		}
	}
	return unused
}
