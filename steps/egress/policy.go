// Package egress says what builds may reach outside (adr-0095 §0: "egress Internet
// CIBLÉ", never 0.0.0.0/0), who asks, and what was asked for. Package
// [fabrique/steps/egress/gateway] is the forward proxy that enforces it.
//
// What the policy guarantees, to whoever asks:
//
//   - Everything is denied but the listed names, each on its port: those under
//     "allow" for every build, those under an app's name for that app's builds. An
//     address is no name, in no notation.
//   - No listed name leads to a private, link-local, loopback or otherwise special
//     address, nor to one of denyCIDRs. It is the address that a connection is about
//     to be made to that is looked at, each time, so a DNS answer that changes does
//     not help. Only addresses in allowPrivate, part of the private ranges, are
//     exempt; a cloud's metadata service never is.
//
// What it does not:
//
//   - The name and port of the request are looked at, the address, and the server name
//     with which TLS begins in a tunnel, which must be the request's; not what is
//     encrypted then. A Host header in there may name another: whoever serves an
//     allowed name (a CDN, a host of many customers) decides whether to follow it. A
//     wildcard allows all who can get a name below it.
//   - An app is known by a credential that its RUN steps can read ([Key]). They cannot
//     make one for another app; but BuildKit runs an instruction that two apps share
//     only once, as one of them, and who passes a credential on lets others use it
//     until it expires. So a name of one app's list is one that a hostile build could
//     reach with that app's help: what the factory can reach at all is the union of
//     the lists.
package egress

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"fabrique/steps/record"
	"fabrique/steps/step"
)

// A Destination is what a list holds: "deb.example.net:80", or "*.example.org:443" for
// every name below example.org, itself not included.
type Destination string

// ParseDestination accepts a host name in lower case with a port, and nothing else
// that could be meant: no address, no other wildcard, no name without a dot. Names
// in other scripts are written as DNS has them (xn--…). Exit code 2.
func ParseDestination(s string) (Destination, error) {
	refuse := func(why string) (Destination, error) {
		return "", step.Invalidf("parsing the destination %q: %s", step.Clip(s), why)
	}
	host, port, ok := cutPort(s)
	if !ok {
		return refuse("want name:port, as in index.example.net:443")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || port[0] == '0' {
		return refuse("its port is none; want 1 to 65535")
	}
	name, wildcard := strings.CutPrefix(host, "*.")
	if lower := strings.ToLower(strings.TrimSuffix(host, ".")); lower != host {
		return refuse(fmt.Sprintf("want it in lower case and without a dot at the end: %s", step.Clip(lower+":"+port)))
	}
	if strings.Contains(name, "*") {
		return refuse(`a wildcard stands for whole labels at the beginning only, as in *.example.org:443`)
	}
	if wildcard && labelForm.MatchString(name) {
		return refuse("a wildcard below " + name + " is too wide; want at least two labels behind it")
	}
	if !hostForm(name) {
		if isAddress(name) {
			return refuse("it is an address; want a host name")
		}
		return refuse("want a host name of at least two labels of letters, digits and -, other scripts as xn--…")
	}
	return Destination(s), nil
}

// cutPort splits at the last colon and takes brackets off.
func cutPort(s string) (host, port string, ok bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return s, "", false
	}
	host, port = s[:i], s[i+1:]
	if inner, found := strings.CutPrefix(host, "["); found && strings.HasSuffix(inner, "]") {
		return inner[:len(inner)-1], port, true
	}
	return host, port, !strings.Contains(host, ":")
}

var labelForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// hostForm tells whether s is a host name of at least two labels (RFC 1123 §2.1) that
// no resolver can take for an address: as the last label of one is never a number,
// "127.1" and "0x7f.0.0.1" are none.
func hostForm(s string) bool {
	if len(s) > 253 || !strings.Contains(s, ".") {
		return false
	}
	last := ""
	for last = range strings.SplitSeq(s, ".") {
		if !labelForm.MatchString(last) || len(last) > 3 && last[2:4] == "--" && !strings.HasPrefix(last, "xn--") {
			return false
		}
	}
	return !isNumber(last)
}

func isNumber(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

func isAddress(s string) bool {
	return strings.Contains(s, ":") || isNumber(s[strings.LastIndexByte(s, '.')+1:])
}

// A Network is a CIDR in its canonical form.
type Network string

// ParseNetwork accepts a CIDR without host bits. Exit code 2.
func ParseNetwork(s string) (Network, error) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return "", step.Invalidf("parsing the network %q: want a CIDR, as in 10.0.0.0/8 or fd00::/8", step.Clip(s))
	case p.Addr().Is4In6():
		return "", step.Invalidf("parsing the network %q: write it as IPv4", s)
	case p.Masked().String() != s:
		return "", step.Invalidf("parsing the network %q: want its canonical form, %s", s, p.Masked())
	}
	return Network(s), nil
}

