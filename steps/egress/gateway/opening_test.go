package gateway

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"fabrique/steps/egress"
)

// hello gives what a client begins TLS with.
func hello(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	client, server := net.Pipe()
	go func() {
		_ = tls.Client(client, config).Handshake()
		client.Close()
	}()
	defer server.Close()
	header := make([]byte, 5)
	if _, err := io.ReadFull(server, header); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, int(header[3])<<8|int(header[4]))
	if _, err := io.ReadFull(server, body); err != nil {
		t.Fatal(err)
	}
	return append(header, body...)
}

// fragmented splits a record into several.
func fragmented(record []byte) []byte {
	var all []byte
	for body := record[5:]; len(body) > 0; {
		n := min(len(body), 50)
		all = append(all, record[0], record[1], record[2], 0, byte(n))
		all, body = append(all, body[:n]...), body[n:]
	}
	return all
}

func TestOpening(t *testing.T) {
	listed := hello(t, &tls.Config{ServerName: "listed.example", NextProtos: []string{"h2", "http/1.1"}})
	for name, c := range map[string]struct {
		port uint16
		said string
		want string // in the refusal; empty for what may go on
	}{
		"TLS for the name":           {443, string(listed), ""},
		"in fragments":               {443, string(fragmented(listed)), ""},
		"on another port":            {8443, string(listed), ""},
		"with more after it":         {443, string(listed) + "\x17\x03\x03\x00\x01x", ""},
		"for another":                {443, string(hello(t, &tls.Config{ServerName: "other.example"})), "TLS was begun there for other.example"},
		"for another, on any port":   {8443, string(hello(t, &tls.Config{ServerName: "other.example"})), "TLS was begun there for other.example"},
		"for a name below":           {443, string(hello(t, &tls.Config{ServerName: "a.listed.example"})), "TLS was begun there for a.listed.example"},
		"for an address":             {443, string(hello(t, &tls.Config{ServerName: "192.0.2.1"})), "without a server name"},
		"for none":                   {443, string(hello(t, &tls.Config{InsecureSkipVerify: true})), "without a server name"},
		"HTTP":                       {443, "GET / HTTP/1.1\r\nHost: other.example\r\n\r\n", "is not TLS"},
		"HTTP on its port":           {80, "GET / HTTP/1.1\r\nHost: other.example\r\n\r\n", "is not TLS"},
		"SSH on a listed port":       {22, "SSH-2.0-x\r\n", ""},
		"a record of something else": {443, "\x16\x03\x01\x00\x04\x02\x00\x00\x00", "no TLS that the gateway understands"},
		"a record too long":          {443, "\x16\x03\x01\xff\xff" + strings.Repeat("x", 70000), "no TLS that the gateway understands"},
		"no end":                     {443, strings.Repeat("\x16\x03\x01\x00\x01\x01", maxOpening/6+1), "no TLS that the gateway understands"},
	} {
		t.Run(name, func(t *testing.T) {
			o := opening{target: egress.Target{Host: "listed.example", Port: c.port}}
			err := errMore
			for at := 0; at < len(c.said) && errors.Is(err, errMore); at += 1000 {
				o.held.WriteString(c.said[at:min(at+1000, len(c.said))])
				err = o.check()
			}
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var refusal *egress.Refusal
			if !errors.As(err, &refusal) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "allow it under") {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// FuzzOpening finds what goes on though it is TLS for another name, or breaks off the
// gateway.
func FuzzOpening(f *testing.F) {
	listed, other := hello(f, &tls.Config{ServerName: "listed.example"}), hello(f, &tls.Config{ServerName: "other.example"})
	for _, said := range [][]byte{listed, other, fragmented(listed), []byte("GET / HTTP/1.1\r\n\r\n"), {recordHandshake}, listed[:100]} {
		f.Add(said)
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		o := opening{target: egress.Target{Host: "listed.example", Port: 443}}
		o.held.Write(said)
		if err := o.check(); err == nil && !bytes.Contains(bytes.ToLower(said), []byte("listed.example")) {
			// Records may cut the name in two.
			if name, err := serverName(said); err != nil || !strings.EqualFold(name, "listed.example") {
				t.Errorf("%q goes on", said)
			}
		}
	})
}
