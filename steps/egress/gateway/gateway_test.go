package gateway

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fabrique/steps/egress"
)

func list(format string, args ...any) []egress.Destination {
	return []egress.Destination{egress.Destination(fmt.Sprintf(format, args...))}
}

func TestPlainHTTP(t *testing.T) {
	port := web(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Length", "5")
		w.Header().Set("Keep-Alive", "timeout=9")
		fmt.Fprintf(w, "%.5s", string(body)+"hello")
	})
	w := start(t, egress.Rules{Allow: list("listed.example:%s", port)})
	w.dns.Set("listed.example", "127.0.0.1")
	for range 3 {
		got, err := w.client(nil).Get("http://LISTED.example:" + port + "/a?b")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(got.Body)
		if got.StatusCode != 200 || string(body) != "hello" || got.ContentLength != 5 || got.Header.Get("Keep-Alive") != "" {
			t.Errorf("%s %q %v", got.Status, body, got.Header)
		}
	}
	got, err := w.client(nil).Post("http://listed.example:"+port+"/", "text/plain", strings.NewReader("posted"))
	if err != nil {
		t.Fatal(err)
	}
	if body, _ := io.ReadAll(got.Body); string(body) != "poste" {
		t.Errorf("%q", body)
	}
	last := w.lines.wait(t, 4)[3]
	last.From = ""
	want := line{
		Level: "INFO", Msg: "egress", Verdict: "allowed", Method: "POST", Destination: "listed.example:" + port, Address: "127.0.0.1:" + port,
		Identity: "none was given", Sent: 6, Received: 5, Status: 200,
	}
	if diff := cmp.Diff(want, last); diff != "" {
		t.Error(diff)
	}
	for _, name := range w.dns.Asked() {
		if name != "listed.example." {
			t.Errorf("it asked DNS for %s", name)
		}
	}
}

// What is for the gateway stays there, and nothing of the request is changed beside.
func TestHeaders(t *testing.T) {
	seen := make(chan *http.Request, 1)
	port := web(t, func(_ http.ResponseWriter, r *http.Request) { seen <- r })
	w := start(t, egress.Rules{Allow: list("listed.example:%s", port)})
	w.dns.Set("listed.example", "127.0.0.1")
	w.ask("GET http://listed.example:%s/x HTTP/1.1\r\nHost: other.example\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 1\r\nTE: trailers\r\nUpgrade: h2c\r\n"+
		"Proxy-Authorization: Basic YTpi\r\nProxy-Connection: keep-alive\r\nAuthorization: Basic mine\r\nX-End: 2\r\n\r\n", port)
	r := <-seen
	want := http.Header{"Authorization": {"Basic mine"}, "X-End": {"2"}}
	if diff := cmp.Diff(want, r.Header); diff != "" || r.Host != "listed.example:"+port {
		t.Errorf("host %s %s", r.Host, diff)
	}
}

func TestTunnel(t *testing.T) {
	port := tcp(t, func(c net.Conn) {
		all, _ := io.ReadAll(c) // it answers what is only half closed
		fmt.Fprintf(c, "got %s", all)
	})
	w := start(t, egress.Rules{Allow: list("listed.example:%s", port)})
	w.dns.Set("listed.example", "127.0.0.1")
	for i, early := range []string{"", "early "} { // sent before the gateway has answered
		conn, r := w.raw("CONNECT listed.example:%s HTTP/1.1\r\nHost: x\r\n\r\n%s", port, early)
		response, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
		if err != nil || response.StatusCode != 200 {
			t.Fatal(response, err)
		}
		io.WriteString(conn, "late")
		conn.(*net.TCPConn).CloseWrite()
		if got, err := io.ReadAll(r); err != nil || string(got) != "got "+early+"late" {
			t.Errorf("%q, %v", got, err)
		}
		l := w.lines.wait(t, i+1)[i]
		want := line{
			Level: "INFO", Msg: "egress", Verdict: "allowed", Method: "CONNECT", Destination: "listed.example:" + port, Address: "127.0.0.1:" + port,
			Identity: "none was given", Sent: int64(4 + 6*i), Received: int64(8 + 6*i), From: l.From,
		}
		if diff := cmp.Diff(want, l); diff != "" {
			t.Error(diff)
		}
	}
	if n := w.count.open.Load(); n != 0 {
		t.Errorf("%d are still open", n)
	}
}

