package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fabrique/bench/sink"
)

// program makes the test binary the probe.
const program = "FABRIQUE_TEST_PROBE"

func TestMain(m *testing.M) {
	sink.Intercept()
	if os.Getenv(program) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func openSink(t *testing.T) *sink.Sink {
	t.Helper()
	s, err := sink.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	return s
}

// probe runs the probe in the sink's network namespace.
func probe(t *testing.T, s *sink.Sink, stdin string, args ...string) (out string, failed bool) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("nsenter", append([]string{fmt.Sprintf("--net=/proc/%d/ns/net", s.PID()), self}, args...)...)
	cmd.Env = append(os.Environ(), program+"=1")
	cmd.Stdin = strings.NewReader(stdin)
	text, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(text)), err != nil
}

func TestReachesTheSink(t *testing.T) {
	s := openSink(t)
	address := s.Address(0).String()
	for _, test := range []struct {
		args   string
		want   string // begins the output
		failed bool
	}{
		{"tcp " + address + ":8443", `reached: connected to ` + address + `:8443, which says "` + sink.Marker + `"`, false},
		{"tcp " + address + ":80", `reached: connected to ` + address + `:80, which says "HTTP/1.0 200 OK`, false},
		{"tcp " + address + ":9", "probe: dial tcp " + address + ":9: connect: connection refused", true},
		{"tcp 192.0.2.1:80", "probe: dial tcp 192.0.2.1:80: connect: network is unreachable", true},
		{"udp-dns " + address + " name.example", "reached: RCodeSuccess " + address, false},
		{"tcp-dns " + address + ":53 name.example.", "reached: RCodeSuccess " + address, false},
		{"udp-dns " + address + ":9 name.example", "probe: read udp ", true},
		{"udp-dns " + address + " a..b", "probe: ", true},
		{"doh https://" + address + "/dns-query name.example", "reached: RCodeSuccess " + address, false},
		{"doh https://" + address + "/other name.example", "probe: reading the answer: ", true},
		{"icmp " + address, "reached: echo from " + address, false},
		{"icmp ::1", "reached: echo from ::1", false},
		{"icmp 192.0.2.1", "probe: ", true},
		{"raw " + address, "probe: sending a frame: no interface has an IPv4 address", true},
		{"raw ::1", `probe: sending a frame: "::1" is no IPv4 address`, true},
		{"tls " + address + " sni.example host.example", "reached: 200 OK " + sink.Marker, false},
		{"tls " + address + ":443 - host.example", "reached: 200 OK " + sink.Marker, false},
		{"tls " + address + ":80 sni.example host.example", "probe: beginning TLS: ", true},
		{"tls " + address, "probe: wrong arguments", true},
		{"fly", "probe: wrong arguments", true},
	} {
		t.Run(test.args, func(t *testing.T) {
			out, failed := probe(t, s, "", strings.Fields(test.args)...)
			if failed != test.failed || !strings.HasPrefix(out, test.want) {
				t.Errorf("failed: %v\n%s\nwant\n%s", failed, out, test.want)
			}
		})
	}
	seen, err := s.Seen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range seen {
		names = append(names, r.Kind+" "+r.Name)
	}
	for _, want := range []string{"dns name.example.", "doh name.example.", "tls sni.example", "http host.example"} {
		if !strings.Contains(strings.Join(names, "\n")+"\n", want+"\n") {
			t.Errorf("the sink has not seen %q: %q", want, names)
		}
	}
}

func TestMany(t *testing.T) {
	s := openSink(t)
	address := s.Address(0).String()
	list := "web\ttcp " + address + ":80\nclosed\ttcp\t" + address + ":9\n\tudp-dns " + address + " a.example\nodd\tmany -\nempty\n"
	out, failed := probe(t, s, list, "many", "-")
	want := "web\treached\tconnected to " + address + `:80, which says "HTTP/1.0 200 OK"
closed	not	dial tcp ` + address + `:9: connect: connection refused
	reached	RCodeSuccess ` + address + "\n"
	if failed || !strings.HasPrefix("\n"+out, "\n"+want) {
		t.Errorf("failed: %v\n%q\nwant\n%q", failed, out, want)
	}
	rest := strings.Split(strings.TrimPrefix(out, want), "\n")
	if len(rest) != 2 || !strings.HasPrefix(rest[0], "odd\tnot\twrong arguments") || !strings.HasPrefix(rest[1], "empty\tnot\twrong arguments") {
		t.Errorf("then it says %q", rest)
	}
	if out, failed := probe(t, s, "", "many", "/missing"); !failed {
		t.Errorf("a file that is missing: %s", out)
	}
}

// proxy is one that lets through what the tests ask for, and keeps what it was asked.
type proxy struct {
	to    string // where all tunnels lead
	asked []string
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(r.Header.Get("Proxy-Authorization"), "Basic "))
	p.asked = append(p.asked, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", r.Method, r.RequestURI, r.Host, user)))
	if strings.Contains(r.RequestURI, "refused") {
		http.Error(w, "not listed", http.StatusForbidden)
		return
	}
	if r.Method != http.MethodConnect {
		fmt.Fprintln(w, "page")
		return
	}
	far, err := net.Dial("tcp", p.to)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer far.Close()
	near, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer near.Close()
	io.WriteString(near, "HTTP/1.1 200 OK\r\n\r\n")
	go io.Copy(far, buffered)
	io.Copy(near, far)
}

