package speed

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{3}, 3},
		{[]float64{3, 1, 2}, 2},
		{[]float64{4, 1, 3, 2}, 2.5},
	} {
		if got := median(c.values); got != c.want {
			t.Errorf("the median of %v is %v, want %v", c.values, got, c.want)
		}
	}
}

func TestReport(t *testing.T) {
	report := Report{
		Machine: "a machine",
		Rows: []Row{
			measured("fast", "s", []float64{1, 1.1, 9}).against("peer", []float64{1}).timesAtMost(1.2),
			measured("slow", "s", []float64{3}).against("peer", []float64{1}).timesAtMost(1.2),
			measured("large", "MB", []float64{31}).atMost(30),
			measured("constant", "requests", []float64{7}).against("fewer", []float64{7}).equal(),
			measured("alone", "ms", []float64{5}),
		},
		Facts: []Fact{{"can it", "yes"}},
		Notes: []string{"a note"},
	}
	want := `a machine

WHAT      OURS        PEER   PEER'S      RATIO  AIM      MET
fast      1.100 s     peer   1.000 s     1.10   ≤ 1.2×   yes
slow      3.000 s     peer   1.000 s     3.00   ≤ 1.2×   no
large     31.0 MB     –      –           –      ≤ 30 MB  no
constant  7 requests  fewer  7 requests  1.00   equal    yes
alone     5.0 ms      –      –           –      –        –

can it: yes

- a note
`
	var text strings.Builder
	if err := report.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	file := filepath.Join(t.TempDir(), "report.json")
	if err := report.WriteJSON(file); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got Report
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(report, got); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
}

func TestRunFollowsTheMemoryOfChildren(t *testing.T) {
	// A shell that is small has a child, which has one that holds 64 MiB.
	r, err := program{args: []string{"sh", "-c", `(head -c 64M /dev/zero | tail -c 64M | wc -c); true`}}.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.peak < 60<<20 || r.peak > 200<<20 {
		t.Errorf("the peak is %d MiB, want some 64", r.peak>>20)
	}
}

func TestRunShowsTheCommandThatFails(t *testing.T) {
	_, err := program{
		args: []string{"sh", "-c", "echo broken >&2; exit 3"}, env: []string{"A=b c"}, secretEnv: []string{"TOKEN=hunter2"},
	}.run(t.Context())
	want := "running A='b c' sh -c 'echo broken >&2; exit 3': exit status 3\nbroken"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestCompeteTakesTurns(t *testing.T) {
	var order []string
	side := func(name string) contender {
		return contender{name: name, prepare: func(_ context.Context, round int) (program, error) {
			order = append(order, fmt.Sprint(name, round))
			return program{args: []string{"true"}}, nil
		}}
	}
	runs, err := compete(t.Context(), &bytes.Buffer{}, "test", 2, side("a"), side("b"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a0", "b0", "b1", "a1", "a2", "b2"}, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if len(runs[0]) != 2 || len(runs[1]) != 2 {
		t.Errorf("%d and %d runs count, want 2 and 2", len(runs[0]), len(runs[1]))
	}
}

func TestContentStaysTheSame(t *testing.T) {
	got := content(nil, 7, 8, 9)
	if diff := cmp.Diff("7376", fmt.Sprintf("%x", sha256.Sum256(got))[:4]); diff != "" {
		t.Errorf("the generated content is another one, so give generation a new value (-want +got):\n%s", diff)
	}
	if len(got) < 400 || len(got) > 2001 {
		t.Errorf("%d bytes", len(got))
	}
}

func TestCounter(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) }))
	defer server.Close()
	c, err := newCounter(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	n, err := c.count(func() error {
		for range 3 {
			answer, err := http.Get(c.url + "/there")
			if err != nil {
				return err
			}
			answer.Body.Close()
		}
		return nil
	})
	if err != nil || n != 3 {
		t.Errorf("counted %v, %v, want 3", n, err)
	}
}
