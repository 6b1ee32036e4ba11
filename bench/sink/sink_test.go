package sink

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"
)

// envAsk makes the test binary a client, in whichever network namespace it is.
const envAsk = "FABRIQUE_TEST_ASK"

func TestMain(m *testing.M) {
	Intercept()
	if how := os.Getenv(envAsk); how != "" {
		answer, err := clients[how](os.Args[1], os.Args[2])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Print(answer)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const patience = 5 * time.Second

// clients ask an address, with or without a port, about something.
var clients = map[string]func(address, about string) (string, error){
	"tcp": func(address, _ string) (string, error) { return exchange("tcp", address, nil) },
	"udp": func(address, _ string) (string, error) { return exchange("udp", address, []byte("x")) },
	"send": func(address, _ string) (string, error) { // and wait for nothing
		c, err := net.Dial("udp", address)
		if err != nil {
			return "", err
		}
		_, err = c.Write([]byte("no DNS message"))
		return "", err
	},
	"icmp": func(address, _ string) (string, error) {
		c, err := net.Dial("ip4:icmp", address)
		if err != nil {
			return "", err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		if _, err := c.Write([]byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}); err != nil { // echo request, RFC 792
			return "", err
		}
		answer := make([]byte, 100)
		_, err = c.Read(answer)
		return "", err
	},
	"dns-udp": func(address, name string) (string, error) {
		query, err := question(name)
		if err != nil {
			return "", err
		}
		answer, err := exchange("udp", address, query)
		if err != nil {
			return "", err
		}
		return resolved([]byte(answer))
	},
	"dns-tcp": func(address, name string) (string, error) {
		query, err := question(name)
		if err != nil {
			return "", err
		}
		answer, err := exchange("tcp", address, append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...))
		if err != nil {
			return "", err
		}
		return resolved([]byte(answer[2:]))
	},
	"doh": func(address, name string) (string, error) {
		query, err := question(name)
		if err != nil {
			return "", err
		}
		answer, err := web(address, "https://resolver.example/dns-query?dns="+base64.RawURLEncoding.EncodeToString(query), nil)
		if err != nil {
			return "", err
		}
		posted, err := web(address, "https://resolver.example/dns-query", query)
		if err != nil || posted != answer {
			return "", fmt.Errorf("POST gives %q, GET %q: %w", posted, answer, err)
		}
		return resolved([]byte(answer))
	},
	"get": func(address, url string) (string, error) { return web(address, url, nil) },
}

// exchange writes to an address and gives what it answers first.
func exchange(network, address string, text []byte) (string, error) {
	c, err := net.DialTimeout(network, address, patience)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write(text); err != nil {
		return "", err
	}
	answer := make([]byte, 1000)
	n, err := c.Read(answer)
	return string(answer[:n]), err
}

// web asks the address for a URL, whoever it names, and follows no redirect.
func web(address, url string, body []byte) (string, error) {
	client := http.Client{Timeout: patience, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	var answer *http.Response
	var err error
	if body == nil {
		answer, err = client.Get(url)
	} else {
		answer, err = client.Post(url, "application/dns-message", bytes.NewReader(body))
	}
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	if to := answer.Header.Get("Location"); to != "" {
		return fmt.Sprint(answer.StatusCode, " ", to), nil
	}
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}

func question(name string) ([]byte, error) {
	message := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{
		{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET},
	}}
	return message.Pack()
}

func resolved(answer []byte) (string, error) {
	var message dnsmessage.Message
	if err := message.Unpack(answer); err != nil {
		return "", err
	}
	if len(message.Answers) != 1 {
		return "", fmt.Errorf("%d answers", len(message.Answers))
	}
	a, ok := message.Answers[0].Body.(*dnsmessage.AResource)
	if !ok || message.ID != 7 || !message.Response {
		return "", fmt.Errorf("it answers %v", message)
	}
	return netip.AddrFrom4(a.A).String(), nil
}

// netOf gives the option that makes nsenter enter a process's network namespace.
func netOf(pid int) string { return fmt.Sprintf("--net=/proc/%d/ns/net", pid) }

// cabled is a sink and the process in whose network namespace its clients run.
type cabled struct {
	*Sink
	client int
}

// open starts a sink, and joins it to another network namespace by a cable.
func open(t *testing.T) cabled {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("a network namespace needs root")
	}
	s, err := Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := syscall.Kill(s.PID(), 0); err != syscall.ESRCH {
			t.Errorf("after its end its process is there: %v", err)
		}
	})
	client := exec.Command("sleep", "infinity")
	client.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Process.Kill(); client.Wait() })
	c := cabled{s, client.Process.Pid}
	for _, args := range [][]string{
		{netOf(c.client), "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprint(s.PID())},
		{netOf(c.client), "ip", "addr", "add", "192.0.2.1/24", "dev", "eth0"},
		{netOf(c.client), "ip", "link", "set", "eth0", "up"},
		{netOf(s.PID()), "ip", "addr", "add", "192.0.2.2/24", "dev", "eth0"},
		{netOf(s.PID()), "ip", "link", "set", "eth0", "up"},
		{netOf(c.client), "ip", "route", "add", "default", "via", "192.0.2.2"},
	} {
		if out, err := exec.Command("nsenter", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	return c
}

// ask runs a client beside the sink.
func (c cabled) ask(how, address, about string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	cmd := exec.Command("nsenter", netOf(c.client), self, address, about)
	cmd.Env = append(os.Environ(), envAsk+"="+how)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// Each way of asking reaches an address of its own, and the counters of that address
// alone tell of it.
func TestAnswersAndCounts(t *testing.T) {
	s := open(t)
	for i, test := range []struct {
		how, port, about string
		want             string // the answer
		protocol         string
		count            uint16 // the port that is counted
		seen             []Request
	}{
		{"get", "80", "http://name.example/a?b=c", Marker, "tcp", 80, []Request{{Kind: "http", Name: "name.example", Path: "/a?b=c"}}},
		{"get", "80", "http://name.example/redirect?to=http://10.0.0.1/x", "302 http://10.0.0.1/x", "tcp", 80,
			[]Request{{Kind: "http", Name: "name.example", Path: "/redirect?to=http://10.0.0.1/x"}}},
		{"get", "443", "https://secret.example/", Marker, "tcp", 443,
			[]Request{{Kind: "tls", Name: "secret.example"}, {Kind: "http", Name: "secret.example", Path: "/"}}},
		{"dns-udp", "53", "stolen.example.", "ADDRESS", "udp", 53, []Request{{Kind: "dns", Name: "stolen.example."}}},
		{"dns-tcp", "53", "stolen.example.", "ADDRESS", "tcp", 53, []Request{{Kind: "dns", Name: "stolen.example."}}},
		{"doh", "443", "stolen.example.", "ADDRESS", "tcp", 443, []Request{
			{Kind: "tls", Name: "resolver.example"}, {Kind: "http", Name: "resolver.example", Path: "/dns-query?dns=AAcBAAABAAAAAAAABnN0b2xlbgdleGFtcGxlAAABAAE"}, {Kind: "doh", Name: "stolen.example."},
			{Kind: "tls", Name: "resolver.example"}, {Kind: "http", Name: "resolver.example", Path: "/dns-query"}, {Kind: "doh", Name: "stolen.example."},
		}},
		{"tcp", "22", "", Marker, "tcp", 22, nil},
		{"tcp", "8443", "", Marker, "tcp", 8443, nil},
		{"tcp", "40404", "", Marker, "tcp", 40404, nil},
		{"udp", "123", "", Marker, "udp", 123, nil},
		{"icmp", "", "", "", "icmp", 0, nil},
	} {
		t.Run(strings.TrimSpace(test.how+" "+test.port+" "+test.about), func(t *testing.T) {
			if err := s.Reset(t.Context()); err != nil {
				t.Fatal(err)
			}
			address := s.Address(i)
			to := address.String()
			if test.port != "" {
				to += ":" + test.port
			}
			answer, err := s.ask(test.how, to, test.about)
			if err != nil || answer != strings.Replace(test.want, "ADDRESS", address.String(), 1) {
				t.Errorf("it answers %q, %v; want %q", answer, err, test.want)
			}
			got, err := s.Counts(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want := map[Flow]int64{}
			for _, f := range []Flow{{Address: address}, {address, test.protocol, 0}, {address, test.protocol, test.count}} {
				if want[f] = got[f]; got[f] == 0 {
					t.Errorf("no packet of %s is counted", f)
				}
			}
			// All that came was of this one flow.
			if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("the counters, -want +got:\n%s", diff)
			}
			if got[Flow{Address: address}] != got[Flow{address, test.protocol, test.count}] {
				t.Errorf("not all packets are of the one flow: %v", got)
			}
			seen, err := s.Seen(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for i := range seen {
				if seen[i].To.Addr() != address || !seen[i].From.IsValid() {
					t.Errorf("request %d is from %s to %s", i, seen[i].From, seen[i].To)
				}
				seen[i].From, seen[i].To = netip.AddrPort{}, netip.AddrPort{}
			}
			if diff := cmp.Diff(test.seen, seen, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
				t.Errorf("it has seen, -want +got:\n%s", diff)
			}
		})
	}
}

// Every single packet is counted, also one that nobody answers; a reset forgets all.
func TestCountsEveryPacket(t *testing.T) {
	s := open(t)
	address := s.Address(200)
	for range 3 {
		if _, err := s.ask("send", address.String()+":53", ""); err != nil {
			t.Fatal(err)
		}
	}
	flow := Flow{address, "udp", 53}
	for _, want := range []int64{3, 0} {
		got, err := s.Counts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got[flow] != want || got[Flow{Address: address}] != want {
			t.Errorf("counted %v; want %d", got, want)
		}
		if err := s.Reset(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// It answers in all of its networks.
func TestNetworks(t *testing.T) {
	s := open(t)
	for _, a := range []netip.Addr{s.Address(253), s.Public(7), Metadata} {
		answer, err := s.ask("dns-udp", a.String()+":53", "name.example.")
		counts, failed := s.Counts(t.Context())
		if err != nil || failed != nil || answer != a.String() || counts[Flow{a, "udp", 53}] != 1 {
			t.Errorf("%s answers %q, %v; counted %v, %v", a, answer, err, counts, failed)
		}
	}
}

// Two sinks know nothing of each other.
func TestNamespacesAreApart(t *testing.T) {
	one, two := open(t), open(t)
	if _, err := one.ask("udp", one.Address(0).String()+":9", ""); err != nil {
		t.Fatal(err)
	}
	if got, err := two.Counts(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("the other counts %v, %v", got, err)
	}
	if _, err := Start(canceled()); err == nil {
		t.Error("it starts although it was interrupted")
	}
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestCounts(t *testing.T) {
	a, b := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.2")
	const set = `{"set": {"family": "ip", "name": "%s", "table": "sink", "elem": [%s]}}`
	element := func(of string, packets int) string {
		return fmt.Sprintf(`{"elem": {"val": {"concat": [%s]}, "counter": {"packets": %d, "bytes": 1}}}`, of, packets)
	}
	for _, test := range []struct {
		name, sets string
		want       map[Flow]int64
		err        string
	}{
		{"none", fmt.Sprintf(set, "ports", ""), map[Flow]int64{}, ""},
		{"some", fmt.Sprintf(set, "ports", element(`"198.51.100.1", "tcp", 443`, 2)+","+element(`"198.51.100.1", "udp", 53`, 3)) + "," +
			fmt.Sprintf(set, "protocols", element(`"198.51.100.1", "tcp"`, 2)+","+element(`"198.51.100.1", "udp"`, 3)+","+element(`"198.51.100.2", "icmp"`, 1)+","+element(`"198.51.100.2", 200`, 4)),
			map[Flow]int64{
				{a, "tcp", 443}: 2, {a, "udp", 53}: 3, {a, "tcp", 0}: 2, {a, "udp", 0}: 3, {Address: a}: 5,
				{b, "icmp", 0}: 1, {b, "200", 0}: 4, {Address: b}: 5,
			}, ""},
		{"no address", fmt.Sprintf(set, "ports", element(`"name", "tcp", 443`, 2)), nil, "unable to parse IP"},
		{"no port", fmt.Sprintf(set, "ports", element(`"198.51.100.1", "tcp", "https"`, 2)), nil, "https is no port"},
		{"no flow", fmt.Sprintf(set, "ports", element(`"198.51.100.1"`, 2)), nil, "is no flow"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := counts([]byte(`{"nftables": [{"metainfo": {"version": "1.0.6"}}, ` + test.sets + `]}`))
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Fatalf("the error is %v; want %q", err, test.err)
			}
			if diff := cmp.Diff(test.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	if _, err := counts([]byte("no JSON")); err == nil {
		t.Error("it reads what is no JSON")
	}
}

func TestAddress(t *testing.T) {
	s := &Sink{}
	seen := map[netip.Addr]bool{}
	for i := range Addresses {
		a, p := s.Address(i), s.Public(i)
		if seen[a] || seen[p] || !Network.Contains(a) || !PublicNetwork.Contains(p) {
			t.Errorf("address %d is %s, and %s", i, a, p)
		}
		seen[a], seen[p] = true, true
	}
}
