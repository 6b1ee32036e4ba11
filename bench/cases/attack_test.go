package cases

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What is looked for is found wherever writes cut it.
func TestSearch(t *testing.T) {
	const text = "before needle, then \x00pin\n after"
	for cut := range len(text) {
		s := newSearch("needle", "pin", "absent", "n")
		s.Write([]byte(text[:cut]))
		s.Write(nil)
		s.Write([]byte(text[cut:]))
		if diff := cmp.Diff([]string{"needle", "pin", "n"}, s.found()); diff != "" {
			t.Errorf("cut at %d: %s", cut, diff)
		}
	}
	if got := in([]byte("need le"), "needle"); len(got) != 0 {
		t.Errorf("it finds %q", got)
	}
}

// An attack can be told from the others, and shows its own word if it runs at all.
func TestAttacks(t *testing.T) {
	var names []string
	for _, a := range attacks(aim{image: "registry:80/x/b", tag: "registry:80/x/b:1", cacheID: "c", secretID: "s", recipe: attackedRecipe}) {
		if a.name == "" || slices.Contains(names, a.name) {
			t.Errorf("the name %q is not its own", a.name)
		}
		names = append(names, a.name)
		if !a.silent && !strings.Contains(a.dockerfile, "cat /own/own.txt") {
			t.Errorf("%s does not show its own word:\n%s", a.name, a.dockerfile)
		}
		if strings.Contains(a.dockerfile, reachesTraces) {
			t.Errorf("%s says that it reaches the socket by being shown", a.name)
		}
	}
	if len(names) > attackRounds {
		t.Errorf("%d attacks do not fit into %d rounds", len(names), attackRounds)
	}
}

func TestCost(t *testing.T) {
	c := Cost{What: "a build", Gateway: []float64{3, 1, 2.1}, Direct: []float64{2, 9, 1}}
	c.settle()
	want := Cost{What: "a build", Gateway: []float64{3, 1, 2.1}, Direct: []float64{2, 9, 1}, GatewayMedian: 2.1, DirectMedian: 2, Ratio: 1.05, Aim: 1.05, Within: true}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Error(diff)
	}
	if got := c.String(); got != "a build: 2.1 s through the gateway, 2.0 s direct (medians of 3), ratio 1.050, within 1.05" {
		t.Error(got)
	}
	c.Gateway = []float64{2.2}
	if c.settle(); c.Within || !strings.Contains(c.String(), "NOT within 1.05") {
		t.Error(c)
	}
}
