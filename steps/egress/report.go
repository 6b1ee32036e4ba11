package egress

import (
	"cmp"
	"container/list"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"fabrique/steps/record"
	"fabrique/steps/step"
)

// A Verdict is what became of a request.
type Verdict string

// The verdicts.
const (
	Allowed Verdict = "allowed" // and answered
	Refused Verdict = "refused"
	Failed  Verdict = "failed" // allowed, but the other side was not reached
	Asked   Verdict = "asked"  // for the credential that it came without; it may have come again with it
)

// Request is what was asked for: all requests of one build to one destination that
// ended alike.
type Request struct {
	App         string    `json:"app"`      // empty when nobody known asked
	Workflow    string    `json:"workflow"` // empty for none
	Destination string    `json:"destination"`
	Verdict     Verdict   `json:"verdict"`
	Message     string    `json:"message,omitempty"` // of a refusal or failure, as the build saw it
	Count       int64     `json:"count"`
	Received    int64     `json:"received"` // bytes from the destination
	First       time.Time `json:"first"`
	Last        time.Time `json:"last"`
}

// key gives what tells entries apart.
func (r Request) key() Request {
	return Request{App: r.App, Workflow: r.Workflow, Destination: r.Destination, Verdict: r.Verdict, Message: r.Message}
}

// Report is what a gateway remembers.
type Report struct {
	Since    time.Time `json:"since"`    // the gateway has known of requests from then on
	Dropped  int64     `json:"dropped"`  // how many entries had to make room for newer ones
	Requests []Request `json:"requests"` // by app, destination, verdict, Workflow
}

// Filter says which requests are wanted; what is empty does not matter.
type Filter struct {
	App      string
	Workflow string
	Verdict  Verdict
	Since    time.Time // the last of them not before
}

func (f Filter) query() url.Values {
	q := url.Values{}
	for name, value := range map[string]string{"app": f.App, "workflow": f.Workflow, "verdict": string(f.Verdict)} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if !f.Since.IsZero() {
		q.Set("since", f.Since.UTC().Format(time.RFC3339Nano))
	}
	return q
}

func parseFilter(q url.Values) (Filter, error) {
	f := Filter{App: q.Get("app"), Workflow: q.Get("workflow"), Verdict: Verdict(q.Get("verdict"))}
	if f.App != "" {
		if _, err := record.ParseApp(f.App); err != nil {
			return f, err
		}
	}
	if f.Workflow != "" {
		if _, err := ParseWorkflow(f.Workflow); err != nil {
			return f, err
		}
	}
	if !slices.Contains([]Verdict{"", Allowed, Refused, Failed, Asked}, f.Verdict) {
		return f, step.Invalidf("parsing the verdict %q: want allowed, refused, failed or asked", step.Clip(string(f.Verdict)))
	}
	if since := q.Get("since"); since != "" {
		at, err := time.Parse(time.RFC3339Nano, since)
		if err != nil {
			return f, step.Invalidf("parsing the time %q: want RFC 3339", step.Clip(since))
		}
		f.Since = at
	}
	return f, nil
}

func (f Filter) wants(r *Request) bool {
	return (f.App == "" || f.App == r.App) && (f.Workflow == "" || f.Workflow == r.Workflow) &&
		(f.Verdict == "" || f.Verdict == r.Verdict) && !r.Last.Before(f.Since)
}

// MaxRecent is how many entries a gateway remembers.
const MaxRecent = 10_000

// Recent remembers requests, in memory only, and a bounded number of entries: the one
// that was asked for longest ago makes room. A build that repeats itself takes one.
type Recent struct {
	max   int
	since time.Time

	mu      sync.Mutex
	entries map[Request]*list.Element // by their key
	order   *list.List                // of *Request, the last asked for in front
	dropped int64
}

// NewRecent makes one that holds at most max entries.
func NewRecent(max int) *Recent {
	return &Recent{max: max, since: time.Now(), entries: map[Request]*list.Element{}, order: list.New()}
}

// Add remembers one request, and the bytes that came for it.
func (r *Recent) Add(one Request, at time.Time) {
	key := one.key()
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.entries[key]
	if !ok {
		if len(r.entries) >= r.max {
			oldest := r.order.Back()
			r.order.Remove(oldest)
			delete(r.entries, oldest.Value.(*Request).key())
			r.dropped++
		}
		fresh := key
		fresh.First = at
		e = r.order.PushFront(&fresh)
		r.entries[key] = e
	}
	r.order.MoveToFront(e)
	entry := e.Value.(*Request)
	entry.Count++
	entry.Received += one.Received
	entry.Last = at
}

// Find gives the report of those that a filter wants.
func (r *Recent) Find(f Filter) Report {
	r.mu.Lock()
	report := Report{Since: r.since, Dropped: r.dropped, Requests: []Request{}}
	for e := r.order.Front(); e != nil; e = e.Next() {
		if one := e.Value.(*Request); f.wants(one) {
			report.Requests = append(report.Requests, *one)
		}
	}
	r.mu.Unlock()
	slices.SortFunc(report.Requests, func(a, b Request) int {
		return cmp.Or(strings.Compare(a.App, b.App), strings.Compare(a.Destination, b.Destination), strings.Compare(string(a.Verdict), string(b.Verdict)),
			strings.Compare(a.Workflow, b.Workflow), strings.Compare(a.Message, b.Message))
	})
	return report
}

// ServeHTTP answers GET /requests?app=…&workflow=…&verdict=…&since=….
func (r *Recent) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	f, err := parseFilter(request.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// An error here is the client's going away.
	_ = json.NewEncoder(w).Encode(r.Find(f))
}

// Client asks a gateway what it remembers.
type Client struct {
	HTTP *http.Client // nil for the default
	URL  string       // of the gateway's admin port, without a path
}

// maxReport bounds an answer, in bytes; one entry takes some 300.
const maxReport = 16 << 20

// Requests reads a report. Errors have exit code 1, but 2 for a refused question.
func (c Client) Requests(ctx context.Context, f Filter) (Report, error) {
	address := strings.TrimRight(c.URL, "/") + "/requests?" + f.query().Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return Report{}, step.Invalidf("asking the egress gateway: %w", err)
	}
	response, err := cmp.Or(c.HTTP, http.DefaultClient).Do(request)
	if err != nil {
		return Report{}, step.Retryf("asking the egress gateway: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxReport))
	switch {
	case response.StatusCode == http.StatusBadRequest, response.StatusCode == http.StatusForbidden, response.StatusCode == http.StatusUnauthorized, response.StatusCode == http.StatusNotFound:
		return Report{}, step.Invalidf("asking the egress gateway at %s: %s: %s", c.URL, response.Status, step.Clip(string(text)))
	case response.StatusCode != http.StatusOK:
		return Report{}, step.Retryf("asking the egress gateway at %s: %s: %s", c.URL, response.Status, step.Clip(string(text)))
	case err != nil:
		return Report{}, step.Retryf("reading the egress gateway's answer: %w", err)
	}
	var report Report
	if err := json.Unmarshal(text, &report); err != nil {
		return Report{}, fmt.Errorf("reading the egress gateway's answer: %w", err)
	}
	return report, nil
}