func (n Network) prefix() netip.Prefix { return netip.MustParsePrefix(string(n)) }

// Rules are a policy as it is configured, under "egress" in fabrique.yaml, and as the
// gateway reads it, in JSON.
type Rules struct {
	Allow        []Destination            `yaml:"allow" json:"allow,omitempty"`               // for all apps
	Apps         map[string][]Destination `yaml:"apps" json:"apps,omitempty"`                 // for one app each
	DenyCIDRs    []Network                `yaml:"denyCIDRs" json:"denyCIDRs,omitempty"`       // never reached, beside what never is
	AllowPrivate []Network                `yaml:"allowPrivate" json:"allowPrivate,omitempty"` // private, and reached all the same
	MaxTunnels   int64                    `yaml:"maxTunnels" json:"maxTunnels"`               // at once; more are turned away
}

// DefaultMaxTunnels bounds the gateway's memory to less than what its pod may have.
const (
	DefaultMaxTunnels = 1024
	maxMaxTunnels     = 4096
)

// Check reports what has no meaning, each by its field, as "apps.citation[0]".
func (r Rules) Check(report func(field string, err error)) {
	list := func(field string, list []Destination, common map[Destination]bool) map[Destination]bool {
		seen := map[Destination]bool{}
		for i, d := range list {
			field := fmt.Sprintf("%s[%d]", field, i)
			switch _, err := ParseDestination(string(d)); {
			case err != nil:
				report(field, err)
			case seen[d]:
				report(field, step.Invalidf("%q is given twice; keep one", d))
			case common[d]:
				report(field, step.Invalidf("%q stands under allow, for every app; keep one", d))
			}
			seen[d] = true
		}
		return seen
	}
	common := list("allow", r.Allow, nil)
	for _, app := range slices.Sorted(maps.Keys(r.Apps)) {
		if _, err := record.ParseApp(app); err != nil {
			report("apps."+app, err)
		}
		list("apps."+app, r.Apps[app], common)
	}
	networks := func(field string, list []Network, further func(Network) error) {
		seen := map[Network]bool{}
		for i, n := range list {
			field := fmt.Sprintf("%s[%d]", field, i)
			if _, err := ParseNetwork(string(n)); err != nil {
				report(field, err)
			} else if seen[n] {
				report(field, step.Invalidf("%q is given twice; keep one", n))
			} else if err := further(n); err != nil {
				report(field, err)
			}
			seen[n] = true
		}
	}
	networks("denyCIDRs", r.DenyCIDRs, func(Network) error { return nil })
	networks("allowPrivate", r.AllowPrivate, func(n Network) error {
		if !slices.ContainsFunc(private, func(p special) bool { return within(n.prefix(), p.prefix) }) {
			return step.Invalidf("%q is not part of a private network; want one inside %s", n, names(private))
		}
		return nil
	})
	if r.MaxTunnels < 1 || r.MaxTunnels > maxMaxTunnels {
		report("maxTunnels", step.Invalidf("%d is out of range; want 1 to %d", r.MaxTunnels, maxMaxTunnels))
	}
}

// Split gives the name and the port of a destination that was parsed. Of a wildcard the
// name is what stands behind it.
func (d Destination) Split() (name string, port uint16, wildcard bool) {
	host, text, _ := cutPort(string(d))
	n, _ := strconv.ParseUint(text, 10, 16)
	name, wildcard = strings.CutPrefix(host, "*.")
	return name, uint16(n), wildcard
}

// Destinations lists what stands in any of the lists, each once and in order.
func (r Rules) Destinations() []Destination {
	all := set(r.Allow)
	for _, list := range r.Apps {
		maps.Copy(all, set(list))
	}
	return slices.Sorted(maps.Keys(all))
}

func within(inner, outer netip.Prefix) bool {
	return outer.Contains(inner.Addr()) && inner.Bits() >= outer.Bits()
}

// ParseRules reads what [Rules.JSON] wrote, strictly. Exit code 2.
func ParseRules(text []byte) (Rules, error) {
	var r Rules
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return Rules{}, step.Invalidf("parsing the egress policy: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Rules{}, step.Invalidf("parsing the egress policy: something stands behind it")
	}
	var errs []error
	r.Check(func(field string, err error) { errs = append(errs, fmt.Errorf("%s: %w", field, err)) })
	if err := errors.Join(errs...); err != nil {
		return Rules{}, step.Invalidf("parsing the egress policy: %w", err)
	}
	return r, nil
}

