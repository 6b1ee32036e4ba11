package image_test

import (
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"

	"fabrique/steps/image"
	"fabrique/steps/step"
)

// G1: a registry without a port is refused, never sent to another one. R1: a tag
// that looks like a number is text.
func TestParseRepository(t *testing.T) {
	got, err := image.ParseRepository("registry:80/team/citation-dagster")
	if err != nil {
		t.Fatal(err)
	}
	if want := (image.Repository{Registry: "registry:80", Name: "team/citation-dagster"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	const revision, digest = "7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210", "sha256:7222512345e2aa0b8d4f6c1e9037b5d8a6c4f2107222512345e2aa0b8d4f6c1e"
	if got, want := got.Tag(revision), "registry:80/team/citation-dagster:7222512345e2"; got != want {
		t.Errorf("Tag: got %s, want %s", got, want)
	}
	if got, want := got.At(digest), "registry:80/team/citation-dagster@"+digest; got != want {
		t.Errorf("At: got %s, want %s", got, want)
	}
	for _, bad := range []string{
		"", "citation", "registry/citation", "registry:80", "registry:80/", "registry:80/Citation", "registry:80/c:tag", "registry:0/c", "registry:99999/c",
		"registry:80/c@sha256:00", "http://registry:80/c", ":80/c", "a b:80/c", "registry:80//c", "registry:80/../c", "registry:http/c", "-r:80/c",
	} {
		if _, err := image.ParseRepository(bad); step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("ParseRepository(%q): %v, want an error with exit code 2", bad, err)
		}
	}
}

func TestCheckReference(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	for _, good := range []string{"registry:80/c:1", "registry:80/a/b:v1.7_x-y", "registry:80/c@" + digest, "registry:80/c:1@" + digest, "[::1]:80/c:1"} {
		if err := image.CheckReference(good); err != nil {
			t.Errorf("CheckReference(%q): %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "registry:80/c", "c:1", "registry/c:1", "registry:80/c:", "registry:80/c:.a", "registry:80/c:" + strings.Repeat("a", 129), "registry:80/c:a b",
		"registry:80/c@", "registry:80/c@sha256:0a", "registry:80/c@" + digest + "@" + digest, "registry:80/C:1",
	} {
		if err := image.CheckReference(bad); step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("CheckReference(%q): %v, want an error with exit code 2", bad, err)
		}
	}
}

func TestUntagged(t *testing.T) {
	for reference, want := range map[string]string{
		"": "", "a": "a", "a:1": "a", "a@sha256:aa": "a", "a:1@sha256:aa": "a", "a/b:1": "a/b",
		"registry:80/a": "registry:80/a", "registry:80/a:1": "registry:80/a", "registry:80/a@sha256:aa": "registry:80/a", "a@b:c/d": "a",
	} {
		if got := image.Untagged(reference); got != want {
			t.Errorf("Untagged(%q) = %q, want %q", reference, got, want)
		}
	}
}

func TestParseRegistry(t *testing.T) {
	for _, good := range []string{"registry:80", "127.0.0.1:5000", "[::1]:5000", "registry.fabrique.svc:443"} {
		if _, err := image.ParseRegistry(good); err != nil {
			t.Errorf("ParseRegistry(%q): %v", good, err)
		}
	}
	for _, bad := range []string{"registry", "registry:", "::1:80", "reg_istry:80", "registry:80/x", "user@registry:80"} {
		if _, err := image.ParseRegistry(bad); step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("ParseRegistry(%q): %v, want an error with exit code 2", bad, err)
		}
	}
}

// R8: at most 63 characters, and only valid ones.
func TestParseName(t *testing.T) {
	for _, good := range []string{"a", "citation", "a.b_c-d", "a__b", "a--b", "team/app", strings.Repeat("a", 63)} {
		if _, err := image.ParseName(good); err != nil {
			t.Errorf("ParseName(%q): %v", good, err)
		}
	}
	for _, bad := range []string{"", "A_b", "ünïcode", "../x", "a..b", "a___b", "-a", "a-", "/a", "a/", "a:b", "a b", strings.Repeat("a", 64)} {
		if _, err := image.ParseName(bad); step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("ParseName(%q): %v, want an error with exit code 2", bad, err)
		}
	}
}

func TestParseDigestAndPlatform(t *testing.T) {
	hex := strings.Repeat("0a", 32)
	if _, err := image.ParseDigest("sha256:" + hex); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", hex, "sha256:" + hex[1:], "sha256:" + strings.ToUpper(hex), "sha512:" + hex, "sha256:" + hex + "\n"} {
		if _, err := image.ParseDigest(bad); step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("ParseDigest(%q): %v, want an error with exit code 2", bad, err)
		}
	}
	for _, good := range []string{"linux/amd64", "linux/arm/v7"} {
		if _, err := image.ParsePlatform(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "linux", "linux/amd64,linux/arm64", "Linux/amd64", "linux/amd64/"} {
		if _, err := image.ParsePlatform(bad); step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("ParsePlatform(%q): %v, want an error with exit code 2", bad, err)
		}
	}
}

// What the parser accepts must mean the same to the registry client: the same
// registry, the same repository, never a public one.
func FuzzParseRepository(f *testing.F) {
	f.Add("registry:80/citation")
	f.Add("[::1]:5000/a/b")
	f.Add("registry/citation")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := image.ParseRepository(s)
		if err != nil {
			return
		}
		client, err := name.NewRepository(r.String(), name.StrictValidation)
		if err != nil {
			if strings.HasPrefix(s, "[") || len(r.Name) < 2 { // the client knows no IPv6 literals and no names of one letter
				return
			}
			t.Fatalf("accepted %q, which the registry client refuses: %v", s, err)
		}
		if client.RegistryStr() != string(r.Registry) || client.RepositoryStr() != string(r.Name) {
			t.Errorf("%q means %s and %s to the registry client", s, client.RegistryStr(), client.RepositoryStr())
		}
	})
}

func FuzzParseName(f *testing.F) {
	f.Add("citation")
	f.Add("a/b__c")
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := image.ParseName(s); err == nil && (string(n) != s || strings.ContainsAny(s, ":@ \n") || strings.Contains(s, "..")) {
			t.Errorf("accepted %q", s)
		}
	})
}