// A refusal names the destination in the status line, the header and the body.
func TestRefusal(t *testing.T) {
	reached := atomic.Int32{}
	port := tcp(t, func(net.Conn) { reached.Add(1) })
	w := start(t, egress.Rules{Allow: list("listed.example:%s", port)})
	w.dns.Set("listed.example", "127.0.0.1")
	w.dns.Set("evil.example", "127.0.0.1")
	w.dns.Set("localhost", "127.0.0.1")
	for request, destination := range map[string]string{
		"CONNECT evil.example:443":                             "evil.example:443",
		"CONNECT listed.example:443":                           "listed.example:443",
		"CONNECT EVIL.example.:443":                            "evil.example:443",
		"CONNECT 127.0.0.1:" + port:                            "127.0.0.1:" + port,
		"CONNECT 127.1:" + port:                                "127.1:" + port,
		"CONNECT 0x7f.1:" + port:                               "0x7f.1:" + port,
		"CONNECT 2130706433:" + port:                           "2130706433:" + port,
		"CONNECT 017700000001:" + port:                         "017700000001:" + port,
		"CONNECT [::1]:" + port:                                "[::1]:" + port,
		"CONNECT [::ffff:127.0.0.1]:" + port:                   "[::ffff:127.0.0.1]:" + port,
		"CONNECT localhost:" + port:                            "localhost:" + port,
		"CONNECT listed.example.evil.example:" + port:          "listed.example.evil.example:" + port,
		"GET http://evil.example/":                             "evil.example:80",
		"GET http://127.0.0.1:" + port + "/":                   "127.0.0.1:" + port,
		"GET http://[::ffff:7f00:1]:" + port + "/":             "[::ffff:7f00:1]:" + port,
		"GET http://127.1:" + port + "/":                       "127.1:" + port,
		"GET http://evil.example:" + port + "/@listed.example": "evil.example:" + port,
		"POST http://evil.example:81/listed.example":           "evil.example:81",
	} {
		response, body := w.ask("%s HTTP/1.1\r\nHost: listed.example:%s\r\n\r\n", request, port)
		text := "egress to " + destination + " refused; allow it under egress.allow"
		if response.Status != "403 "+text || response.Header.Get("X-Egress-Refused") != text || !strings.HasPrefix(body, text+"\n") {
			t.Errorf("%s: %q %v %q", request, response.Status, response.Header, body)
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("%d reached a server", n)
	}
	if len(w.dns.Asked()) != 0 {
		t.Errorf("it asked DNS for %v", w.dns.Asked())
	}
}

// Requests of a form in which a second host could hide.
func TestMalformed(t *testing.T) {
	reached := atomic.Int32{}
	port := tcp(t, func(net.Conn) { reached.Add(1) })
	w := start(t, egress.Rules{Allow: list("listed.example:%s", port)})
	w.dns.Set("listed.example", "127.0.0.1")
	w.dns.Set("evil.example", "127.0.0.1")
	for request, status := range map[string]int{
		"CONNECT listed.example:%s@evil.example:443": 400,
		"CONNECT user@listed.example:%s":             400,
		"CONNECT listed.example:%s/path":             400,
		"CONNECT http://listed.example:%s/":          400,
		"CONNECT /listed.example:%s":                 400,
		"CONNECT listed.example":                     403,
		"CONNECT listed.example:0x50":                400,
		"CONNECT listed.example:99999":               403,
		"CONNECT listed.example%%00:%s":              400,
		"GET http://listed.example:%s@evil.example/": 400,
		"GET http://user:pw@listed.example:%s/":      400,
		"GET https://listed.example:%s/":             400,
		"GET ftp://listed.example:%s/":               400,
		"GET //listed.example:%s/":                   400,
		"GET /":                                      400,
		"GET listed.example:%s":                      400,
		"GET http:listed.example:%s":                 400,
		"GET http://":                                400,
		"GET http://listed.example\t:%s/":            400,
	} {
		line := strings.Replace(request, "%s", port, 1)
		response, body := w.ask("%s HTTP/1.1\r\nHost: listed.example\r\n\r\n", strings.ReplaceAll(line, "%%", "%"))
		if response.StatusCode != status {
			t.Errorf("%s: %s %q", line, response.Status, body)
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("%d reached a server", n)
	}
}

// A name that leads to another address the next time is looked at the next time.
func TestRebinding(t *testing.T) {
	port := tcp(t, echo)
	w := start(t, egress.Rules{
		Allow: list("listed.example:%s", port), DenyCIDRs: []egress.Network{"198.41.0.0/24"}, AllowPrivate: []egress.Network{"10.255.0.0/16"},
	})
	connect := func() (string, string) {
		response, body := func() (*http.Response, string) {
			_, r := w.raw("CONNECT listed.example:%s HTTP/1.1\r\nHost: x\r\n\r\n", port)
			response, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
			if err != nil {
				t.Fatal(err)
			}
			return response, response.Header.Get("X-Egress-Refused")
		}()
		return response.Status, body
	}
	w.dns.Set("listed.example", "127.0.0.1")
	if status, _ := connect(); status != "200 Connection established" {
		t.Fatal(status)
	}
	for address, why := range map[string]string{
		"10.0.0.1":        "a private address; egress.allowPrivate may exempt it",
		"192.168.0.1":     "a private address; egress.allowPrivate may exempt it",
		"169.254.169.254": "a cloud's metadata service",
		"100.64.0.1":      "an address of a carrier's own network; egress.allowPrivate may exempt it",
		"198.41.0.4":      "which egress.denyCIDRs denies",
		"0.0.0.0":         "an unspecified address",
		"fd00::1":         "a private address; egress.allowPrivate may exempt it",
		"fe80::1":         "a link-local address",
		"64:ff9b::a00:1":  "a refused IPv4 address in IPv6",
	} {
		w.dns.Set("listed.example", address)
		for _, ask := range []func() (string, string){connect, func() (string, string) {
			response, _ := w.ask("GET http://listed.example:%s/ HTTP/1.1\r\nHost: x\r\n\r\n", port)
			return response.Status, response.Header.Get("X-Egress-Refused")
		}} {
			status, header := ask()
			text := fmt.Sprintf("egress to listed.example:%s refused: it leads to %s, %s", port, address, why)
			if status != "403 "+text || header != text {
				t.Errorf("%s: %q %q", address, status, header)
			}
		}
	}
	// One good address among bad ones is used, and no other.
	w.dns.Set("listed.example", "10.0.0.1", "127.0.0.1", "192.168.0.1")
	if status, _ := connect(); status != "200 Connection established" {
		t.Error(status)
	}
	// Loopback is no exception but in tests.
	w.loopback = false
	w.dns.Set("listed.example", "127.0.0.1")
	if status, _ := connect(); !strings.Contains(status, "it leads to 127.0.0.1, a loopback address") {
		t.Error(status)
	}
	w.dns.Set("listed.example", "::1")
	if status, _ := connect(); !strings.Contains(status, "it leads to ::1, a loopback address") {
		t.Error(status)
	}
	w.dns.Set("listed.example", "::ffff:127.0.0.1")
	if status, _ := connect(); !strings.Contains(status, "it leads to 127.0.0.1, a loopback address") {
		t.Error(status)
	}
}

// What cannot be reached is told in the status line too, always in the same words.
func TestUnreachable(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	_, port, _ := net.SplitHostPort(closed.Addr().String())
	w := start(t, egress.Rules{Allow: list("*.listed.example:%s", port)})
	w.dns.Set("closed.listed.example", "127.0.0.1")
	for name, why := range map[string]string{"closed": "connection refused", "none": "no such host"} {
		for _, format := range []string{"CONNECT %s.listed.example:%s HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://%s.listed.example:%s/ HTTP/1.1\r\nHost: x\r\n\r\n"} {
			response, _ := w.ask(format, name, port)
			if want := fmt.Sprintf("502 egress to %s.listed.example:%s failed: %s", name, port, why); response.Status != want {
				t.Errorf("%q, want %q", response.Status, want)
			}
		}
	}
	for _, one := range w.recent.Find(egress.Filter{}).Requests {
		if one.Verdict != egress.Failed || one.Count != 2 {
			t.Errorf("%+v", one)
		}
	}
}

// A tunnel is for its own name: TLS begun there for another, or for none, or what is no
// TLS on a port of HTTP, never arrives. What is encrypted then the gateway cannot see.
func TestTunnelIsForItsName(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", r.TLS.ServerName, r.Host)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	for name, want := range map[string]struct{ said, message string }{
		"listed.example": {"listed.example host.example", ""},
		"LISTED.example": {"LISTED.example host.example", ""},
		"sni.example":    {"", "egress to listed.example:" + port + " refused: TLS was begun there for sni.example"},
		"":               {"", "egress to listed.example:" + port + " refused: TLS was begun there without a server name"},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, egress.Rules{Allow: list("listed.example:%s", port)})
			w.dns.Set("listed.example", "127.0.0.1")
			conn, r := w.raw("CONNECT listed.example:%s HTTP/1.1\r\nHost: evil.example:443\r\n\r\n", port)
			if response, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect}); err != nil || response.StatusCode != 200 {
				t.Fatal(response, err)
			}
			inner := tls.Client(slow{conn}, &tls.Config{ServerName: name, InsecureSkipVerify: true})
			fmt.Fprintf(inner, "GET / HTTP/1.1\r\nHost: host.example\r\nConnection: close\r\n\r\n")
			said := ""
			if response, err := http.ReadResponse(bufio.NewReader(inner), nil); err == nil {
				body, _ := io.ReadAll(response.Body)
				said = string(body)
			}
			inner.Close()
			l := w.lines.wait(t, 1)[0]
			verdict := "allowed"
			if want.message != "" {
				verdict = "refused"
			}
			if said != want.said || l.Message != want.message || l.Verdict != verdict || want.message != "" && l.Sent != 0 {
				t.Errorf("said %q, %+v", said, l)
			}
		})
	}
}

