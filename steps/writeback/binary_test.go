package writeback

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fabrique/bench/binaries"
	"fabrique/steps/gitref"
	"fabrique/steps/step"
)

// command gives the command line for a deployment, with flags replaced or, when
// empty, left out.
func (w *world) command(ctx context.Context, d Deployment, replace map[string]string) *exec.Cmd {
	w.t.Helper()
	path := filepath.Join(binaries.Dir(w.t), "gitea-writeback")
	writer := filepath.Join(w.t.TempDir(), "writer")
	if err := os.WriteFile(writer, []byte(w.project.Writer.Reveal()+"\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	flags := map[string]string{
		"gitea-url": w.url, "apps-repository": w.project.Apps, "record": string(d.Repository.Name) + ".yaml", "app": string(d.Repository.Name),
		"source-repository": w.project.Source, "revision": string(d.Revision), "digest": string(d.Digest),
		"source-key": string(d.SourceKey), "image": d.Repository.String(), "token-file": writer, "max-wait": "30s",
	}
	for name, value := range replace {
		flags[name] = value
	}
	var args []string
	for name, value := range flags {
		if value != "" {
			args = append(args, "--"+name, value)
		}
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "FABRIQUE_READER_TOKEN="+w.project.Reader.Reveal())
	return cmd
}

// TestExitCodes runs the binary into each of its exit codes. No output holds a
// token.
func TestExitCodes(t *testing.T) {
	w := newWorld(t)
	w.declare("citation", "broken")
	w.person("broken.yaml", strings.Replace(manifest("broken"), "dataops/broken", "../x", 1))
	r := w.commits(2, "")
	wrong := filepath.Join(t.TempDir(), "wrong")
	if err := os.WriteFile(wrong, []byte("0123456789abcdef0123456789abcdef01234567"), 0o600); err != nil {
		t.Fatal(err)
	}
	create := filepath.Join(t.TempDir(), "new.yaml")
	if err := os.WriteFile(create, []byte(manifest("new")), 0o600); err != nil {
		t.Fatal(err)
	}
	d := deployment("citation", r[0])
	digest := filepath.Join(t.TempDir(), "digest") // as digest-inspect --outputs writes it
	if err := os.WriteFile(digest, []byte(d.Digest), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		d       Deployment
		replace map[string]string
		code    int
		want    string // in the result or the log
	}{
		{"updated", d, nil, step.ExitOK, `"result":"updated"`},
		{"unchanged", d, nil, step.ExitOK, `"result":"unchanged"`},
		{"digest from a file", d, map[string]string{"digest": "", "digest-file": digest}, step.ExitOK, `"result":"unchanged"`},
		{"no digest", d, map[string]string{"digest": ""}, step.ExitInvalid, "give --digest or --digest-file"},
		{"two digests", d, map[string]string{"digest-file": digest}, step.ExitInvalid, "keep one"},
		{"no digest file", d, map[string]string{"digest": "", "digest-file": digest + "x"}, step.ExitInvalid, "reading the file of --digest-file"},
		{"no digest in the file", d, map[string]string{"digest": "", "digest-file": create}, step.ExitInvalid, "parsing the digest"},
		{"created", deployment("new", r[0]), map[string]string{"create-from": create}, step.ExitOK, `"result":"created"`},
		{"newer", deployment("citation", r[1]), nil, step.ExitOK, `"result":"updated"`},
		{"stale", d, nil, step.ExitOK, `"result":"stale"`},
		{"no app", d, map[string]string{"app": ""}, step.ExitInvalid, "missing --app"},
		{"revision", d, map[string]string{"revision": "main"}, step.ExitInvalid, "want a full commit id"},
		{"image without port", d, map[string]string{"image": "registry/citation"}, step.ExitInvalid, "the port included"},
		{"another image", d, map[string]string{"image": "registry:80/other", "revision": string(r[1]), "source-key": strings.Repeat("9", 64)}, step.ExitInvalid, "is not the app's"},
		{"password in the URL", d, map[string]string{"gitea-url": "http://u:hunter2@gitea:3000"}, step.ExitInvalid, "token file"},
		{"no token", d, map[string]string{"token-file": ""}, step.ExitInvalid, "FABRIQUE_WRITER_TOKEN"},
		{"token file missing", d, map[string]string{"token-file": wrong + "x"}, step.ExitInvalid, "does not exist"},
		{"wrong token", d, map[string]string{"token-file": wrong}, step.ExitInvalid, "refuses the token (401)"},
		{"create-from missing", d, map[string]string{"create-from": create + "x"}, step.ExitInvalid, "does not exist"},
		{"record missing", deployment("absent", r[0]), nil, step.ExitInvalid, "declare the app"},
		{"record broken", deployment("broken", r[0]), nil, step.ExitInvalid, `line 7, column 23`},
		{"repository missing", d, map[string]string{"apps-repository": "cluster/nothing"}, step.ExitInvalid, "does not exist"},
		{"no server", d, map[string]string{"gitea-url": "http://gitea:9", "max-wait": "1s"}, step.ExitRetry, "cannot be reached"},
		{"no such host", d, map[string]string{"gitea-url": "http://nothing.invalid", "max-wait": "1s"}, step.ExitRetry, "cannot be reached"},
		{"deadline", d, map[string]string{"gitea-url": "http://gitea:9", "timeout": "1s"}, step.ExitRetry, "deadline"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := w.command(t.Context(), c.d, c.replace)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			_ = cmd.Run()
			all := stdout.String() + stderr.String()
			if cmd.ProcessState.ExitCode() != c.code || !strings.Contains(all, c.want) {
				t.Errorf("exit code %d, want %d and %q in\n%s", cmd.ProcessState.ExitCode(), c.code, c.want, all)
			}
			for _, hidden := range []string{w.project.Writer.Reveal(), w.project.Reader.Reveal(), "0123456789abcdef0123456789abcdef01234567", "hunter2"} {
				if strings.Contains(all, hidden) {
					t.Errorf("a secret is in the output")
				}
			}
			if c.code == step.ExitOK {
				lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
				var result Result
				if err := json.Unmarshal([]byte(lines[len(lines)-1]), &result); err != nil || result.App == "" {
					t.Errorf("the last line is not the result: %v\n%s", err, stdout.String())
				}
			}
		})
	}
	if got, _ := w.record("citation"); got.Revision != r[1] {
		t.Errorf("the record is at %q", got.Revision)
	}
}

