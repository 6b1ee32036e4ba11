package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fabrique/bench/binaries"
	"fabrique/bench/fault"
	"fabrique/bench/parts"
	"fabrique/bench/script"
	"fabrique/steps/secret"
	"fabrique/steps/step"
)

func TestMain(m *testing.M) { parts.Main(m) }

// source is a private repository in Gitea.
type source struct {
	url          string
	older, newer string
	reader       secret.Secret
}

func newSource(t *testing.T, name string, older, newer fs.FS) source {
	t.Helper()
	g := parts.Gitea(t)
	project, err := g.NewProject(t.Context(), name+"/source", name+"/apps")
	if err != nil {
		t.Fatal(err)
	}
	s := source{url: project.SourceURL(), reader: project.Reader}
	if s.older, err = g.PushTree(t.Context(), project.Source, "main", older, "older"); err != nil {
		t.Fatal(err)
	}
	if s.newer, err = g.PushTree(t.Context(), project.Source, "main", newer, "newer"); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestScripts(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text), Mode: 0o644} }
	s := newSource(t, "clone", fstest.MapFS{"app/Dockerfile": file("FROM scratch\n")}, fstest.MapFS{
		"app/Dockerfile": file("FROM busybox\n"),
		"lfs/big.bin":    file("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
		".gitattributes": file("*.bin filter=lfs\n"),
	})
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(s.reader.Reveal()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	script.Run(t, map[string]string{"URL": s.url, "OLDER": s.older, "NEWER": s.newer, "TOKEN_FILE": token, "TOKEN": s.reader.Reveal()}, s.reader)
}

// command prepares the real program for the revision.
func command(t *testing.T, s source, url, revision, dir string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := exec.Command(filepath.Join(binaries.Dir(t), "clone-at-sha"), "--url", url, "--revision", revision, "--dir", dir)
	cmd.Env = append(os.Environ(), "FABRIQUE_READER_TOKEN="+s.reader.Reveal())
	output := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = output, output
	return cmd, output
}

// C4: the token is in no process's arguments. And SIGTERM in mid-fetch: over in
// seconds, exit code 1, nothing left behind.
func TestSIGTERM(t *testing.T) {
	big := make([]byte, 1<<20)
	for i := range big {
		big[i] = byte(rand.Uint32())
	}
	s := newSource(t, "sigterm", fstest.MapFS{"big": {Data: big}}, fstest.MapFS{"x": {Data: []byte("x")}})
	proxy := fault.New(t, parts.GiteaURL)
	handler, stalled := fault.Stall("/git-upload-pack", 200_000)
	proxy.Handle(handler)
	dir := t.TempDir()
	cmd, output := command(t, s, proxy.URL+strings.TrimPrefix(s.url, parts.GiteaURL), s.older, dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case <-stalled:
	case err := <-done:
		t.Fatalf("%v\n%s", err, output)
	}
	if n := len(binaries.Running("git")); n < 2 { // git fetch and git-remote-http at least
		t.Errorf("%d git processes run", n)
	}
	for _, line := range binaries.Running("") {
		script.Check(func(format string, _ ...any) { t.Errorf("in the command line %q", line) }, line, s.reader)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("it does not end")
	}
	t.Logf("ended %v after SIGTERM", time.Since(start).Round(time.Millisecond))
	if code := cmd.ProcessState.ExitCode(); code != step.ExitRetry {
		t.Errorf("exit code %d\n%s", code, output)
	}
	if !strings.Contains(output.String(), "terminated") {
		t.Errorf("the output does not say why:\n%s", output)
	}
	script.Check(t.Errorf, output.String(), s.reader)
	if left := binaries.Running(dir); len(left) > 0 {
		t.Errorf("still running: %q", left)
	}
	if diff := cmp.Diff([]string{".clone-at-sha"}, names(t, dir)); diff != "" {
		t.Errorf("left behind: %s", diff)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// kill -9 at moments spread over the length of a run, in a folder that holds
// the other revision; the run after it always ends in the same state.
func TestKilled(t *testing.T) {
	trees := [2]fstest.MapFS{{}, {}}
	random := rand.New(rand.NewPCG(95, 2))
	for i := range trees {
		for n := range 300 {
			text := make([]byte, 2000)
			for j := range text {
				text[j] = byte(random.Uint32())
			}
			trees[i][fmt.Sprintf("d%d/f%d", n%7, n)] = &fstest.MapFile{Data: text, Mode: 0o644}
		}
	}
	s := newSource(t, "killed", trees[0], trees[1])
	revisions := [2]string{s.older, s.newer}
	dir := t.TempDir()
	whole, output := command(t, s, s.url, revisions[1], dir)
	start := time.Now()
	if err := whole.Run(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	length := time.Since(start)

	const rounds = 20
	killed := 0
	for round := range rounds {
		revision, tree := revisions[round%2], trees[round%2]
		victim, _ := command(t, s, s.url, revision, dir)
		if err := victim.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(random.Int64N(int64(length) * 11 / 10)))
		victim.Process.Kill()
		if victim.Wait() != nil {
			killed++
		}
		again, output := command(t, s, s.url, revision, dir)
		if err := again.Run(); err != nil {
			t.Fatalf("after the kill: %v\n%s", err, output)
		}
		if diff := cmp.Diff([]string{".clone-at-sha", "clone.json", "git", "tree"}, names(t, dir)); diff != "" {
			t.Fatalf("round %d: %s", round, diff)
		}
		same(t, tree, filepath.Join(dir, "tree"))
	}
	t.Logf("%d of %d runs of %v were killed", killed, rounds, length.Round(time.Millisecond))
	if killed < rounds/3 {
		t.Errorf("only %d of %d runs were killed before their end", killed, rounds)
	}
}

func same(t *testing.T, want fstest.MapFS, dir string) {
	t.Helper()
	n := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		n++
		name, _ := filepath.Rel(dir, path)
		got, err := os.ReadFile(path)
		if err == nil && (want[name] == nil || !bytes.Equal(want[name].Data, got)) {
			t.Fatalf("%q is not the revision's", name)
		}
		return err
	})
	if err != nil || n != len(want) {
		t.Fatalf("%d files, want %d: %v", n, len(want), err)
	}
}