// slow says everything in pieces.
type slow struct{ net.Conn }

func (s slow) Write(b []byte) (int, error) {
	for at := 0; at < len(b); {
		n, err := s.Conn.Write(b[at:min(at+100, len(b))])
		at += n
		if err != nil {
			return at, err
		}
		time.Sleep(time.Millisecond)
	}
	return len(b), nil
}

// A redirect is the client's to follow, and decided on when it does.
func TestRedirect(t *testing.T) {
	reached := atomic.Int32{}
	other := web(t, func(http.ResponseWriter, *http.Request) { reached.Add(1) })
	port := web(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://evil.example:"+other+"/", http.StatusFound)
	})
	w := start(t, egress.Rules{Allow: list("listed.example:%s", port)})
	w.dns.Set("listed.example", "127.0.0.1")
	w.dns.Set("evil.example", "127.0.0.1")
	response, err := w.client(nil).Get("http://listed.example:" + port + "/")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if want := "403 egress to evil.example:" + other + " refused; allow it under egress.allow"; response.Status != want || reached.Load() != 0 {
		t.Errorf("%q, reached %d times", response.Status, reached.Load())
	}
}

// However a request's end is told, the gateway and the server agree on it; and every
// request on a connection is decided on.
func TestSmuggling(t *testing.T) {
	var seen []string
	got := make(chan string, 10)
	port := web(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- fmt.Sprintf("%s %s %v %d %q", r.Method, r.URL.Path, r.TransferEncoding, r.ContentLength, body)
	})
	w := start(t, egress.Rules{Allow: list("listed.example:%s", port)})
	w.dns.Set("listed.example", "127.0.0.1")
	host := "listed.example:" + port
	for name, c := range map[string]struct {
		request string
		status  []int
		seen    []string
	}{
		"length and chunks": {
			"POST http://" + host + "/a HTTP/1.1\r\nHost: x\r\nContent-Length: 60\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" +
				"GET http://evil.example/smuggled HTTP/1.1\r\nHost: x\r\n\r\n",
			[]int{200, 403}, []string{`POST /a [chunked] -1 "abc"`},
		},
		"two lengths": {
			"POST http://" + host + "/b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", []int{400}, nil,
		},
		"unknown encoding": {
			"POST http://" + host + "/c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", []int{501}, nil,
		},
		"encoding twice": {
			"POST http://" + host + "/d HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", []int{501}, nil,
		},
		"space before the colon": {
			"POST http://" + host + "/e HTTP/1.1\r\nHost: x\r\nContent-Length : 3\r\n\r\nabc", []int{400}, nil,
		},
		"two hosts": {
			"GET http://" + host + "/f HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", []int{400}, nil,
		},
		"a length dropped by Connection": {
			"POST http://" + host + "/g HTTP/1.1\r\nHost: x\r\nConnection: Content-Length\r\nContent-Length: 3\r\n\r\nabc", []int{200}, []string{`POST /g [] 3 "abc"`},
		},
		"one after the other": {
			"GET http://" + host + "/h HTTP/1.1\r\nHost: x\r\n\r\nCONNECT evil.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", []int{200, 403}, []string{`GET /h [] 0 ""`},
		},
		"CONNECT with a length": {
			"CONNECT evil.example:443 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabcde", []int{403}, nil,
		},
		"a line of its own": {
			"GET http://" + host + "/i HTTP/1.1\r\nHost: x\r\nX: a\n\tb: c\r\n\r\n", []int{200}, []string{`GET /i [] 0 ""`},
		},
	} {
		conn, r := w.raw("%s", c.request)
		var status []int
		for range c.status {
			response, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				break
			}
			io.Copy(io.Discard, response.Body)
			status = append(status, response.StatusCode)
		}
		conn.Close()
		if diff := cmp.Diff(c.status, status); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		seen = nil
		for range c.seen {
			seen = append(seen, <-got)
		}
		if diff := cmp.Diff(c.seen, seen); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	select {
	case more := <-got:
		t.Errorf("the server also saw %s", more)
	case <-time.After(50 * time.Millisecond):
	}
}

