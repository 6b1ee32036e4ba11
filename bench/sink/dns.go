package sink

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"

	"golang.org/x/net/dns/dnsmessage"
)

// dns answers a message: every name has the address that was asked, and a text.
func (s *server) dns(kind string, from, to netip.AddrPort, query []byte) ([]byte, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(query)
	if err != nil {
		return nil, err
	}
	questions, err := parser.AllQuestions()
	if err != nil {
		return nil, err
	}
	answer := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: header.ID, Response: true, RecursionDesired: header.RecursionDesired, RecursionAvailable: true},
		Questions: questions,
	}
	for _, q := range questions {
		s.record(Request{From: from, To: to, Kind: kind, Name: q.Name.String()})
		resource := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}}
		switch q.Type {
		case dnsmessage.TypeA:
			resource.Body = &dnsmessage.AResource{A: to.Addr().As4()}
		case dnsmessage.TypeTXT:
			resource.Body = &dnsmessage.TXTResource{TXT: []string{Marker}}
		default:
			continue
		}
		answer.Answers = append(answer.Answers, resource)
	}
	return answer.Pack()
}

// dnsStream answers the messages of a connection (RFC 1035 §4.2.2).
func (s *server) dnsStream(c net.Conn) {
	for {
		var length uint16
		if binary.Read(c, binary.BigEndian, &length) != nil {
			return
		}
		query := make([]byte, length)
		if _, err := io.ReadFull(c, query); err != nil {
			return
		}
		answer, err := s.dns("dns", addrPort(c.RemoteAddr()), addrPort(c.LocalAddr()), query)
		if err != nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}
