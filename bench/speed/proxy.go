package speed

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
)

// counter is a reverse proxy on loopback that counts requests.
type counter struct {
	url      string // http://127.0.0.1:port
	requests atomic.Int64
	server   *http.Server
}

func newCounter(target string) (*counter, error) {
	to, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("starting the counting proxy: %w", err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		FlushInterval: -1,
	}
	c := &counter{url: "http://" + listener.Addr().String()}
	c.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.requests.Add(1)
		proxy.ServeHTTP(w, r)
	})}
	go c.server.Serve(listener)
	return c, nil
}

// count gives how many requests f caused.
func (c *counter) count(f func() error) (float64, error) {
	before := c.requests.Load()
	err := f()
	return float64(c.requests.Load() - before), err
}

func (c *counter) close() { c.server.Close() }
