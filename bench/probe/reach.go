package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// verb tries to reach something and tells what answered.
type verb struct {
	least, most int // arguments
	try         func(ctx context.Context, args []string) (saw string, err error)
}

var verbs = map[string]verb{
	"tcp":     {1, 1, func(ctx context.Context, a []string) (string, error) { return reachTCP(ctx, a[0]) }},
	"udp-dns": {2, 2, func(ctx context.Context, a []string) (string, error) { return resolve(ctx, "udp", a[0], a[1]) }},
	"tcp-dns": {2, 2, func(ctx context.Context, a []string) (string, error) { return resolve(ctx, "tcp", a[0], a[1]) }},
	"doh":     {2, 2, func(ctx context.Context, a []string) (string, error) { return resolveHTTPS(ctx, a[0], a[1]) }},
	"icmp":    {1, 1, func(ctx context.Context, a []string) (string, error) { return echo(ctx, a[0]) }},
	"raw":     {1, 1, func(ctx context.Context, a []string) (string, error) { return echoFrame(ctx, a[0]) }},
	"tls": {3, 3, func(ctx context.Context, a []string) (string, error) {
		c, err := dial(ctx, "tcp", withPort(a[0], "443"))
		if err != nil {
			return "", err
		}
		defer c.Close()
		return askTLS(ctx, c, a[1], a[2])
	}},
	"connect":   {4, 4, func(ctx context.Context, a []string) (string, error) { return tunnel(ctx, a[0], a[1], a[2], a[3]) }},
	"follow":    {2, 2, func(ctx context.Context, a []string) (string, error) { return follow(ctx, a[0], a[1]) }},
	"proxy-get": {2, 3, func(ctx context.Context, a []string) (string, error) { return proxyGet(ctx, a[0], a[1], a[2:]...) }},
}

var errArguments = errors.New("wrong arguments")

// reach runs one of the verbs.
func reach(ctx context.Context, args []string) (saw string, err error) {
	if len(args) > 0 {
		v, known := verbs[args[0]]
		if n := len(args) - 1; known && n >= v.least && n <= v.most {
			saw, err := v.try(ctx, args[1:])
			return strings.Join(strings.Fields(saw), " "), err
		}
	}
	return "", fmt.Errorf("%w %q", errArguments, args)
}

// together is how many probes of [many] run at once.
const together = 32

// many runs the probes that a file lists and writes a line for each, in their order.
func many(file string, out io.Writer) error {
	text, err := os.ReadFile(file)
	if file == "-" {
		text, err = io.ReadAll(os.Stdin)
	}
	if err != nil {
		return err
	}
	list := strings.Split(strings.TrimSpace(string(text)), "\n")
	answers, turns := make([]string, len(list)), make(chan struct{}, together)
	var group sync.WaitGroup
	for i, line := range list {
		group.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			name, words, _ := strings.Cut(line, "\t")
			saw, err := reach(ctx, strings.Fields(words))
			answers[i] = name + "\treached\t" + saw
			if err != nil {
				answers[i] = name + "\tnot\t" + strings.Join(strings.Fields(err.Error()), " ")
			}
		})
	}
	group.Wait()
	_, err = fmt.Fprintln(out, strings.Join(answers, "\n"))
	return err
}

// dial connects; the connection ends with ctx.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		c.SetDeadline(deadline)
	}
	return c, nil
}

// withPort gives address a port if it has none.
func withPort(address, port string) string {
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address
	}
	return net.JoinHostPort(strings.Trim(address, "[]"), port)
}

// talk is how long a server that was reached has to say something.
const talk = time.Second

