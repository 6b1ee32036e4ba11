package images

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fabrique/bench/cache"
)

const busyboxProgram = "/bin/busybox" // of the package busybox-static

func busybox(_ context.Context, _ io.Writer) (cache.Entry, error) {
	program, err := os.ReadFile(busyboxProgram)
	if err != nil {
		return cache.Entry{}, fmt.Errorf("reading busybox: %w; install the package busybox-static", err)
	}
	return cache.Entry{
		Name: "busybox",
		Key:  cache.Key("layout 1", string(program)),
		Make: func(ctx context.Context, dir string, _ io.Writer) error {
			files, err := applets(ctx, program, "bin")
			if err != nil {
				return err
			}
			files = append(files,
				file{name: "bin/", mode: 0o755},
				file{name: "etc/", mode: 0o755},
				file{name: "etc/group", mode: 0o644, text: []byte("root:x:0:\nnogroup:x:65534:\n")},
				file{name: "etc/passwd", mode: 0o644, text: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n")},
				file{name: "root/", mode: 0o700},
				file{name: "tmp/", mode: 0o1777},
			)
			slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
			layer, err := layerOf(files, compression.GZip)
			if err != nil {
				return err
			}
			return write(dir, v1.Config{Env: []string{"PATH=/bin"}, Cmd: []string{"sh"}}, layer)
		},
	}, nil
}

// applets gives busybox and a link to it for all that it can do, in the folder dir.
func applets(ctx context.Context, program []byte, dir string) ([]file, error) {
	if bytes.Contains(program, []byte("/lib64/ld-linux")) {
		return nil, fmt.Errorf("%s is linked dynamically; install the package busybox-static", busyboxProgram)
	}
	out, err := exec.CommandContext(ctx, busyboxProgram, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("listing what busybox can do: %w", err)
	}
	files := []file{{name: dir + "/busybox", mode: 0o755, text: program}}
	for _, applet := range strings.Fields(string(out)) {
		if applet != "busybox" {
			files = append(files, file{name: dir + "/" + applet, link: "busybox"})
		}
	}
	return files, nil
}

// shell gives busybox for an image that has programs of Debian's, whose /bin is
// /usr/bin.
func shell(ctx context.Context) ([]file, error) {
	program, err := os.ReadFile(busyboxProgram)
	if err != nil {
		return nil, fmt.Errorf("reading busybox: %w; install the package busybox-static", err)
	}
	files, err := applets(ctx, program, "usr/bin")
	return append(files, file{name: "bin", link: "usr/bin"}), err
}
