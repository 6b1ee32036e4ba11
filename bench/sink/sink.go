// Package sink stands for the Internet: a network namespace on the bench's bridge that
// owns some addresses, answers on all of them, and counts every packet that reaches it.
// A test uses one address for each attempt, and sees whether anything at all, one SYN
// or one datagram, came of it. While it is open, nothing that a node sends to these
// addresses leaves this machine.
//
// On each address answer
//   - HTTP on port 80 and HTTPS on 443, for any name, with 200 and [Marker];
//     /redirect?to=URL redirects there, and /dns-query speaks DNS (RFC 8484)
//   - DNS on port 53, TCP and UDP, with its own address for any name
//   - a server on every other port, TCP and UDP, that says [Marker]
//   - the kernel, to ICMP echo
//
// The sink is IPv4 only, as the bench's cluster is: its pods have no IPv6 address but
// the one of their link.
package sink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"fabrique/bench/cluster"
)

// What the sink owns.
var (
	// Network is TEST-NET-2 of RFC 5737, which rules that know special ranges exclude.
	Network = netip.MustParsePrefix("198.51.100.0/24")
	// PublicNetwork is like any other network to such rules; 8.8.8.8, a well-known
	// resolver's, is in it.
	PublicNetwork = netip.MustParsePrefix("8.8.8.0/24")
	// Metadata is where a cloud's machines learn their credentials.
	Metadata = netip.MustParseAddr("169.254.169.254")

	networks = []netip.Prefix{Network, PublicNetwork, netip.PrefixFrom(Metadata, 32)}
)

// Marker is in every answer that is the sink's own.
const Marker = "fabrique sink"

// Sink is one that runs.
type Sink struct {
	process *exec.Cmd
	said    *lines
	client  *rpc.Client
	release func(context.Context) error // what Open took
}

// Open starts the sink and attaches it to the bench's cluster, which must be up. What
// a killed run left is removed first; one that is in use is an error. It ends with
// this program, if [Sink.Close] does not end it before.
func Open(ctx context.Context, log io.Writer) (*Sink, error) {
	c, err := cluster.Default()
	if err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(c.Dir, "sink.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the sink: %w; is the cluster up?", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return nil, errors.New("opening the sink: another run uses it right now; wait for it, or end it")
	}
	release := func(ctx context.Context) error {
		defer lock.Close()
		return c.Detach(ctx, log, networks...)
	}
	if err := c.Detach(ctx, log, networks...); err != nil {
		lock.Close()
		return nil, fmt.Errorf("removing the last sink: %w", err)
	}
	s, err := start(ctx, cluster.OutsideProcess)
	if err == nil {
		s.release = release
		err = c.Attach(ctx, log, s.PID(), networks...)
	}
	if err != nil {
		end := context.WithoutCancel(ctx)
		if s != nil {
			return nil, errors.Join(fmt.Errorf("opening the sink: %w", err), s.Close(end))
		}
		return nil, errors.Join(fmt.Errorf("opening the sink: %w", err), release(end))
	}
	return s, nil
}

// Start starts a sink that is attached to nothing: only the processes of its network
// namespace reach it.
func Start(ctx context.Context) (*Sink, error) { return start(ctx, argAlone) }

// start runs the program's own binary in a new network namespace; see [Intercept].
func start(ctx context.Context, name string) (*Sink, error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Dir = []string{name}, "/"
	said := &lines{}
	cmd.Stderr = said
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET,
		Setpgid:    true, // a terminal's ^C is for this program, which then ends it
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the sink in a network namespace: %w", err)
	}
	s := &Sink{process: cmd, said: said, client: rpc.NewClient(pipes{out, in})}
	if err := s.call(ctx, "Ready", new(int)); err != nil {
		s.Close(context.WithoutCancel(ctx))
		return nil, fmt.Errorf("starting the sink: %w", err)
	}
	return s, nil
}

