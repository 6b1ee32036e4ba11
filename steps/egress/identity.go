package egress

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"fabrique/steps/record"
	"fabrique/steps/secret"
	"fabrique/steps/step"
)

// EnvKey holds the key when no file is named.
const EnvKey = "FABRIQUE_EGRESS_KEY"

// Identity is for whom a build runs: its app, and the Workflow that it is part of,
// empty for none. The zero value is nobody known.
type Identity struct {
	App      string
	Workflow string
}

var workflowForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)

// ParseWorkflow accepts a Workflow's name. Exit code 2.
func ParseWorkflow(s string) (string, error) {
	if !workflowForm.MatchString(s) {
		return "", step.Invalidf("parsing the Workflow's name %q: want a DNS-1123 subdomain", step.Clip(s))
	}
	return s, nil
}

// ParseIdentity reads what [Identity.String] gives. Exit code 2.
func ParseIdentity(s string) (Identity, error) {
	app, workflow, more := strings.Cut(s, "_")
	if _, err := record.ParseApp(app); err != nil {
		return Identity{}, err
	}
	if more {
		if _, err := ParseWorkflow(workflow); err != nil {
			return Identity{}, err
		}
	}
	return Identity{app, workflow}, nil
}

// String is "app" or "app_workflow": the user name that a build gives to the gateway.
// Neither part can hold the separator, and none of it needs escaping in a URL.
func (i Identity) String() string {
	if i.Workflow == "" {
		return i.App
	}
	return i.App + "_" + i.Workflow
}

// Key makes and checks credentials: user name and password of a proxy URL (RFC 7617).
// The password says until when, and proves by an HMAC (RFC 2104, SHA-256) that who
// has the key gave it to this app and Workflow. The zero value has no key.
//
// A RUN step sees the credential of its own build. It cannot make that of another.
type Key struct{ secret secret.Secret }

// minKey is the least length of a key in bytes, that of crypto/rand.Text: 130 bits.
const minKey = 26

// LoadKey reads the key from a file, else from [EnvKey], else there is none. Exit
// code 2.
func LoadKey(file string) (Key, error) {
	s, err := secret.Load(file, EnvKey)
	if err != nil {
		return Key{}, err
	}
	if !s.IsZero() && len(s.Reveal()) < minKey {
		return Key{}, step.Invalidf("reading the egress key: it has %d characters, want at least %d, as openssl rand -hex 32 prints", len(s.Reveal()), minKey)
	}
	return Key{s}, nil
}

// IsZero tells whether there is no key.
func (k Key) IsZero() bool { return k.secret.IsZero() }

// Credential gives the user and password of an identity, good until then.
func (k Key) Credential(i Identity, until time.Time) *url.Userinfo {
	expiry := strconv.FormatInt(until.Unix(), 10)
	return url.UserPassword(i.String(), expiry+"."+k.sign(i, expiry))
}

func (k Key) sign(i Identity, expiry string) string {
	mac := hmac.New(sha256.New, []byte(k.secret.Reveal()))
	fmt.Fprintf(mac, "fabrique egress 1\n%s\n%s", i, expiry)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// What can be wrong with a credential.
var (
	ErrNoKey   = errors.New("there is no key to check it with")
	ErrWrong   = errors.New("it was not made with the key, or not for this user")
	ErrExpired = errors.New("it has expired")
)

// Verify tells whose a credential is.
func (k Key) Verify(user, password string, now time.Time) (Identity, error) {
	if k.IsZero() {
		return Identity{}, ErrNoKey
	}
	i, err := ParseIdentity(user)
	expiry, signature, ok := strings.Cut(password, ".")
	if err != nil || !ok || !hmac.Equal([]byte(signature), []byte(k.sign(i, expiry))) {
		return Identity{}, ErrWrong
	}
	until, err := strconv.ParseInt(expiry, 10, 64)
	if err != nil {
		return Identity{}, ErrWrong
	}
	if now.Unix() > until {
		return Identity{}, ErrExpired
	}
	return i, nil
}
