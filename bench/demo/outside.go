package demo

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os/exec"
	"slices"
	"strings"

	"fabrique/bench/debian"
	"fabrique/bench/images"
	"fabrique/steps/egress"
)

// rules are the configuration's section egress.
type rules struct {
	Allow        []egress.Destination            `json:"allow"`
	Apps         map[string][]egress.Destination `json:"apps"`
	AllowPrivate []egress.Network                `json:"allowPrivate"`
}

// outside gives where this machine gets its own packages, as builds do. Debian's for
// all apps, Python's for the one sample that has some. A mirror at a private address is
// exempt by that address alone.
func outside(ctx context.Context) (r rules, err error) {
	sources, err := debian.Sources(images.Release)
	if err != nil {
		return r, err
	}
	var deb, python []string
	for _, s := range sources {
		deb = append(deb, s.URI)
	}
	for line := range strings.Lines(debian.PipConfig()) {
		if key, value, ok := strings.Cut(line, "="); ok && strings.HasSuffix(strings.TrimSpace(key), "index-url") {
			python = append(python, strings.TrimSpace(value))
		}
	}
	if len(python) == 0 { // pip's own
		out, err := exec.CommandContext(ctx, "python3", "-c", "from pip._internal.models.index import PyPI as i; print('https://' + i.netloc, 'https://' + i.file_storage_domain)").Output()
		if err != nil {
			return r, fmt.Errorf("asking pip for its index: %w", err)
		}
		python = strings.Fields(string(out))
	}
	private := map[egress.Network]bool{}
	destinations := func(urls []string) ([]egress.Destination, error) {
		seen := map[egress.Destination]bool{}
		for _, s := range urls {
			u, err := url.Parse(s)
			if err != nil {
				return nil, fmt.Errorf("reading the address of a package source: %w", err)
			}
			port := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
			destination, err := egress.ParseDestination(net.JoinHostPort(u.Hostname(), port))
			if err != nil {
				return nil, err
			}
			seen[destination] = true
			addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
			if err != nil {
				return nil, fmt.Errorf("looking up a package source: %w", err)
			}
			policy := egress.NewPolicy(egress.Rules{})
			for _, a := range addresses {
				a = a.Unmap()
				network := egress.Network(netip.PrefixFrom(a, a.BitLen()).String())
				if policy.Address(a) != nil {
					private[network] = true
				}
			}
		}
		return slices.Sorted(maps.Keys(seen)), nil
	}
	if r.Allow, err = destinations(deb); err != nil {
		return r, err
	}
	citation, err := destinations(python)
	if err != nil {
		return r, err
	}
	// The file names each once.
	citation = slices.DeleteFunc(citation, func(d egress.Destination) bool { return slices.Contains(r.Allow, d) })
	r.Apps = map[string][]egress.Destination{"citation": citation}
	r.AllowPrivate = slices.Sorted(maps.Keys(private))
	return r, nil
}
