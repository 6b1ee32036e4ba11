package egress

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fabrique/steps/step"
)

func TestParseDestination(t *testing.T) {
	for s, says := range map[string]string{
		"deb.example.net:80":                        "",
		"*.example.org:443":                         "",
		"xn--bcher-kva.example:443":                 "",
		"a-b.c1.example.co:65535":                   "",
		"1e100.net:443":                             "",
		"index.example.net":                         "want name:port",
		"index.example.net:":                        "its port is none",
		"index.example.net:0":                       "its port is none",
		"index.example.net:080":                     "its port is none",
		"index.example.net:65536":                   "its port is none",
		"index.example.net:https":                   "its port is none",
		"index.example.net:-1":                      "its port is none",
		"Index.example.net:443":                     "lower case and without a dot at the end: index.example.net:443",
		"index.example.net.:443":                    "lower case and without a dot at the end: index.example.net:443",
		"bücher.example:443":                        "other scripts as xn--…",
		"ab--cd.example:443":                        "other scripts as xn--…",
		"pypi:443":                                  "at least two labels",
		"*:443":                                     "whole labels at the beginning",
		"*.:443":                                    "dot at the end",
		"*.org:443":                                 "too wide",
		"*.*.example.org:443":                       "whole labels at the beginning",
		"a.*.org:443":                               "whole labels at the beginning",
		"*example.org:443":                          "whole labels at the beginning",
		"127.0.0.1:443":                             "it is an address",
		"127.1:443":                                 "it is an address",
		"0x7f.0.0.1:443":                            "it is an address",
		"0x7f.1:443":                                "it is an address",
		"a.0x7f:443":                                "it is an address",
		"2130706433:443":                            "it is an address",
		"[::1]:443":                                 "it is an address",
		"[::ffff:127.0.0.1]:443":                    "it is an address",
		"::1:443":                                   "want name:port",
		"http://index.example.net:443":              "want name:port",
		"user@index.example.net:443":                "at least two labels of letters",
		"index.example.net:443/simple":              "its port is none",
		"-a.example:443":                            "at least two labels of letters",
		"a..example:443":                            "at least two labels of letters",
		"a_b.example:443":                           "at least two labels of letters",
		" index.example.net:443":                    "at least two labels of letters",
		"index.example.net\n:443":                   "at least two labels of letters",
		strings.Repeat("a", 64) + ".example:443":    "at least two labels of letters",
		strings.Repeat("a.", 126) + "example.x:443": "at least two labels of letters",
		"": "want name:port",
	} {
		got, err := ParseDestination(s)
		switch {
		case says == "" && (err != nil || string(got) != s):
			t.Errorf("%q: %q, %v", s, got, err)
		case says != "" && (err == nil || !strings.Contains(err.Error(), says) || step.ExitCode(err) != step.ExitInvalid):
			t.Errorf("%q: %v, want %q", s, err, says)
		}
	}
}

func TestName(t *testing.T) {
	p := NewPolicy(Rules{
		Allow: []Destination{"deb.example.net:80", "*.example.org:443"},
		Apps:  map[string][]Destination{"citation": {"index.example.net:443", "*.hosted.example.org:80"}},
	})
	for _, c := range []struct {
		app, authority string
		allowed        bool
	}{
		{"", "deb.example.net:80", true},
		{"", "DEB.Example.NET:80", true},
		{"", "deb.example.net.:80", true},
		{"citation", "deb.example.net:80", true},
		{"", "deb.example.net:443", false},
		{"", "x.deb.example.net:80", false},
		{"", "example.net:80", false},
		{"", "a.example.org:443", true},
		{"", "b.a.example.org:443", true},
		{"", "example.org:443", false},
		{"", "evilexample.org:443", false},
		{"", "a.example.org:80", false},
		{"", "a.example.org.evil.net:443", false},
		{"", "index.example.net:443", false},
		{"citation", "index.example.net:443", true},
		{"other", "index.example.net:443", false},
		{"citation", "x.hosted.example.org:80", true},
		{"citation", "x.hosted.example.org:443", true}, // by the common list
		{"", "x.hosted.example.org:80", false},
		{"", "*.example.org:443", false},
		{"", "a.example.org@evil.net:443", false},
	} {
		target, err := ParseTarget(c.authority, 0)
		if err == nil {
			err = p.Name(c.app, target)
		}
		var refusal *Refusal
		switch {
		case c.allowed && err != nil, !c.allowed && !errors.As(err, &refusal):
			t.Errorf("%q asks for %q: %v", c.app, c.authority, err)
		case !c.allowed && !strings.HasSuffix(err.Error(), " refused; allow it under egress.allow"):
			t.Errorf("%q asks for %q: %v", c.app, c.authority, err)
		}
	}
	if !p.AppsWith(Target{"index.example.net", 443}) || p.AppsWith(Target{"deb.example.net", 80}) || p.AppsWith(Target{"index.example.net", 80}) {
		t.Error("wrong about which names are an app's own")
	}
}

