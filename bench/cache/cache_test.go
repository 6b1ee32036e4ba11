package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestGetMakesOnce(t *testing.T) {
	t.Setenv(EnvDir, t.TempDir())
	var made atomic.Int32
	entry := Entry{Name: "thing", Key: Key("1"), Make: func(_ context.Context, dir string, _ io.Writer) error {
		made.Add(1)
		time.Sleep(50 * time.Millisecond)
		return os.WriteFile(filepath.Join(dir, "content"), []byte("whole"), 0o644)
	}}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			dir, _, err := Get(t.Context(), entry, io.Discard)
			if err != nil {
				t.Error(err)
				return
			}
			if text, err := os.ReadFile(filepath.Join(dir, "content")); string(text) != "whole" {
				t.Errorf("the entry holds %q, %v", text, err)
			}
		})
	}
	all.Wait()
	if made.Load() != 1 {
		t.Errorf("made %d times, want once", made.Load())
	}
	if _, cached, err := Get(t.Context(), entry, io.Discard); err != nil || !cached {
		t.Errorf("asking again: cached %v, %v", cached, err)
	}
	entry.Key = Key("2")
	if _, cached, err := Get(t.Context(), entry, io.Discard); err != nil || cached {
		t.Errorf("asking with another key: cached %v, %v", cached, err)
	}
}

func TestFailedMakeLeavesNothing(t *testing.T) {
	root := t.TempDir()
	t.Setenv(EnvDir, root)
	entry := Entry{Name: "thing", Key: Key("1"), Make: func(ctx context.Context, dir string, log io.Writer) error {
		os.WriteFile(filepath.Join(dir, "half"), nil, 0o644)
		return Run(ctx, log, "/", []string{"GREETING=it's"}, "sh", "-c", `echo "$GREETING broken"; exit 3`)
	}}
	var progress bytes.Buffer
	_, _, err := Get(t.Context(), entry, &progress)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("got %v, want the command's exit", err)
	}
	if want := `cd / && GREETING='it'\''s' sh -c 'echo "$GREETING broken"; exit 3'`; !strings.Contains(progress.String(), want) || !strings.Contains(progress.String(), "\nit's broken\n") {
		t.Errorf("the progress lacks the command %s or its output:\n%s", want, progress.String())
	}
	left, err := filepath.Glob(filepath.Join(root, "*"))
	if err != nil || len(left) != 1 || !strings.HasSuffix(left[0], ".lock") {
		t.Errorf("left: %v, %v; want the lock only", left, err)
	}
}

func TestGetGivesUpWaiting(t *testing.T) {
	root := t.TempDir()
	t.Setenv(EnvDir, root)
	entry := Entry{Name: "thing", Key: Key("1")}
	unlock, err := lock(t.Context(), filepath.Join(root, "thing-"+entry.Key+".lock"), func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var progress bytes.Buffer
	if _, _, err := Get(ctx, entry, &progress); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
	if !strings.Contains(progress.String(), "waiting for another process") {
		t.Errorf("the progress says %q", progress.String())
	}
}

func TestShellReadsBack(t *testing.T) {
	words := []string{"", "plain", "two words", "it's", "$HOME", "a\nb", "-X main.Version=1 2", "NAME=a b", "*", "~"}
	// A word after printf's first argument is no assignment, whatever its form.
	out, err := exec.Command("sh", "-c", "printf '%s|' "+Shell(words...)).Output()
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Join(words, "|") + "|"; string(out) != want {
		t.Errorf("got %q, want %q", out, want)
	}
	if got, want := Shell("CGO_ENABLED=0", "GOFLAGS=-mod=mod -v", "go"), `CGO_ENABLED=0 GOFLAGS='-mod=mod -v' go`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestKeyTellsInputsApart(t *testing.T) {
	seen := map[string]string{}
	for _, inputs := range [][]string{{"ab", "c"}, {"a", "bc"}, {"abc"}, {"abc", ""}, {}} {
		key, text := Key(inputs...), fmt.Sprintf("%q", inputs)
		if other, ok := seen[key]; ok {
			t.Errorf("%s and %s have the same key", other, text)
		}
		seen[key] = text
	}
}
