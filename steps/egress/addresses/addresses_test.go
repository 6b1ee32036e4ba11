package addresses

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"fabrique/manifests/zone"
	"fabrique/steps/egress"
	"fabrique/steps/egress/dnstest"
	"fabrique/steps/step"
)

var update = flag.Bool("update", false, "write the golden files")

// api is an API server that has one object, or none yet, and what server-side apply
// does to it: what this field manager had and does not name any more goes.
type api struct {
	t         *testing.T
	mu        sync.Mutex
	object    map[string]any // nil for none
	version   int
	writes    int
	meanwhile func()         // what somebody else does before the next write
	refuses   map[string]int // verb to status
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	answer := func(status int, body any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(body)
	}
	failed := func(status int, reason string) {
		answer(status, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": reason, "code": status})
	}
	if want := "/apis/networking.k8s.io/v1/namespaces/" + zone.Egress + "/networkpolicies/" + zone.AddressesPolicy; r.URL.Path != want {
		a.t.Errorf("%s %s, want %s", r.Method, r.URL, want)
	}
	if status := a.refuses[r.Method]; status != 0 {
		failed(status, map[int]string{403: "Forbidden", 500: "InternalError"}[status])
		return
	}
	switch {
	case r.Method == http.MethodGet && a.object == nil:
		failed(http.StatusNotFound, "NotFound")
	case r.Method == http.MethodGet:
		answer(http.StatusOK, a.object)
	case r.Method == http.MethodPatch:
		if a.meanwhile != nil {
			a.meanwhile()
			a.meanwhile = nil
		}
		q := r.URL.Query()
		if r.Header.Get("Content-Type") != "application/apply-patch+yaml" || q.Get("fieldManager") != manager || q.Get("force") != "true" || q.Get("fieldValidation") != "Strict" {
			a.t.Errorf("no server-side apply: %v %v", r.Header, q)
		}
		text, _ := io.ReadAll(r.Body)
		var given map[string]any
		if err := json.Unmarshal(text, &given); err != nil {
			a.t.Error(err)
		}
		meta := given["metadata"].(map[string]any)
		if v, ok := meta["resourceVersion"]; ok && v != strconv.Itoa(a.version) {
			failed(http.StatusConflict, "Conflict")
			return
		}
		if meta["creationTimestamp"] != nil || given["status"] != nil {
			a.t.Errorf("it writes what is the server's: %s", text)
		}
		a.writes++
		a.set(given)
		answer(http.StatusOK, a.object)
	default:
		a.t.Errorf("%s %s", r.Method, r.URL)
	}
}

func (a *api) set(object map[string]any) {
	a.version++
	a.object = object
	object["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(a.version)
}

// world is an API server, a DNS server and a time.
type world struct {
	*api
	url string
	dns *dnstest.Server
	now time.Time
	o   Options
}

func start(t *testing.T, rules egress.Rules) *world {
	t.Helper()
	rules.MaxTunnels = egress.DefaultMaxTunnels
	rules.Check(func(field string, err error) { t.Fatal(field, err) })
	w := &world{api: &api{t: t, refuses: map[string]int{}}, dns: dnstest.Start(t), now: noon}
	server := httptest.NewServer(w.api)
	t.Cleanup(server.Close)
	w.url = server.URL
	client, err := dynamic.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	w.o = Options{
		Rules: rules, Keep: 24 * time.Hour, Namespace: zone.Egress, Resolver: w.dns.Resolver(), Now: func() time.Time { return w.now },
		Policies: client.Resource(schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}).Namespace(zone.Egress),
	}
	return w
}

// made makes the object as fabrique apply does.
func (w *world) made() *world {
	text, err := json.Marshal(Empty(zone.Egress))
	if err != nil {
		w.t.Fatal(err)
	}
	var object map[string]any
	if err := json.Unmarshal(text, &object); err != nil {
		w.t.Fatal(err)
	}
	w.set(object)
	return w
}

func (w *world) update(want string) Result {
	w.t.Helper()
	result, err := Update(w.t.Context(), slog.New(slog.DiscardHandler), w.o)
	if err != nil || result.Result != want {
		w.t.Errorf("%+v, %v; want %s", result, err, want)
	}
	return result
}

// rules gives what is open: port to addresses.
func (w *world) open() map[string][]string {
	all := map[string][]string{}
	spec := w.object["spec"].(map[string]any)
	rules, _ := spec["egress"].([]any)
	for _, r := range rules {
		rule := r.(map[string]any)
		port := rule["ports"].([]any)[0].(map[string]any)
		key := port["protocol"].(string) + " " + strconv.Itoa(int(port["port"].(float64)))
		to, _ := rule["to"].([]any)
		if len(to) == 0 {
			w.t.Errorf("%s is open to everybody", key)
		}
		for _, p := range to {
			all[key] = append(all[key], p.(map[string]any)["ipBlock"].(map[string]any)["cidr"].(string))
		}
	}
	return all
}

func (w *world) opens(want map[string][]string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.open()); diff != "" {
		w.t.Error(diff)
	}
}

