package gateway

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"fabrique/steps/egress"
	"fabrique/steps/step"
)

// Options of [Run].
type Options struct {
	Listen string // address of the proxy, as ":3128"
	Admin  string // address of what it tells of itself, as ":9090"
	Policy string // file with the rules, [egress.Rules.JSON]
	Key    string // file with the key of the credentials; empty for [egress.EnvKey], or none
}

const (
	pollInterval = 2 * time.Second
	// lameDuck is how long connections are still taken after SIGTERM: clients learn
	// only by and by that another pod is there.
	lameDuck = 3 * time.Second
	// drain is how long what is open may take to end after that. Kubernetes kills 30
	// seconds after SIGTERM.
	drain = 20 * time.Second
)

// Run serves until the context ends, then lets what is open end, and returns nil.
// Exit code 2 for a policy or key that cannot be used and an address that cannot be
// listened on.
func Run(ctx context.Context, log *slog.Logger, o Options) error {
	text, err := os.ReadFile(o.Policy)
	if err != nil {
		return step.Invalidf("reading the egress policy: %w", err)
	}
	rules, err := egress.ParseRules(text)
	if err != nil {
		return err
	}
	key, err := egress.LoadKey(o.Key)
	if err != nil {
		return err
	}
	if key.IsZero() {
		log.Warn("there is no key: no app is known, and the lists of single apps are of no use")
	}
	g := New(log, egress.NewPolicy(rules), key)
	proxy, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return step.Invalidf("listening as a proxy: %w", err)
	}
	defer proxy.Close()
	admin, err := net.Listen("tcp", o.Admin)
	if err != nil {
		return step.Invalidf("listening for questions: %w", err)
	}
	defer admin.Close()

	server, asked := g.server(), &http.Server{Handler: g.Admin(), ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: maxHeaderBytes}
	failed := make(chan error, 2)
	go func() { failed <- server.Serve(proxy) }()
	go func() { failed <- asked.Serve(admin) }()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go g.watch(watching, o, sha256.Sum256(text))
	log.Info("serving", "proxy", proxy.Addr().String(), "admin", admin.Addr().String(), "names", len(rules.Allow), "apps", len(rules.Apps))
	select {
	case err := <-failed:
		return step.Retryf("serving: %w", err)
	case <-ctx.Done():
	}
	log.Info("ending", "because", context.Cause(ctx).Error(), "open", g.count.open.Load())
	time.Sleep(lameDuck)
	g.shutdown(server, drain)
	asked.Close()
	return nil
}

// server gives the proxy's, which keeps the number of connections within bounds too,
// also of those that ask for nothing.
func (g *Gateway) server() *http.Server {
	var waiting atomic.Int64
	return &http.Server{
		Handler: g, ReadHeaderTimeout: headerTimeout, IdleTimeout: time.Minute, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
		ConnState: func(c net.Conn, s http.ConnState) {
			switch s {
			case http.StateNew:
				if waiting.Add(1) > 2*g.policy.Load().MaxTunnels() {
					c.Close()
				}
			case http.StateClosed, http.StateHijacked:
				waiting.Add(-1)
			}
		},
	}
}

// shutdown takes no more connections, waits for the open ones, and cuts off those
// that last longer.
func (g *Gateway) shutdown(server *http.Server, patience time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		server.Close()
	}
	for g.count.open.Load() > 0 && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	g.open.Range(func(one, _ any) bool {
		one.(*request).cut()
		return true
	})
}

// watch takes a changed policy or key. One that cannot be used changes nothing but
// the log. A file in a volume of Kubernetes is replaced, so it is read anew each time.
func (g *Gateway) watch(ctx context.Context, o Options, seen [sha256.Size]byte) {
	keyTrouble := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pollInterval):
		}
		seen = g.reload(o.Policy, seen)
		switch key, err := egress.LoadKey(o.Key); {
		case err == nil:
			keyTrouble = ""
			g.SetKey(key)
		case err.Error() != keyTrouble:
			keyTrouble = err.Error()
			g.log.Error("keeping the key as it was: " + keyTrouble)
		}
	}
}

// reload reads the policy if its file is not the one that was seen, and gives what is
// seen now.
func (g *Gateway) reload(file string, seen [sha256.Size]byte) [sha256.Size]byte {
	text, err := os.ReadFile(file)
	now := sha256.Sum256(text)
	if err != nil {
		now = sha256.Sum256([]byte(err.Error()))
	}
	if now == seen {
		return seen
	}
	var rules egress.Rules
	if err == nil {
		rules, err = egress.ParseRules(text)
	}
	if err != nil {
		g.count.invalid.Add(1)
		g.log.Error("keeping the policy as it was: " + err.Error())
		return now
	}
	g.SetPolicy(egress.NewPolicy(rules))
	g.count.reloads.Add(1)
	g.log.Info("a new policy", "names", len(rules.Allow), "apps", len(rules.Apps))
	return now
}

// Admin answers /healthz, /metrics and /requests ([egress.Recent]).
func (g *Gateway) Admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		g.count.write(w)
	})
	mux.Handle("GET /requests", g.recent)
	return mux
}