// Nothing that a resolver, or connect itself, could take for an address is a name.
func TestParseTargetTakesNoAddress(t *testing.T) {
	for _, host := range []string{
		"127.0.0.1", "127.1", "127.0.1", "0x7f.1", "0x7f000001", "2130706433", "017700000001", "0177.0.0.1", "0", "0.0.0.0", "1.2.3.4.", "1.2.3.0x4",
		"[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[fe80::1%25eth0]", "[fe80::1%eth0]", "[64:ff9b::7f00:1]", "169.254.169.254", "::1",
		"localhost", "gitea", "", ".", "a b.example", "a%2eb.example", "a.example\x00", "[a.example]", "a.example:80:80", "１２７.1",
	} {
		for _, port := range []uint16{0, 80} {
			for _, authority := range []string{host, host + ":443"} {
				got, err := ParseTarget(authority, port)
				if host == "[a.example]" && err == nil {
					continue // a name in brackets is that name
				}
				var refusal *Refusal
				if !errors.As(err, &refusal) {
					t.Errorf("%q: %v, %v", authority, got, err)
				} else if strings.Trim(refusal.Error(), printableASCII) != "" {
					t.Errorf("%q: the refusal is not fit for a status line: %q", authority, refusal)
				}
			}
		}
	}
	if got, err := ParseTarget("A.example", 80); err != nil || got.String() != "a.example:80" {
		t.Errorf("%v, %v", got, err)
	}
}

const printableASCII = " !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~"