// TestUpdate follows an object through what happens to it.
func TestUpdate(t *testing.T) {
	w := start(t, egress.Rules{
		Allow: []egress.Destination{"deb.example.net:80", "both.example.net:80", "both.example.net:443"},
		Apps:  map[string][]egress.Destination{"citation": {"index.example.net:443", "both.example.net:8443"}},
	}).made()
	w.dns.Set("deb.example.net", "9.9.9.2", "9.9.9.1", "2606:4700::1")
	w.dns.Set("both.example.net", "9.9.9.1", "10.0.0.1")
	w.dns.Set("index.example.net", "9.9.9.3")
	first := w.update("updated")
	want := Result{Result: "updated", Names: 3, Addresses: 5, Unresolved: []string{}, OpenPorts: []uint16{}, Refused: []string{"both.example.net leads to 10.0.0.1, a private address; egress.allowPrivate may exempt it"}}
	first.notes = nil
	if diff := cmp.Diff(want, first, cmp.AllowUnexported(Result{})); diff != "" {
		t.Error(diff)
	}
	rules := map[string][]string{"TCP 80": {"9.9.9.1/32", "9.9.9.2/32", "2606:4700::1/128"}, "TCP 443": {"9.9.9.1/32", "9.9.9.3/32"}, "TCP 8443": {"9.9.9.1/32"}}
	w.opens(rules)
	golden(t, "gateway-addresses.yaml", w.object)
	if asked := w.dns.Asked(); slices.ContainsFunc(asked, func(s string) bool { return !strings.HasSuffix(s, ".example.net.") }) {
		t.Errorf("it asked for %v", asked)
	}

	// The same answers write nothing, until what was seen is old.
	for range 3 {
		w.now = w.now.Add(time.Hour)
		w.update("unchanged")
	}
	if w.writes != 1 {
		t.Errorf("%d writes", w.writes)
	}
	w.now = noon.Add(6 * time.Hour)
	w.update("updated")
	w.opens(rules)
	w.update("unchanged")

	// A rotated answer adds; the old one stays for a day.
	w.dns.Set("index.example.net", "9.9.9.4")
	w.now = noon.Add(7 * time.Hour)
	w.update("updated")
	rules["TCP 443"] = []string{"9.9.9.1/32", "9.9.9.3/32", "9.9.9.4/32"}
	w.opens(rules)
	w.now = noon.Add(30 * time.Hour)
	w.update("updated")
	rules["TCP 443"] = []string{"9.9.9.1/32", "9.9.9.4/32"}
	w.opens(rules)

	// A name without an answer keeps what it had, and stops no other.
	w.dns.Set("index.example.net")
	w.dns.Set("deb.example.net", "9.9.9.5")
	result := w.update("updated")
	if diff := cmp.Diff([]string{"index.example.net"}, result.Unresolved); diff != "" {
		t.Error(diff)
	}
	rules["TCP 80"] = []string{"9.9.9.1/32", "9.9.9.2/32", "9.9.9.5/32", "2606:4700::1/128"}
	w.opens(rules)

	// What is not listed any more goes at once.
	w.o.Rules.Apps = nil
	w.update("updated")
	w.opens(map[string][]string{"TCP 80": rules["TCP 80"], "TCP 443": {"9.9.9.1/32"}})

	// What somebody else made of it is mended.
	w.object["spec"].(map[string]any)["egress"] = []any{map[string]any{}}
	w.update("updated")
	w.opens(map[string][]string{"TCP 80": rules["TCP 80"], "TCP 443": {"9.9.9.1/32"}})

	// An annotation that means nothing is forgotten.
	w.object["metadata"].(map[string]any)["annotations"] = map[string]any{Annotation: "{"}
	result = w.update("updated")
	w.opens(map[string][]string{"TCP 80": {"9.9.9.1/32", "9.9.9.5/32"}, "TCP 443": {"9.9.9.1/32"}})
	if _, ok := result.notes["forgetting what was seen before"]; !ok {
		t.Errorf("it does not say so: %v", result.notes)
	}

	// With no list left nothing is open, and nothing is remembered.
	w.o.Rules = egress.Rules{MaxTunnels: 1}
	w.update("updated")
	w.opens(map[string][]string{})
	if w.object["metadata"].(map[string]any)["annotations"] != nil {
		t.Errorf("it remembers %v", w.object["metadata"])
	}
	w.update("unchanged")
}

