package runnetwork

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"regexp"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"fabrique/steps/step"
)

// network keeps messages apart: one is one request or one answer.
const network = "unixpacket"

// maxMessage bounds a message, in bytes.
const maxMessage = 4096

// request is what the plugin asks of the relay: to take over a port, which comes with
// the message, or to close it.
type request struct {
	Open  string `json:"open,omitempty"`  // id of the network namespace
	Close string `json:"close,omitempty"` // the same
}

type answer struct {
	Error string `json:"error,omitempty"`
}

// maxDescriptors bounds what may come with a message; the kernel closes the others.
const maxDescriptors = 2

// idForm is BuildKit's form of an id, and a little more.
var idForm = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)

const (
	dialTimeout = 10 * time.Second
	// maxConnections bounds those of one RUN instruction, maxTogether those of all.
	maxConnections, maxTogether = 512, 2048
	// farewell is how long a client may go on after the gateway has ended its side: that
	// has said all it has to say, and the client may hold the connection for nothing.
	farewell = 10 * time.Second
)

// passing tells of errors of accept(2) that others' connections cause, and their end mends.
func passing(err error) bool {
	return slices.ContainsFunc([]error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED}, func(e error) bool { return errors.Is(err, e) })
}

// pause waits a moment before the next try.
func (r *Relay) pause(ctx context.Context, doing string, err error) {
	r.log.Warn(doing+": trying again", "error", err.Error())
	select {
	case <-ctx.Done():
	case <-time.After(200 * time.Millisecond):
	}
}

// Relay takes connections from the ports that the plugin opened and makes one to the
// gateway for each.
type Relay struct {
	log     *slog.Logger
	gateway string // host:port

	mu    sync.Mutex
	ports map[string]func() // by id: closes the port and what came through it
	work  sync.WaitGroup

	together chan struct{} // holds one for each connection
}

// NewRelay gives a relay to the gateway at host:port.
func NewRelay(log *slog.Logger, gateway string) *Relay {
	return &Relay{log: log, gateway: gateway, ports: map[string]func(){}, together: make(chan struct{}, maxTogether)}
}

// Run listens on the socket until the context ends, then closes all ports. Exit codes:
// 2 for a socket that cannot be made.
func (r *Relay) Run(ctx context.Context, socket string) error {
	// What an earlier one left.
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return step.Invalidf("listening for the plugin: %w", err)
	}
	l, err := net.ListenUnix(network, &net.UnixAddr{Net: network, Name: socket})
	if err != nil {
		return step.Invalidf("listening for the plugin: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	r.log.Info("relaying", "socket", socket, "gateway", r.gateway)
	defer r.work.Wait()
	defer r.closeAll()
	for {
		conn, err := l.AcceptUnix()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if passing(err) {
				r.pause(ctx, "waiting for the plugin", err)
				continue
			}
			return step.Retryf("waiting for the plugin: %w", err)
		}
		r.work.Go(func() {
			defer conn.Close()
			var a answer
			if err := r.serve(ctx, conn); err != nil {
				a.Error = err.Error()
				r.log.Error("a request of the plugin failed", "error", a.Error)
			}
			text, _ := json.Marshal(a)
			_, _ = conn.Write(text)
		})
	}
}

// serve takes one request.
func (r *Relay) serve(ctx context.Context, conn *net.UnixConn) error {
	if err := conn.SetDeadline(time.Now().Add(answerLimit)); err != nil {
		return err
	}
	text, rights := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*maxDescriptors))
	n, oob, _, _, err := conn.ReadMsgUnix(text, rights)
	if err != nil {
		return fmt.Errorf("reading the request: %w", err)
	}
	port, err := listener(rights[:oob])
	if err != nil {
		return err
	}
	q, err := parseRequest(text[:n], port != nil)
	if err == nil && port != nil {
		err = r.open(ctx, q.Open, port)
	}
	if err != nil && port != nil {
		port.Close()
	}
	if err == nil && port == nil {
		r.close(q.Close)
	}
	return err
}

// parseRequest reads a request; withPort tells whether a listening socket came with it.
func parseRequest(text []byte, withPort bool) (request, error) {
	var q request
	if err := json.Unmarshal(text, &q); err != nil {
		return request{}, fmt.Errorf("reading the request: %w", err)
	}
	id, other := q.Close, q.Open
	if withPort {
		id, other = q.Open, q.Close
	}
	if !idForm.MatchString(id) || other != "" {
		return request{}, errors.New("reading the request: want the id of a port to close, or that of one to open along with it")
	}
	return q, nil
}

// close closes a port. One that is not there is closed.
func (r *Relay) close(id string) {
	r.mu.Lock()
	end := r.ports[id]
	delete(r.ports, id)
	r.mu.Unlock()
	if end != nil {
		end()
	}
}

// listener gives the listening socket that came with a message, nil if none did.
func listener(rights []byte) (net.Listener, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) == 0 {
		return nil, err
	}
	received, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(received) == 0 {
		return nil, err
	}
	var files []*os.File
	for _, fd := range received {
		f := os.NewFile(uintptr(fd), "port")
		defer f.Close() // the listener has a copy
		files = append(files, f)
	}
	if len(files) > 1 {
		return nil, errors.New("more than one port came with the request")
	}
	return net.FileListener(files[0])
}

func (r *Relay) open(ctx context.Context, id string, port net.Listener) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if r.ports[id] != nil {
		return fmt.Errorf("there is a port for %s", id)
	}
	ctx, cancel := context.WithCancel(ctx)
	r.ports[id] = func() { cancel(); port.Close() }
	r.work.Go(func() {
		free := make(chan struct{}, maxConnections)
		for {
			select {
			case free <- struct{}{}:
			case <-ctx.Done():
				return
			}
			conn, err := port.Accept()
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				<-free
				if passing(err) {
					r.pause(ctx, "waiting at a port", err)
					continue
				}
				r.log.Error("a port takes no more connections", "id", id, "error", err.Error())
				return
			}
			r.work.Go(func() {
				defer func() { <-free }()
				r.relay(ctx, conn)
			})
		}
	})
	return nil
}

func (r *Relay) closeAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, end := range r.ports {
		end()
		delete(r.ports, id)
	}
}

// relay joins one connection to the gateway, until both sides have ended or the port
// is closed.
func (r *Relay) relay(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	select {
	case r.together <- struct{}{}:
		defer func() { <-r.together }()
	case <-ctx.Done():
		return
	}
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	far, err := (&net.Dialer{}).DialContext(dialing, "tcp", r.gateway)
	cancel()
	if err != nil {
		if ctx.Err() == nil {
			r.log.Error("the egress gateway cannot be reached", "error", err.Error())
		}
		const body = "the egress gateway cannot be reached\n"
		fmt.Fprintf(conn, "HTTP/1.1 502 Egress gateway not reachable\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
		return
	}
	defer far.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close(); far.Close() })
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { pass(far, conn) })
	both.Go(func() {
		pass(conn, far)
		// It may still be writing, but nobody reads it.
		_ = conn.SetDeadline(time.Now().Add(farewell))
	})
	both.Wait()
}

// pass copies one direction and tells the receiver of its end. One that cannot be
// written to any more ends the other direction too.
func pass(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		_ = half.CloseWrite()
		return
	}
	to.Close()
	from.Close()
}
