package build

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"fabrique/steps/gitref"
	"fabrique/steps/step"
)

// source is where in the clone the build's parts are, every link resolved.
type source struct {
	context        string // absolute folder
	dockerfileDir  string // absolute folder
	dockerfileName string
	dockerfile     []byte
	display        string // how the Dockerfile is called in messages
}

// maxDockerfile bounds what is read of a Dockerfile, in bytes.
const maxDockerfile = 1 << 20

// openSource finds the context and the Dockerfile in the clone. Errors have
// exit code 3 and name the path.
func openSource(dir string, context, dockerfile gitref.Path) (source, error) {
	top, err := filepath.EvalSymlinks(dir)
	if err == nil {
		top, err = filepath.Abs(top)
	}
	if err != nil {
		return source{}, step.Invalidf("opening the clone: %w", err)
	}
	src := source{display: filepath.Join(string(context), string(dockerfile))}
	if src.context, err = inside(top, top, string(context)); err != nil {
		return source{}, step.Sourcef("opening the context: %w", err)
	}
	if info, err := os.Stat(src.context); err != nil || !info.IsDir() {
		return source{}, step.Sourcef("opening the context %q: it is not a folder", context)
	}
	// The source key covers the context; a Dockerfile elsewhere could change
	// without notice.
	file, err := inside(src.context, src.context, string(dockerfile))
	if err != nil {
		return source{}, step.Sourcef("opening the Dockerfile of %q: %w", context, err)
	}
	// BuildKit looks for the ignore file beside the Dockerfile and in the
	// context, and follows links inside those folders only: a link that leads
	// elsewhere would be no ignore file at all, and what it hides would be sent.
	for _, ignore := range []string{filepath.Join(src.context, ".dockerignore"), file + ".dockerignore"} {
		if _, err := inside(filepath.Dir(ignore), filepath.Dir(ignore), filepath.Base(ignore)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return source{}, step.Sourcef("opening the ignore file: %w", err)
		}
	}
	src.dockerfileDir, src.dockerfileName = filepath.Split(file)
	if src.dockerfile, err = readRegular(file); err != nil {
		return source{}, step.Sourcef("reading the Dockerfile %q: %w", src.display, err)
	}
	return src, nil
}

// inside resolves all links in base/name and gives the absolute path, which
// must stay in top.
func inside(top, base, name string) (string, error) {
	path := filepath.Join(base, name)
	resolved, err := filepath.EvalSymlinks(path)
	relative, _ := filepath.Rel(top, path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, lerr := os.Lstat(path); lerr == nil {
			return "", step.Sourcef("%q is a symbolic link that leads nowhere", relative)
		}
		return "", step.Sourcef("%q: %w in this revision", relative, fs.ErrNotExist)
	}
	if err != nil {
		return "", step.Sourcef("%q: %w", relative, err)
	}
	if resolved != top && !strings.HasPrefix(resolved, top+string(filepath.Separator)) {
		return "", step.Sourcef("%q is a symbolic link that leads out of the repository or context", relative)
	}
	return resolved, nil
}

func readRegular(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	if info.Size() > maxDockerfile {
		return nil, errors.New("it is larger than 1 MiB")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxDockerfile))
}
