package gateway

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"fabrique/steps/egress"
	"fabrique/steps/egress/dnstest"
)

// testKey is the gateway's.
var testKey egress.Key

func TestMain(m *testing.M) {
	if settings := os.Getenv(envChild); settings != "" {
		child(settings)
	}
	os.Setenv(egress.EnvKey, "0123456789abcdef0123456789abcdef")
	testKey = must(egress.LoadKey(""))
	os.Unsetenv(egress.EnvKey)
	os.Exit(m.Run())
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// world is a gateway on loopback.
type world struct {
	*Gateway
	t      testing.TB
	dns    *dnstest.Server
	server *httptest.Server
	lines  *lines
}

// start starts a gateway to which loopback is the Internet.
func start(t testing.TB, rules egress.Rules) *world {
	t.Helper()
	if rules.MaxTunnels == 0 {
		rules.MaxTunnels = egress.DefaultMaxTunnels
	}
	rules.Check(func(field string, err error) { t.Fatal(field, err) })
	w := &world{t: t, dns: dnstest.Start(t), lines: new(lines)}
	w.Gateway = New(slog.New(slog.NewJSONHandler(w.lines, nil)), egress.NewPolicy(rules), testKey)
	w.loopback = true
	w.dialer.Resolver = w.dns.Resolver()
	w.server = httptest.NewUnstartedServer(w.Gateway)
	w.server.Config = w.Gateway.server()
	w.server.Start()
	t.Cleanup(func() {
		w.open.Range(func(one, _ any) bool { one.(*request).cut(); return true })
		w.server.CloseClientConnections()
		w.server.Close()
	})
	return w
}

func (w *world) address() string { return w.server.Listener.Addr().String() }

// client is an HTTP client that goes through the gateway, as somebody.
func (w *world) client(user *url.Userinfo) *http.Client {
	proxy := &url.URL{Scheme: "http", Host: w.address(), User: user}
	transport := &http.Transport{Proxy: http.ProxyURL(proxy), DisableKeepAlives: true}
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

// raw sends bytes to the gateway and gives the connection.
func (w *world) raw(format string, args ...any) (net.Conn, *bufio.Reader) {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.address())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprintf(conn, format, args...)
	return conn, bufio.NewReader(conn)
}

// ask sends a request and gives the whole answer, its status line first.
func (w *world) ask(format string, args ...any) (*http.Response, string) {
	w.t.Helper()
	_, r := w.raw(format, args...)
	response, err := http.ReadResponse(r, nil)
	if err != nil {
		w.t.Fatalf("%q: %v", fmt.Sprintf(format, args...), err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return response, string(body)
}

// lines are the log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

type line struct {
	Level, Msg, Verdict, Method, Destination, App, Workflow, Message, Identity, Address, From string
	Sent, Received                                                                            int64
	Status                                                                                    int
}

func (l *lines) all(t testing.TB) []line {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []line
	for text := range strings.Lines(l.text.String()) {
		var one line
		if err := json.Unmarshal([]byte(text), &one); err != nil {
			t.Fatal(err)
		}
		if one.Msg == "egress" {
			all = append(all, one)
		}
	}
	return all
}

// wait waits until there are n lines about requests.
func (l *lines) wait(t testing.TB, n int) []line {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if all := l.all(t); len(all) >= n {
			return all
		} else if time.Now().After(end) {
			t.Fatalf("%d lines, want %d: %+v", len(all), n, all)
		}
	}
}

// tcp starts a server on loopback and gives its port.
func tcp(t testing.TB, serve func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port
}

func echo(c net.Conn) { io.Copy(c, c) }

func web(t testing.TB, handler http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	return port
}
