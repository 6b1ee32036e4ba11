// Package secret holds credentials so that they cannot leave the process by
// accident: a [Secret] prints as "***" in every verb, log and JSON encoding,
// and [Secret.Redact] takes it out of text that others wrote (the git
// program's errors, a server's answer).
package secret

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"strings"

	"fabrique/steps/step"
)

const mask = "***"

// Secret is a credential. Its zero value means "none".
type Secret struct{ value string }

// New wraps a value that is already in memory.
func New(value string) Secret { return Secret{value} }

// Load reads a credential from file or, when file is empty, from the
// environment variable env. Surrounding white space is dropped, as an editor
// or a Kubernetes Secret often adds a newline. Neither set gives the zero
// Secret. A file that cannot be read, is empty or holds a control character is
// bad configuration (exit code 2).
func Load(file, env string) (Secret, error) {
	if file == "" {
		return parse(os.Getenv(env), "environment variable "+env)
	}
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return Secret{}, step.Invalidf("reading the token file %q: it does not exist; create it (mode 0600) or name another", file)
	}
	if err != nil {
		return Secret{}, step.Invalidf("reading the token file: %w", err)
	}
	if strings.TrimSpace(string(raw)) == "" {
		return Secret{}, step.Invalidf("reading the token file %q: it is empty", file)
	}
	return parse(string(raw), fmt.Sprintf("token file %q", file))
}

func parse(raw, where string) (Secret, error) {
	value := strings.TrimSpace(raw)
	for _, r := range value {
		if r <= ' ' || r == 0x7f {
			return Secret{}, step.Invalidf("reading the %s: it holds white space or a control character inside the token", where)
		}
	}
	return Secret{value}, nil
}

// IsZero reports whether there is no credential.
func (s Secret) IsZero() bool { return s.value == "" }

// Reveal gives the credential, for the one place that sends it.
func (s Secret) Reveal() string { return s.value }

// Format, LogValue and MarshalText all give the mask, whatever is asked for.
func (s Secret) Format(f fmt.State, _ rune)   { io.WriteString(f, mask) }
func (s Secret) LogValue() slog.Value         { return slog.StringValue(mask) }
func (s Secret) MarshalText() ([]byte, error) { return []byte(mask), nil }

// Redact replaces the credential in text, plain, URL-escaped or in base64, and
// the user information of every URL.
func (s Secret) Redact(text string) string {
	if s.value != "" {
		for _, form := range []string{
			s.value,
			url.QueryEscape(s.value),
			base64.StdEncoding.EncodeToString([]byte(BasicUser + ":" + s.value)),
			base64.StdEncoding.EncodeToString([]byte(s.value)),
		} {
			text = strings.ReplaceAll(text, form, mask)
		}
	}
	return step.RedactURLs(text)
}

// BasicUser is the user name sent with a token as HTTP basic authentication.
// Gitea looks only at the token.
const BasicUser = "fabrique"

// BasicAuth gives the value of an Authorization header that carries the token
// as HTTP basic authentication (RFC 7617).
func (s Secret) BasicAuth() string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(BasicUser+":"+s.value))
}
