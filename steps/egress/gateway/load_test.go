package gateway

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"fabrique/steps/egress"
	"fabrique/steps/egress/dnstest"
)

// envChild makes the test binary a gateway of its own process, whose memory can be
// told: "PORT RESOLVER", the destination's port and the DNS server.
const envChild = "EGRESS_TEST_CHILD"

func child(settings string) {
	port, dns, _ := strings.Cut(settings, " ")
	rules := egress.Rules{Allow: list("listed.example:%s", port), MaxTunnels: egress.DefaultMaxTunnels}
	g := New(slog.New(slog.DiscardHandler), egress.NewPolicy(rules), egress.Key{})
	g.loopback = true
	g.dialer.Resolver = dnstest.At(dns)
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	fmt.Println(listener.Addr())
	go func() {
		io.Copy(io.Discard, os.Stdin) // ends with the test
		os.Exit(0)
	}()
	g.server().Serve(listener)
}

// process is a gateway in a process of its own, and a server that sends as many
// bytes as the path says.
type process struct {
	address, port string
	pid           int
}

func startProcess(t testing.TB) process {
	t.Helper()
	chunk := make([]byte, 256<<10)
	port := web(t, func(w http.ResponseWriter, r *http.Request) {
		left, _ := strconv.Atoi(r.URL.Path[1:])
		w.Header().Set("Content-Length", r.URL.Path[1:])
		for ; left > 0; left -= len(chunk) {
			w.Write(chunk[:min(left, len(chunk))])
		}
	})
	dns := dnstest.Start(t)
	dns.Set("listed.example", "127.0.0.1")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envChild+"="+port+" "+dns.Address())
	stdin, out := must(cmd.StdinPipe()), must(cmd.StdoutPipe())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stdin.Close(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return process{strings.TrimSpace(line), port, cmd.Process.Pid}
}

// peak gives the most memory that the process ever had, in bytes.
func (p process) peak(t testing.TB) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// download reads size bytes, directly, by plain HTTP or through a tunnel.
func (p process) download(way string, size int) error {
	to := p.address
	if way == "direct" {
		to = "127.0.0.1:" + p.port
	}
	conn, err := net.Dial("tcp", to)
	if err != nil {
		return err
	}
	defer conn.Close()
	r := bufio.NewReaderSize(conn, 64<<10)
	path := "/"
	switch way {
	case "plain":
		path = "http://listed.example:" + p.port + "/"
	case "tunnel":
		fmt.Fprintf(conn, "CONNECT listed.example:%s HTTP/1.1\r\nHost: x\r\n\r\n", p.port)
		response, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
		if err != nil || response.StatusCode != 200 {
			return fmt.Errorf("%v: %w", response, err)
		}
	}
	fmt.Fprintf(conn, "GET %s%d HTTP/1.1\r\nHost: x\r\n\r\n", path, size)
	response, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	if n, err := io.Copy(io.Discard, response.Body); err != nil || n != int64(size) {
		return fmt.Errorf("%d bytes: %w", n, err)
	}
	return nil
}

// raceDetector tells whether it takes memory too.
func raceDetector() bool {
	info, _ := debug.ReadBuildInfo()
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// 200 downloads at once take a bounded amount of memory, however large they are.
func TestMemory(t *testing.T) {
	for _, way := range []string{"plain", "tunnel"} {
		p := startProcess(t)
		before := p.peak(t)
		size := 4 << 20
		if testing.Short() {
			size = 1 << 20
		}
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() {
				if err := p.download(way, size); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		peak := p.peak(t)
		t.Logf("%s: 200 downloads of %d MiB: %d MiB at most, %d MiB before", way, size>>20, peak>>20, before>>20)
		if most := 64 << 20; peak > most && !raceDetector() {
			t.Errorf("%s: %d MiB, want at most %d", way, peak>>20, most>>20)
		}
	}
}

func BenchmarkDownload(b *testing.B) {
	const size = 256 << 20
	for _, way := range []string{"direct", "plain", "tunnel"} {
		b.Run(way, func(b *testing.B) {
			p := startProcess(b)
			b.SetBytes(size)
			for b.Loop() {
				if err := p.download(way, size); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRequest is what one small request costs.
func BenchmarkRequest(b *testing.B) {
	for _, way := range []string{"direct", "plain", "tunnel"} {
		b.Run(way, func(b *testing.B) {
			p := startProcess(b)
			for b.Loop() {
				if err := p.download(way, 1000); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
