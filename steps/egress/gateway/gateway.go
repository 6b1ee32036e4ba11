// Package gateway is the forward proxy that lets builds out, to what package egress
// allows and nowhere else.
//
// It speaks HTTP/1.1 as proxies do (RFC 9110 §7.6, §9.3.6): CONNECT, and requests with
// an absolute http:// address. The proxying itself is goproxy's; here is the policy:
//
//   - The name is decided on before anything is resolved. The address is looked at in
//     the dialer's Control function, which the kernel's connect follows: what is
//     checked is what is dialled, whatever DNS says at other times.
//   - A refusal is a 403 whose status line, body and header X-Egress-Refused are the
//     text of [egress.Refusal]: curl, pip and apt show one or the other. Where a
//     credential could change the verdict and none was given, it is a 407 with the
//     same text, which makes tools that hold theirs back (git) give it.
//   - A tunnel is for the name that it was asked for: one in which TLS begins for
//     another is cut off ([opening]).
//   - One log line for each request, when it is over.
//   - A new policy holds from the next request on. What is open stays open: a tunnel to
//     a name that is no longer allowed ends by itself.
package gateway

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/elazarl/goproxy"

	"fabrique/steps/egress"
)

// Limits of a request.
const (
	dialTimeout    = 10 * time.Second // to resolve a name and to be connected
	idleTimeout    = 5 * time.Minute  // without a byte in either direction
	headerTimeout  = 10 * time.Second
	openingTimeout = 30 * time.Second // to begin TLS in a tunnel
	maxHeaderBytes = 16 << 10
)

// Gateway is the proxy: the [http.Handler] of its port.
type Gateway struct {
	log    *slog.Logger
	policy atomic.Pointer[egress.Policy]
	key    atomic.Pointer[egress.Key]
	recent *egress.Recent
	proxy  *goproxy.ProxyHttpServer
	dialer net.Dialer
	count  counters
	open   sync.Map // of *request
	openOf sync.Map // app to *atomic.Int64: only apps whose credential was right

	// Tests only: no configuration reaches them.
	loopback bool          // loopback addresses may be dialled
	idle     time.Duration // idleTimeout
}

// New makes a gateway.
func New(log *slog.Logger, policy *egress.Policy, key egress.Key) *Gateway {
	g := &Gateway{log: log, recent: egress.NewRecent(egress.MaxRecent), idle: idleTimeout}
	g.policy.Store(policy)
	g.key.Store(&key)
	g.dialer = net.Dialer{Timeout: dialTimeout, ControlContext: g.control, Resolver: &net.Resolver{PreferGo: true}}
	g.proxy = goproxy.NewProxyHttpServer()
	g.proxy.Logger = discard{}
	g.proxy.KeepAcceptEncoding = true
	g.proxy.ConnectDial = nil // else it would honour HTTPS_PROXY
	g.proxy.Tr = &http.Transport{
		DialContext: g.dial, DisableCompression: true, MaxResponseHeaderBytes: 4 * maxHeaderBytes,
		MaxIdleConns: 64, MaxIdleConnsPerHost: 16, IdleConnTimeout: 30 * time.Second,
	}
	g.proxy.ConnectionErrHandler = func(_ io.Writer, ctx *goproxy.ProxyCtx, err error) { of(ctx.Req.Context()).undone(err) }
	g.proxy.OnRequest().DoFunc(func(r *http.Request, ctx *goproxy.ProxyCtx) (*http.Request, *http.Response) {
		ctx.RoundTripper = goproxy.RoundTripperFunc(g.roundTrip)
		return r, nil
	})
	g.proxy.OnResponse().DoFunc(answered)
	return g
}

type discard struct{}

func (discard) Printf(string, ...any) {}

// SetPolicy makes a policy hold from the next request on.
func (g *Gateway) SetPolicy(p *egress.Policy) {
	g.policy.Store(p)
	g.proxy.Tr.CloseIdleConnections()
}