func reachTCP(ctx context.Context, address string) (string, error) {
	c, err := dial(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	said := "connected to " + c.RemoteAddr().String()
	c.SetDeadline(time.Now().Add(talk))
	if _, err := io.WriteString(c, "HEAD / HTTP/1.0\r\n\r\n"); err != nil {
		return said, nil
	}
	answer := make([]byte, 40)
	if n, _ := c.Read(answer); n > 0 {
		line, _, _ := strings.Cut(string(answer[:n]), "\n")
		said += fmt.Sprintf(", which says %q", strings.TrimSpace(line))
	}
	return said, nil
}

// question is a DNS message that asks for the address of a name.
func question(name string) ([]byte, error) {
	full, err := dnsmessage.NewName(strings.TrimSuffix(name, ".") + ".")
	if err != nil {
		return nil, fmt.Errorf("asking for %q: %w", name, err)
	}
	message := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: uint16(time.Now().UnixNano()), RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: full, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	return message.Pack()
}

// answered reads the answer to a question; any will do, also that there is no such name.
func answered(query, answer []byte) (string, error) {
	var message dnsmessage.Message
	if err := message.Unpack(answer); err != nil {
		return "", fmt.Errorf("reading the answer: %w", err)
	}
	if !message.Response || message.ID != binary.BigEndian.Uint16(query) {
		return "", errors.New("reading the answer: it is another question's")
	}
	saw := message.RCode.String()
	for _, r := range message.Answers {
		if a, ok := r.Body.(*dnsmessage.AResource); ok {
			saw += " " + netip.AddrFrom4(a.A).String()
		}
	}
	return saw, nil
}

func resolve(ctx context.Context, network, server, name string) (string, error) {
	query, err := question(name)
	if err != nil {
		return "", err
	}
	c, err := dial(ctx, network, withPort(server, "53"))
	if err != nil {
		return "", err
	}
	defer c.Close()
	if network == "udp" {
		if _, err := c.Write(query); err != nil {
			return "", err
		}
		answer := make([]byte, 4096)
		n, err := c.Read(answer)
		if err != nil {
			return "", err
		}
		return answered(query, answer[:n])
	}
	// RFC 1035 §4.2.2: each message begins with its length.
	if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...)); err != nil {
		return "", err
	}
	var length uint16
	if err := binary.Read(c, binary.BigEndian, &length); err != nil {
		return "", err
	}
	answer := make([]byte, length)
	if _, err := io.ReadFull(c, answer); err != nil {
		return "", err
	}
	return answered(query, answer)
}

func resolveHTTPS(ctx context.Context, address, name string) (string, error) {
	query, err := question(name)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(query))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/dns-message")
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	answer, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
	if err != nil {
		return "", err
	}
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("it answers %s: %.100s", answer.Status, text)
	}
	return answered(query, text)
}

// echo uses the kernel's sockets for echo, which need no capability (icmp(7)), if it
// has them for this user, else raw ones.
func echo(ctx context.Context, address string) (string, error) {
	to, err := netip.ParseAddr(address)
	if err != nil {
		return "", err
	}
	datagram, raw, local, protocol := "udp4", "ip4:icmp", "0.0.0.0", 1
	var kind, reply icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply
	if to.Is6() {
		datagram, raw, local, protocol = "udp6", "ip6:ipv6-icmp", "::", 58
		kind, reply = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	var target net.Addr = &net.UDPAddr{IP: to.AsSlice(), Zone: to.Zone()}
	c, err := icmp.ListenPacket(datagram, local)
	if err != nil {
		var failed error
		if c, failed = icmp.ListenPacket(raw, local); failed != nil {
			return "", errors.Join(err, failed)
		}
		target = &net.IPAddr{IP: to.AsSlice(), Zone: to.Zone()}
	}
	defer c.Close()
	if deadline, ok := ctx.Deadline(); ok {
		c.SetDeadline(deadline)
	}
	data := []byte(time.Now().String())
	message, err := (&icmp.Message{Type: kind, Body: &icmp.Echo{ID: os.Getpid() & 0xffff, Seq: 1, Data: data}}).Marshal(nil)
	if err != nil {
		return "", err
	}
	if _, err := c.WriteTo(message, target); err != nil {
		return "", err
	}
	buffer := make([]byte, 1500)
	for {
		n, from, err := c.ReadFrom(buffer)
		if err != nil {
			return "", err
		}
		answer, err := icmp.ParseMessage(protocol, buffer[:n])
		if err != nil {
			continue
		}
		if body, ok := answer.Body.(*icmp.Echo); ok && answer.Type == reply && bytes.Equal(body.Data, data) {
			return "echo from " + from.String(), nil
		}
	}
}

// askTLS asks for the page / of host.
func askTLS(ctx context.Context, c net.Conn, sni, host string) (string, error) {
	if sni == "-" {
		sni = ""
	}
	secure := tls.Client(c, &tls.Config{ServerName: sni, InsecureSkipVerify: true})
	if err := secure.HandshakeContext(ctx); err != nil {
		return "", fmt.Errorf("beginning TLS: %w", err)
	}
	req, err := http.NewRequest(http.MethodGet, "https://"+host+"/", nil)
	if err != nil {
		return "", err
	}
	if err := req.Write(secure); err != nil {
		return "", err
	}
	return status(bufio.NewReader(secure), req, 600)
}

// status reads an answer; a status of limit or more is an error.
func status(r *bufio.Reader, req *http.Request, limit int) (string, error) {
	answer, err := http.ReadResponse(r, req)
	if err != nil {
		return "", fmt.Errorf("reading the answer: %w", err)
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 200)) // whatever there is of it
	if answer.StatusCode >= limit {
		return "", fmt.Errorf("it answers %s: %s", answer.Status, bytes.TrimSpace(text))
	}
	return answer.Status + " " + string(text), nil
}

