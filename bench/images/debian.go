package images

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"fabrique/bench/cache"
	"fabrique/bench/debian"
)

// debianImage puts the machine's settings in a layer of their own: debootstrap
// takes a minute and need not run again when only they change.
func debianImage(ctx context.Context, progress io.Writer) (cache.Entry, error) {
	sources, err := debian.Sources(Release)
	if err != nil {
		return cache.Entry{}, err
	}
	bundle, local, err := debian.Trust()
	if err != nil {
		return cache.Entry{}, err
	}
	settings := []file{
		// A layer that is lost is made again; syncing every file of a package costs
		// more than the rest of an installation.
		{name: "etc/dpkg/dpkg.cfg.d/bench", mode: 0o644, text: []byte("force-unsafe-io\n")},
		{name: "etc/apt/apt.conf.d/bench", mode: 0o644, text: []byte("Acquire::Languages \"none\";\n")},
		{name: "etc/apt/sources.list.d/debian.sources", mode: 0o644, text: []byte(debian.Deb822(sources))},
		{name: "etc/pip.conf", mode: 0o644, text: []byte(debian.PipConfig())},
		{name: "etc/ssl/certs/", mode: 0o755},
		{name: strings.TrimPrefix(debian.CABundle, "/"), mode: 0o644, text: bundle},
	}
	if len(local) > 0 {
		settings = append(settings, file{name: "usr/local/share/ca-certificates/bench.crt", mode: 0o644, text: local})
	}
	root, _, err := cache.Get(ctx, bootstrap(debian.Mirror(sources, Release)), progress)
	if err != nil {
		return cache.Entry{}, err
	}
	return cache.Entry{
		Name: "debian",
		Key:  cache.Key("layout 1", root, fmt.Sprintf("%+v", settings)),
		Make: func(_ context.Context, dir string, _ io.Writer) error {
			base, err := tarball.LayerFromFile(filepath.Join(root, rootLayer), tarball.WithMediaType(types.OCILayer))
			if err != nil {
				return err
			}
			top, err := layerOf(settings, compression.GZip)
			if err != nil {
				return err
			}
			return write(dir, v1.Config{
				Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
				Cmd: []string{"bash"},
			}, base, top)
		},
	}, nil
}

const rootLayer = "root.tar.gz"

// bootstrap makes the layer with Debian's packages and without what only the
// installation needed.
func bootstrap(mirror string) cache.Entry {
	return cache.Entry{
		Name: "debootstrap",
		Key:  cache.Key("layout 1", Release, mirror, runtime.GOARCH),
		Make: func(ctx context.Context, dir string, log io.Writer) error {
			root := filepath.Join(dir, "root")
			if err := cache.Run(ctx, log, "", nil, "debootstrap", "--variant=minbase",
				"--keyring="+debian.Keyring, "--force-check-gpg", Release, root, mirror); err != nil {
				return err
			}
			newest, err := released(root)
			if err != nil {
				return err
			}
			for _, pattern := range []string{
				"var/cache/apt/archives/*.deb", "var/cache/apt/*.bin", "var/lib/apt/lists/*",
				"var/cache/ldconfig/aux-cache", "var/cache/debconf/*-old", "var/lib/dpkg/*-old",
				"var/log/*.log", "var/log/apt/*", "debootstrap",
				"etc/hostname", "etc/resolv.conf", "etc/apt/sources.list",
				"usr/share/doc/*/[!c]*", "usr/share/doc/*/changelog*", "usr/share/man/*", "usr/share/info/*",
				"usr/share/locale/*", "usr/share/lintian/*",
			} {
				paths, err := filepath.Glob(filepath.Join(root, pattern))
				if err != nil {
					return err
				}
				for _, path := range paths {
					if err := os.RemoveAll(path); err != nil {
						return err
					}
				}
			}
			if err := os.WriteFile(filepath.Join(root, "etc/machine-id"), nil, 0o444); err != nil {
				return err
			}
			if err := pack(root, filepath.Join(dir, rootLayer), newest); err != nil {
				return err
			}
			return os.RemoveAll(root)
		},
	}
}

// released gives the date of the release's index, later than all that it lists:
// what has a later time got it from this run of debootstrap.
func released(root string) (time.Time, error) {
	files, err := filepath.Glob(filepath.Join(root, "var/lib/apt/lists/*Release"))
	if err != nil || len(files) == 0 {
		return time.Time{}, fmt.Errorf("finding the release's index in apt's lists: %w", err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		return time.Time{}, err
	}
	for line := range strings.Lines(string(text)) {
		if date, ok := strings.CutPrefix(strings.TrimSpace(line), "Date: "); ok {
			return time.Parse(time.RFC1123, date)
		}
	}
	return time.Time{}, fmt.Errorf("finding the date of the release: %s has none", files[0])
}