func TestIdentity(t *testing.T) {
	port := web(t, func(http.ResponseWriter, *http.Request) {})
	w := start(t, egress.Rules{
		Allow: list("common.example:%s", port), Apps: map[string][]egress.Destination{"citation": list("own.example:%s", port), "other": list("others.example:%s", port)},
	})
	for _, name := range []string{"common.example", "own.example", "others.example"} {
		w.dns.Set(name, "127.0.0.1")
	}
	citation := egress.Identity{App: "citation", Workflow: "push-722251"}
	good := testKey.Credential(citation, time.Now().Add(time.Hour))
	password, _ := good.Password()
	for _, c := range []struct {
		who      string
		user     *url.Userinfo
		name     string
		status   int
		identity string
	}{
		{"the app", good, "common", 200, ""},
		{"the app", good, "own", 200, ""},
		{"the app", good, "others", 403, ""},
		{"the app", good, "evil", 403, ""},
		{"nobody", nil, "common", 200, "none was given"},
		{"nobody", nil, "own", 407, "none was given"},
		{"nobody", nil, "evil", 403, "none was given"},
		{"expired", testKey.Credential(citation, time.Now().Add(-time.Second)), "common", 200, egress.ErrExpired.Error()},
		{"expired", testKey.Credential(citation, time.Now().Add(-time.Second)), "own", 403, egress.ErrExpired.Error()},
		{"another's password", url.UserPassword("other", password), "others", 403, egress.ErrWrong.Error()},
		{"a forged one", url.UserPassword("citation", "9999999999.AAAA"), "own", 403, egress.ErrWrong.Error()},
		{"a forged one", url.UserPassword("citation", "9999999999.AAAA"), "common", 200, egress.ErrWrong.Error()},
	} {
		before := len(w.lines.all(t))
		response, err := w.client(c.user).Get("http://" + c.name + ".example:" + port + "/")
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != c.status || c.status > 400 && !strings.HasSuffix(response.Status, "refused; allow it under egress.allow") {
			t.Errorf("%s at %s: %s", c.who, c.name, response.Status)
		}
		l := w.lines.wait(t, before+1)[before]
		app := ""
		if c.identity == "" {
			app = "citation"
		}
		if l.Identity != c.identity || l.App != app || l.App != "" && l.Workflow != "push-722251" {
			t.Errorf("%s at %s: %+v", c.who, c.name, l)
		}
	}
	refused := w.recent.Find(egress.Filter{App: "citation", Workflow: "push-722251", Verdict: egress.Refused}).Requests
	if len(refused) != 2 || refused[0].Message != "egress to evil.example:"+port+" refused; allow it under egress.allow" {
		t.Errorf("%+v", refused)
	}
	if all := w.recent.Find(egress.Filter{}).Requests; len(all) != 9 {
		t.Errorf("%d entries: %+v", len(all), all)
	}
}

