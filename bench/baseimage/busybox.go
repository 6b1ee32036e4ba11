package baseimage

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

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
			out, err := exec.CommandContext(ctx, busyboxProgram, "--list").Output()
			if err != nil {
				return fmt.Errorf("listing what busybox can do: %w", err)
			}
			if bytes.Contains(program, []byte("/lib64/ld-linux")) {
				return fmt.Errorf("%s is linked dynamically; install the package busybox-static", busyboxProgram)
			}
			files := []file{
				{name: "bin/", mode: 0o755},
				{name: "bin/busybox", mode: 0o755, text: program},
				{name: "etc/", mode: 0o755},
				{name: "etc/group", mode: 0o644, text: []byte("root:x:0:\nnogroup:x:65534:\n")},
				{name: "etc/passwd", mode: 0o644, text: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n")},
				{name: "root/", mode: 0o700},
				{name: "tmp/", mode: 0o1777},
			}
			for _, applet := range strings.Fields(string(out)) {
				if applet != "busybox" {
					files = append(files, file{name: "bin/" + applet, link: "busybox"})
				}
			}
			slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
			layer, err := layerOf(files)
			if err != nil {
				return err
			}
			return write(dir, v1.Config{Env: []string{"PATH=/bin"}, Cmd: []string{"sh"}}, layer)
		},
	}, nil
}