func TestAddress(t *testing.T) {
	p := NewPolicy(Rules{
		DenyCIDRs:    []Network{"198.41.0.0/24", "2a00:1::/32", "10.9.9.0/24"},
		AllowPrivate: []Network{"10.9.0.0/16", "fd12::/16", "100.100.0.0/16"},
	})
	for address, want := range map[string]string{
		"1.1.1.1": "", "151.101.0.223": "", "2a04:4e42::223": "", "64:ff9b::101:101": "",
		"10.9.0.1": "", "fd12::1": "", // by allowPrivate
		"10.9.9.1": "denies", "198.41.0.4": "denies", "2a00:1::1": "denies", "64:ff9b::c629:4": "refused IPv4",
		"10.8.0.1": "private", "172.16.0.1": "private", "172.31.255.255": "private", "192.168.1.1": "private", "fd13::1": "private", "fc00::1": "private",
		"100.64.0.1": "carrier", "100.100.100.200": "metadata",
		"169.254.169.254": "metadata", "fd00:ec2::254": "metadata", "168.63.129.16": "metadata",
		"169.254.0.1": "link-local", "fe80::1": "link-local", "fec0::1": "link-local",
		"127.0.0.1": "loopback", "127.255.255.255": "loopback", "::1": "loopback",
		"0.0.0.0": "unspecified", "0.1.2.3": "unspecified", "::": "unspecified",
		"224.0.0.1": "multicast", "239.1.1.1": "multicast", "ff02::1": "multicast",
		"255.255.255.255": "reserved", "240.0.0.1": "reserved", "198.18.0.1": "benchmarks", "192.0.2.1": "documentation", "192.0.0.192": "reserved",
		"2001:db8::1": "documentation", "2001:0:1::1": "reserved", "::7f00:1": "reserved", "100::1": "reserved", "64:ff9b:1::a00:1": "reserved", "4000::1": "reserved",
		"::ffff:127.0.0.1": "IPv4 address in IPv6", "::ffff:10.9.0.1": "IPv4 address in IPv6", "::ffff:1.1.1.1": "IPv4 address in IPv6",
		"2002:7f00:1::": "IPv4 address in IPv6", "2002:101:101::1": "IPv4 address in IPv6",
		"64:ff9b::7f00:1": "refused IPv4", "64:ff9b::a9fe:a9fe": "refused IPv4", "64:ff9b::a09:1": "refused IPv4",
		"2a04:4e42::223%eth0": "none",
	} {
		err := p.Address(netip.MustParseAddr(address))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
	if err := p.Address(netip.Addr{}); err == nil {
		t.Error("no address is allowed")
	}
}

// The CIDRs for a NetworkPolicy are what Address allows, no more and no less.
func TestNetworks(t *testing.T) {
	p := NewPolicy(Rules{DenyCIDRs: []Network{"198.41.0.0/24", "10.9.9.0/24"}, AllowPrivate: []Network{"10.9.0.0/16", "fd12::/16"}})
	networks := p.Networks()
	for _, n := range networks {
		if n.Bits() == 0 || n.Masked() != n {
			t.Errorf("%s is no fit network", n)
		}
		last := n.Addr()
		if err := p.Address(last); err != nil {
			t.Errorf("%s begins with an address that is refused: %v", n, err)
		}
	}
	contains := func(a netip.Addr) bool {
		for _, n := range networks {
			if n.Contains(a) {
				return true
			}
		}
		return false
	}
	var seed uint32 = 1
	for i := range 20_000 {
		seed = seed*1664525 + 1013904223
		a := netip.AddrFrom4([4]byte{byte(seed >> 24), byte(seed >> 16), byte(seed >> 8), byte(i)})
		if allowed := p.Address(a) == nil; allowed != contains(a) {
			t.Fatalf("%s: allowed %v, in a network %v", a, allowed, !allowed)
		}
	}
	for _, s := range []string{"2a04:4e42::223", "2001:db8::1", "2001:200::1", "2002::1", "fd12::1", "fd13::1", "fe80::1", "::1", "ff02::1", "3fff::1", "10.9.0.1", "10.9.9.1", "10.8.0.1"} {
		a := netip.MustParseAddr(s)
		if allowed := p.Address(a) == nil; allowed != contains(a) {
			t.Errorf("%s: allowed %v, in a network %v", a, allowed, !allowed)
		}
	}
	if len(networks) > 256 {
		t.Errorf("%d networks are many for one NetworkPolicy", len(networks))
	}
}

func TestRulesAreReadAsTheyAreWritten(t *testing.T) {
	want := Rules{
		Allow: []Destination{"deb.example.net:80"}, Apps: map[string][]Destination{"b": {"x.example:443"}, "a": nil},
		DenyCIDRs: []Network{"198.41.0.0/24"}, AllowPrivate: []Network{"10.9.0.0/16"}, MaxTunnels: 7,
	}
	got, err := ParseRules(want.JSON())
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	for text, says := range map[string]string{
		`{`:                               "unexpected EOF",
		`{"maxTunnels": 5, "allows": []}`: `unknown field "allows"`,
		`{"maxTunnels": 5} {}`:            "something stands behind it",
		`{}`:                              "maxTunnels: 0 is out of range",
		`{"maxTunnels": 5, "allow": ["a.example:1", "a.example:1"]}`:                  "allow[1]: \"a.example:1\" is given twice",
		`{"maxTunnels": 5, "allow": ["a.example:1"], "apps": {"x": ["a.example:1"]}}`: "apps.x[0]: \"a.example:1\" stands under allow",
		`{"maxTunnels": 5, "apps": {"X": []}}`:                                        "apps.X: parsing the app name",
		`{"maxTunnels": 5, "denyCIDRs": ["10.0.0.1/8"]}`:                              "want its canonical form, 10.0.0.0/8",
		`{"maxTunnels": 5, "denyCIDRs": ["10.0.0.0"]}`:                                "want a CIDR",
		`{"maxTunnels": 5, "denyCIDRs": ["::ffff:10.0.0.0/104"]}`:                     "write it as IPv4",
		`{"maxTunnels": 5, "allowPrivate": ["127.0.0.0/8"]}`:                          "not part of a private network",
		`{"maxTunnels": 5, "allowPrivate": ["169.254.169.254/32"]}`:                   "not part of a private network",
		`{"maxTunnels": 5, "allowPrivate": ["0.0.0.0/0"]}`:                            "not part of a private network",
		`{"maxTunnels": 5, "allowPrivate": ["10.0.0.0/7"]}`:                           "not part of a private network",
		`{"maxTunnels": 5, "allowPrivate": ["10.0.0.0/9", "10.0.0.0/9"]}`:             "given twice",
	} {
		if _, err := ParseRules([]byte(text)); err == nil || !strings.Contains(err.Error(), says) || step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
}

func FuzzParseDestination(f *testing.F) {
	for _, s := range []string{"index.example.net:443", "*.example.org:80", "127.1:80", "[::1]:80", "xn--a.b:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDestination(s)
		if err != nil {
			if step.ExitCode(err) != step.ExitInvalid {
				t.Fatalf("exit code %d: %v", step.ExitCode(err), err)
			}
			return
		}
		host, _, _ := strings.Cut(strings.TrimPrefix(string(d), "*."), ":")
		if _, err := netip.ParseAddr(host); err == nil || string(d) != s {
			t.Fatalf("%q became %q", s, d)
		}
		// What a list can hold, a request can name, and is let through.
		asked := strings.Replace(s, "*.", "below.", 1)
		target, err := ParseTarget(asked, 0)
		if err != nil && len(asked) > 253 {
			return
		}
		if err == nil {
			err = NewPolicy(Rules{Allow: []Destination{d}}).Name("", target)
		}
		if err != nil {
			t.Fatalf("%q does not allow %q: %v", d, asked, err)
		}
	})
}

// Whatever is asked for, only what is listed is let through.
func FuzzParseTarget(f *testing.F) {
	for _, s := range []string{"index.example.net:443", "PYPI.ORG.:443", "a.example.org:80", "[::1]:80", "user@index.example.net:443", "index.example.net:443@x"} {
		f.Add(s)
	}
	p := NewPolicy(Rules{Allow: []Destination{"index.example.net:443", "*.example.org:80"}})
	f.Fuzz(func(t *testing.T, s string) {
		target, err := ParseTarget(s, 80)
		if err != nil {
			if strings.Trim(err.Error(), printableASCII) != "" {
				t.Fatalf("%q: not fit for a status line: %q", s, err)
			}
			return
		}
		if p.Name("", target) == nil && target.String() != "index.example.net:443" && !(strings.HasSuffix(target.Host, ".example.org") && target.Port == 80) {
			t.Fatalf("%q is let through as %v", s, target)
		}
	})
}
