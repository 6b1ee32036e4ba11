package sink

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"net/rpc"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/ipv4"

	"fabrique/bench/cluster"
)

// argAlone is the first argument of a sink's process that is attached to nothing.
const argAlone = "fabrique-bench-sink"

// Intercept ends the process here if it is one that [Open] or [Start] started from the
// program's own binary.
func Intercept() {
	if os.Args[0] != argAlone && os.Args[0] != cluster.OutsideProcess {
		return
	}
	// It answers on standard output, which nothing else may write to. The caller's end
	// closes standard input, also when it is killed.
	s := &server{ready: make(chan error, 1)}
	go func() { s.ready <- s.listen() }()
	calls := rpc.NewServer()
	if err := calls.RegisterName("Sink", s); err != nil {
		fmt.Fprintln(os.Stderr, "sink:", err)
		os.Exit(1)
	}
	calls.ServeConn(pipes{os.Stdin, os.Stdout})
	os.Exit(0)
}

// server is the process in the namespace. Its methods are what package rpc calls.
type server struct {
	ready chan error

	mu   sync.Mutex
	seen []Request
}

// Ready waits until all servers answer.
func (s *server) Ready(_ int, _ *int) error {
	err := <-s.ready
	s.ready <- err
	return err
}

// Counters gives what nft lists.
func (s *server) Counters(_ int, listing *[]byte) (err error) {
	*listing, err = nft("", "-j", "list", "table", "ip", "sink")
	return err
}

// Seen gives the requests so far.
func (s *server) Seen(_ int, seen *[]Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	*seen = slices.Clone(s.seen)
	return nil
}

// Reset implements [Sink.Reset].
func (s *server) Reset(_ int, _ *int) error {
	s.mu.Lock()
	s.seen = nil
	s.mu.Unlock()
	_, err := nft("flush set ip sink ports; flush set ip sink protocols\n", "-f", "-")
	return err
}

func nft(input string, args ...string) ([]byte, error) { return command(input, "nft", args...) }

func command(input, name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	var said bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader([]byte(input)), &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("running %s: %w: %s", cmd, err, bytes.TrimSpace(said.Bytes()))
	}
	return out, nil
}

func (s *server) record(r Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, r)
}

// listen makes the namespace what it is and starts all servers.
func (s *server) listen() error {
	if _, err := command("", "ip", "link", "set", "lo", "up"); err != nil {
		return err
	}
	for _, network := range networks {
		// All its addresses are this namespace's own.
		if _, err := command("", "ip", "route", "add", "local", network.String(), "dev", "lo"); err != nil {
			return err
		}
	}
	if _, err := nft(ruleset, "-f", "-"); err != nil {
		return err
	}
	certificate, err := anyCertificate()
	if err != nil {
		return err
	}
	tcp := map[string]net.Listener{}
	for _, port := range []string{"53", "80", "443", plainPort} {
		if tcp[port], err = net.Listen("tcp4", ":"+port); err != nil {
			return err
		}
	}
	names, err := s.datagrams("53", true)
	if err != nil {
		return err
	}
	plain, err := s.datagrams(plainPort, false)
	if err != nil {
		return err
	}
	config := &tls.Config{Certificates: []tls.Certificate{certificate}, GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		s.record(Request{From: addrPort(hello.Conn.RemoteAddr()), To: addrPort(hello.Conn.LocalAddr()), Kind: "tls", Name: hello.ServerName})
		return nil, nil
	}}
	web := &http.Server{Handler: http.HandlerFunc(s.http), TLSConfig: config, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	go web.Serve(tcp["80"])
	go web.ServeTLS(tcp["443"], "", "")
	go accept(tcp["53"], s.dnsStream)
	go accept(tcp[plainPort], func(c net.Conn) { fmt.Fprintln(c, Marker) })
	go names()
	go plain()
	return nil
}

// accept serves each connection for some seconds.
func accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		go func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(10 * time.Second))
			serve(c)
			// A close with unread data would be a reset, which overtakes what was written.
			if half, ok := c.(*net.TCPConn); ok {
				half.CloseWrite()
				io.Copy(io.Discard, half)
			}
		}()
	}
}

// datagrams binds a port of all addresses; serve answers from the address that was
// asked.
func (s *server) datagrams(port string, names bool) (serve func(), err error) {
	c, err := net.ListenPacket("udp4", ":"+port)
	if err != nil {
		return nil, err
	}
	packets := ipv4.NewPacketConn(c)
	if err := packets.SetControlMessage(ipv4.FlagDst, true); err != nil {
		return nil, err
	}
	return func() {
		buffer := make([]byte, 65535)
		for {
			n, control, from, err := packets.ReadFrom(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil || control == nil {
				continue
			}
			to, _ := netip.AddrFromSlice(control.Dst.To4())
			answer := []byte(Marker + "\n")
			if names {
				if answer, err = s.dns("dns", addrPort(from), netip.AddrPortFrom(to, 53), buffer[:n]); err != nil {
					continue
				}
			}
			packets.WriteTo(answer, &ipv4.ControlMessage{Src: control.Dst}, from)
		}
	}, nil
}

func addrPort(a net.Addr) netip.AddrPort {
	parsed, _ := netip.ParseAddrPort(a.String())
	return netip.AddrPortFrom(parsed.Addr().Unmap(), parsed.Port())
}

// maxMessage bounds a DNS message.
const maxMessage = 1 << 16

func (s *server) http(w http.ResponseWriter, r *http.Request) {
	from, _ := netip.ParseAddrPort(r.RemoteAddr)
	to := addrPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr))
	s.record(Request{From: from, To: to, Kind: "http", Name: r.Host, Path: r.URL.RequestURI()})
	switch r.URL.Path {
	case "/redirect":
		http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusFound)
	case "/dns-query":
		query, err := base64.RawURLEncoding.DecodeString(r.URL.Query().Get("dns"))
		if r.Method == http.MethodPost {
			query, err = io.ReadAll(io.LimitReader(r.Body, maxMessage))
		}
		var answer []byte
		if err == nil {
			answer, err = s.dns("doh", from, to, query)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/dns-message")
		w.Write(answer)
	default:
		fmt.Fprintln(w, Marker)
	}
}

// anyCertificate makes a certificate that is no name's; who asks must not check.
func anyCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano()), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
