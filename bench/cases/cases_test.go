package cases

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"fabrique/bench/demo"
)

func TestSelect(t *testing.T) {
	for pattern, want := range map[string][]string{
		"^W1$|^F1$": {"F1"}, // W1 is part of another one's name
		"W1":        {"W1-W2-W5-W6", "W10"},
		"no-events": {"no-events"},
		"F2":        {"F2-controller", "F2-evicted", "F2-drained"},
		"zones":     {"zones"},
	} {
		selected, err := Select(pattern)
		var got []string
		for _, c := range selected {
			got = append(got, c.Name)
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q selects, -want +got:\n%s%v", pattern, diff, err)
		}
	}
	if all, err := Select(""); len(all) != len(All) || err != nil {
		t.Errorf("without a pattern %d of %d are selected, %v", len(all), len(All), err)
	}
	for pattern, want := range map[string]string{"nothing-like-it": "none has a name", "(": "missing closing )"} {
		if _, err := Select(pattern); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: the error is %v, want %q", pattern, err, want)
		}
	}
}

// Each can be selected alone, listed in a line, and run.
func TestAllAreWhole(t *testing.T) {
	var names []string
	for _, c := range All {
		if c.Name == "" || c.Title == "" || c.Run == nil || strings.ContainsAny(c.Name+c.Title, "\n\t") || strings.Contains(c.Name, " ") {
			t.Errorf("%q is not whole", c.Name)
		}
		if slices.Contains(names, c.Name) {
			t.Errorf("there are two of the name %q", c.Name)
		}
		names = append(names, c.Name)
	}
	for _, gate := range []string{"new-app", "ten-pushes", "no-events"} {
		if !slices.Contains(names[:len(gateCases)], gate) {
			t.Errorf("%s does not come first: %v", gate, names)
		}
	}
}

func TestTable(t *testing.T) {
	var out strings.Builder
	report := Report{Cases: []Result{
		{Name: "W9", OK: true, Seconds: 15.04, Saw: "three refused"},
		{Name: "F2-controller", Seconds: 600, Error: "not done\nafter 10m"},
	}}
	if err := report.table(&out); err != nil {
		t.Fatal(err)
	}
	want := "\n" +
		"scenario               seconds  seen\n" +
		"W9             ok      15.0     three refused\n" +
		"F2-controller  FAILED  600.0    not done after 10m\n" +
		"1 of 2 scenarios passed\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestOneLine(t *testing.T) {
	if got := oneLine(" a\n\tb  c "); got != "a b c" {
		t.Errorf("got %q", got)
	}
	long := oneLine(strings.Repeat("é", 300))
	if utf8.RuneCountInString(long) != 200 || !strings.HasSuffix(long, "é…") {
		t.Errorf("a long text becomes %q", long)
	}
}

func TestQuantile(t *testing.T) {
	ten := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for _, test := range []struct {
		sorted []float64
		part   float64
		want   float64
	}{
		{ten, 0.5, 5}, {ten, 0.95, 10}, {ten, 0.9, 9}, {ten, 0, 1}, {ten[:5], 0.5, 3}, {ten[:1], 0.95, 1},
	} {
		if got := quantile(test.sorted, test.part); got != test.want {
			t.Errorf("quantile(%v, %v) is %v, want %v", test.sorted, test.part, got, test.want)
		}
	}
}

// A stage that not all pushes have reached counts those that have.
func TestMeasure(t *testing.T) {
	push := func(stages ...demo.Stage) demo.Push { return demo.Push{Stages: stages} }
	m := measure([]demo.Push{
		push(demo.Stage{Name: "planned", After: 3e9}, demo.Stage{Name: "built", After: 9e9}),
		push(demo.Stage{Name: "planned", After: 1e9}),
		push(demo.Stage{Name: "planned", After: 2e9}),
	})
	if diff := cmp.Diff(map[string]float64{"planned": 2, "built": 9}, m.Median); diff != "" {
		t.Errorf("medians, -want +got:\n%s", diff)
	}
	if diff := cmp.Diff(map[string]float64{"planned": 3, "built": 9}, m.P95); diff != "" {
		t.Errorf("p95, -want +got:\n%s", diff)
	}
}

func TestLongName(t *testing.T) {
	a, b := longName(), longName()
	if len(a) != 50 || a == b || strings.Contains(a, first) || strings.Trim(a, "-") != a {
		t.Errorf("the names are %q and %q", a, b)
	}
}

func TestSlow(t *testing.T) {
	a, err := slow(25)
	if err != nil {
		t.Fatal(err)
	}
	b, err := slow(25)
	if err != nil {
		t.Fatal(err)
	}
	if a == b {
		t.Error("the second build finds the first one's result in the cache")
	}
	lines := strings.Split(a, "\n")
	sleep := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "RUN sleep 25 # ") })
	user := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "USER ") })
	if sleep < 0 || user < sleep {
		t.Errorf("the Dockerfile is\n%s", a)
	}
	plain, err := original()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Replace(a, lines[sleep]+"\n\n", "", 1); got != plain {
		t.Errorf("without that instruction it is\n%s", got)
	}
}
