package egress

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fabrique/steps/step"
)

func TestRecentIsBounded(t *testing.T) {
	r := NewRecent(100)
	start := time.Unix(1_800_000_000, 0)
	r.Add(Request{App: "kept", Destination: "index.example.net:443", Verdict: Refused}, start)
	for i := range 10_000 {
		at := start.Add(time.Duration(i) * time.Second)
		r.Add(Request{Destination: fmt.Sprintf("x%d.example:443", i), Verdict: Refused}, at)
		if i%50 == 0 {
			r.Add(Request{App: "kept", Destination: "index.example.net:443", Verdict: Refused}, at)
		}
	}
	report := r.Find(Filter{})
	if len(report.Requests) != 100 || len(r.entries) != 100 || r.order.Len() != 100 {
		t.Errorf("%d entries, %d and %d", len(report.Requests), len(r.entries), r.order.Len())
	}
	if report.Dropped != 10_001-100 {
		t.Errorf("%d dropped", report.Dropped)
	}
	if kept := r.Find(Filter{App: "kept"}).Requests; len(kept) != 1 || kept[0].Count != 201 {
		t.Errorf("what is asked for again and again: %+v", kept)
	}
}

func TestClient(t *testing.T) {
	r := NewRecent(10)
	at := func(s int64) time.Time { return time.Unix(1_800_000_000+s, 0).UTC() }
	r.Add(Request{App: "b", Destination: "index.example.net:443", Verdict: Allowed, Received: 7}, at(0))
	r.Add(Request{App: "b", Destination: "index.example.net:443", Verdict: Allowed, Received: 5}, at(9))
	r.Add(Request{App: "b", Workflow: "w1", Destination: "x.example:443", Verdict: Refused, Message: "m"}, at(1))
	r.Add(Request{App: "a", Workflow: "w2", Destination: "x.example:443", Verdict: Refused, Message: "m"}, at(2))
	server := httptest.NewServer(http.StripPrefix("/proxy", muxOf(r)))
	defer server.Close()
	client := Client{URL: server.URL + "/proxy/"}
	first := Request{App: "b", Destination: "index.example.net:443", Verdict: Allowed, Count: 2, Received: 12, First: at(0), Last: at(9)}
	second := Request{App: "b", Workflow: "w1", Destination: "x.example:443", Verdict: Refused, Message: "m", Count: 1, First: at(1), Last: at(1)}
	third := Request{App: "a", Workflow: "w2", Destination: "x.example:443", Verdict: Refused, Message: "m", Count: 1, First: at(2), Last: at(2)}
	for _, c := range []struct {
		filter Filter
		want   []Request
	}{
		{Filter{}, []Request{third, first, second}},
		{Filter{App: "b"}, []Request{first, second}},
		{Filter{App: "b", Workflow: "w1"}, []Request{second}},
		{Filter{Verdict: Refused}, []Request{third, second}},
		{Filter{Since: at(2)}, []Request{third, first}},
		{Filter{App: "c"}, []Request{}},
	} {
		report, err := client.Requests(t.Context(), c.filter)
		if diff := cmp.Diff(c.want, report.Requests); err != nil || diff != "" {
			t.Errorf("%+v: %v %s", c.filter, err, diff)
		}
	}
	for _, f := range []Filter{{App: "A"}, {Verdict: "no"}, {Workflow: "a_b"}} {
		if _, err := client.Requests(t.Context(), f); step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("%+v: %v", f, err)
		}
	}
	if _, err := (Client{URL: "http://127.0.0.1:1"}).Requests(t.Context(), Filter{}); step.ExitCode(err) != step.ExitRetry {
		t.Errorf("nobody there: %v", err)
	}
}

func muxOf(r *Recent) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /requests", r)
	return mux
}
