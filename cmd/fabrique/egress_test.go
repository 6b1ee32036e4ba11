package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fabrique/steps/config"
	"fabrique/steps/egress"
	"fabrique/steps/step"
)

// TestEgress asks a gateway behind what stands in for the API server.
func TestEgress(t *testing.T) {
	recent := egress.NewRecent(10)
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	refused := func(app, destination string) egress.Request {
		return egress.Request{App: app, Destination: destination, Verdict: egress.Refused, Message: "egress to " + destination + " refused; allow it under egress.allow"}
	}
	for _, r := range []egress.Request{
		{App: "citation", Workflow: "push-722251", Destination: "deb.example.net:80", Verdict: egress.Allowed, Received: 151075},
		refused("citation", "index.example.net:443"), refused("citation", "files.example.net:443"), refused("citation", "index.example.net:443"),
		refused("citation", "127.0.0.1:80"), refused("citation", "listed.example.org:443"), refused("hello", "npmjs.example:443"),
		{App: "citation", Destination: "mirror.example.org:443", Verdict: egress.Refused, Message: "egress to mirror.example.org:443 refused: it leads to 10.0.0.1, a private address"},
	} {
		recent.Add(r, at)
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const path = "/base/api/v1/namespaces/fabrique-egress/services/egress-gateway:admin/proxy/requests"
		switch {
		case r.Header.Get("Authorization") != "Bearer s3cret":
			http.Error(w, "who are you?", http.StatusUnauthorized)
		case r.URL.Path != path:
			http.Error(w, "not "+r.URL.Path, http.StatusNotFound)
		default:
			recent.ServeHTTP(w, r)
		}
	}))
	defer server.Close()
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	kubeconfig := func(name, token string) string {
		return write(name, fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "%s/base", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: "%s"}}]
`, server.URL, token))
	}
	good, bad := kubeconfig("good", "s3cret"), kubeconfig("bad", "hunter2")
	conf := write("fabrique.yaml", string(config.Template())+"\negress:\n  allow:\n    - \"*.example.org:443\"\n")
	for _, c := range []struct {
		args      string
		code      int
		out, says string // parts of what is written, or all of it
	}{
		{"report --kubeconfig " + good, 0, "\ncitation  deb.example.net:80      allowed  1      151075    2026-11-30 ", ""},
		{"report --kubeconfig " + good, 0, "\nhello     npmjs.example:443       refused  1      0         2026-11-30 ", ""},
		{"report citation --kubeconfig " + good, 0, "egress to index.example.net:443 refused; allow it under egress.allow", ""},
		{"report citation --json --kubeconfig " + good, 0, `"destination": "index.example.net:443",` + "\n      \"verdict\": \"refused\",", ""},
		{"report other --kubeconfig " + good, 0, "nothing was asked for", ""},
		{"suggest citation --kubeconfig " + good, 0, "egress:\n  apps:\n    citation:\n      - files.example.net:443\n      - index.example.net:443\n", "not to be listed: egress to 127.0.0.1:80 refused"},
		{"suggest citation --kubeconfig " + good, 0, "", "not to be listed: egress to mirror.example.org:443 refused: it leads to 10.0.0.1"},
		{"suggest other --kubeconfig " + good, 0, "", "nothing to add for other"},
		{"suggest --kubeconfig " + good, 2, "", "accepts 1 arg"},
		{"suggest A --kubeconfig " + good, 2, "", "parsing the app name"},
		{"report a b --kubeconfig " + good, 2, "", "accepts at most 1 arg"},
		{"report --kubeconfig " + bad, 2, "", "401 Unauthorized: who are you?"},
		{"report --kubeconfig " + dir + "/nothing", 2, "", "reading the kubeconfig"},
		{"--help", 0, "suggest", ""},
	} {
		var out, errOut bytes.Buffer
		code := run(t.Context(), append([]string{"egress", "-c", conf}, strings.Fields(c.args)...), &out, &errOut)
		if code != c.code || !strings.Contains(out.String(), c.out) || !strings.Contains(errOut.String(), c.says) || code == step.ExitInvalid && out.Len() > 0 {
			t.Errorf("%s: exit code %d\n%s%s", c.args, code, &out, &errOut)
		}
	}
	var out, errOut bytes.Buffer
	if run(t.Context(), []string{"egress", "suggest", "citation", "-c", conf, "--kubeconfig", good}, &out, &errOut); strings.Contains(out.String(), "listed.example.org") {
		t.Errorf("it suggests what is allowed already:\n%s", &out)
	}
	// What it prints is what the configuration takes.
	if _, err := config.Parse("fabrique.yaml", append(config.Template(), out.Bytes()...)); err != nil {
		t.Error(err)
	}
}