// A policy that changes does not touch what is under way, by tunnel or plain HTTP.
func TestReloadInMidDownload(t *testing.T) {
	half, rest := make(chan bool), make(chan bool)
	const size = 1 << 20
	port := web(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(2*size))
		w.Write(make([]byte, size))
		w.(http.Flusher).Flush()
		half <- true
		<-rest
		w.Write(make([]byte, size))
	})
	w := start(t, egress.Rules{Allow: list("listed.example:%s", port)})
	w.dns.Set("listed.example", "127.0.0.1")
	for _, format := range []string{
		"GET http://listed.example:%s/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"CONNECT listed.example:%s HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		allowed := egress.NewPolicy(egress.Rules{Allow: list("listed.example:%s", port), MaxTunnels: 9})
		w.SetPolicy(allowed)
		_, r := w.raw(format, port)
		<-half
		w.SetPolicy(egress.NewPolicy(egress.Rules{MaxTunnels: 9}))
		if response, _ := w.ask("GET http://listed.example:%s/ HTTP/1.1\r\nHost: x\r\n\r\n", port); response.StatusCode != 403 {
			t.Errorf("the new policy does not hold: %s", response.Status)
		}
		rest <- true
		if strings.HasPrefix(format, "CONNECT") {
			if _, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect}); err != nil {
				t.Fatal(err)
			}
		}
		response, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, response.Body); n != 2*size || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
	}
}

