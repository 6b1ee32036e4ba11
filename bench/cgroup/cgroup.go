// Package cgroup gives a process tree control groups of its own and removes them
// again, on machines with cgroup v1 hierarchies.
package cgroup

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// hierarchy is a mounted cgroup hierarchy of its own, as cgroup v1 has them.
type hierarchy struct {
	dir     string // "/sys/fs/cgroup/memory"
	fstype  string // "cgroup", or "cgroup2" for the unified one beside them
	options string // "memory", "name=systemd"
}

// Root is where the hierarchies are mounted.
const Root = "/sys/fs/cgroup"

// hierarchies reads the mounts. On a machine with only cgroup v2 there
// are none: a group that has processes cannot hand controllers on there, so runc
// makes its groups at the root, and those of killed runs stay, empty.
func hierarchies() []hierarchy {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var found []hierarchy
	for line := range strings.Lines(string(text)) {
		// proc_pid_mountinfo(5): the fifth field is the mount point; after " - "
		// come type, source and the file system's options.
		mount, fs, _ := strings.Cut(line, " - ")
		m, f := strings.Fields(mount), strings.Fields(fs)
		if len(m) < 5 || len(f) < 3 || (f[0] != "cgroup" && f[0] != "cgroup2") || filepath.Dir(m[4]) != Root {
			continue
		}
		options := slices.DeleteFunc(strings.Split(f[2], ","), func(o string) bool { return o == "rw" || o == "ro" })
		found = append(found, hierarchy{m[4], f[0], strings.Join(options, ",")})
	}
	return found
}

// Supported tells whether the machine has hierarchies that [Isolate] can make
// groups in.
func Supported() bool { return len(hierarchies()) > 0 }

// Isolate moves this process into groups of that name and makes them the
// root of all that its children see, as in a pod, so that one name holds whatever
// runc makes. Its thread must be locked and start the children.
func Isolate(name string) error {
	all := hierarchies()
	if len(all) == 0 {
		return nil
	}
	for _, h := range all {
		group := filepath.Join(h.dir, name)
		if err := os.Mkdir(group, 0o755); err != nil {
			return err
		}
		// A new cpuset group is empty and takes no process before it is filled.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			parent, err := os.ReadFile(filepath.Join(h.dir, file))
			if err != nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(group, file), parent, 0o644); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
			return err
		}
	}
	links := map[string]string{} // "cpu" → "cpu,cpuacct"
	entries, err := os.ReadDir(Root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(Root, e.Name())); err == nil {
			links[e.Name()] = to
		}
	}
	const cloneNewCgroup = 0x02000000
	if err := syscall.Unshare(cloneNewCgroup); err != nil {
		return fmt.Errorf("making a cgroup namespace: %w", err)
	}
	// Detached rather than covered: runc also finds mounts that are covered.
	if err := syscall.Unmount(Root, syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("unmounting %s: %w", Root, err)
	}
	if err := syscall.Mount("tmpfs", Root, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mounting %s: %w", Root, err)
	}
	for _, h := range all {
		if err := os.Mkdir(h.dir, 0o755); err != nil {
			return err
		}
		if err := syscall.Mount("cgroup", h.dir, h.fstype, 0, h.options); err != nil {
			return fmt.Errorf("mounting %s: %w", h.dir, err)
		}
	}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(Root, name)); err != nil {
			return err
		}
	}
	return nil
}

// Remove removes the groups of that name with all below, once their
// processes are gone, which the kernel finishes shortly after their end.
func Remove(name string) {
	if name == "" || strings.Contains(name, "/") || strings.HasPrefix(name, ".") {
		return
	}
	for range 100 {
		var busy bool
		for _, h := range hierarchies() {
			var groups []string
			filepath.WalkDir(filepath.Join(h.dir, name), func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					groups = append(groups, path)
				}
				return nil
			})
			for _, group := range slices.Backward(groups) {
				if err := syscall.Rmdir(group); err != nil {
					busy = true
				}
			}
		}
		if !busy {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Sweep removes the groups with this prefix of killed runs whose folder is gone
// already. A living one has its init in its group, but for the moment in which it is made.
func Sweep(prefix string) {
	for _, h := range hierarchies() {
		groups, _ := filepath.Glob(filepath.Join(h.dir, prefix+"*"))
		for _, group := range groups {
			info, err := os.Stat(group)
			procs, readErr := os.ReadFile(filepath.Join(group, "cgroup.procs"))
			if err == nil && readErr == nil && len(procs) == 0 && time.Since(info.ModTime()) > time.Minute {
				Remove(filepath.Base(group))
			}
		}
	}
}

// Named gives the folders of the groups that have this name, one per hierarchy.
func Named(name string) []string {
	var found []string
	for _, h := range hierarchies() {
		group := filepath.Join(h.dir, name)
		if _, err := os.Stat(group); err == nil {
			found = append(found, group)
		}
	}
	return found
}
