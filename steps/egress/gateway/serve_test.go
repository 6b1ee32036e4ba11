package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fabrique/steps/egress"
	"fabrique/steps/step"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// A changed file holds; one that cannot be used is told once and changes nothing.
func TestReload(t *testing.T) {
	w := start(t, egress.Rules{Allow: list("old.example:443")})
	allowed := func(host string) bool { return w.policy.Load().Name("", egress.Target{Host: host, Port: 443}) == nil }
	seen := sha256.Sum256(nil)
	for _, c := range []struct {
		text    string
		allowed string
		says    string
	}{
		{`{"allow": ["new.example:443"], "maxTunnels": 5}`, "new.example", "a new policy"},
		{`{"allow": ["127.0.0.1:443"], "maxTunnels": 5}`, "new.example", "keeping the policy as it was: parsing the egress policy: allow[0]"},
		{``, "new.example", "keeping the policy as it was: parsing the egress policy: EOF"},
		{`{"allow": ["newer.example:443"], "maxTunnels": 5}`, "newer.example", "a new policy"},
	} {
		file := write(t, "policy.json", c.text)
		before := w.lines.string()
		seen = w.reload(file, seen)
		said := strings.TrimPrefix(w.lines.string(), before)
		if !allowed(c.allowed) || !strings.Contains(said, c.says) {
			t.Errorf("%s: allowed %v, %s", c.text, allowed(c.allowed), said)
		}
		if seen = w.reload(file, seen); w.lines.string() != before+said {
			t.Errorf("%s: it is told twice", c.text)
		}
	}
	seen = w.reload("nowhere", seen)
	if w.reload("nowhere", seen); !allowed("newer.example") || w.count.reloads.Load() != 2 || w.count.invalid.Load() != 3 {
		t.Errorf("%d taken, %d invalid", w.count.reloads.Load(), w.count.invalid.Load())
	}
}

func (l *lines) string() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func TestAdmin(t *testing.T) {
	port := web(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "12345") })
	w := start(t, egress.Rules{Allow: list("listed.example:%s", port)})
	w.dns.Set("listed.example", "127.0.0.1")
	w.ask("GET http://listed.example:%s/ HTTP/1.1\r\nHost: x\r\n\r\n", port)
	w.ask("GET http://evil.example/ HTTP/1.1\r\nHost: x\r\n\r\n")
	w.lines.wait(t, 2)
	admin := httptest.NewServer(w.Admin())
	defer admin.Close()
	for path, want := range map[string][]string{
		"/healthz": {""},
		"/metrics": {
			"# TYPE fabrique_egress_requests_total counter\nfabrique_egress_requests_total{verdict=\"allowed\"} 1\nfabrique_egress_requests_total{verdict=\"refused\"} 1\n",
			"fabrique_egress_bytes_total{direction=\"received\"} 5\n", "fabrique_egress_open_tunnels 0\n", "fabrique_egress_policy_reloads_total{result=\"taken\"} 0\n",
		},
	} {
		response, err := http.Get(admin.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		for _, part := range want {
			if response.StatusCode >= 300 || !strings.Contains(string(body), part) {
				t.Errorf("%s: %s lacks %s\n%s", path, response.Status, part, body)
			}
		}
	}
	report, err := egress.Client{URL: admin.URL}.Requests(t.Context(), egress.Filter{})
	if err != nil || len(report.Requests) != 2 || report.Requests[0].Destination != "evil.example:80" || report.Requests[1].Received != 5 {
		t.Errorf("%+v, %v", report, err)
	}
	// The admin port is no way out, and the proxy tells nothing of itself.
	if response, _ := w.ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); response.StatusCode != 400 {
		t.Error(response.Status)
	}
}

// What is open at the end may end by itself, for some time.
func TestShutdown(t *testing.T) {
	port := tcp(t, echo)
	w := start(t, egress.Rules{Allow: list("listed.example:%s", port)})
	w.dns.Set("listed.example", "127.0.0.1")
	server := w.server.Config
	connect := func() io.ReadCloser {
		conn, r := w.raw("CONNECT listed.example:%s HTTP/1.1\r\nHost: x\r\n\r\n", port)
		if response, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect}); err != nil || response.StatusCode != 200 {
			t.Fatal(response, err)
		}
		return conn
	}
	quick, slow := connect(), connect()
	time.AfterFunc(200*time.Millisecond, func() { quick.Close() })
	began := time.Now()
	w.shutdown(server, time.Second)
	if took := time.Since(began); took < 900*time.Millisecond || took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	if _, err := slow.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the slow one goes on: %v", err)
	}
	if all := w.lines.wait(t, 2); len(all) != 2 {
		t.Errorf("%d lines", len(all))
	}
}

// The program: its exit codes, and an end by signal that is none.
func TestExecute(t *testing.T) {
	policy := write(t, "policy.json", `{"allow": ["a.example:443"], "maxTunnels": 5}`)
	bad := write(t, "policy.json", `{"allow": ["a.example"], "maxTunnels": 5}`)
	key := write(t, "key", "0123456789abcdef0123456789abcdef\n")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{}, step.ExitInvalid, "missing --policy"},
		{[]string{"--nothing"}, step.ExitInvalid, "unknown flag"},
		{[]string{"extra"}, step.ExitInvalid, "unknown command"},
		{[]string{"--policy", "nowhere"}, step.ExitInvalid, "reading the egress policy"},
		{[]string{"--policy", bad}, step.ExitInvalid, "allow[0]"},
		{[]string{"--policy", policy, "--key-file", "nowhere"}, step.ExitInvalid, "it does not exist"},
		{[]string{"--policy", policy, "--key-file", bad, "--listen", "256.1.1.1:1"}, step.ExitInvalid, "white space"},
		{[]string{"--policy", policy, "--key-file", key, "--listen", "256.1.1.1:1"}, step.ExitInvalid, "listening as a proxy"},
		{[]string{"--help"}, step.ExitOK, ""},
	} {
		var out, err bytes.Buffer
		if code := Execute(t.Context(), c.args, &out, &err); code != c.code || !strings.Contains(err.String(), c.says) {
			t.Errorf("%v: exit code %d, %s", c.args, code, &err)
		}
	}
	if testing.Short() {
		return
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(100*time.Millisecond, func() { cancel(errors.New("terminated signal received")) })
	var out bytes.Buffer
	log := new(lines)
	code := Execute(ctx, []string{"--policy", policy, "--key-file", key, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, &out, log)
	if code != 0 || out.Len() != 0 || !strings.Contains(log.string(), `"msg":"ending","because":"terminated signal received"`) {
		t.Errorf("exit code %d, %q, %s", code, &out, log.string())
	}
}
