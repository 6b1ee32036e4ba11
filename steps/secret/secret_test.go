package secret_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fabrique/steps/secret"
	"fabrique/steps/step"
)

const token = "s3cr3t/t0ken+value"

func TestNeverPrinted(t *testing.T) {
	s := secret.New(token)
	var out bytes.Buffer
	for _, verb := range []string{"%s", "%v", "%+v", "%#v", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb+"\n", s)
		fmt.Fprintf(&out, verb+"\n", struct{ Token secret.Secret }{s})
	}
	slog.New(slog.NewJSONHandler(&out, nil)).Info("m", "token", s, "in", struct{ T secret.Secret }{s})
	slog.New(slog.NewTextHandler(&out, nil)).Info("m", "token", s, "in", struct{ T secret.Secret }{s})
	if err := json.NewEncoder(&out).Encode(map[string]any{"token": s, "list": []secret.Secret{s}}); err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{token, fmt.Sprintf("%x", token)} {
		if strings.Contains(out.String(), form) {
			t.Errorf("the secret (as %q) stands in:\n%s", form, out.String())
		}
	}
}

func TestRedact(t *testing.T) {
	s := secret.New(token)
	basic := base64.StdEncoding.EncodeToString([]byte(secret.BasicUser + ":" + token))
	for in, want := range map[string]string{
		"a " + token + " b":                              "a *** b",
		"header " + s.BasicAuth():                        "header Basic ***",
		"x=" + basic:                                     "x=***",
		"?token=s3cr3t%2Ft0ken%2Bvalue":                  "?token=***",
		"http://user:pass@gitea/x and https://u@h":       "http://***@gitea/x and https://***@h",
		"mail user@host stays":                           "mail user@host stays",
		base64.StdEncoding.EncodeToString([]byte(token)): "***",
	} {
		if got := s.Redact(in); got != want {
			t.Errorf("Redact(%q) = %q, want %q", in, got, want)
		}
	}
	if got := (secret.Secret{}).Redact("nothing"); got != "nothing" {
		t.Errorf("the empty secret changed the text to %q", got)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	t.Setenv("FABRIQUE_TEST_TOKEN", "from-environment")
	for _, c := range []struct{ name, file, want string }{
		{"file wins", write("good", token+"\n"), token},
		{"environment", "", "from-environment"},
	} {
		got, err := secret.Load(c.file, "FABRIQUE_TEST_TOKEN")
		if err != nil || got.Reveal() != c.want {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
	for _, c := range []struct{ name, file string }{
		{"missing", filepath.Join(dir, "absent")},
		{"empty", write("empty", " \n")},
		{"two lines", write("lines", "first-"+token+"\nsecond\n")},
		{"folder", dir},
	} {
		_, err := secret.Load(c.file, "FABRIQUE_TEST_TOKEN")
		if step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("%s: %v, want an error with exit code 2", c.name, err)
		}
		if err != nil && strings.Contains(err.Error(), token) {
			t.Errorf("%s: the error holds the secret: %v", c.name, err)
		}
	}
	if got, err := secret.Load("", "FABRIQUE_TEST_ABSENT"); err != nil || !got.IsZero() {
		t.Errorf("neither set: %v, %v, want the zero secret", got, err)
	}
}