func golden(t *testing.T, name string, object any) {
	t.Helper()
	got, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", name)
	if *update {
		os.MkdirAll("testdata", 0o755)
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (make golden writes it)", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Error(diff)
	}
}

// A port with a wildcard has every network that the gateway may dial, and says so; the
// other ports do not.
func TestWildcard(t *testing.T) {
	w := start(t, egress.Rules{Allow: []egress.Destination{"deb.example.net:80", "*.example.org:443", "deb.example.net:443"}, DenyCIDRs: []egress.Network{"9.9.9.0/24"}}).made()
	w.dns.Set("deb.example.net", "8.8.8.8")
	result := w.update("updated")
	if diff := cmp.Diff([]uint16{443}, result.OpenPorts); diff != "" || len(result.notes) != 1 {
		t.Error(diff, result.notes)
	}
	var networks []string
	for _, p := range egress.NewPolicy(w.o.Rules).Networks() {
		networks = append(networks, p.String())
	}
	w.opens(map[string][]string{"TCP 80": {"8.8.8.8/32"}, "TCP 443": networks})
	if slices.ContainsFunc(networks, func(s string) bool { return strings.HasSuffix(s, "/0") }) {
		t.Errorf("everybody: %v", networks)
	}
	w.update("unchanged")
}

// The object is made where that is allowed. Where it is not, it is fabrique apply that
// makes it.
func TestCreate(t *testing.T) {
	w := start(t, egress.Rules{Allow: []egress.Destination{"deb.example.net:80"}})
	w.dns.Set("deb.example.net", "9.9.9.1")
	w.refuses[http.MethodPatch] = http.StatusForbidden
	if _, err := Update(t.Context(), slog.New(slog.DiscardHandler), w.o); step.ExitCode(err) != step.ExitRetry || !strings.Contains(err.Error(), "fabrique apply makes it") {
		t.Errorf("got %v", err)
	}
	clear(w.refuses)
	w.update("created")
	w.opens(map[string][]string{"TCP 80": {"9.9.9.1/32"}})
	w.update("unchanged")
}

// When nothing resolves and nothing did before, it fails, and what is not listed any
// more is closed all the same.
func TestNothingResolves(t *testing.T) {
	w := start(t, egress.Rules{Allow: []egress.Destination{"deb.example.net:80"}}).made()
	w.dns.Set("deb.example.net", "9.9.9.1")
	w.update("updated")
	w.dns.Set("deb.example.net")
	w.update("unchanged")
	w.o.Rules.Allow = []egress.Destination{"index.example.net:443"}
	result, err := Update(t.Context(), slog.New(slog.DiscardHandler), w.o)
	if step.ExitCode(err) != step.ExitRetry || !strings.Contains(err.Error(), "none of 1 does") || result.Result != "updated" {
		t.Errorf("%+v, %v", result, err)
	}
	w.opens(map[string][]string{})
	// A name that the gateway refuses for its addresses is no failure of DNS.
	w.dns.Set("index.example.net", "10.0.0.1")
	w.update("unchanged")
}