// SetKey makes a key hold from the next request on.
func (g *Gateway) SetKey(k egress.Key) { g.key.Store(&k) }

// ServeHTTP decides on one request and lets it through, or not.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	one := &request{gateway: g, started: time.Now(), method: r.Method, from: r.RemoteAddr, w: w}
	one.identify(r.Header.Get("Proxy-Authorization"))
	if why := malformed(r); why != "" {
		one.target = egress.Printable(r.URL.Host)
		why = "this is an egress proxy: " + why
		one.answer(http.StatusBadRequest, why, nil)
		one.end(egress.Refused, why)
		return
	}
	var port uint16
	if r.Method != http.MethodConnect {
		port = 80
	}
	target, err := egress.ParseTarget(r.URL.Host, port)
	one.target = target.String()
	policy := g.policy.Load()
	if err == nil {
		err = policy.Name(one.identity.App, target)
	}
	if err != nil {
		one.refuse(err, errors.Is(one.unknown, errNoCredential) && policy.AppsWith(target))
		return
	}
	if !g.take(one, policy.MaxTunnels()) {
		one.answer(http.StatusServiceUnavailable, "the egress gateway has too many connections open; try again", http.Header{"Retry-After": {"5"}})
		one.end(egress.Failed, "too many connections")
		return
	}
	r.URL.Host, r.Host = one.target, one.target
	if r.Method != http.MethodConnect && target.Port == 80 {
		r.URL.Host, r.Host = target.Host, target.Host
	}
	dropHopByHop(r.Header)
	if r.Header.Get("User-Agent") == "" {
		r.Header.Set("User-Agent", "") // else the transport would give its own
	}
	if r.Body != http.NoBody {
		// A server that does not read it may take it for another request, whose answer would
		// then wait on the connection for somebody else.
		r.Close = true
		r.Body = &counted{ReadCloser: r.Body, n: &one.sent}
	}
	defer one.served()
	g.proxy.ServeHTTP(one, r.WithContext(context.WithValue(r.Context(), requestKey{}, one)))
}

// served ends what goproxy is done with. A tunnel goes on.
func (one *request) served() {
	one.mu.Lock()
	tunnel := one.up != nil
	one.mu.Unlock()
	switch {
	case tunnel:
	case one.method == http.MethodConnect:
		one.end(egress.Failed, "the client went away")
	case one.broken != nil:
		one.end(egress.Failed, "egress to "+one.target+" failed: "+reason(one.broken))
		// What the client has must not look like the whole.
		panic(http.ErrAbortHandler)
	default:
		one.end(egress.Allowed, "")
	}
}

