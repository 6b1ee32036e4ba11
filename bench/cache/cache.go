// Package cache keeps what the bench makes once and uses often: built tools,
// unpacked base images. An entry is a folder that is complete or absent: it is
// made under another name and renamed when done. Any number of processes may
// ask for the same entry at once; one makes it, the others wait.
package cache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// EnvDir names the environment variable that moves the cache.
const EnvDir = "FABRIQUE_BENCH_CACHE"

// Dir gives the cache folder, $FABRIQUE_BENCH_CACHE or fabrique-bench in the
// user's cache folder. It need not exist yet.
func Dir() (string, error) {
	if dir := os.Getenv(EnvDir); dir != "" {
		return filepath.Abs(dir)
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache folder: %w; set %s", err, EnvDir)
	}
	return filepath.Join(base, "fabrique-bench"), nil
}

// Key hashes everything that an entry depends on.
func Key(inputs ...string) string {
	h := sha256.New()
	for _, in := range inputs {
		fmt.Fprintf(h, "%d:%s", len(in), in)
	}
	return hex.EncodeToString(h.Sum(nil))[:12]
}

// Entry is one thing to keep.
type Entry struct {
	Name string
	Key  string // by [Key]; another key is another entry
	// Make fills the empty folder dir. What it writes to log is shown when it fails.
	Make func(ctx context.Context, dir string, log io.Writer) error
}

// Get gives the entry's folder and whether it was there already. Making it is
// reported on progress: a line at the start, one every 15 seconds, one at the end.
func Get(ctx context.Context, e Entry, progress io.Writer) (dir string, cached bool, err error) {
	root, err := Dir()
	if err != nil {
		return "", false, err
	}
	dir = filepath.Join(root, e.Name+"-"+e.Key)
	if exists(dir) {
		return dir, true, nil
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", false, fmt.Errorf("creating the cache folder: %w", err)
	}
	unlock, err := lock(ctx, dir+".lock", func() {
		fmt.Fprintf(progress, "%-12s waiting for another process that is making it\n", e.Name)
	})
	if err != nil {
		return "", false, fmt.Errorf("locking the cache entry %s: %w", e.Name, err)
	}
	defer unlock()
	if exists(dir) {
		return dir, true, nil
	}
	if err := fill(ctx, e, dir, progress); err != nil {
		return "", false, fmt.Errorf("making %s: %w", e.Name, err)
	}
	return dir, false, nil
}

func fill(ctx context.Context, e Entry, dir string, progress io.Writer) error {
	partial := dir + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return err
	}
	defer os.RemoveAll(partial)
	if err := os.Mkdir(partial, 0o755); err != nil {
		return err
	}
	start := time.Now()
	elapsed := func() time.Duration { return time.Since(start).Round(time.Second) }
	fmt.Fprintf(progress, "%-12s making\n", e.Name)
	beat := time.NewTicker(15 * time.Second)
	defer beat.Stop()
	done := make(chan error, 1)
	var log bytes.Buffer
	go func() { done <- e.Make(ctx, partial, &log) }()
	for {
		select {
		case <-beat.C:
			fmt.Fprintf(progress, "%-12s %s\n", e.Name, elapsed())
		case err := <-done:
			if err != nil {
				fmt.Fprintf(progress, "%-12s failed after %s\n%s", e.Name, elapsed(), log.Bytes())
				return err
			}
			if err := os.Rename(partial, dir); err != nil {
				return err
			}
			fmt.Fprintf(progress, "%-12s done in %s\n", e.Name, elapsed())
			return nil
		}
	}
}

func exists(dir string) bool {
	_, err := os.Stat(dir)
	return err == nil
}

// lock takes an exclusive flock, which the kernel releases with the process.
func lock(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for told := false; ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, err
		}
		if !told {
			waiting()
			told = true
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Run runs a command with its output going to log, where the command itself is
// written first so that it can be pasted into a shell.
func Run(ctx context.Context, log io.Writer, dir string, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.WaitDelay = 10 * time.Second
	line := Shell(append(append([]string{}, env...), cmd.Args...)...)
	if dir != "" {
		line = "cd " + Shell(dir) + " && " + line
	}
	fmt.Fprintln(log, "$", line)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("running %s: %w", line, err)
	}
	return nil
}

// Shell joins words so that a POSIX shell reads them back as they are.
func Shell(words ...string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = quote(w)
	}
	return strings.Join(quoted, " ")
}

func quote(w string) string {
	if name, value, ok := strings.Cut(w, "="); ok && name != "" && strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789") == "" {
		return name + "=" + quote(value) // an assignment in front of a command
	}
	if w != "" && strings.Trim(w, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-") == "" {
		return w
	}
	return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
}