// A lost race is decided again, on what the other one left.
func TestConflict(t *testing.T) {
	w := start(t, egress.Rules{Allow: []egress.Destination{"deb.example.net:80"}}).made()
	w.dns.Set("deb.example.net", "9.9.9.1")
	w.meanwhile = func() {
		other := maps.Clone(w.object)
		other["metadata"].(map[string]any)["annotations"] = map[string]any{Annotation: Seen{"deb.example.net": at(time.Hour, "9.9.9.2")}.String()}
		w.set(other)
	}
	w.update("updated")
	w.opens(map[string][]string{"TCP 80": {"9.9.9.1/32", "9.9.9.2/32"}})

	w.refuses[http.MethodGet] = http.StatusForbidden
	if _, err := Update(t.Context(), slog.New(slog.DiscardHandler), w.o); step.ExitCode(err) != step.ExitInvalid {
		t.Errorf("refused: %v", err)
	}
	w.refuses[http.MethodGet] = http.StatusInternalServerError
	if _, err := Update(t.Context(), slog.New(slog.DiscardHandler), w.o); step.ExitCode(err) != step.ExitRetry {
		t.Errorf("broken: %v", err)
	}
	clear(w.refuses)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	writes := w.writes
	if _, err := Update(ctx, slog.New(slog.DiscardHandler), w.o); step.ExitCode(err) != step.ExitRetry || w.writes != writes {
		t.Errorf("cut off: %v", err)
	}
}

// The program reads its policy again in each round, keeps what is there while that means
// nothing, and warns once.
func TestRounds(t *testing.T) {
	w := start(t, egress.Rules{}).made()
	w.dns.Set("deb.example.net", "9.9.9.1")
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	var f Flags
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.Declare(flags)
	f.options.Resolver, f.options.Now = w.o.Resolver, w.o.Now
	if err := flags.Parse([]string{"--policy", filepath.Join(dir, "policy.json"), "--kubeconfig", write("kubeconfig", `
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: here, user: me}}]
clusters: [{name: here, cluster: {server: "`+w.url+`"}}]
users: [{name: me, user: {}}]
`)}); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	for _, c := range []struct {
		policy, result string
		code, warnings int
		open           map[string][]string
	}{
		{`{"allow": ["deb.example.net:80", "gone.example.net:443"], "maxTunnels": 1}`, "updated", 0, 1, map[string][]string{"TCP 80": {"9.9.9.1/32"}}},
		{`{"allow": ["deb.example.net:80", "gone.example.net:443"], "maxTunnels": 1}`, "unchanged", 0, 0, map[string][]string{"TCP 80": {"9.9.9.1/32"}}},
		{`{"allow": ["deb.example.net:80", `, "", 2, 0, map[string][]string{"TCP 80": {"9.9.9.1/32"}}},
		{`{"allow": ["deb.example.net:8080"], "maxTunnels": 1}`, "updated", 0, 0, map[string][]string{"TCP 8080": {"9.9.9.1/32"}}},
		{`{"allow": ["gone.example.net:443", "deb.example.net:80"], "maxTunnels": 1}`, "updated", 0, 1, map[string][]string{"TCP 80": {"9.9.9.1/32"}}},
	} {
		write("policy.json", c.policy)
		log.Reset()
		result, err := f.Run(t.Context(), slog.New(slog.NewJSONHandler(&log, nil)))
		if result.Result != c.result || step.ExitCode(err) != c.code || strings.Count(log.String(), `"level":"WARN"`) != c.warnings {
			t.Errorf("%s: %+v, %v, %s", c.policy, result, err, log.String())
		}
		w.opens(c.open)
	}
}
