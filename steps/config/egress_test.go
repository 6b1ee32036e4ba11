package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"fabrique/steps/egress"
)

func TestEgress(t *testing.T) {
	c, err := Parse("fabrique.yaml", []byte(small+`
egress:
  allow: [deb.example.net:80, "*.example.org:443"]
  apps:
    citation:
      - index.example.net:443
    hello:
  denyCIDRs: [198.51.100.0/24, "2001:db8:5::/48"]
  allowPrivate: [10.0.5.0/24]
`))
	want := Egress{
		Allow: []egress.Destination{"deb.example.net:80", "*.example.org:443"}, Apps: map[string][]egress.Destination{"citation": {"index.example.net:443"}, "hello": nil},
		DenyCIDRs: []egress.Network{"198.51.100.0/24", "2001:db8:5::/48"}, AllowPrivate: []egress.Network{"10.0.5.0/24"}, MaxTunnels: 1024,
	}
	if diff := cmp.Diff(want, c.Egress); err != nil || diff != "" {
		t.Error(err, diff)
	}
	// Left out, nothing may be reached.
	c, err = Parse("fabrique.yaml", []byte(small))
	if diff := cmp.Diff(Egress{MaxTunnels: 1024}, c.Egress); err != nil || diff != "" {
		t.Error(err, diff)
	}
}
