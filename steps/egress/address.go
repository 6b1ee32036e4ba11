package egress

import (
	"net/netip"
	"slices"
	"strings"
)

// special is a range of addresses that is not the Internet's, and what it is.
type special struct {
	prefix netip.Prefix
	what   string
}

func ranges(what string, prefixes ...string) []special {
	var all []special
	for _, p := range prefixes {
		all = append(all, special{netip.MustParsePrefix(p), what})
	}
	return all
}

// private are the ranges that are somebody's own, of which allowPrivate may name
// parts.
var private = slices.Concat(
	ranges("a private address", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
	ranges("an address of a carrier's own network", "100.64.0.0/10"),
	ranges("an address for documentation", "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20"),
	ranges("an address for benchmarks", "198.18.0.0/15"),
)

// never are the ranges that nothing exempts (IANA's registries of special-purpose
// addresses, RFC 6890), and the metadata services of clouds, which hand out
// credentials.
var never = slices.Concat(
	ranges("a cloud's metadata service", "169.254.169.254/32", "fd00:ec2::254/128", "100.100.100.200/32", "168.63.129.16/32"),
	ranges("an unspecified address", "0.0.0.0/8", "::/128"),
	ranges("a loopback address", "127.0.0.0/8", "::1/128"),
	ranges("a link-local address", "169.254.0.0/16", "fe80::/10", "fec0::/10"),
	ranges("a multicast address", "224.0.0.0/4", "ff00::/8"),
	ranges("a reserved address", "192.0.0.0/24", "192.88.99.0/24", "240.0.0.0/4", "2001::/23"),
	ranges("an IPv4 address in IPv6", "::ffff:0:0/96", "2002::/16"),
)

// The IPv6 Internet, and where a NAT64 gateway shows the IPv4 one (RFC 6052).
var (
	internet6 = netip.MustParsePrefix("2000::/3")
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
)

func names(all []special) string {
	var prefixes []string
	for _, s := range all {
		prefixes = append(prefixes, s.prefix.String())
	}
	return strings.Join(prefixes, ", ")
}

func find(all []special, a netip.Addr) (what string, found bool) {
	for _, s := range all {
		if s.prefix.Contains(a) {
			return s.what, true
		}
	}
	return "", false
}

// Address decides on the address that a target led to. The error is a [Refusal]
// without its target.
func (p *Policy) Address(a netip.Addr) error {
	refuse := func(why string) error { return &Refusal{Address: a.String(), Detail: why} }
	contains := func(n netip.Prefix) bool { return n.Contains(a) }
	switch what, found := find(never, a); {
	case !a.IsValid() || a.Zone() != "":
		return refuse("which is none")
	case found:
		return refuse(what)
	case slices.ContainsFunc(p.deny, contains):
		return refuse("which egress.denyCIDRs denies")
	case slices.ContainsFunc(p.private, contains):
		return nil
	}
	switch what, found := find(private, a); {
	case found:
		return refuse(what + "; egress.allowPrivate may exempt it")
	case nat64.Contains(a):
		bytes := a.As16()
		if NewPolicy(Rules{DenyCIDRs: p.rules.DenyCIDRs}).Address(netip.AddrFrom4([4]byte(bytes[12:]))) != nil {
			return refuse("a refused IPv4 address in IPv6")
		}
	case a.Is6() && !internet6.Contains(a):
		return refuse("a reserved address")
	}
	return nil
}

// Networks lists as CIDRs all that a policy lets connections be made to, for a
// NetworkPolicy that knows no names. 0.0.0.0/0 and ::/0 are not among them.
func (p *Policy) Networks() []netip.Prefix {
	closed := slices.Clone(p.deny)
	for _, s := range never {
		closed = append(closed, s.prefix)
	}
	exempt := without(p.private, closed)
	for _, s := range private {
		closed = append(closed, s.prefix)
	}
	open := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), internet6}
	return append(without(open, closed), exempt...)
}

// without cuts the closed prefixes out of the open ones.
func without(open, closed []netip.Prefix) []netip.Prefix {
	var left []netip.Prefix
	for _, o := range open {
		switch i := slices.IndexFunc(closed, o.Overlaps); {
		case i < 0:
			left = append(left, o)
		case closed[i].Bits() > o.Bits():
			left = append(left, without(halves(o), closed)...)
		}
	}
	return left
}

func halves(p netip.Prefix) []netip.Prefix {
	lower := netip.PrefixFrom(p.Addr(), p.Bits()+1)
	bytes := p.Addr().AsSlice()
	bytes[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	upper, _ := netip.AddrFromSlice(bytes)
	return []netip.Prefix{lower, netip.PrefixFrom(upper, p.Bits()+1)}
}
