package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A request is what goproxy writes its answer to.
var (
	_ http.ResponseWriter = (*request)(nil)
	_ http.Hijacker       = (*request)(nil)
	_ http.Flusher        = (*request)(nil)
)

func (one *request) Header() http.Header { return one.w.Header() }

func (one *request) WriteHeader(status int) {
	if !one.done {
		one.status = status
		one.patience()
		one.w.WriteHeader(status)
	}
}

func (one *request) Write(b []byte) (int, error) {
	if one.done {
		return len(b), nil
	}
	one.patience()
	return one.w.Write(b)
}

func (one *request) Flush() {
	if !one.done {
		one.patience()
		// An error here comes again with the next write.
		_ = http.NewResponseController(one.w).Flush()
	}
}

// patience gives a client that takes nothing only so long. Where that cannot be set,
// the connection is gone, which the write says.
func (one *request) patience() {
	_ = http.NewResponseController(one.w).SetWriteDeadline(time.Now().Add(one.gateway.idle))
}

func (one *request) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := one.w.(http.Hijacker).Hijack()
	if err != nil {
		return nil, nil, err
	}
	one.mu.Lock()
	one.client = conn
	one.mu.Unlock()
	// The server's timeouts are not a tunnel's.
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, nil, err
	}
	return conn, buffered, nil
}

// cut ends a tunnel from outside.
func (one *request) cut() {
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.client != nil {
		one.client.Close()
	}
	if one.up != nil {
		one.up.Close()
	}
}

// lingering is how long a client that still sends may take to read its answer before
// the connection is closed under it, if not too many do.
const (
	lingering    = time.Second
	maxLingering = 256
)

// answer writes a whole answer with its own words in the status line, which net/http
// has no way to, and closes the connection.
func (one *request) answer(status int, text string, header http.Header, more ...string) {
	one.answers.Do(func() {
		one.done, one.status, one.took = true, status, time.Since(one.started)
		conn := one.client
		if conn == nil {
			var err error
			if conn, _, err = one.w.(http.Hijacker).Hijack(); err != nil {
				return // the answer had begun: breaking it off is all that is left
			}
		}
		defer conn.Close()
		body := text + "\n"
		for _, m := range more {
			if m != "" {
				body += m + "\n"
			}
		}
		if header == nil {
			header = http.Header{}
		}
		header.Set("Content-Type", "text/plain; charset=utf-8")
		header.Set("Content-Length", fmt.Sprint(len(body)))
		header.Set("Connection", "close")
		var all strings.Builder
		fmt.Fprintf(&all, "HTTP/1.1 %d %s\r\n", status, text)
		if err := header.Write(&all); err != nil {
			return
		}
		all.WriteString("\r\n")
		if one.method != http.MethodHead {
			all.WriteString(body)
		}
		if err := conn.SetDeadline(time.Now().Add(lingering)); err != nil {
			return
		}
		if _, err := io.WriteString(conn, all.String()); err != nil {
			return
		}
		// Closed with something unread, the kernel would take the answer back.
		defer one.gateway.count.lingering.Add(-1)
		if one.gateway.count.lingering.Add(1) > maxLingering {
			return
		}
		if half, ok := conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
			_, _ = io.CopyN(io.Discard, conn, 256<<10)
		}
	})
}

// counted counts what is read of a body.
type counted struct {
	io.ReadCloser
	n      *atomic.Int64
	broken *error // gets what breaks it off; may be nil
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.n.Add(int64(n))
	if err != nil && !errors.Is(err, io.EOF) && c.broken != nil {
		*c.broken = err
	}
	return n, err
}

// watched is a connection to a destination that does not stay when nothing passes
// through it.
type watched struct {
	*net.TCPConn
	read, written *atomic.Int64 // may be nil
	closed        func()        // may be nil
	// first gets what is written, and gives what may go on: nothing until it knows, then
	// all so far. Nil once it has, or if everything may.
	first  func([]byte) ([]byte, error)
	late   *time.Timer  // ends it if first does not know in time; may be nil
	last   atomic.Int64 // Unix nanoseconds of the last byte
	closes sync.Once

	mu    sync.Mutex
	timer *time.Timer
}

// watch calls end when nothing has passed through for so long.
func watch(w *watched, idle time.Duration, end func()) *watched {
	w.last.Store(time.Now().UnixNano())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(idle, func() {
		if left := idle - time.Since(time.Unix(0, w.last.Load())); left > 0 {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.timer.Reset(left)
			return
		}
		end()
	})
	return w
}

func (w *watched) passed(n int, count *atomic.Int64) {
	if n > 0 {
		w.last.Store(time.Now().UnixNano())
		if count != nil {
			count.Add(int64(n))
		}
	}
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.TCPConn.Read(b)
	w.passed(n, w.read)
	return n, err
}

func (w *watched) Write(b []byte) (int, error) {
	if w.first != nil {
		return w.open(b)
	}
	n, err := w.TCPConn.Write(b)
	w.passed(n, w.written)
	return n, err
}

// open writes what may go on of the first words.
func (w *watched) open(b []byte) (int, error) {
	all, err := w.first(b)
	if err != nil {
		return 0, err
	}
	if all == nil {
		return len(b), nil
	}
	w.first = nil
	if w.late != nil {
		w.late.Stop()
	}
	n, err := w.TCPConn.Write(all)
	w.passed(n, w.written)
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

// ReadFrom and WriteTo keep io.Copy from passing by Read and Write.
func (w *watched) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(writer{w}, r)
}

func (w *watched) WriteTo(to io.Writer) (int64, error) {
	return io.Copy(to, reader{w})
}

type writer struct{ io.Writer }

type reader struct{ io.Reader }

func (w *watched) Close() error {
	err := w.TCPConn.Close()
	w.closes.Do(func() {
		w.mu.Lock()
		w.timer.Stop()
		if w.late != nil {
			w.late.Stop()
		}
		w.mu.Unlock()
		if w.closed != nil {
			w.closed()
		}
	})
	return err
}
