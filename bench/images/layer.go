package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"fabrique/bench/cache"
)

// file is one entry of a layer.
type file struct {
	name string // without a leading slash; a folder ends in one
	mode int64
	text []byte
	from string // path on this machine of a regular file's content, instead of text
	link string // target of a symbolic link
	uid  int
}

// layerOf makes a layer of the files, which it reads now and again whenever the
// layer is read.
func layerOf(files []file, c compression.Compression) (v1.Layer, error) {
	mediaType := types.OCILayer
	if c == compression.ZStd {
		mediaType = types.OCILayerZStd
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() { w.CloseWithError(writeTar(w, files)) }()
		return r, nil
	}, tarball.WithMediaType(mediaType), tarball.WithCompression(c))
}

func writeTar(out io.Writer, files []file) error {
	w := tar.NewWriter(out)
	for _, f := range files {
		if err := f.write(w); err != nil {
			return fmt.Errorf("packing %s: %w", f.name, err)
		}
	}
	return w.Close()
}

func (f file) write(w *tar.Writer) error {
	h := &tar.Header{Name: f.name, Mode: f.mode, Uid: f.uid, Gid: f.uid, ModTime: epoch, Typeflag: tar.TypeReg, Size: int64(len(f.text)), Format: tar.FormatPAX}
	var content io.Reader = bytes.NewReader(f.text)
	switch {
	case strings.HasSuffix(f.name, "/"):
		h.Typeflag = tar.TypeDir
	case f.link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.link, 0o777
	case f.from != "":
		in, err := os.Open(f.from)
		if err != nil {
			return err
		}
		defer in.Close()
		info, err := in.Stat()
		if err != nil {
			return err
		}
		h.Size, content = info.Size(), in
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(w, content)
	return err
}

// stack puts layers on each other: it completes each with the folders that its
// files are in, sorts it, and leaves out what a layer below it has already.
func stack(layers [][]file) [][]file {
	var stacked [][]file
	below := map[string]bool{}
	for _, files := range layers {
		named := map[string]file{}
		for _, f := range files {
			named[f.name] = f
			for dir := path.Dir(strings.TrimSuffix(f.name, "/")); dir != "."; dir = path.Dir(dir) {
				if _, ok := named[dir+"/"]; !ok {
					named[dir+"/"] = file{name: dir + "/", mode: 0o755}
				}
			}
		}
		var own []file
		for _, name := range slices.Sorted(maps.Keys(named)) {
			if !below[name] {
				below[name] = true
				own = append(own, named[name])
			}
		}
		stacked = append(stacked, own)
	}
	return stacked
}

// identity is a key of the layer's content. A file in the bench's cache is known
// by its path, which holds the key of what it was made from.
func identity(files []file) (string, error) {
	root, err := cache.Dir()
	if err != nil {
		return "", err
	}
	var inputs []string
	for _, f := range files {
		content := f.text
		if cached, ok := strings.CutPrefix(f.from, root+"/"); ok {
			content = []byte(cached)
		} else if f.from != "" {
			if content, err = os.ReadFile(f.from); err != nil {
				return "", err
			}
		}
		inputs = append(inputs, fmt.Sprintf("%s %o %d %s", f.name, f.mode, f.uid, f.link), string(content))
	}
	return cache.Key(inputs...), nil
}

// tree lists the files below dir, to stand below at in an image.
func tree(dir, at string) ([]file, error) {
	var files []file
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f := file{name: at + "/" + rel, mode: 0o644, from: path}
		if info.Mode()&0o111 != 0 {
			f.mode = 0o755
		}
		files = append(files, f)
		return nil
	})
	return files, err
}

// pack writes the tree at root as a gzipped layer to path, in the order of names
// and with owners, modes, symbolic and hard links. Times after newest become
// newest. Device nodes are left out: a container gets its own /dev.
func pack(root, path string, newest time.Time) error {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	zip := gzip.NewWriter(out)
	w := tar.NewWriter(zip)
	seen := map[uint64]string{} // inode of a file with several names
	err = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil || rel == "." {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		if info.Mode()&(fs.ModeDevice|fs.ModeSocket|fs.ModeNamedPipe) != 0 {
			return nil
		}
		link := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if link, err = os.Readlink(path); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		h.Name, h.Uname, h.Gname = rel, "", ""
		h.AccessTime, h.ChangeTime, h.Format = time.Time{}, time.Time{}, tar.FormatPAX
		h.ModTime = h.ModTime.Truncate(time.Second)
		if h.ModTime.After(newest) {
			h.ModTime = newest
		}
		if info.IsDir() {
			h.Name += "/"
		}
		if info.Mode().IsRegular() && stat.Nlink > 1 {
			if first, ok := seen[stat.Ino]; ok {
				h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			} else {
				seen[stat.Ino] = rel
			}
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			return nil
		}
		in, err := os.Open(path)
		if err != nil {
			return err
		}
		defer in.Close()
		_, err = io.Copy(w, in)
		return err
	})
	if err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := zip.Close(); err != nil {
		return err
	}
	return out.Close()
}
