package seed

import (
	"errors"
	"net/url"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"fabrique/steps/config"
	"fabrique/steps/step"
)

func TestDerive(t *testing.T) {
	uri := config.URI{Scheme: "postgresql", UserKey: "username", PasswordKey: "password", Host: "pg-rw.databases.svc", Port: 5432, Database: "pgvector"}
	with := func(change func(*config.URI)) config.URI { u := uri; change(&u); return u }
	role := map[string][]byte{"username": []byte("app"), "password": []byte("secret")}
	for name, c := range map[string]struct {
		value   config.Value
		source  map[string][]byte
		want    string
		missing bool
	}{
		"a text":                     {value: config.Value{Text: "pg-rw.databases.svc"}, source: role, want: "pg-rw.databases.svc"},
		"a key":                      {value: config.Value{Key: "password"}, source: role, want: "secret"},
		"a key with any bytes":       {value: config.Value{Key: "password"}, source: map[string][]byte{"password": {0, 255, '\n'}}, want: "\x00\xff\n"},
		"a key that is not there":    {value: config.Value{Key: "pgpass"}, source: role, missing: true},
		"a key that is empty":        {value: config.Value{Key: "password"}, source: map[string][]byte{"password": {}}, missing: true},
		"a URI":                      {value: config.Value{URI: uri}, source: role, want: "postgresql://app:secret@pg-rw.databases.svc:5432/pgvector"},
		"a URI without its password": {value: config.Value{URI: uri}, source: map[string][]byte{"username": []byte("app")}, missing: true},
		"a URI of a host":            {value: config.Value{URI: config.URI{Scheme: "redis", Host: "cache"}}, source: role, want: "redis://cache"},
		"a URI of an IPv6 host":      {value: config.Value{URI: config.URI{Scheme: "redis", Host: "fd00::1"}}, source: role, want: "redis://[fd00::1]"},
		"a URI of an IPv6 port":      {value: config.Value{URI: config.URI{Scheme: "redis", Host: "fd00::1", Port: 6379}}, source: role, want: "redis://[fd00::1]:6379"},
		"a URI without a password": {value: config.Value{URI: with(func(u *config.URI) { u.PasswordKey = "" })}, source: role,
			want: "postgresql://app@pg-rw.databases.svc:5432/pgvector"},
		"a URI with parameters": {value: config.Value{URI: with(func(u *config.URI) {
			u.Parameters = map[string]string{"sslmode": "require", "options": "-c a=b"}
		})}, source: role, want: "postgresql://app:secret@pg-rw.databases.svc:5432/pgvector?options=-c%20a%3Db&sslmode=require"},
		"each delimiter": {value: config.Value{URI: uri}, source: map[string][]byte{"username": []byte("a b"), "password": []byte("%/@:#? +&=[]'\"\\é~-._")},
			want: "postgresql://a%20b:%25%2F%40%3A%23%3F%20%2B%26%3D%5B%5D%27%22%5C%C3%A9~-._@pg-rw.databases.svc:5432/pgvector"},
		"what looks encoded already": {value: config.Value{URI: uri}, source: map[string][]byte{"username": []byte("a"), "password": []byte("%40")},
			want: "postgresql://a:%2540@pg-rw.databases.svc:5432/pgvector"},
		"a database with a slash": {value: config.Value{URI: with(func(u *config.URI) { u.Database = "a/b" })}, source: role,
			want: "postgresql://app:secret@pg-rw.databases.svc:5432/a%2Fb"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := derive(config.Derivation{Data: map[string]config.Value{"k": c.value}}, c.source)
			if c.missing {
				if !errors.Is(err, ErrMissing) || step.ExitCode(err) != step.ExitRetry {
					t.Errorf("error %v, want one that says missing, with exit code 1", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string][]byte{"k": []byte(c.want)}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Whatever the user and password are, a reader of the URI gets them back and nothing
// else moves.
func FuzzURI(f *testing.F) {
	f.Add("app", "secret")
	f.Add("a:b@c", "%/@:#? +")
	f.Add("", "\x00\xff\n")
	f.Fuzz(func(t *testing.T, user, password string) {
		u, err := url.Parse(compose(config.URI{Scheme: "postgresql", UserKey: "u", PasswordKey: "p", Host: "h", Port: 1, Database: "d"}, user, password))
		if err != nil {
			t.Fatal(err)
		}
		got, has := u.User.Password()
		if u.User.Username() != user || got != password || !has || u.Host != "h:1" || u.Path != "/d" || u.RawQuery != "" || u.Fragment != "" {
			t.Fatalf("%q and %q (valid: %v) became %q and %q at %q%q", user, password, utf8.ValidString(password), u.User.Username(), got, u.Host, u.Path)
		}
	})
}
