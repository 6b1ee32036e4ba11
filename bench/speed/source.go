package speed

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"fabrique/bench/cache"
)

// The generated source repository: 1,000 apps of 50 files each. Each later
// commit gives a third of the files new content, so that the packed history
// comes to 300 MB.
const (
	apps        = 1000
	filesPerApp = 50
	commits     = 16
	// generation changes when the content does, so that a cached repository is
	// not taken for the new one.
	generation = "1"
)

// appContext gives the folder of an app in the source repository.
func appContext(app int) string { return fmt.Sprintf("team-%02d/app-%04d", app%20, app) }

// sourceFile gives the path of an app's nth file.
func sourceFile(app, n int) string {
	dir := appContext(app)
	switch n {
	case 0:
		return dir + "/Dockerfile"
	case 1:
		return dir + "/requirements.txt"
	case 2:
		return dir + "/deploy/kustomization.yaml"
	}
	return fmt.Sprintf("%s/src/part_%d/file_%02d.py", dir, n%4, n)
}

// content gives 400 to 2,000 letters and digits that no two files or versions
// share, always the same ones. They compress by a quarter and not at all against
// each other.
func content(buf []byte, app, n, version int) []byte {
	seed := sha256.Sum256(fmt.Appendf(nil, "%s %d %d %d", generation, app, n, version))
	random := rand.NewChaCha8(seed)
	raw := make([]byte, 300+int(binary.LittleEndian.Uint16(seed[:]))%1200)
	random.Read(raw)
	buf = base64.StdEncoding.AppendEncode(buf[:0], raw)
	for i := 80; i < len(buf); i += 80 {
		buf[i] = '\n'
	}
	return append(buf, '\n')
}

// sourceRepository gives a bare repository with the history, made at the first
// time and cached.
func sourceRepository(ctx context.Context, progress io.Writer) (string, error) {
	dir, _, err := cache.Get(ctx, cache.Entry{
		Name: "speed-source",
		Key:  cache.Key(generation, strconv.Itoa(apps), strconv.Itoa(filesPerApp), strconv.Itoa(commits)),
		Make: func(ctx context.Context, dir string, log io.Writer) error {
			if err := cache.Run(ctx, log, dir, gitEnv, "git", "init", "--quiet", "--bare", "--initial-branch=main", "."); err != nil {
				return err
			}
			// One pack: deltas cannot be found in random content and are not looked for.
			cmd := exec.CommandContext(ctx, "git", "-c", "core.compression=1", "fast-import", "--quiet", "--depth=0")
			cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
			cmd.Env = append(os.Environ(), gitEnv...)
			stream, err := cmd.StdinPipe()
			if err != nil {
				return err
			}
			if err := cmd.Start(); err != nil {
				return fmt.Errorf("starting git fast-import: %w", err)
			}
			writeErr := writeHistory(stream)
			if err := cmd.Wait(); err != nil {
				return fmt.Errorf("running git fast-import: %w", err)
			}
			return writeErr
		},
	}, progress)
	return dir, err
}

// gitEnv keeps the machine's git configuration out.
var gitEnv = []string{"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull}

// writeHistory writes the commits in the format of git fast-import and closes w.
func writeHistory(w io.WriteCloser) error {
	out := bufio.NewWriterSize(w, 1<<20)
	var buf []byte
	for commit := range commits {
		fmt.Fprintf(out, "commit refs/heads/main\ncommitter Ada <ada@bench.invalid> %d +0000\ndata <<.\ncommit %d\n.\n", 1_600_000_000+commit*3600, commit)
		for app := range apps {
			for n := range filesPerApp {
				if commit > 0 && (app+n+commit)%3 != 0 {
					continue
				}
				buf = content(buf, app, n, commit)
				fmt.Fprintf(out, "M 100644 inline %s\ndata %d\n", sourceFile(app, n), len(buf))
				out.Write(buf)
				out.WriteByte('\n')
			}
		}
	}
	if err := out.Flush(); err != nil {
		w.Close()
		return fmt.Errorf("writing the history: %w", err)
	}
	return w.Close()
}

// history describes the generated repository.
type history struct {
	dir       string
	revisions []string // newest first
	packed    int64    // bytes
}

func openHistory(ctx context.Context, progress io.Writer) (history, error) {
	dir, err := sourceRepository(ctx, progress)
	if err != nil {
		return history{}, err
	}
	h := history{dir: dir}
	out, err := program{args: []string{"git", "rev-list", "main"}, dir: dir, env: gitEnv}.run(ctx)
	if err != nil {
		return history{}, err
	}
	h.revisions = strings.Fields(string(out.stdout))
	packs, err := filepath.Glob(filepath.Join(dir, "objects/pack/*.pack"))
	if err != nil {
		return history{}, err
	}
	for _, p := range packs {
		info, err := os.Stat(p)
		if err != nil {
			return history{}, err
		}
		h.packed += info.Size()
	}
	return h, nil
}
