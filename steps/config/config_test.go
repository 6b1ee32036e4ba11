package config

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fabrique/steps/egress"
	"fabrique/steps/frontend"
	"fabrique/steps/secret"
	"fabrique/steps/step"
)

var update = flag.Bool("update", false, "write the golden files")

const small = `gitea:
  url: http://gitea:3000/
source:
  repository: atlas/atlas
apps:
  repository: cluster/apps
registry:
  address: registry:80
`

func TestTemplatePassesTheStrictCheck(t *testing.T) {
	c, err := Parse("/etc/fabrique/fabrique.yaml", Template())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Gitea.Writer.TokenFile, "/etc/fabrique/secrets/writer-token"; got != want {
		t.Errorf("token file %q, want %q", got, want)
	}
	if !c.Registry.PlainHTTP {
		t.Error("the template's registry is not plain HTTP")
	}
}

// What the template shows as commented-out defaults are the defaults; only the
// secret, the names under egress and what is seeded are examples.
func TestTemplateShowsTheDefaults(t *testing.T) {
	field := regexp.MustCompile(`(?m)^( *)#( {2,}|)([a-z]|- )`)
	uncommented := field.ReplaceAll(Template(), []byte("$1$2$3"))
	full, err := Parse("fabrique.yaml", uncommented)
	if err != nil {
		t.Fatalf("%v\n%s", err, uncommented)
	}
	bare, err := Parse("fabrique.yaml", Template())
	if err != nil {
		t.Fatal(err)
	}
	bare.Builder.Secrets = []Secret{{"pip-token", "secrets/pip-token", []string{"citation"}}}
	bare.Egress.Allow = []egress.Destination{"deb.example.net:80"}
	bare.Egress.Apps = map[string][]egress.Destination{"citation": {"index.example.net:443", "files.example.net:443"}}
	bare.Egress.DenyCIDRs, bare.Egress.AllowPrivate = []egress.Network{}, []egress.Network{}
	bare.Seed.AdminTokenFile = "secrets/admin-token"
	bare.Seed.AppsPushers, bare.Seed.SourcePushers = []string{}, []string{}
	bare.Seed.Repositories = []SeedRepository{{"cluster/cluster", "https://git.example.org/cluster.git", time.Hour, "mirror", "secrets/upstream-token", ""}}
	bare.Seed.Derive = []Derivation{{
		From: SecretName{"databases", "pg-role-pgvector"}, To: SecretName{"search", "pgvector-pg-auth"}, Labels: map[string]string{},
		Data: map[string]Value{
			"username": {Key: "username"},
			"host":     {Text: "pg-rw.databases.svc"},
			"uri": {URI: URI{
				Scheme: "postgresql", UserKey: "username", PasswordKey: "password", Host: "pg-rw.databases.svc", Port: 5432, Database: "pgvector",
				Parameters: map[string]string{"sslmode": "require"},
			}},
		},
	}}
	if diff := cmp.Diff(bare, full); diff != "" {
		t.Error(diff)
	}
	for name := range strings.SplitSeq("branch path address platform timeout cache maxCacheBytes frontends secrets reconcile clone inspect writeBack", " ") {
		if !regexp.MustCompile(`(?m)^ +` + name + `:`).Match(uncommented) {
			t.Errorf("the template does not show %s", name)
		}
	}
}

func TestParse(t *testing.T) {
	got, err := Parse("conf/fabrique.yaml", []byte(small+`
  plainHTTP: true
builder:
  address: tcp://buildkitd.fabrique-build:1234
  timeout: 20m
  cache: max
  maxCacheBytes: 10_000_000_000
  frontends:
    docker/dockerfile: registry:80/mirror/dockerfile:1.7
    registry:80/mine: builtin
  secrets:
    - {id: pip-token, file: secrets/pip, apps: [citation, other]}
    - id: npm
      file: /abs/npm
      apps:
      - other
author: {name: "Fabrique Bot", email: bot@example.org}
timeouts:
  inspect: 90s
`))
	if err != nil {
		t.Fatal(err)
	}
	want := defaults()
	want.Gitea.URL = "http://gitea:3000"
	want.Cluster.Network.DNS = Peer{Namespace: "kube-system", Labels: map[string]string{"k8s-app": "kube-dns"}, Port: 53}
	want.Source.Repository, want.Apps.Repository = "atlas/atlas", "cluster/apps"
	want.Registry = Registry{"registry:80", true}
	want.Builder.Address = "tcp://buildkitd.fabrique-build:1234"
	want.Builder.Timeout = 20 * time.Minute
	want.Builder.Cache = "max"
	want.Builder.MaxCacheBytes = 10_000_000_000
	want.Builder.Frontends = frontend.Allowed{"docker/dockerfile": "registry:80/mirror/dockerfile:1.7", "registry:80/mine": "builtin"}
	want.Builder.Secrets = []Secret{
		{"pip-token", "conf/secrets/pip", []string{"citation", "other"}},
		{"npm", "/abs/npm", []string{"other"}},
	}
	want.Author = Author{"Fabrique Bot", "bot@example.org"}
	want.Timeouts.Inspect = 90 * time.Second
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"pip-token": "conf/secrets/pip"}, got.SecretFiles("citation")); diff != "" {
		t.Error(diff)
	}
	if got.SourceURL() != "http://gitea:3000/atlas/atlas.git" || got.AppsURL() != "http://gitea:3000/cluster/apps.git" {
		t.Errorf("clone URLs %s %s", got.SourceURL(), got.AppsURL())
	}
	if _, err := Parse("fabrique.yaml", []byte(small+"builder:\n")); err != nil {
		t.Errorf("an empty section: %v", err)
	}
}