// malformed tells what is wrong with the form of a request. Every part of it that
// could name a second host is refused rather than ignored.
func malformed(r *http.Request) string {
	switch {
	case r.Method == http.MethodConnect && r.RequestURI != r.URL.Host:
		return "want CONNECT host:port"
	case r.Method == http.MethodConnect:
		return ""
	case r.URL.Scheme == "" || r.URL.Host == "":
		return "want an address as in GET http://host/path, or CONNECT host:port"
	case r.URL.Scheme != "http":
		return "want CONNECT host:port for " + r.URL.Scheme
	case r.URL.User != nil:
		return "want an address without a user"
	case (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Body != http.NoBody:
		return "want " + r.Method + " without a body"
	}
	return ""
}

// dropHopByHop removes what is between two neighbours only (RFC 9110 §7.6.1). Without
// Upgrade no connection leaves HTTP.
func dropHopByHop(h http.Header) {
	for _, line := range h.Values("Connection") {
		for name := range strings.SplitSeq(line, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range []string{"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Transfer-Encoding", "Upgrade"} {
		h.Del(name)
	}
}

// roundTrip sends a request that is no CONNECT on.
func (g *Gateway) roundTrip(r *http.Request, _ *goproxy.ProxyCtx) (*http.Response, error) {
	one := of(r.Context())
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { one.address.Store(info.Conn.RemoteAddr().String()) }}
	response, err := g.proxy.Tr.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
	if err != nil {
		return nil, err
	}
	if response.StatusCode == http.StatusSwitchingProtocols {
		response.Body.Close()
		return nil, errors.New("the server switches protocols unasked")
	}
	dropHopByHop(response.Header)
	response.Body = &counted{ReadCloser: response.Body, n: &one.received, broken: &one.broken}
	return response, nil
}

// answered sees that there is no answer to a request that is no CONNECT.
func answered(response *http.Response, ctx *goproxy.ProxyCtx) *http.Response {
	if response != nil {
		return response
	}
	of(ctx.Req.Context()).undone(ctx.Error)
	// What is made of this goes nowhere: the request has its answer.
	return goproxy.NewResponse(ctx.Req, goproxy.ContentTypeText, http.StatusBadGateway, "")
}

// share is the part of all tunnels that one app may have open, or all who are not known
// together: no app shuts the others out.
const (
	share  = 4
	fewest = 16 // however small that part is
)

// take counts a request among the open ones, unless there are too many.
func (g *Gateway) take(one *request, most int64) bool {
	if g.count.open.Add(1) > most {
		g.count.open.Add(-1)
		return false
	}
	own, _ := g.openOf.LoadOrStore(one.identity.App, new(atomic.Int64))
	one.own = own.(*atomic.Int64)
	if one.own.Add(1) > max(most/share, fewest) {
		one.own.Add(-1)
		g.count.open.Add(-1)
		return false
	}
	one.taken = true
	g.open.Store(one, nil)
	return true
}

// dial connects to a target that the policy has let through by its name. The name is
// taken as it is, never below one of the cluster's search domains.
func (g *Gateway) dial(ctx context.Context, network, target string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(target)
	if err != nil {
		return nil, err
	}
	conn, err := g.dialer.DialContext(ctx, network, net.JoinHostPort(host+".", port))
	if err != nil {
		return nil, err
	}
	one, tcp := of(ctx), conn.(*net.TCPConn)
	if one.method != http.MethodConnect {
		// It serves other requests too, so these count their bytes themselves.
		return watch(&watched{TCPConn: tcp}, g.idle, func() { tcp.Close() }), nil
	}
	one.address.Store(conn.RemoteAddr().String())
	up := &watched{TCPConn: tcp, read: &one.received, written: &one.sent, closed: func() { one.end(egress.Allowed, "") }}
	if up.first, err = one.opening(); err != nil {
		tcp.Close()
		return nil, err
	}
	if o := one.target; strings.HasSuffix(o, ":443") || strings.HasSuffix(o, ":80") {
		up.late = time.AfterFunc(openingTimeout, one.cut)
	}
	one.mu.Lock()
	one.up = up
	one.mu.Unlock()
	return watch(up, g.idle, one.cut), nil
}

// opening is what the tunnel's first words are held against.
func (one *request) opening() (func([]byte) ([]byte, error), error) {
	target, err := egress.ParseTarget(one.target, 0)
	if err != nil {
		return nil, err
	}
	o := opening{target: target}
	return func(b []byte) ([]byte, error) {
		o.held.Write(b)
		err := o.check()
		switch {
		case errors.Is(err, errMore):
			return nil, nil
		case err != nil:
			one.end(egress.Refused, err.Error())
			return nil, err
		}
		return o.held.Bytes(), nil
	}, nil
}

// control runs between the socket's making and its connecting, with the address that
// it is about to be connected to.
func (g *Gateway) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if g.loopback && a.Addr().IsLoopback() {
		return nil
	}
	return g.policy.Load().Address(a.Addr())
}

type requestKey struct{}

func of(ctx context.Context) *request { return ctx.Value(requestKey{}).(*request) }

// request is one on its way.
type request struct {
	gateway      *Gateway
	started      time.Time
	method, from string
	target       string
	identity     egress.Identity
	unknown      error // why nobody is known to ask

	w       http.ResponseWriter
	answers sync.Once
	done    bool // it has its answer: what follows goes nowhere
	status  int
	took    time.Duration // to the answer, if that is the gateway's own
	taken   bool          // it counts among the open ones
	own     *atomic.Int64 // how many are open of who asks
	broken  error         // what broke the answer off

	mu     sync.Mutex
	client net.Conn // once it is a tunnel's
	up     *watched // the tunnel's other side

	address        atomic.Value // string
	sent, received atomic.Int64
	ends           sync.Once
}

var errNoCredential = errors.New("none was given")

func (one *request) identify(header string) {
	scheme, encoded, _ := strings.Cut(header, " ")
	plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	user, password, ok := strings.Cut(string(plain), ":")
	switch {
	case header == "":
		one.unknown = errNoCredential
	case err != nil || !ok || !strings.EqualFold(scheme, "Basic"):
		one.unknown = egress.ErrWrong
	default:
		one.identity, one.unknown = one.gateway.key.Load().Verify(user, password, time.Now())
	}
}

// refuse answers with a refusal, or asks who it is.
func (one *request) refuse(err error, ask bool) {
	var refusal *egress.Refusal
	errors.As(err, &refusal)
	if refusal.Target == "" {
		refusal.Target = one.target
	}
	one.target = refusal.Target
	text, detail := refusal.Error(), refusal.Detail
	header, status := http.Header{"X-Egress-Refused": {text}}, http.StatusForbidden
	if ask {
		status = http.StatusProxyAuthRequired
		header.Set("Proxy-Authenticate", `Basic realm="egress"`)
		detail = "an app may: give the credential that is in HTTPS_PROXY"
	}
	one.answer(status, text, header, detail)
	verdict := egress.Refused
	if ask {
		verdict = egress.Asked
	}
	one.end(verdict, text)
}

// undone answers a request that the policy let through by its name and that led
// nowhere.
func (one *request) undone(err error) {
	var refusal *egress.Refusal
	if errors.As(err, &refusal) {
		own := *refusal
		one.refuse(&own, false)
		return
	}
	text := "egress to " + one.target + " failed: " + reason(err)
	one.answer(http.StatusBadGateway, text, nil)
	one.end(egress.Failed, text)
}

// reason says in few words, always the same, what failed: the error itself names ports
// and addresses that are never the same.
func reason(err error) string {
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return "no such host"
	case errors.As(err, &dns):
		return "the name cannot be resolved"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return "the network cannot be reached"
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return "timed out"
	case errors.Is(err, context.Canceled):
		return "the client went away"
	}
	return "the connection broke"
}

