package addresses

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fabrique/steps/egress"
	"fabrique/steps/step"
)

func TestParseSeen(t *testing.T) {
	for text, says := range map[string]string{
		``: "",
		`{"deb.example.net":{"192.0.2.1":1796061600,"2001:db8::1":0}}`: "",
		`{}`:                                     "",
		`{`:                                      "EOF",
		`[]`:                                     "cannot unmarshal",
		`{}x`:                                    "something stands behind it",
		`{"*.example.net":{"192.0.2.1":1}}`:      `"*.example.net" is no name`,
		`{"deb.example.net:80":{"192.0.2.1":1}}`: "want name:port",
		`{"Deb.example.net":{"192.0.2.1":1}}`:    "lower case",
		`{"deb.example.net":{"192.0.2.01":1}}`:   "is no address",
		`{"deb.example.net":{"::ffff:192.0.2.1":1}}`:       "is no address",
		`{"deb.example.net":{"fe80::1%eth0":1}}`:           "is no address",
		`{"deb.example.net":{"2001:DB8::1":1}}`:            "is no address",
		`{"deb.example.net":{"192.0.2.1":-1}}`:             "is no time",
		`{"deb.example.net":{"192.0.2.1":10000000000}}`:    "is no time",
		`{"deb.example.net":{"192.0.2.1":1.5}}`:            "cannot unmarshal",
		`{"deb.example.net":{"192.0.2.1":"yesterday"}}`:    "cannot unmarshal",
		`{"deb.example.net":{}}`:                           "has no address",
		`{"deb.example.net":null}`:                         "has no address",
		manyAddresses(maxAddresses).String():               "",
		manyAddresses(maxAddresses + 1).String():           "too many",
		`{"` + strings.Repeat("a", 64) + `.net":{"::":1}}`: "want a host name",
	} {
		seen, err := ParseSeen(text)
		switch {
		case says == "" && err != nil:
			t.Errorf("%.60s: %v", text, err)
		case says != "" && (err == nil || !strings.Contains(err.Error(), says) || step.ExitCode(err) != step.ExitInvalid):
			t.Errorf("%.60s: got %v, want %s", text, err, says)
		case says == "" && text != "{}" && seen.String() != text:
			t.Errorf("%.60s: became %.60s", text, seen)
		}
	}
}

// manyAddresses gives one address for each of n names of the longest kind.
func manyAddresses(n int) Seen {
	s := Seen{}
	for i := range n {
		label := strings.Repeat("a", 63)
		name := fmt.Sprintf("a%057d.%s.%s.%s.%s", i, label, label, label, "bc")
		if len(name) > 253 {
			panic(len(name))
		}
		s[name] = map[netip.Addr]time.Time{netip.MustParseAddr(fmt.Sprintf("2001:1000:1000:1000:1000:1000:1000:%x", 0x1000+i)): time.Unix(maxUnix, 0)}
	}
	return s
}

// The annotation fits in an object, whatever the names (k8s.io/apimachinery's
// TotalAnnotationSizeLimitB), and leaves others room.
func TestAnnotationFits(t *testing.T) {
	if n := len(manyAddresses(maxAddresses).String()); n > 250<<10 {
		t.Errorf("%d bytes", n)
	}
}

func FuzzParseSeen(f *testing.F) {
	f.Add("")
	f.Add(`{"deb.example.net":{"192.0.2.1":1796061600,"2001:db8::1":0}}`)
	f.Add(`{"a.b":{"::ffff:1.2.3.4":1},"A.b":null}{}`)
	f.Fuzz(func(t *testing.T, text string) {
		seen, err := ParseSeen(text)
		if err != nil {
			return
		}
		again, err := ParseSeen(seen.String())
		if err != nil {
			t.Fatalf("%q became %q: %v", text, seen, err)
		}
		if diff := cmp.Diff(seen.String(), again.String()); diff != "" {
			t.Error(diff)
		}
		if seen.count() > maxAddresses {
			t.Errorf("%d addresses", seen.count())
		}
	})
}

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// at gives what was seen some time before noon.
func at(ago time.Duration, addresses ...string) map[netip.Addr]time.Time {
	all := map[netip.Addr]time.Time{}
	for _, a := range addresses {
		all[netip.MustParseAddr(a)] = noon.Add(-ago)
	}
	return all
}

