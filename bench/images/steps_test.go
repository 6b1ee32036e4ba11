package images_test

import (
	"archive/tar"
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"fabrique/bench/cache"
	"fabrique/bench/fault"
	"fabrique/bench/images"
	"fabrique/bench/runimage"
)

// short gives an image's name without folder and tag, which a step's program has.
func short(i images.Image) string {
	name, _, _ := strings.Cut(path.Base(i.Name), ":")
	return name
}

func TestStepsAreReproducible(t *testing.T) {
	digests := func() map[string]string {
		found := map[string]string{}
		for _, step := range images.Steps() {
			_, digest, err := step.Load(t.Context(), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			found[step.Name] = digest
		}
		return found
	}
	first := digests()
	t.Setenv(cache.EnvDir, t.TempDir())
	if diff := cmp.Diff(first, digests()); diff != "" {
		t.Error(diff)
	}
}

func TestStepsHoldOnlyWhatTheyNeed(t *testing.T) {
	git := []string{
		"etc/nsswitch.conf", "tmp",
		"usr/bin/git", "usr/lib/git-core/git", "usr/lib/git-core/git-remote-http", "usr/lib/git-core/git-remote-https",
	}
	for _, step := range images.Steps() {
		t.Run(short(step), func(t *testing.T) {
			image, _, err := step.Load(t.Context(), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			config, err := image.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			if config.Config.User != "65532" {
				t.Errorf("it runs as user %q", config.Config.User)
			}
			if diff := cmp.Diff([]string{"/" + short(step)}, config.Config.Entrypoint); diff != "" {
				t.Error(diff)
			}
			names := list(t, image)
			switch short(step) {
			case "reconcile-head", "clone-at-sha":
				// What git loads differs from one Debian to the next.
				for _, name := range append(git, short(step)) {
					if !slices.Contains(names, name) {
						t.Errorf("it lacks %s", name)
					}
				}
				for _, name := range names {
					switch path.Base(name) {
					case "sh", "bash", "dash", "busybox", "env", "perl", "python3", "git-submodule", "git-sh-setup":
						t.Errorf("it holds %s", name)
					}
				}
			default:
				if diff := cmp.Diff([]string{short(step)}, names); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

func TestStepsRun(t *testing.T) {
	for _, step := range images.Steps() {
		t.Run(short(step), func(t *testing.T) {
			c := unpack(t, step)
			object, err := elf.Open(filepath.Join(c.root, short(step)))
			if err != nil {
				t.Fatal(err)
			}
			defer object.Close()
			for _, segment := range object.Progs {
				if segment.Type == elf.PT_INTERP {
					t.Error("the program is linked dynamically")
				}
			}
			out, err := c.run(c.config.Entrypoint[0], "--help")
			if err != nil || !strings.Contains(out, "Usage:") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestGitRuns uses git in the images as the steps do. The file that wants another
// encoding is converted by modules that glibc loads by name.
func TestGitRuns(t *testing.T) {
	url, bare := fault.NewGitServer(t, false).Create("atlas.git")
	work := t.TempDir()
	fault.Git(t, work, "init", "--quiet")
	for name, text := range map[string]string{".gitattributes": "*.txt working-tree-encoding=UTF-16LE-BOM\n", "a": "a\n", "b.txt": "\xff\xfeb\x00\n\x00"} {
		if err := os.WriteFile(filepath.Join(work, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	fault.Git(t, work, "add", ".")
	fault.Git(t, work, "commit", "--quiet", "--message", "Start")
	fault.Git(t, work, "push", "--quiet", bare, "HEAD:refs/heads/main")
	revision := fault.Git(t, work, "rev-parse", "HEAD")
	for _, step := range images.Steps() {
		switch short(step) {
		case "reconcile-head", "clone-at-sha":
		default:
			continue
		}
		t.Run(short(step), func(t *testing.T) {
			c := unpack(t, step)
			if out, err := c.run("/usr/bin/git", "--version"); err != nil || !strings.HasPrefix(out, "git version") {
				t.Errorf("%v\n%s", err, out)
			}
			if out, err := c.run("/usr/bin/git", "ls-remote", "http://127.0.0.1:1/atlas.git"); err == nil || !strings.Contains(out, "Failed to connect") {
				t.Errorf("want a refused connection, got %v\n%s", err, out)
			}
			if out, err := c.run("/usr/bin/git", "ls-remote", url); err != nil || !strings.Contains(out, revision) {
				t.Errorf("%v\n%s", err, out)
			}
			if short(step) != "clone-at-sha" {
				return
			}
			if out, err := c.run("/clone-at-sha", "--url", url, "--revision", revision, "--dir", "/tmp/clone"); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			text, err := os.ReadFile(filepath.Join(c.root, "tmp/clone/tree/b.txt"))
			if err != nil || string(text) != "\xff\xfeb\x00\n\x00" {
				t.Errorf("the converted file holds %q, %v", text, err)
			}
		})
	}
}

// container is an image's files in a folder.
type container struct {
	root   string
	config v1.Config
}

func unpack(t *testing.T, from images.Image) container {
	t.Helper()
	image, _, err := from.Load(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := container{filepath.Join(t.TempDir(), "root"), config.Config}
	if err := runimage.Unpack(image, c.root); err != nil {
		t.Fatal(err)
	}
	// A runtime brings /dev along; git opens these (character devices 1, 3 and 1, 9).
	if err := os.MkdirAll(filepath.Join(c.root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, minor := range map[string]int{"null": 3, "urandom": 9} {
		device := filepath.Join(c.root, "dev", name)
		if err := syscall.Mknod(device, syscall.S_IFCHR, 1<<8|minor); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(device, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// run runs a program of the image, with its files alone, as its user and with its
// environment, and gives all that the program writes.
func (c container) run(program string, args ...string) (string, error) {
	uid, err := strconv.ParseUint(c.config.User, 10, 32)
	if err != nil {
		return "", err
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = c.config.WorkingDir
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	cmd.Env = c.config.Env
	if cmd.Env == nil {
		cmd.Env = []string{}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Chroot:     c.root,
		Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)},
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// list gives the names in an image, without the folders above them.
func list(t *testing.T, image v1.Image) []string {
	t.Helper()
	files := mutate.Extract(image)
	defer files.Close()
	var names []string
	for r := tar.NewReader(files); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
}