// end counts and logs the request, once.
func (one *request) end(verdict egress.Verdict, text string) {
	one.ends.Do(func() {
		g := one.gateway
		if one.taken {
			g.open.Delete(one)
			one.own.Add(-1)
			g.count.open.Add(-1)
		}
		sent, received := one.sent.Load(), one.received.Load()
		g.count.add(verdict, sent, received)
		g.recent.Add(egress.Request{
			App: one.identity.App, Workflow: one.identity.Workflow, Destination: one.target, Verdict: verdict, Message: text, Received: received,
		}, time.Now())
		attributes := []any{
			"verdict", verdict, "method", one.method, "destination", one.target, "app", one.identity.App, "workflow", one.identity.Workflow,
			"from", one.from, "sent", sent, "received", received, "took", cmp.Or(one.took, time.Since(one.started)).Round(time.Millisecond).String(),
		}
		if address, ok := one.address.Load().(string); ok {
			attributes = append(attributes, "address", address)
		}
		if one.status != 0 {
			attributes = append(attributes, "status", one.status)
		}
		if text != "" {
			attributes = append(attributes, "message", text)
		}
		if one.unknown != nil {
			attributes = append(attributes, "identity", one.unknown.Error())
		}
		g.log.Info("egress", attributes...)
	})
}
