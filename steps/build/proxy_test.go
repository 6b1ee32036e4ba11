package build

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"fabrique/steps/buildarg"
	"fabrique/steps/egress"
	"fabrique/steps/egress/gateway"
	"fabrique/steps/gitref"
	"fabrique/steps/step"
)

// viaGateway starts a gateway that lets nothing through, and gives the way to it.
func viaGateway(t *testing.T) Proxy {
	t.Helper()
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("0123456789abcdef0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := egress.LoadKey(file)
	if err != nil {
		t.Fatal(err)
	}
	g := gateway.New(quiet, egress.NewPolicy(egress.Rules{MaxTunnels: 10}), key)
	proxy, admin := httptest.NewServer(g), httptest.NewServer(g.Admin())
	t.Cleanup(proxy.Close)
	t.Cleanup(admin.Close)
	return Proxy{
		URL: proxy.URL, Report: admin.URL, NoProxy: []string{"registry", "gitea"}, KeyFile: file,
		Who: egress.Identity{App: "citation", Workflow: "push-" + strings.ToLower(t.Name())},
	}
}

// RUN instructions know the gateway, which knows for whom they run; what it refuses is
// in the build's error though the instruction does not show it; the credential is
// nowhere, and another one is no reason to run anything again.
func TestProxy(t *testing.T) {
	const dockerfile = base + `RUN env | grep -i proxy; wget -q -O /dev/null http://refused.example/ >/dev/null 2>&1; test -n "$STAY"` + "\n"
	o := prepare(t, map[string]string{"app/Dockerfile": dockerfile})
	o.Proxy = viaGateway(t)
	var display, logged bytes.Buffer
	o.Progress = &display
	log := slog.New(slog.NewJSONHandler(&logged, nil))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := Run(ctx, log, o)
	fails(t, err, step.ExitSource, "egress to refused.example:80 refused; allow it under egress.allow", "did not complete successfully")
	for _, variable := range []string{"HTTP_PROXY=", "https_proxy=", "NO_PROXY=localhost,127.0.0.1,registry,gitea"} {
		if !strings.Contains(display.String(), variable) {
			t.Errorf("RUN has no %s:\n%s", variable, &display)
		}
	}
	for name, text := range map[string]string{"display": display.String(), "log": logged.String(), "error": err.Error()} {
		if strings.Contains(text, "citation_push") {
			t.Errorf("the %s shows the credential:\n%s", name, text)
		}
	}

	// It comes through, and what it did without is in the log.
	write(t, o.Dir, "app/Dockerfile", strings.ReplaceAll(dockerfile, `; test -n "$STAY"`, "; env > /env"))
	o.Progress = nil
	result, err := Run(ctx, log, o)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(logged.String(), `"level":"WARN","msg":"egress to refused.example:80 refused; allow it under egress.allow"`) {
		t.Errorf("the log does not tell: %s", &logged)
	}
	config, err := pushed(t, result).ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(config)
	if err != nil || strings.Contains(strings.ToLower(string(text)), "proxy=") || strings.Contains(string(text), "citation_push") {
		t.Errorf("the image records the proxy: %s, %v", text, err)
	}
	o.Proxy.Who.Workflow = "another"
	o.Revision = gitref.Revision(strings.Repeat("f", 40))
	again, err := Run(ctx, log, o)
	if err != nil || again.Cached < result.Total-1 {
		t.Errorf("%d of %d build steps came from the cache", again.Cached, again.Total)
	}
}

func pushed(t *testing.T, r Result) v1.Image {
	t.Helper()
	tag, err := name.NewTag(r.Image, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	img, err := remote.Image(tag)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestProxyIsTheFactorys(t *testing.T) {
	p := Proxy{URL: "http://gateway:3128"}
	for _, name := range []string{"HTTP_PROXY", "https_proxy", "No_Proxy", "ALL_PROXY", "ftp_proxy"} {
		_, err := p.attrs(t.Context(), buildarg.Args{name: "x"}, source{}, map[string]string{})
		fails(t, err, step.ExitInvalid, name, "builds get their proxy from the factory")
	}
	for _, text := range []string{"FROM scratch\nARG HTTP_PROXY\n", "FROM scratch\narg a=1 \\\n  https_proxy=x\n", "ARG no_proxy\nFROM scratch\n"} {
		_, err := p.attrs(t.Context(), nil, source{dockerfile: []byte(text), display: "app/Dockerfile"}, map[string]string{})
		fails(t, err, step.ExitSource, "reading app/Dockerfile:", "remove ARG", "recorded in the image")
	}
	attrs := map[string]string{}
	if _, err := p.attrs(t.Context(), buildarg.Args{"PROXY": "x"}, source{dockerfile: []byte("FROM scratch\nARG PROXY HTTP_PROXY_HOST\nENV HTTP_PROXY=x\n")}, attrs); err != nil {
		t.Error(err)
	}
	if attrs["build-arg:HTTPS_PROXY"] != "http://gateway:3128" {
		t.Errorf("without a key: %v", attrs)
	}
	clear(attrs)
	if _, err := (Proxy{}).attrs(t.Context(), buildarg.Args{"HTTP_PROXY": "x"}, source{}, attrs); err != nil || len(attrs) != 0 {
		t.Errorf("without a gateway: %v, %v", attrs, err)
	}
}

func TestCredentialIsRedacted(t *testing.T) {
	attrs := map[string]string{}
	redact, err := viaGateway(t).attrs(t.Context(), nil, source{dockerfile: []byte("FROM scratch\n")}, attrs)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(attrs["build-arg:HTTP_PROXY"])
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	for _, text := range []string{u.String(), password, base64.StdEncoding.EncodeToString([]byte(u.User.String()))} {
		if got := redact("it is " + text + "!"); strings.Contains(got, password) || strings.Contains(got, text) || !strings.HasPrefix(got, "it is ") {
			t.Errorf("%q", got)
		}
	}
}

// A gateway that does not answer is no reason for another error.
func TestRefusalsUnknown(t *testing.T) {
	var logged bytes.Buffer
	p := Proxy{URL: "http://127.0.0.1:1", Report: "http://127.0.0.1:1", Who: egress.Identity{App: "a"}}
	err := p.explain(t.Context(), slog.New(slog.NewTextHandler(&logged, nil)), time.Now(), step.Sourcef("building it"))
	if fails(t, err, step.ExitSource); err.Error() != "building it" || !strings.Contains(logged.String(), "not knowing what the egress gateway refused") {
		t.Errorf("%v, %s", err, &logged)
	}
}

func TestParseProxy(t *testing.T) {
	for s, want := range map[string]string{
		"http://gateway:3128": "http://gateway:3128", "http://gateway:3128/": "http://gateway:3128", "http://[fd00::1]:3128": "http://[fd00::1]:3128",
		"gateway:3128": "", "https://gateway:3128": "", "http://gateway": "", "http://user:hunter2@gateway:3128": "", "http://gateway:3128/x": "", "http://gateway:3128?x": "", "": "",
	} {
		got, err := parseProxy(s)
		if got != want || (err == nil) != (want != "") || err != nil && (step.ExitCode(err) != step.ExitInvalid || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%q: %q, %v", s, got, err)
		}
	}
}