// TestRefused compares the errors for testdata/*.yaml with their golden text.
func TestRefused(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, err = Parse("fabrique.yaml", data)
			if err == nil || step.ExitCode(err) != step.ExitInvalid {
				t.Fatalf("error %v", err)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error shows a password: %v", err)
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".txt"
			got := err.Error() + "\n"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatalf("%v (go test -update writes it)", err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// What the file lists under frontends is all that is allowed, under its one
// name.
func TestFrontends(t *testing.T) {
	for text, want := range map[string]frontend.Allowed{
		"":                frontend.Default(),
		"  frontends:\n":  frontend.Default(),
		"  frontends: {}": {},
		"  frontends: {docker.io/docker/dockerfile: registry:80/mirror/dockerfile:1}": {"docker/dockerfile": "registry:80/mirror/dockerfile:1"},
		"  frontends:\n    registry:80/mine: builtin\n":                               {"registry:80/mine": "builtin"},
	} {
		for range 20 { // a map has no order of its own
			c, err := Parse("fabrique.yaml", []byte(small+"builder:\n"+text))
			if diff := cmp.Diff(want, c.Builder.Frontends); err != nil || diff != "" {
				t.Fatalf("%q: %v %s", text, err, diff)
			}
		}
	}
}

// The parser takes time in proportion to the square of the nesting; no file that
// is taken nests deep enough to notice.
func TestHostileTakesNoLonger(t *testing.T) {
	for _, part := range []string{"[", "{", "- ", "{a: ", "? ", "a: &a [", "[a,", "- [", "a:\n - ", "<<: ", "!a ", "'", "a: b\n"} {
		var before, after syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
			t.Fatal(err)
		}
		_, err := Parse("fabrique.yaml", []byte(strings.Repeat(part, maxSize/len(part))))
		if step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("%q: %v", part, err)
		}
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
			t.Fatal(err)
		}
		if took := time.Duration(after.Utime.Nano() - before.Utime.Nano()); took > 20*time.Second {
			t.Errorf("%q: took %s", part, took)
		}
	}
	if _, err := Parse("fabrique.yaml", []byte(strings.Repeat("#", maxSize+1))); step.ExitCode(err) != step.ExitInvalid {
		t.Errorf("a file that is too large: %v", err)
	}
}

func TestLoad(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), FileName))
	if err == nil || !strings.Contains(err.Error(), "fabrique init") || step.ExitCode(err) != step.ExitInvalid {
		t.Errorf("a missing file: %v", err)
	}
	_, err = Load(t.TempDir())
	if err == nil || step.ExitCode(err) != step.ExitInvalid {
		t.Errorf("a folder: %v", err)
	}
}

func TestTokens(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "writer"), []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(secret.EnvReaderToken, "from-the-environment")
	c, err := Parse(filepath.Join(dir, FileName), []byte(small+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	c.Gitea.Writer.TokenFile = filepath.Join(dir, "writer")
	reader, err := c.ReaderToken()
	if err != nil || reader.Reveal() != "from-the-environment" {
		t.Errorf("reader: %v", err)
	}
	writer, err := c.WriterToken()
	if err != nil || writer.Reveal() != "s3cret" {
		t.Errorf("writer: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Template())
	f.Add([]byte(small))
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("fabrique.yaml", data)
		if err != nil {
			if step.ExitCode(err) != step.ExitInvalid || !strings.HasPrefix(err.Error(), "fabrique.yaml:") {
				t.Fatalf("exit code %d: %v", step.ExitCode(err), err)
			}
			return
		}
		if c.Gitea.URL == "" || c.Source.Repository == "" || c.Apps.Repository == "" || c.Registry.Address == "" {
			t.Fatalf("a configuration that is not complete: %+v", c)
		}
	})
}
