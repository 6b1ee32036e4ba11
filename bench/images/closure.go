package images

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// closure is programs of this Debian machine and all that they load, under the
// names that they have here.
type closure map[string]file

// nsswitch is glibc's default but for the services that an image has not.
const nsswitch = "passwd: files\ngroup: files\nhosts: files dns\n"

// closureOf gives the programs with the dynamic linker, their libraries and what
// glibc looks names up with.
func closureOf(programs ...string) (closure, error) {
	c := closure{"etc/nsswitch.conf": {name: "etc/nsswitch.conf", mode: 0o644, text: []byte(nsswitch)}}
	for _, program := range programs {
		if err := c.add(program); err != nil {
			return nil, fmt.Errorf("collecting %s: %w", program, err)
		}
	}
	// They are loaded by name, where glibc does not contain them already.
	for _, service := range []string{"libnss_files.so.2", "libnss_dns.so.2"} {
		if err := c.addLibrary(service); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("collecting %s: %w", service, err)
		}
	}
	return c, nil
}

// files gives the closure's files in the order of their names.
func (c closure) files() []file {
	var files []file
	for _, name := range slices.Sorted(maps.Keys(c)) {
		files = append(files, c[name])
	}
	return files
}

// add adds a file or symbolic link, what it leads to, and what that loads.
func (c closure) add(path string) error {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return err
	}
	// /lib and /lib64, by which programs name the linker, are links into /usr.
	top := "/" + strings.SplitN(path, "/", 3)[1]
	if to, err := os.Readlink(top); err == nil {
		c[top[1:]] = file{name: top[1:], link: to}
	}
	path = filepath.Join(dir, filepath.Base(path))
	name := path[1:]
	if _, ok := c[name]; ok {
		return nil
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		to, err := os.Readlink(path)
		if err != nil {
			return err
		}
		c[name] = file{name: name, link: to}
		if !filepath.IsAbs(to) {
			to = filepath.Join(dir, to)
		}
		return c.add(to)
	}
	c[name] = file{name: name, mode: int64(info.Mode().Perm()), from: path}
	return c.addLoaded(path)
}

// addLoaded adds what the dynamic linker would load for the program or library.
func (c closure) addLoaded(path string) error {
	object, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	defer object.Close()
	for _, segment := range object.Progs {
		if segment.Type != elf.PT_INTERP {
			continue
		}
		linker := make([]byte, segment.Filesz)
		if _, err := segment.ReadAt(linker, 0); err != nil {
			return fmt.Errorf("reading %s: %w", path, err)
		}
		if err := c.add(strings.TrimRight(string(linker), "\x00")); err != nil {
			return err
		}
	}
	libraries, err := object.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	for _, library := range libraries {
		if err := c.addLibrary(library); err != nil {
			return fmt.Errorf("finding what %s loads: %w", path, err)
		}
	}
	return nil
}

// multiarch gives Debian's name for this machine's architecture
// (https://wiki.debian.org/Multiarch/Tuples).
var multiarch = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]

// addLibrary adds a library of the folders that Debian's linker looks in without
// a cache of its own.
func (c closure) addLibrary(name string) error {
	for _, dir := range []string{"/lib/" + multiarch, "/usr/lib/" + multiarch, "/lib", "/usr/lib"} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return c.add(path)
		}
	}
	return fmt.Errorf("library %s: %w", name, fs.ErrNotExist)
}

const gitCore = "/usr/lib/git-core"

// git gives Debian's git for repositories on HTTP servers and on disk, without
// its scripts (which want a shell or Perl) and its other servers and clients.
// There is no CA bundle: where HTTPS is spoken, one is mounted and named by
// GIT_SSL_CAINFO.
func git() ([]file, error) {
	const program = "/usr/bin/git"
	c, err := closureOf(program, gitCore+"/git-remote-http")
	if err != nil {
		return nil, fmt.Errorf("%w; install the package git", err)
	}
	// There it is a hard link to the program.
	c[gitCore[1:]+"/git"] = file{name: gitCore[1:] + "/git", link: "../../bin/git"}
	entries, err := os.ReadDir(gitCore)
	if err != nil {
		return nil, err
	}
	for _, e := range entries { // git-fetch, git-upload-pack, git-remote-https
		if e.Type()&fs.ModeSymlink != 0 {
			if err := c.add(filepath.Join(gitCore, e.Name())); err != nil {
				return nil, fmt.Errorf("collecting git's commands: %w", err)
			}
		}
	}
	// A checkout converts what .gitattributes calls a working-tree-encoding, with
	// modules that glibc loads by name. Without them it fails, elsewhere it works.
	conversions := "/usr/lib/" + multiarch + "/gconv"
	modules, err := tree(conversions, conversions[1:])
	return append(c.files(), modules...), err
}