func TestNext(t *testing.T) {
	const name = "deb.example.net"
	both := func(maps ...map[netip.Addr]time.Time) Seen {
		all := map[netip.Addr]time.Time{}
		for _, m := range maps {
			for a, t := range m {
				all[a] = t
			}
		}
		return Seen{name: all}
	}
	for what, c := range map[string]struct {
		before  Seen
		answers []string
		want    Seen
		refused []string
	}{
		"the first time":           {nil, []string{"9.9.9.1", "2606::1"}, both(at(0, "9.9.9.1", "2606::1")), nil},
		"again, soon":              {both(at(time.Hour, "9.9.9.1")), []string{"9.9.9.1"}, both(at(time.Hour, "9.9.9.1")), nil},
		"again, later":             {both(at(6*time.Hour, "9.9.9.1")), []string{"9.9.9.1"}, both(at(0, "9.9.9.1")), nil},
		"a new one renews all":     {both(at(time.Hour, "9.9.9.1"), at(2*time.Hour, "9.9.9.3")), []string{"9.9.9.1", "9.9.9.2"}, both(at(0, "9.9.9.1", "9.9.9.2"), at(2*time.Hour, "9.9.9.3")), nil},
		"no answer":                {both(at(23*time.Hour, "9.9.9.1")), nil, both(at(23*time.Hour, "9.9.9.1")), nil},
		"no answer, for too long":  {both(at(24*time.Hour, "9.9.9.1")), nil, both(), nil},
		"by a clock that is ahead": {both(at(-time.Hour, "9.9.9.1")), nil, both(at(0, "9.9.9.1")), nil},
		"not listed any more":      {Seen{"old.example.net": at(0, "9.9.9.1")}, nil, both(), nil},
		"refused answers": {nil, []string{"10.0.0.1", "169.254.169.254", "9.9.9.9", "10.1.0.1", "::1"}, both(at(0, "10.1.0.1")), []string{
			name + " leads to 10.0.0.1, a private address; egress.allowPrivate may exempt it",
			name + " leads to 169.254.169.254, a cloud's metadata service",
			name + " leads to 9.9.9.9, which egress.denyCIDRs denies",
			name + " leads to ::1, a loopback address",
		}},
		"refused by now": {both(at(time.Hour, "9.9.9.9", "10.0.0.1")), nil, both(), nil},
	} {
		var answers []netip.Addr
		for _, a := range c.answers {
			answers = append(answers, netip.MustParseAddr(a))
		}
		policy := egress.NewPolicy(egress.Rules{DenyCIDRs: []egress.Network{"9.9.9.9/32"}, AllowPrivate: []egress.Network{"10.1.0.0/16"}})
		got, refused, dropped := c.before.next(policy, []string{name}, map[string][]netip.Addr{name: answers}, noon.Add(59*time.Second), 24*time.Hour)
		if diff := cmp.Diff(c.want.String(), got.String()) + cmp.Diff(c.refused, refused); diff != "" || dropped != 0 {
			t.Errorf("%s: %d dropped, %s", what, dropped, diff)
		}
	}
}

// Of too many addresses the oldest go, and the same answers leave the same ones.
func TestTooMany(t *testing.T) {
	policy := egress.NewPolicy(egress.Rules{})
	many := func(from, n int) (all []netip.Addr) {
		for i := range n {
			all = append(all, netip.AddrFrom4([4]byte{9, 9, byte((from + i) >> 8), byte(from + i)}))
		}
		return all
	}
	names := []string{"a.example.net", "b.example.net"}
	next := func(before Seen, now time.Time, a, b []netip.Addr) (Seen, int) {
		after, _, dropped := before.next(policy, names, map[string][]netip.Addr{names[0]: a, names[1]: b}, now, 24*time.Hour)
		return after, dropped
	}
	first, dropped := next(nil, noon, many(0, 300), nil)
	if dropped != 0 {
		t.Fatal(dropped)
	}
	second, dropped := next(first, noon.Add(time.Hour), many(300, 300), many(600, 150))
	if dropped != 0 || second.count() != 750 {
		t.Fatal(dropped, second.count())
	}
	third, dropped := next(second, noon.Add(2*time.Hour), many(750, 100), many(600, 150))
	if dropped != 50 || third.count() != maxAddresses || len(third[names[1]]) != 150 || len(third[names[0]]) != 650 {
		t.Errorf("%d dropped, %d left", dropped, third.count())
	}
	for _, a := range many(300, 300) {
		if _, ok := third[names[0]][a]; !ok {
			t.Fatalf("%s is gone before older ones", a)
		}
	}
	// Also of those in an answer there may be too many.
	crowd, dropped := next(third, noon.Add(3*time.Hour), many(0, 700), many(700, 300))
	if dropped < 200 || crowd.count() != maxAddresses {
		t.Errorf("%d dropped, %d left", dropped, crowd.count())
	}
	slices.Reverse(names)
	again, _ := next(crowd, noon.Add(3*time.Hour+time.Minute), many(700, 300), many(0, 700))
	if diff := cmp.Diff(len(crowd.String()), len(again.String())); diff != "" {
		t.Error(diff)
	}
	for name, all := range crowd {
		for a := range all {
			if _, ok := again[name][a]; !ok {
				t.Fatalf("%s of %s went and came", a, name)
			}
		}
	}
}