func TestThroughAProxy(t *testing.T) {
	var names []string
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		names = append(names, r.TLS.ServerName+" "+r.Host)
		fmt.Fprintln(w, "secret page")
	}))
	web.TLS = &tls.Config{}
	web.StartTLS()
	defer web.Close()
	p := &proxy{to: web.Listener.Addr().String()}
	server := httptest.NewServer(p)
	defer server.Close()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("app", "pass")
	for _, test := range []struct {
		name, args, env string
		want, err       string
		asked, names    []string
	}{
		{"tunnel", "connect " + u.String() + " a.example:443 b.example c.example", "", "200 OK secret page", "",
			[]string{"CONNECT a.example:443 a.example:443 app:pass"}, []string{"b.example c.example"}},
		{"proxy of the environment", "connect env a.example:443 b.example c.example", u.String(), "200 OK secret page", "",
			[]string{"CONNECT a.example:443 a.example:443 app:pass"}, []string{"b.example c.example"}},
		{"no TLS", "connect " + server.URL + " a.example:22 - x", "", "the tunnel is open", "", []string{"CONNECT a.example:22 a.example:22"}, nil},
		{"refused", "connect " + server.URL + " refused.example:443 b c", "", "", "the proxy answers 403 Forbidden: not listed", []string{"CONNECT refused.example:443 refused.example:443"}, nil},
		{"no proxy", "connect env a.example:443 b c", "", "", "the proxy's URL is none", nil, nil},
		{"page", "proxy-get env http://a.example/x?y", u.String(), "200 OK page", "", []string{"GET http://a.example/x?y a.example app:pass"}, nil},
		{"other host", "proxy-get " + server.URL + " http://a.example/ b.example", "", "200 OK page", "", []string{"GET http://a.example/ a.example"}, nil},
		{"refused page", "proxy-get " + server.URL + " http://refused.example/", "", "", "it answers 403 Forbidden: not listed", []string{"GET http://refused.example/ refused.example"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("HTTPS_PROXY", test.env)
			t.Setenv("https_proxy", "")
			p.asked, names = nil, nil
			saw, err := reach(t.Context(), strings.Fields(test.args))
			if saw != test.want || (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
				t.Errorf("it gives %q, %v", saw, err)
			}
			if diff := cmp.Diff(test.asked, p.asked); diff != "" {
				t.Errorf("the proxy is asked, -want +got:\n%s", diff)
			}
			if diff := cmp.Diff(test.names, names); diff != "" {
				t.Errorf("the server sees, -want +got:\n%s", diff)
			}
		})
	}
}

// The Host header goes out as it is given, whatever the URL says: net/http's server
// does not show it.
func TestHostHeader(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		text := make([]byte, 1000)
		n, _ := c.Read(text)
		got <- string(text[:n])
		io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
	}()
	if _, err := proxyGet(t.Context(), "http://"+l.Addr().String(), "http://a.example/x", "b.example"); err != nil {
		t.Fatal(err)
	}
	if want := "GET http://a.example/x HTTP/1.1\r\nHost: b.example\r\nUser-Agent: probe\r\n\r\n"; <-got != want {
		t.Errorf("it does not write %q", want)
	}
}

func TestFrame(t *testing.T) {
	from, to := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	one, two := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	request := frame(one, two, from, to, 7)
	if !bytes.Equal(request[:14], []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0}) {
		t.Errorf("its Ethernet header is % x", request[:14])
	}
	if checksum(request[14:34]) != 0 || checksum(request[34:]) != 0 {
		t.Errorf("the checksums of % x are wrong", request)
	}
	reply := bytes.Clone(request)
	copy(reply[26:], append(to.AsSlice(), from.AsSlice()...))
	reply[34] = 0
	for _, test := range []struct {
		name  string
		frame []byte
		from  netip.Addr
		id    uint16
		want  bool
	}{
		{"reply", reply, to, 7, true},
		{"another's", reply, to, 8, false},
		{"from elsewhere", reply, from, 7, false},
		{"request", request, from, 7, false},
		{"short", reply[:40], to, 7, false},
		{"no IP", reply[:14], to, 7, false},
	} {
		if got := isReply(test.frame, test.from, test.id); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

// A proxy without a policy leads everywhere: to what a redirect names, and to a name that
// is asked for without TLS in a tunnel.
func TestOpenProxy(t *testing.T) {
	s := openSink(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const at = "127.0.0.1:3129"
	cmd := exec.Command("nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", s.PID()), self, "proxy", at)
	cmd.Env = append(os.Environ(), program+"=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	for range 100 {
		if _, failed := probe(t, s, "", "tcp", at); !failed {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	one, two := s.Address(0).String(), s.Address(1).String()
	for args, want := range map[string]string{
		"follow http://" + at + " http://" + one + "/redirect?to=http://" + two + "/": "reached: http://" + two + "/ answers 200 OK",
		"connect http://" + at + " " + one + ":80 http host.example":                  "reached: 200 OK " + sink.Marker,
		"follow http://" + at + " http://" + one + ":9/":                              "probe: it answers 500",
	} {
		if out, _ := probe(t, s, "", strings.Fields(args)...); !strings.HasPrefix(out, want) {
			t.Errorf("%s: %q, want %q", args, out, want)
		}
	}
	seen, err := s.Seen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(seen, func(r sink.Request) bool { return r.Kind == "http" && r.Name == "host.example" }) {
		t.Errorf("the sink has not been asked for host.example: %+v", seen)
	}
}
