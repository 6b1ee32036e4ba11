// Package fault stands in front of a real server and shows a client what that
// server cannot be made to show: lost answers, errors, stalls. Everything else
// passes through unchanged.
package fault

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
)

// Proxy is a reverse proxy on loopback.
type Proxy struct {
	URL     string // http://127.0.0.1:port
	Address string // 127.0.0.1:port

	requests atomic.Int64
	serve    atomic.Pointer[Handler]
}

// Handler answers a request, or hands it to the real server with next.
type Handler func(w http.ResponseWriter, r *http.Request, next http.Handler)

// New starts a proxy in front of target ("http://gitea:3000") that ends with
// the test. It passes everything on until [Proxy.Handle] says otherwise.
func New(t testing.TB, target string) *Proxy {
	t.Helper()
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	real := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to) // and with it the Host header
		},
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	}
	p := &Proxy{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.requests.Add(1)
		if h := p.serve.Load(); h != nil {
			(*h)(w, r, real)
			return
		}
		real.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		server.CloseClientConnections() // a stalled one would block Close
		server.Close()
	})
	p.URL, p.Address = server.URL, strings.TrimPrefix(server.URL, "http://")
	return p
}

// Handle sets what answers from now on; nil passes everything on.
func (p *Proxy) Handle(h Handler) {
	if h == nil {
		p.serve.Store(nil)
		return
	}
	p.serve.Store(&h)
}

// Requests counts the requests so far.
func (p *Proxy) Requests() int64 { return p.requests.Load() }

// Stall passes on the first bytes of every answer whose path contains part, and
// then neither sends more nor ends, until the client goes away. Each stalled
// answer is told on the channel.
func Stall(part string, bytes int) (Handler, <-chan struct{}) {
	stalled := make(chan struct{}, 100)
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, part) {
			w = &stalling{ResponseWriter: w, left: bytes, request: r, stalled: stalled}
		}
		next.ServeHTTP(w, r)
	}, stalled
}

type stalling struct {
	http.ResponseWriter
	left    int
	request *http.Request
	stalled chan<- struct{}
}

func (s *stalling) Write(b []byte) (int, error) {
	if len(b) > s.left {
		s.ResponseWriter.Write(b[:s.left])
		s.Flush()
		s.left = 0
		s.stalled <- struct{}{}
		<-s.request.Context().Done()
		return 0, s.request.Context().Err()
	}
	s.left -= len(b)
	return s.ResponseWriter.Write(b)
}

func (s *stalling) Flush() { s.ResponseWriter.(http.Flusher).Flush() }

// Status answers every request for which match is true with a status code, and
// a body that no client should take for content.
func Status(code int, match func(*http.Request) bool) Handler {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if match(r) {
			http.Error(w, "injected by the test", code)
			return
		}
		next.ServeHTTP(w, r)
	}
}

// All matches every request.
func All(*http.Request) bool { return true }