// A connection to a destination is used again, but not past a change of the policy: the
// address is looked at anew.
func TestReloadEndsIdleConnections(t *testing.T) {
	from := make(chan string, 3)
	port := web(t, func(_ http.ResponseWriter, r *http.Request) { from <- r.RemoteAddr })
	rules := egress.Rules{Allow: list("listed.example:%s", port), MaxTunnels: 9}
	w := start(t, rules)
	w.dns.Set("listed.example", "127.0.0.1")
	ask := func() string {
		w.ask("GET http://listed.example:%s/ HTTP/1.1\r\nHost: x\r\n\r\n", port)
		return <-from
	}
	first, second := ask(), ask()
	w.SetPolicy(egress.NewPolicy(rules))
	if third := ask(); first != second || third == second {
		t.Errorf("connections %s, %s, %s", first, second, third)
	}
}

// A download that breaks off does not look like a whole one.
func TestBrokenOff(t *testing.T) {
	port := tcp(t, func(c net.Conn) {
		http.ReadRequest(bufio.NewReader(c))
		io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
	})
	w := start(t, egress.Rules{Allow: list("listed.example:%s", port)})
	w.dns.Set("listed.example", "127.0.0.1")
	response, err := w.client(nil).Get("http://listed.example:" + port + "/")
	if err == nil {
		var body []byte
		if body, err = io.ReadAll(response.Body); err == nil {
			t.Errorf("%q looks whole", body)
		}
	}
	if l := w.lines.wait(t, 1)[0]; l.Verdict != "failed" || l.Received != 3 {
		t.Errorf("%+v", l)
	}
}

func TestUpgradeIsNoWayOut(t *testing.T) {
	port := tcp(t, func(c net.Conn) {
		http.ReadRequest(bufio.NewReader(c))
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		io.Copy(c, c)
	})
	w := start(t, egress.Rules{Allow: list("listed.example:%s", port)})
	w.dns.Set("listed.example", "127.0.0.1")
	response, _ := w.ask("GET http://listed.example:%s/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", port)
	if response.StatusCode != 502 {
		t.Error(response.Status)
	}
}

