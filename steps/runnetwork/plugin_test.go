package runnetwork

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fabrique/bench/images"
	"fabrique/bench/parts"
)

// TestRunInstruction has a real buildkitd run instructions in this network. What the
// gateway answers arrives; nothing else is there to be reached, not even what listens beside the
// daemon.
func TestRunInstruction(t *testing.T) {
	parts.Registry(t)
	if _, err := images.Busybox.Push(t.Context(), parts.RegistryAddress); err != nil {
		t.Fatal(err)
	}
	gateway := listen(t)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "asked for %s\n", r.RequestURI)
	})}
	go server.Serve(gateway)
	t.Cleanup(func() { server.Close() })
	relay, socket, _ := running(t, gateway.Addr().String())

	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "run-network")
	for _, args := range [][]string{{"go", "build", "-o", program, "fabrique/cmd/run-network"}, {program, "install", bin}} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	traces := filepath.Join(dir, "traces.sock")
	conf, err := Conf(socket, traces)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "net.json"), conf, 0o644); err != nil {
		t.Fatal(err)
	}
	daemon, err := parts.StartBuildKit(context.WithoutCancel(t.Context()), parts.MinimalBuildKitConfig+fmt.Sprintf(
		"[otel]\n  socketPath = %q\n[worker.oci]\n  networkMode = \"cni\"\n  cniConfigPath = %q\n  cniBinaryPath = %q\n", traces, filepath.Join(dir, "net.json"), bin))
	if err != nil {
		t.Fatal(err)
	}
	build := func(instruction string) (string, error) {
		work := t.TempDir()
		if err := os.WriteFile(filepath.Join(work, "Dockerfile"), []byte("FROM registry:80/base/busybox:latest\nRUN "+instruction+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), daemon.Buildctl, "--addr", daemon.Address, "build", "--progress=plain", "--no-cache",
			"--frontend=dockerfile.v0", "--local", "context="+work, "--local", "dockerfile="+work, "--opt", "build-arg:http_proxy="+ProxyURL).CombinedOutput()
		return string(out), err
	}
	for name, c := range map[string]struct {
		instruction string
		works       bool
		want        string // in the output
	}{
		"gateway":         {`printf 'GET http://example.org/file HTTP/1.0\r\n\r\n' | nc 127.0.0.1 3128`, true, "asked for http://example.org/file"},
		"only a loopback": {"test \"$(tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ')\" = lo && cat /proc/net/route | wc -l", true, " 1\n"},
		"another address": {"nc -w 3 198.51.100.1 80", false, "Network is unreachable"},
		"echo request":    {"ping -c 1 -W 2 198.51.100.1", false, "Network is unreachable"},
		"daemon's ports":  {"nc -w 3 127.0.0.1 80", false, "Connection refused"},
		"daemon's traces": {"test ! -e /dev/otel-grpc.sock", true, ""},
		"no network":      {"--network=none nc -w 3 127.0.0.1 3128", false, "Connection refused"},
		"host's network":  {"--network=host true", false, "network.host is not allowed"},
	} {
		out, err := build(c.instruction)
		if (err == nil) != c.works || !strings.Contains(out, c.want) {
			t.Errorf("%s: ended with %v, want %q in\n%s", name, err, c.want, out)
		}
	}
	// BuildKit keeps a namespace for the next instruction, and made no more than it needs.
	relay.mu.Lock()
	defer relay.mu.Unlock()
	if len(relay.ports) != 1 {
		t.Errorf("%d ports are open after one instruction at a time, want 1", len(relay.ports))
	}
}
