package build

import (
	"fmt"
	"slices"
	"testing"

	"fabrique/steps/image"
)

// TestOrder: a repository's order does not depend on how the addresses are listed;
// one builder less moves only what it had; the load spreads.
func TestOrder(t *testing.T) {
	addresses := []string{"tcp://a:1", "tcp://b:1", "tcp://c:1"}
	turned := []string{"tcp://c:1", "tcp://a:1", "tcp://b:1"}
	had := map[string]int{}
	for i := range 300 {
		repository := image.Repository{Registry: "registry:80", Name: image.Name(fmt.Sprintf("app-%d", i))}
		got := order(addresses, repository)
		if !slices.Equal(got, order(turned, repository)) {
			t.Fatalf("%s: the order depends on the list", repository)
		}
		had[got[0]]++
		left := slices.DeleteFunc(slices.Clone(addresses), func(a string) bool { return a == "tcp://b:1" })
		if after := order(left, repository); got[0] != "tcp://b:1" && after[0] != got[0] {
			t.Errorf("%s moved from %s to %s, though b went away", repository, got[0], after[0])
		}
	}
	for _, a := range addresses {
		if had[a] < 60 {
			t.Errorf("%s has %d of 300", a, had[a])
		}
	}
}
