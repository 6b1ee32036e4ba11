package gateway

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"fabrique/steps/egress"
)

// opening holds back what a client says first through a tunnel until it is known
// whether that is for the tunnel's name. One address often serves many names, and the
// TLS server name (RFC 6066 §3) chooses among them: it must be the one that the policy
// decided on. A client that encrypts another one beside it (RFC 9849), or says another
// in answer to the server's wish for a second beginning, goes unseen.
type opening struct {
	target  egress.Target
	held    bytes.Buffer
	records int // in what was read so far
}

// Bounds of what is held back: a ClientHello and its record headers, and of how many
// records it may be cut into, as reading begins anew with each.
const (
	maxOpening = 16 << 10
	maxRecords = 64
)

// errMore says that what was said so far does not tell.
var errMore = errors.New("more is to come")

// check looks at what was said so far. It gives errMore, nil for what may go on, or
// why not.
//
// On the ports of HTTP a tunnel carries TLS: there Host would choose among names too,
// and without a tunnel the gateway sees it. On others whatever is listed may be said.
func (o *opening) check() error {
	said := o.held.Bytes()
	if len(said) == 0 {
		return errMore
	}
	if said[0] != recordHandshake {
		if o.target.Port == 443 || o.target.Port == 80 {
			return o.refuse("what was said through the tunnel is not TLS")
		}
		return nil
	}
	records := complete(said)
	if records == o.records && len(said) < maxOpening {
		return errMore
	}
	o.records = records
	name, err := serverName(said)
	switch {
	case errors.Is(err, errMore) && len(said) < maxOpening && records < maxRecords:
		return errMore
	case err != nil:
		return o.refuse("what was said through the tunnel is no TLS that the gateway understands")
	case name == "":
		return o.refuse("TLS was begun there without a server name")
	case !strings.EqualFold(name, o.target.Host):
		return o.refuse("TLS was begun there for " + egress.Printable(name))
	}
	return nil
}

func (o *opening) refuse(detail string) error {
	return &egress.Refusal{Target: o.target.String(), Misused: true, Detail: detail}
}

// recordHandshake is the first byte of TLS (RFC 8446 §5.1).
const recordHandshake = 22

// complete tells how many records were said to their end. One that is longer than any may
// be counts as well: reading it says so.
func complete(said []byte) (records int) {
	const header, longest = 5, 1<<14 + 256
	for len(said) >= header {
		length := int(binary.BigEndian.Uint16(said[3:]))
		if length > longest {
			return records + 1
		}
		if len(said) < header+length {
			break
		}
		records, said = records+1, said[header+length:]
	}
	return records
}

// serverName reads the server name of a ClientHello, by the standard library's own
// reading of it, which then goes no further.
func serverName(said []byte) (name string, err error) {
	found := errors.New("found")
	err = tls.Server(&recording{Reader: bytes.NewReader(said)}, &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		name = hello.ServerName
		return nil, found
	}}).Handshake()
	switch {
	case errors.Is(err, found):
		return name, nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "", errMore
	}
	return "", err
}

// recording is a connection on which something was said. What is answered goes nowhere.
type recording struct{ io.Reader }

func (recording) Write(b []byte) (int, error)      { return len(b), nil }
func (recording) Close() error                     { return nil }
func (recording) LocalAddr() net.Addr              { return nil }
func (recording) RemoteAddr() net.Addr             { return nil }
func (recording) SetDeadline(time.Time) error      { return nil }
func (recording) SetReadDeadline(time.Time) error  { return nil }
func (recording) SetWriteDeadline(time.Time) error { return nil }
