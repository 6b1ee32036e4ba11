package cases

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fabrique/bench/sink"
)

// The table names targets that there are, and shows of each that it can be reached:
// else "not reached" would mean nothing.
func TestZonesAreWhole(t *testing.T) {
	rows := append(controls(), kinds()...)
	reached := map[string]bool{}
	pods := map[string]bool{}
	for _, row := range rows {
		for _, name := range row.may {
			if !slices.ContainsFunc(targets, func(t target) bool { return t.name == name }) {
				t.Errorf("%s may reach %q, which is no target", row.name, name)
			}
			reached[name] = true
		}
		name := row.podName()
		if pods[name] || len(name) > 63 || regexp.MustCompile(`^[a-z0-9-]*[a-z]$`).FindString(name) == "" {
			t.Errorf("%s has a pod of the name %q", row.name, name)
		}
		pods[name] = true
	}
	names := map[string]bool{}
	for _, target := range targets {
		if names[target.name] || strings.ContainsAny(target.name, "\t\n") {
			t.Errorf("there are two of the name %q, or it is not one word of a list", target.name)
		}
		names[target.name] = true
		if reached[target.name] == target.closed {
			t.Errorf("%s: reached by some: %v, closed: %v", target.name, reached[target.name], target.closed)
		}
	}
	// Who has no policy is in no zone of the factory's, and the others are.
	for _, row := range kinds() {
		if !strings.HasPrefix(row.namespace, "fabrique") || row.namespace == zonesNamespace {
			t.Errorf("%s is in %s", row.name, row.namespace)
		}
	}
	for _, row := range controls() {
		if row.namespace != zonesNamespace && row.namespace != "gitea" {
			t.Errorf("%s is in %s", row.name, row.namespace)
		}
	}
}

// Each row asks outside addresses of its own, and nothing is left to fill in.
func TestZonesList(t *testing.T) {
	places := map[string]string{}
	for _, target := range targets {
		for _, place := range regexp.MustCompile(`\$\{(\w+)\}`).FindAllStringSubmatch(target.probe, -1) {
			if place[1] != "OUTSIDE" && place[1] != "PUBLIC" {
				places[place[1]] = "192.0.2.1"
			}
		}
	}
	outside := &sink.Sink{}
	one, two := kind{}.list(outside, 0, places), kind{}.list(outside, 1, places)
	if strings.Count(one, "\n") != len(targets) || strings.ContainsAny(one+two, "${}") {
		t.Errorf("the lists are\n%s\n%s", one, two)
	}
	if !strings.HasPrefix(one, "outside tcp 443\ttcp 198.51.100.1:443\n") || strings.Contains(two, "198.51.100.1:") || !strings.Contains(two, "8.8.8.2:80") {
		t.Errorf("the lists are\n%s\n%s", one, two)
	}
}

func TestZonesCompare(t *testing.T) {
	var all strings.Builder
	for _, target := range targets {
		all.WriteString(target.name + "\tnot\trefused\n")
	}
	said := func(replace ...string) string { return strings.NewReplacer(replace...).Replace(all.String()) }
	for _, test := range []struct {
		name string
		may  []string
		said string
		want []string
	}{
		{"nothing", nil, said(), nil},
		{"what it may", []string{"Gitea"}, said("Gitea\tnot\trefused", "Gitea\treached\t200"), nil},
		{"less", []string{"Gitea", "registry"}, said("registry\tnot\trefused", "registry\treached\t200"), []string{"k: Gitea is not reached, and must be: refused"}},
		{"more", nil, said("etcd\tnot\trefused", "etcd\treached\ta\tb"), []string{"k: etcd is reached, and must not be: a\tb"}},
		{"no answer", nil, said("etcd\tnot\trefused\n", ""), []string{"k: etcd: the probe says nothing of it"}},
		{"odd answer", []string{"etcd"}, said("etcd\tnot\trefused\n", "etcd\tperhaps\tx\n"), []string{"k: etcd: the probe says nothing of it"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, kind{name: "k", may: test.may}.compare(test.said)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestZonesPackets(t *testing.T) {
	outside := &sink.Sink{}
	a, p, another := outside.Address(3), outside.Public(3), outside.Address(4)
	flow := func(a netip.Addr, protocol string, port uint16) sink.Flow {
		return sink.Flow{Address: a, Protocol: protocol, Port: port}
	}
	counted := map[sink.Flow]int64{{Address: another}: 3, flow(another, "tcp", 0): 3, flow(another, "tcp", 443): 3}
	if got := (kind{name: "k"}).packets(outside, 3, counted); len(got) > 0 {
		t.Errorf("another's packets are its own: %q", got)
	}
	if got := controls()[0].packets(outside, 3, counted); len(got) != 12 || !strings.Contains(got[0], "no packet of 169.254.169.254 tcp/80 is counted") {
		t.Errorf("a control that sends nothing: %q", got)
	}
	for _, f := range []sink.Flow{{Address: a}, flow(a, "tcp", 0), flow(a, "tcp", 443), {Address: p}, flow(p, "icmp", 0), flow(sink.Metadata, "tcp", 80)} {
		counted[f] = 2
	}
	want := []string{"k: 2 packets came to 169.254.169.254 tcp/80", "k: 2 packets came to 198.51.100.4 tcp/443", "k: 2 packets came to 8.8.8.4 icmp"}
	if diff := cmp.Diff(want, kind{name: "k"}.packets(outside, 3, counted)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestLinkAddress(t *testing.T) {
	const text = `00000000000000000000000000000001 01 80 10 80       lo
20010db8000000000000000000000001 02 40 00 80     eth0
fe8000000000000018c6bcfffe40ccb3 02 40 20 80     eth0
`
	if got, err := linkAddress(text, "eth0"); err != nil || netip.MustParseAddr(got) != netip.MustParseAddr("fe80::18c6:bcff:fe40:ccb3") {
		t.Errorf("%q, %v", got, err)
	}
	for _, text := range []string{"", text[:80], "short\n"} {
		if got, err := linkAddress(text, "eth0"); err == nil {
			t.Errorf("%q has %s", text, got)
		}
	}
}
