package speed

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"fabrique/bench/images"
	"fabrique/bench/parts"
)

const (
	buildRounds  = 25
	contextFiles = 400
)

// build measures buildkit-build against buildctl: the same daemon, context and
// push, a warm cache, one file changed before each run.
func (b *bench) build(ctx context.Context, report *Report) error {
	registry, err := parts.StartRegistry(ctx)
	if err != nil {
		return err
	}
	daemon, err := parts.StartBuildKit(ctx, "")
	if err != nil {
		return err
	}
	base, err := images.Busybox.Push(ctx, registry.Address)
	if err != nil {
		return err
	}
	dir := filepath.Join(b.dir, "context")
	if err := writeContext(dir, base); err != nil {
		return err
	}
	version := 0
	change := func() (revision string, err error) {
		version++
		file := filepath.Join(dir, "src", "part_3", "file_007.py")
		revision = fmt.Sprintf("%x", sha1.Sum(fmt.Append(nil, version)))
		return revision, os.WriteFile(file, content(nil, 0, 7, version), 0o644)
	}
	ours := contender{
		name: "buildkit-build",
		prepare: func(context.Context, int) (program, error) {
			revision, err := change()
			return program{args: []string{
				b.program("buildkit-build"), "--address", daemon.Address, "--dir", dir, "--context", ".",
				"--image", registry.Address + "/ours", "--plain-http", "--revision", revision,
			}}, err
		},
		check: func(_ context.Context, _ int, r run) error {
			var result struct{ Reused bool }
			if err := json.Unmarshal(r.stdout[bytes.LastIndexByte(bytes.TrimSpace(r.stdout), '\n')+1:], &result); err != nil {
				return fmt.Errorf("reading the step's result: %w", err)
			}
			if result.Reused {
				return fmt.Errorf("the step built nothing, the image was there")
			}
			return nil
		},
	}
	peer := contender{
		name: "buildctl build",
		prepare: func(context.Context, int) (program, error) {
			revision, err := change()
			return program{args: []string{
				daemon.Buildctl, "--addr", daemon.Address, "build", "--frontend", "dockerfile.v0",
				"--local", "context=" + dir, "--local", "dockerfile=" + dir,
				"--opt", "label:org.opencontainers.image.revision=" + revision,
				"--output", "type=image,push=true,oci-mediatypes=true,name=" + registry.Address + "/peer:" + revision[:12],
			}}, err
		},
	}
	runs, err := compete(ctx, b.progress, "build", buildRounds, ours, peer)
	if err != nil {
		return err
	}
	report.Rows = append(report.Rows,
		measured(fmt.Sprintf("buildkit-build, warm, 1 of %d files changed", contextFiles), "s", seconds(runs[0])).
			against("buildctl build", seconds(runs[1])).timesAtMost(1.05))
	report.Notes = append(report.Notes,
		"Each build, of either side, follows a change of one file; the image is pushed over HTTP. buildkit-build also asks the registry first whether the image is there.")
	return nil
}

// writeContext makes the context of an app whose dependencies are installed by
// a step that stays cached.
func writeContext(dir, base string) error {
	files := map[string][]byte{
		"Dockerfile": fmt.Appendf(nil, `FROM %s
WORKDIR /app
COPY requirements.txt ./
RUN sha256sum requirements.txt > installed.txt
COPY . .
CMD ["sh"]
`, base),
		"requirements.txt": []byte("dagster\nduckdb\n"),
	}
	for n := range contextFiles {
		files[fmt.Sprintf("src/part_%d/file_%03d.py", n%4, n)] = content(nil, 0, n, 0)
	}
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