// TestKill kills the binary at moments of chance, most of them around the write,
// and runs it again: the same end, and never a second commit.
func TestKill(t *testing.T) {
	w := newWorld(t)
	w.declare("citation")
	const rounds = 12
	r := w.commits(rounds, "")
	chance := rand.New(rand.NewPCG(95, 9))
	writing := make(chan struct{}, 100)
	w.proxy(func(req *http.Request) *fault {
		if req.Method == http.MethodPut {
			select {
			case writing <- struct{}{}:
			default:
			}
		}
		return nil
	})
	killed := 0
	for i := range rounds {
		d := deployment("citation", r[i])
		cmd := w.command(context.Background(), d, nil)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if i%4 == 0 {
			time.Sleep(time.Duration(chance.IntN(60)) * time.Millisecond)
		} else {
			<-writing
			time.Sleep(time.Duration(chance.IntN(500)) * time.Millisecond)
		}
		_ = cmd.Process.Kill()
		if cmd.Wait() != nil {
			killed++
		}
		drain(writing)

		out, err := w.command(t.Context(), d, nil).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		drain(writing)
		if got, _ := w.record("citation"); got.Revision != r[i] || got.Digest != d.Digest {
			t.Fatalf("the record is at %q", got.Revision)
		}
	}
	committed := map[gitref.Revision]int{}
	for _, message := range w.history() {
		if s, ok := parseTrailers(message); ok {
			committed[s.revision]++
		}
	}
	for _, revision := range r {
		if committed[revision] != 1 {
			t.Errorf("%s has %d commits", revision.Short(), committed[revision])
		}
	}
	if killed < rounds/2 {
		t.Errorf("only %d of %d were killed in time", killed, rounds)
	}
	t.Logf("%d of %d killed before their end", killed, rounds)
}

func drain(c chan struct{}) {
	for {
		select {
		case <-c:
		default:
			return
		}
	}
}
