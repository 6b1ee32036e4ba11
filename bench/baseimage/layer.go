package baseimage

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// file is one entry of a small layer.
type file struct {
	name string // without a leading slash; a folder ends in one
	mode int64
	text []byte
	link string // target of a symbolic link
	uid  int
}

func layerOf(files []file) (v1.Layer, error) {
	var raw bytes.Buffer
	w := tar.NewWriter(&raw)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Uid: f.uid, Gid: f.uid, ModTime: epoch, Typeflag: tar.TypeReg, Size: int64(len(f.text)), Format: tar.FormatPAX}
		switch {
		case strings.HasSuffix(f.name, "/"):
			h.Typeflag = tar.TypeDir
		case f.link != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.link, 0o777
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.text); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(raw.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
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
