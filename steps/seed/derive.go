package seed

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"fabrique/steps/config"
	"fabrique/steps/step"
)

// derived is a Secret that is made out of another, and follows it (adr-0095 §4). Keys
// that are not listed stay.
type derived struct {
	cluster
	config.Derivation
	// seeded tells that the source is one of those that are made here: in a check on
	// an empty cluster it may still be missing.
	seeded bool
}

func (d *derived) Name() string { return "secret " + d.To.String() }

// wanted gives the values, nil when the source is not there.
func (d *derived) wanted(ctx context.Context) (map[string][]byte, error) {
	source, err := d.secret(ctx, d.From)
	if source == nil || err != nil {
		return nil, err
	}
	return derive(d.Derivation, source.Data)
}

func (d *derived) Check(ctx context.Context) (State, error) {
	wanted, err := d.wanted(ctx)
	if err != nil {
		return absent, err
	}
	if wanted == nil && d.seeded {
		return absent, nil
	}
	if wanted == nil {
		return absent, step.Retryf("its source, the Secret %s, is %w", d.From, ErrMissing)
	}
	got, err := d.secret(ctx, d.To)
	if got == nil || err != nil {
		return absent, err
	}
	state := State{Exists: true}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		if value, there := got.Data[key]; !there {
			state.Diff = append(state.Diff, key+": it is not there")
		} else if string(value) != string(wanted[key]) {
			state.Diff = append(state.Diff, key+": it is not what the source gives")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(d.Labels)) {
		if got.Labels[key] != d.Labels[key] {
			state.Diff = append(state.Diff, fmt.Sprintf("label %s: %q, want %q", key, got.Labels[key], d.Labels[key]))
		}
	}
	return state, nil
}

func (d *derived) Mend(ctx context.Context) error {
	wanted, err := d.wanted(ctx)
	if err != nil {
		return err
	}
	if wanted == nil {
		return step.Retryf("its source, the Secret %s, is %w", d.From, ErrMissing)
	}
	return d.put(ctx, d.To, wanted, d.Labels, nil)
}

// derive gives the values of a derived Secret. A key that the source lacks, or has
// empty, is an error with [ErrMissing].
func derive(d config.Derivation, source map[string][]byte) (map[string][]byte, error) {
	values := map[string][]byte{}
	for name, v := range d.Data {
		part := func(key string) (string, error) {
			if len(source[key]) == 0 {
				return "", step.Retryf("the key %q of its source, the Secret %s, is %w", key, d.From, ErrMissing)
			}
			return string(source[key]), nil
		}
		switch {
		case v.Key != "":
			value, err := part(v.Key)
			if err != nil {
				return nil, err
			}
			values[name] = []byte(value)
		case v.URI.Given():
			var user, password string
			var err error
			if v.URI.UserKey != "" {
				if user, err = part(v.URI.UserKey); err != nil {
					return nil, err
				}
			}
			if v.URI.PasswordKey != "" {
				if password, err = part(v.URI.PasswordKey); err != nil {
					return nil, err
				}
			}
			values[name] = []byte(compose(v.URI, user, password))
		default:
			values[name] = []byte(v.Text)
		}
	}
	return values, nil
}

// compose gives scheme://user:password@host:port/database?parameters.
func compose(u config.URI, user, password string) string {
	var b strings.Builder
	b.WriteString(u.Scheme + "://")
	if u.UserKey != "" {
		b.WriteString(escape(user))
		if u.PasswordKey != "" {
			b.WriteString(":" + escape(password))
		}
		b.WriteByte('@')
	}
	host := u.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if u.Port != 0 {
		host = net.JoinHostPort(u.Host, strconv.Itoa(int(u.Port)))
	}
	b.WriteString(host)
	if u.Database != "" {
		b.WriteString("/" + escape(u.Database))
	}
	separator := "?"
	for _, name := range slices.Sorted(maps.Keys(u.Parameters)) {
		b.WriteString(separator + escape(name) + "=" + escape(u.Parameters[name]))
		separator = "&"
	}
	return b.String()
}

// escape percent-encodes all but the unreserved characters (RFC 3986, section 2.3), so
// that no reader, strict or lax, takes a part of a password for a delimiter. A space
// becomes %20, as "+" means one in forms only.
func escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
