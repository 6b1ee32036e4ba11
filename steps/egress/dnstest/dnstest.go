// Package dnstest has a DNS server on loopback, for tests, whose answers can change.
package dnstest

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// Server is a DNS server.
type Server struct {
	conn net.PacketConn
	mu   sync.Mutex
	at   map[string][]string
	seen []string
}

// Start starts a server that knows no name, until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{conn: conn, at: map[string][]string{}}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			if answer := s.answer(buffer[:n]); answer != nil {
				conn.WriteTo(answer, from)
			}
		}
	}()
	return s
}

// Set gives a name these addresses, and no others.
func (s *Server) Set(name string, addresses ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at[name] = addresses
}

// Asked gives the names that were looked for.
func (s *Server) Asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

func (s *Server) answer(query []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	name := strings.TrimSuffix(q.Name.String(), ".")
	s.seen = append(s.seen, q.Name.String())
	addresses, ok := s.at[name]
	m.Response, m.RecursionAvailable = true, true
	m.Additionals = nil
	if !ok {
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, text := range addresses {
		a := netip.MustParseAddr(text)
		header := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET}
		switch {
		case a.Is4() && q.Type == dnsmessage.TypeA:
			header.Type = dnsmessage.TypeA
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: a.As4()}})
		case a.Is6() && q.Type == dnsmessage.TypeAAAA:
			header.Type = dnsmessage.TypeAAAA
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	packed, err := m.Pack()
	if err != nil {
		return nil
	}
	return packed
}

// Address is where it answers.
func (s *Server) Address() string { return s.conn.LocalAddr().String() }

// Resolver asks the server.
func (s *Server) Resolver() *net.Resolver { return At(s.Address()) }

// At gives a resolver that asks the server at an address, whatever the machine's is.
func At(address string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, address)
	}}
}