func TestLimits(t *testing.T) {
	port := tcp(t, echo)
	w := start(t, egress.Rules{Allow: list("listed.example:%s", port), MaxTunnels: 2})
	w.dns.Set("listed.example", "127.0.0.1")
	connect := func() (net.Conn, int) {
		conn, r := w.raw("CONNECT listed.example:%s HTTP/1.1\r\nHost: x\r\n\r\n", port)
		response, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
		if err != nil {
			t.Fatal(err)
		}
		return conn, response.StatusCode
	}
	first, status := connect()
	if _, also := connect(); status != 200 || also != 200 {
		t.Fatal(status, also)
	}
	if _, status := connect(); status != http.StatusServiceUnavailable {
		t.Errorf("the third: %d", status)
	}
	first.Close()
	w.lines.wait(t, 2)
	if _, status := connect(); status != 200 {
		t.Errorf("after one has ended: %d", status)
	}
	if response, _ := w.ask("GET http://listed.example:%s/ HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n", port, strings.Repeat("x", 4*maxHeaderBytes)); response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Error(response.Status)
	}
	// Connections that ask for nothing are bounded too: more than twice as many are
	// closed at once.
	closed := 0
	for range 20 {
		conn, err := net.Dial("tcp", w.address())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		var timeout net.Error
		if _, err := conn.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
			closed++
		}
	}
	if closed < 16 || closed == 20 {
		t.Errorf("%d of 20 were closed", closed)
	}
}

func TestIdleTunnelsEnd(t *testing.T) {
	port := tcp(t, echo)
	w := start(t, egress.Rules{Allow: list("listed.example:%s", port)})
	w.idle = 300 * time.Millisecond
	w.dns.Set("listed.example", "127.0.0.1")
	conn, r := w.raw("CONNECT listed.example:%s HTTP/1.1\r\nHost: x\r\n\r\n", port)
	if _, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect}); err != nil {
		t.Fatal(err)
	}
	for range 8 { // longer than it may be idle
		time.Sleep(100 * time.Millisecond)
		io.WriteString(conn, "x")
		if _, err := r.ReadByte(); err != nil {
			t.Fatalf("it ended while it was used: %v", err)
		}
	}
	if _, err := r.ReadByte(); err == nil {
		t.Error("it did not end")
	}
	if l := w.lines.wait(t, 1)[0]; l.Sent != 8 || l.Received != 8 {
		t.Errorf("%+v", l)
	}
}

// An app that opens as many tunnels as it can leaves others theirs.
func TestShare(t *testing.T) {
	port := tcp(t, echo)
	w := start(t, egress.Rules{Allow: list("listed.example:%s", port), MaxTunnels: 8 * fewest})
	w.dns.Set("listed.example", "127.0.0.1")
	connect := func(app string) int {
		credential := testKey.Credential(egress.Identity{App: app, Workflow: "push-1"}, time.Now().Add(time.Hour))
		header := "Basic " + base64.StdEncoding.EncodeToString([]byte(credential.String()))
		_, r := w.raw("CONNECT listed.example:%s HTTP/1.1\r\nHost: x\r\nProxy-Authorization: %s\r\n\r\n", port, header)
		response, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode
	}
	for i := range 2*fewest + 1 {
		want := http.StatusOK
		if i == 2*fewest {
			want = http.StatusServiceUnavailable
		}
		if got := connect("greedy"); got != want {
			t.Fatalf("tunnel %d: %d, want %d", i, got, want)
		}
	}
	if got := connect("other"); got != http.StatusOK {
		t.Errorf("another app is turned away: %d", got)
	}
}

// A request that a server may answer twice, as it does not read the body, is none; and
// nothing is sent on a connection after another one with a body.
func TestBodies(t *testing.T) {
	connections := make(chan string, 10)
	port := web(t, func(_ http.ResponseWriter, r *http.Request) { connections <- r.RemoteAddr })
	w := start(t, egress.Rules{Allow: list("listed.example:%s", port)})
	w.dns.Set("listed.example", "127.0.0.1")
	if response, _ := w.ask("GET http://listed.example:%s/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx", port); response.StatusCode != http.StatusBadRequest {
		t.Errorf("GET with a body: %s", response.Status)
	}
	seen := map[string]bool{}
	for range 3 {
		response, err := w.client(nil).Post("http://listed.example:"+port+"/", "text/plain", strings.NewReader("posted"))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		seen[<-connections] = true
	}
	if len(seen) != 3 {
		t.Errorf("3 requests with bodies came by %d connections", len(seen))
	}
}