// follow asks a proxy for a URL, and for what it redirects to.
func follow(ctx context.Context, proxy, address string) (string, error) {
	via, err := proxyURL(proxy)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(via), TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	answer, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 200)) // whatever there is of it
	if answer.StatusCode >= 400 {
		return "", fmt.Errorf("it answers %s: %s", answer.Status, bytes.TrimSpace(text))
	}
	return answer.Request.URL.String() + " answers " + answer.Status, nil
}

// proxyURL reads a proxy's URL, or that of the environment.
func proxyURL(name string) (*url.URL, error) {
	if name == "env" {
		name = os.Getenv("HTTPS_PROXY")
		if name == "" {
			name = os.Getenv("https_proxy")
		}
	}
	u, err := url.Parse(name)
	if err != nil || u.Host == "" {
		return nil, errors.New("the proxy's URL is none") // it may hold a password
	}
	return u, nil
}

// proxyOf connects to a proxy and gives the header that holds its credentials.
func proxyOf(ctx context.Context, name string) (net.Conn, http.Header, error) {
	u, err := proxyURL(name)
	if err != nil {
		return nil, nil, err
	}
	header := http.Header{}
	if u.User != nil {
		password, _ := u.User.Password()
		header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password)))
	}
	c, err := dial(ctx, "tcp", withPort(u.Host, "80"))
	return c, header, err
}

func tunnel(ctx context.Context, proxy, target, sni, host string) (string, error) {
	c, header, err := proxyOf(ctx, proxy)
	if err != nil {
		return "", err
	}
	defer c.Close()
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: target}, Host: target, Header: header}
	if err := req.Write(c); err != nil {
		return "", err
	}
	r := bufio.NewReader(c)
	answer, err := http.ReadResponse(r, req)
	if err != nil {
		return "", fmt.Errorf("reading the proxy's answer: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 200))
		return "", fmt.Errorf("the proxy answers %s: %s", answer.Status, bytes.TrimSpace(text))
	}
	if sni == "-" {
		return "the tunnel is open", nil
	}
	if sni == "http" {
		plain, err := http.NewRequest(http.MethodGet, "http://"+host+"/", nil)
		if err != nil {
			return "", err
		}
		if err := plain.Write(c); err != nil {
			return "", err
		}
		return status(r, plain, 600)
	}
	return askTLS(ctx, buffered{c, r}, sni, host)
}

// buffered is a connection of which something is read already.
type buffered struct {
	net.Conn
	r io.Reader
}

func (b buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

func proxyGet(ctx context.Context, proxy, address string, host ...string) (string, error) {
	c, header, err := proxyOf(ctx, proxy)
	if err != nil {
		return "", err
	}
	defer c.Close()
	req, err := http.NewRequest(http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	header.Set("User-Agent", "probe")
	// The proxy goes by the URL or by the header; package http would have both alike.
	named := req.URL.Host
	if len(host) > 0 {
		named = host[0]
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "GET %s HTTP/1.1\r\nHost: %s\r\n", address, named)
	header.Write(&text)
	text.WriteString("\r\n")
	if _, err := c.Write(text.Bytes()); err != nil {
		return "", err
	}
	return status(bufio.NewReader(c), req, 400)
}
