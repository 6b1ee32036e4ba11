package runnetwork

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"fabrique/bench/parts"
	"fabrique/steps/step"
)

func TestMain(m *testing.M) { parts.Main(m) }

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// running starts a relay to the gateway and gives its socket; stop ends it and waits.
func running(t *testing.T, gateway string) (r *Relay, socket string, stop func()) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "relay.sock")
	r = NewRelay(quiet, gateway)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, socket) }()
	stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the relay ended with %v", err)
		}
		done <- nil
	}
	t.Cleanup(stop)
	wait, end := context.WithTimeout(t.Context(), 5*time.Second)
	defer end()
	conn, err := dial(wait, socket)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	return r, socket, stop
}

// echo is a gateway that answers with what it got, once the client has said its all.
func echo(t *testing.T) string {
	t.Helper()
	l := listen(t)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				text, err := io.ReadAll(conn)
				if err == nil {
					fmt.Fprintf(conn, "got %s", text)
				}
			}()
		}
	}()
	return l.Addr().String()
}

func listen(t *testing.T) *net.TCPListener {
	t.Helper()
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// hand gives the relay a port, as the plugin does, and tells where it is.
func hand(t *testing.T, socket, id string) string {
	t.Helper()
	l := listen(t)
	defer l.Close()
	fd, done, err := file(l)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	if err := tell(socket, request{Open: id}, fd); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

func say(t *testing.T, address, text string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, text)
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(answer)
}

// TestRelay passes both directions, and tells each side of the other's end.
func TestRelay(t *testing.T) {
	_, socket, _ := running(t, echo(t))
	one, two := hand(t, socket, "one"), hand(t, socket, "two")
	large := strings.Repeat("x", 1<<20)
	for _, address := range []string{one, two, one} {
		if got := say(t, address, large); got != "got "+large {
			t.Errorf("%d bytes came back, want %d", len(got), len(large)+4)
		}
	}
}

// A port that is closed takes no connection, and what came through it ends. Closing it
// again, or one that never was, is no error.
func TestClose(t *testing.T) {
	r, socket, _ := running(t, echo(t))
	address := hand(t, socket, "one")
	open, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	other := hand(t, socket, "two")
	for range 2 {
		if err := tell(socket, request{Close: "one"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := open.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := open.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("what was open has not ended: %v", err)
	}
	if conn, err := net.Dial("tcp", address); err == nil {
		conn.Close()
		t.Error("a closed port takes connections")
	}
	if got := say(t, other, "hello"); got != "got hello" {
		t.Errorf("the other port says %q", got)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.ports) != 1 {
		t.Errorf("%d ports are left, want 1", len(r.ports))
	}
}

// A client that holds its connection when the gateway has ended it is cut off.
func TestFarewell(t *testing.T) {
	l := listen(t)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	_, socket, _ := running(t, l.Addr().String())
	conn, err := net.Dial("tcp", hand(t, socket, "one"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	start := time.Now()
	for time.Since(start) < 2*farewell {
		if _, err := conn.Write([]byte("x")); err != nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Error("the connection is still held")
}

// Errors that pass do not end a port.
func TestPassing(t *testing.T) {
	for err, want := range map[error]bool{
		&net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", unix.EMFILE)}: true,
		&net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", unix.ENFILE)}: true,
		&net.OpError{Op: "accept", Err: net.ErrClosed}:                              false,
		&net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", unix.EINVAL)}: false,
	} {
		if got := passing(err); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}

// A gateway that is not there is an answer that a client shows.
func TestNoGateway(t *testing.T) {
	l := listen(t)
	l.Close()
	_, socket, _ := running(t, l.Addr().String())
	conn, err := net.Dial("tcp", hand(t, socket, "one"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := answer.Status+": "+string(body), "502 Egress gateway not reachable: the egress gateway cannot be reached\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The end of the relay ends its ports and what came through them.
func TestEnd(t *testing.T) {
	_, socket, stop := running(t, echo(t))
	address := hand(t, socket, "one")
	open, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	stop()
	if conn, err := net.Dial("tcp", address); err == nil {
		conn.Close()
		t.Error("the port still takes connections")
	}
}

// TestRefused tells what the relay takes for no request.
func TestRefused(t *testing.T) {
	_, socket, _ := running(t, echo(t))
	hand(t, socket, "there")
	port, done, err := file(listen(t))
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	pipe, other, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer other.Close()
	for name, c := range map[string]struct {
		q    request
		fds  []int
		want string
	}{
		"nothing":         {request{}, nil, "want the id of a port"},
		"both":            {request{Open: "a", Close: "b"}, []int{port}, "want the id of a port"},
		"no port":         {request{Open: "a"}, nil, "want the id of a port"},
		"port to close":   {request{Close: "a"}, []int{port}, "want the id of a port"},
		"path for an id":  {request{Open: "../a"}, []int{port}, "want the id of a port"},
		"there already":   {request{Open: "there"}, []int{port}, "there is a port for there"},
		"not a listener":  {request{Open: "a"}, []int{int(pipe.Fd())}, "non-socket"},
		"two descriptors": {request{Open: "a"}, []int{port, port}, "more than one"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tell(socket, c.q, c.fds...)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// A socket that a killed relay left is made anew.
func TestStaleSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "relay.sock")
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := NewRelay(quiet, "127.0.0.1:1").Run(ctx, socket); err != nil {
		t.Error(err)
	}
	err := NewRelay(quiet, "127.0.0.1:1").Run(ctx, filepath.Join(t.TempDir(), "none", "relay.sock"))
	if step.ExitCode(err) != 2 || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v (exit code %d)", err, step.ExitCode(err))
	}
}

// FuzzRequest finds requests that are taken though their id is of no form.
func FuzzRequest(f *testing.F) {
	for _, text := range []string{`{"open":"a"}`, `{"close":"a"}`, `{"open":"a","close":"b"}`, `{}`, `[]`, `{"open":"../x"}`, "{"} {
		f.Add([]byte(text), true)
		f.Add([]byte(text), false)
	}
	f.Fuzz(func(t *testing.T, text []byte, withPort bool) {
		q, err := parseRequest(text, withPort)
		if err != nil {
			if q != (request{}) {
				t.Errorf("an error along with %+v", q)
			}
			return
		}
		if withPort != (q.Open != "") || withPort == (q.Close != "") || !idForm.MatchString(q.Open+q.Close) {
			t.Errorf("%q with a port: %v: taken for %+v", text, withPort, q)
		}
	})
}

// TestInstall puts the program where it is looked for, and says what it did.
func TestInstall(t *testing.T) {
	dir := t.TempDir()
	var got []string
	install := func() {
		result, err := Install(dir)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, result)
	}
	install()
	install()
	if err := os.WriteFile(filepath.Join(dir, loopback), []byte("old"), 0o755); err != nil {
		t.Fatal(err)
	}
	install()
	if diff := cmp.Diff([]string{"created", "unchanged", "updated"}, got); diff != "" {
		t.Error(diff)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("there are %v, %v", entries, err)
	}
	if _, err := Install(filepath.Join(dir, "none")); step.ExitCode(err) != 2 {
		t.Errorf("got %v (exit code %d)", err, step.ExitCode(err))
	}
}

// TestProxyURL ties the two forms of the address together.
func TestProxyURL(t *testing.T) {
	if Proxy != netip.MustParseAddrPort("127.0.0.1:3128") || ProxyURL != "http://127.0.0.1:3128" {
		t.Error(Proxy, ProxyURL)
	}
}