// pipes are the two ends of the sink's standard input and output.
type pipes struct {
	io.ReadCloser
	in io.WriteCloser
}

func (p pipes) Write(b []byte) (int, error) { return p.in.Write(b) }
func (p pipes) Close() error                { return errors.Join(p.in.Close(), p.ReadCloser.Close()) }

// lines keeps what the sink's process says.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(l.text.String())
}

// PID gives the process whose network namespace the sink is.
func (s *Sink) PID() int { return s.process.Process.Pid }

// Addresses is how many addresses there are in each network.
const Addresses = 254

// Address gives an address of [Network], i from 0 to [Addresses]-1.
func (s *Sink) Address(i int) netip.Addr { return address(Network, i) }

// Public gives an address of [PublicNetwork], i from 0 to [Addresses]-1.
func (s *Sink) Public(i int) netip.Addr { return address(PublicNetwork, i) }

func address(network netip.Prefix, i int) netip.Addr {
	if i < 0 || i >= Addresses {
		panic(fmt.Sprintf("the sink has no address %d", i))
	}
	a := network.Addr().As4()
	a[3] = byte(i + 1)
	return netip.AddrFrom4(a)
}

// Flow is what a packet was for. Without a port it is all packets of the protocol,
// without a protocol too all packets to the address.
type Flow struct {
	Address  netip.Addr
	Protocol string // "tcp", "udp", "icmp", or a number
	Port     uint16
}

func (f Flow) String() string {
	switch {
	case f.Protocol == "":
		return f.Address.String()
	case f.Port == 0:
		return f.Address.String() + " " + f.Protocol
	}
	return fmt.Sprintf("%s %s/%d", f.Address, f.Protocol, f.Port)
}

// Counts gives how many packets reached the sink since it was started or last reset,
// answered or not: for every address, with each protocol, and with each protocol and
// port. Flows without a packet are not in it.
func (s *Sink) Counts(ctx context.Context) (map[Flow]int64, error) {
	var listing []byte
	if err := s.call(ctx, "Counters", &listing); err != nil {
		return nil, fmt.Errorf("reading the sink's counters: %w", err)
	}
	return counts(listing)
}

// Request is what somebody asked for, in the clear.
type Request struct {
	From netip.AddrPort // the pod's, or what this machine masquerades it as
	To   netip.AddrPort
	Kind string // "dns", "doh", "tls" or "http"
	Name string // the name to resolve, the SNI, the Host header
	Path string // of http, with its query
}

// Seen gives the requests since the sink was started or last reset, in their order.
func (s *Sink) Seen(ctx context.Context) ([]Request, error) {
	var seen []Request
	if err := s.call(ctx, "Seen", &seen); err != nil {
		return nil, fmt.Errorf("reading what the sink was asked: %w", err)
	}
	return seen, nil
}

// Reset sets all counters to 0 and forgets all requests.
func (s *Sink) Reset(ctx context.Context) error {
	if err := s.call(ctx, "Reset", new(int)); err != nil {
		return fmt.Errorf("resetting the sink: %w", err)
	}
	return nil
}

func (s *Sink) call(ctx context.Context, method string, answer any) error {
	call := s.client.Go("Sink."+method, 0, answer, make(chan *rpc.Call, 1))
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-call.Done:
	}
	if said := s.said.String(); call.Error != nil && said != "" {
		return fmt.Errorf("%w: %s", call.Error, said)
	}
	return call.Error
}

// closeLimit is how long the sink's process may take to end by itself.
const closeLimit = 2 * time.Second

// Close ends the sink and removes all of it.
func (s *Sink) Close(ctx context.Context) error {
	s.client.Close()
	late := time.AfterFunc(closeLimit, func() { s.process.Process.Kill() })
	s.process.Wait()
	late.Stop()
	if s.release == nil {
		return nil
	}
	if err := s.release(ctx); err != nil {
		return fmt.Errorf("removing the sink: %w", err)
	}
	return nil
}
