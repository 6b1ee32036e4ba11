package fault

import (
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// GitServer serves bare repositories with the git program's own HTTP server,
// without authentication. Unlike Gitea it can be set to refuse commits that no
// branch points at.
type GitServer struct {
	URL  string // http://127.0.0.1:port
	root string
	t    testing.TB
}

// NewGitServer starts a server that ends with the test. With old set it speaks
// protocol version 0 only, where such settings count (gitprotocol-v2: a server
// gives any object by its id).
func NewGitServer(t testing.TB, old bool) *GitServer {
	t.Helper()
	path, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatalf("finding git's own programs: %v", err)
	}
	root := t.TempDir()
	backend := &cgi.Handler{
		Path:   filepath.Join(strings.TrimSpace(string(path)), "git-http-backend"),
		Stderr: io.Discard, // what it says there, it says to the client too
		Env:    []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if old {
			r.Header.Del("Git-Protocol")
		}
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return &GitServer{URL: server.URL, root: root, t: t}
}

// Create makes an empty bare repository and gives its URL and its folder.
func (s *GitServer) Create(name string, args ...string) (url, dir string) {
	s.t.Helper()
	dir = filepath.Join(s.root, name)
	Git(s.t, s.root, append([]string{"init", "--quiet", "--bare", "--initial-branch=main"}, append(args, dir)...)...)
	return s.URL + "/" + name, dir
}

// Git runs the git program in dir as a person and gives its trimmed output.
func Git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(),
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull,
		"GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@bench.invalid",
		"GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@bench.invalid",
		"GIT_CONFIG_COUNT=2",
		"GIT_CONFIG_KEY_0=protocol.file.allow", "GIT_CONFIG_VALUE_0=always",
		"GIT_CONFIG_KEY_1=init.defaultBranch", "GIT_CONFIG_VALUE_1=main")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}
