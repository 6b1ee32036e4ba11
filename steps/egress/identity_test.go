package egress

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fabrique/steps/secret"
	"fabrique/steps/step"
)

var testKey = Key{secret.New("0123456789abcdef0123456789abcdef")}

func TestCredential(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	citation := Identity{"citation", "push-7222512345e2"}
	user := testKey.Credential(citation, now.Add(time.Hour))
	password, _ := user.Password()
	if u := "http://" + user.String() + "@gateway:3128"; strings.Contains(u, "%") {
		t.Errorf("a tool would have to unescape %s", u)
	}
	other := Key{secret.New("another key, another key, another")}
	expiry, signature, _ := strings.Cut(password, ".")
	for _, c := range []struct {
		name, user, password string
		key                  Key
		at                   time.Time
		want                 error
	}{
		{"good", user.Username(), password, testKey, now, nil},
		{"good to the last second", user.Username(), password, testKey, now.Add(time.Hour), nil},
		{"expired", user.Username(), password, testKey, now.Add(time.Hour + time.Second), ErrExpired},
		{"another app", "other_push-7222512345e2", password, testKey, now, ErrWrong},
		{"another Workflow", "citation_push-0000000000", password, testKey, now, ErrWrong},
		{"no Workflow", "citation", password, testKey, now, ErrWrong},
		{"moved separator", "citation_push_7222512345e2", password, testKey, now, ErrWrong},
		{"another key", user.Username(), password, other, now, ErrWrong},
		{"no key", user.Username(), password, Key{}, now, ErrNoKey},
		{"a longer life", user.Username(), "9" + expiry + "." + signature, testKey, now, ErrWrong},
		{"without signature", user.Username(), expiry + ".", testKey, now, ErrWrong},
		{"without dot", user.Username(), expiry, testKey, now, ErrWrong},
		{"nothing", "", "", testKey, now, ErrWrong},
		{"no app's name", "A", password, testKey, now, ErrWrong},
	} {
		got, err := c.key.Verify(c.user, c.password, c.at)
		if !errors.Is(err, c.want) || err == nil && got != citation || err != nil && got != (Identity{}) {
			t.Errorf("%s: %v, %v; want %v", c.name, got, err, c.want)
		}
	}
}

func TestLoadKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	for text, says := range map[string]string{"0123456789abcdef0123456789abcdef\n": "", "short\n": "want at least 26", "\n": "it is empty"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := LoadKey(file)
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says) || step.ExitCode(err) != step.ExitInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if k, err := LoadKey(""); err != nil || !k.IsZero() {
		t.Errorf("%v, %v", k, err)
	}
	t.Setenv(EnvKey, "0123456789abcdef0123456789abcdef")
	if k, err := LoadKey(""); err != nil || k.IsZero() {
		t.Errorf("%v, %v", k, err)
	}
}

func FuzzParseIdentity(f *testing.F) {
	for _, s := range []string{"citation", "citation_push-722251", "a_b_c", "_", "a_", "A", "a%5fb"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		i, err := ParseIdentity(s)
		if err != nil {
			if step.ExitCode(err) != step.ExitInvalid || i != (Identity{}) {
				t.Fatalf("exit code %d: %v %v", step.ExitCode(err), i, err)
			}
			return
		}
		if i.String() != s || i.App == "" {
			t.Fatalf("%q became %q", s, i)
		}
		user := testKey.Credential(i, time.Unix(1, 0))
		password, _ := user.Password()
		if got, err := testKey.Verify(user.Username(), password, time.Unix(0, 0)); err != nil || got != i {
			t.Fatalf("%q: %v, %v", s, got, err)
		}
	})
}