// JSON gives the rules as the gateway reads them. The same rules give the same bytes.
func (r Rules) JSON() []byte {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		panic(err) // strings and a number
	}
	return append(text, '\n')
}

// Policy decides. Its rules have passed [Rules.Check].
type Policy struct {
	rules         Rules
	all           map[Destination]bool
	apps          map[string]map[Destination]bool
	deny, private []netip.Prefix
}

// NewPolicy makes a policy of rules that have passed their check.
func NewPolicy(r Rules) *Policy {
	p := &Policy{rules: r, all: set(r.Allow), apps: map[string]map[Destination]bool{}}
	for app, list := range r.Apps {
		p.apps[app] = set(list)
	}
	for _, n := range r.DenyCIDRs {
		p.deny = append(p.deny, n.prefix())
	}
	for _, n := range r.AllowPrivate {
		p.private = append(p.private, n.prefix())
	}
	return p
}

func set(list []Destination) map[Destination]bool {
	all := map[Destination]bool{}
	for _, d := range list {
		all[d] = true
	}
	return all
}

// MaxTunnels is how many connections there may be at once.
func (p *Policy) MaxTunnels() int64 { return p.rules.MaxTunnels }

// A Target is what a request names, in the form in which lists are compared.
type Target struct {
	Host string
	Port uint16
}

func (t Target) String() string { return net.JoinHostPort(t.Host, strconv.Itoa(int(t.Port))) }

// ParseTarget reads the authority of a request, "host:port", in any case and with or
// without the root's dot. What could be an address in any notation, or is not a host
// name, is a [Refusal]. Without a port the given one is meant, 0 for none.
func ParseTarget(authority string, port uint16) (Target, error) {
	host, text, ok := cutPort(authority)
	if !ok && port != 0 && (!strings.Contains(authority, ":") || strings.HasPrefix(authority, "[") && strings.HasSuffix(authority, "]")) {
		host, text, ok = strings.Trim(authority, "[]"), strconv.Itoa(int(port)), true
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if !ok || err != nil || n == 0 {
		return Target{}, &Refusal{Target: Printable(authority), Detail: "want host:port"}
	}
	t := Target{strings.ToLower(strings.TrimSuffix(host, ".")), uint16(n)}
	if !hostForm(t.Host) {
		detail := "it is no host name"
		if isAddress(t.Host) {
			detail = "it is an address; only host names can be allowed"
		}
		return Target{}, &Refusal{Target: Printable(t.String()), Detail: detail}
	}
	return t, nil
}

// maxPrinted is enough for every host name with a port, in bytes.
const maxPrinted = 260

// Printable makes what a message repeats of a request fit for a status line: it may
// hold anything.
func Printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r <= ' ' || r >= 0x7f {
			return '?'
		}
		return r
	}, s)
	if len(s) > maxPrinted {
		return s[:maxPrinted] + "..."
	}
	return s
}

// A Refusal is the error of what may not be reached. Its text is what a person sees,
// in the build's output and in the Workflow's message.
type Refusal struct {
	Target  string
	Address string // which it led to, if that is why
	Misused bool   // the name may be reached, but not for what was then asked of it
	Detail  string // more on why, may be empty
}

func (r *Refusal) Error() string {
	if r.Address != "" {
		return fmt.Sprintf("egress to %s refused: it leads to %s, %s", r.Target, r.Address, r.Detail)
	}
	if r.Misused {
		return fmt.Sprintf("egress to %s refused: %s", r.Target, r.Detail)
	}
	return fmt.Sprintf("egress to %s refused; allow it under egress.allow", r.Target)
}

// Name decides on a target, for an app that is known, or empty.
func (p *Policy) Name(app string, t Target) error {
	if listed(p.all, t) || app != "" && listed(p.apps[app], t) {
		return nil
	}
	return &Refusal{Target: t.String()}
}

// AppsWith tells whether any app's own list has the target: a request that did not
// say whose it is may be asked.
func (p *Policy) AppsWith(t Target) bool {
	for _, list := range p.apps {
		if listed(list, t) {
			return true
		}
	}
	return false
}

func listed(list map[Destination]bool, t Target) bool {
	name := t.String()
	if list[Destination(name)] {
		return true
	}
	for {
		_, parent, ok := strings.Cut(name, ".")
		if !ok {
			return false
		}
		if list[Destination("*."+parent)] {
			return true
		}
		name = parent
	}
}
