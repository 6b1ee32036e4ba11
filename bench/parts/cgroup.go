package parts

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
	"unsafe"
)

// hierarchy is a mounted cgroup hierarchy of its own, as cgroup v1 has them.
type hierarchy struct {
	dir     string // "/sys/fs/cgroup/memory"
	fstype  string // "cgroup", or "cgroup2" for the unified one beside them
	options string // "memory", "name=systemd"
}

const cgroupRoot = "/sys/fs/cgroup"

// cgroupHierarchies reads the mounts. On a machine with only cgroup v2 there
// are none: a group that has processes cannot hand controllers on there, so runc
// makes its groups at the root, and those of killed runs stay, empty.
func cgroupHierarchies() []hierarchy {
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
		if len(m) < 5 || len(f) < 3 || (f[0] != "cgroup" && f[0] != "cgroup2") || filepath.Dir(m[4]) != cgroupRoot {
			continue
		}
		options := slices.DeleteFunc(strings.Split(f[2], ","), func(o string) bool { return o == "rw" || o == "ro" })
		found = append(found, hierarchy{m[4], f[0], strings.Join(options, ",")})
	}
	return found
}

// isolateCgroups moves this process into groups of that name and makes them the
// root of all that its children see, as in a pod, so that one name holds whatever
// runc makes. Its thread must be locked and start the children.
func isolateCgroups(name string) error {
	hierarchies := cgroupHierarchies()
	if len(hierarchies) == 0 {
		return nil
	}
	for _, h := range hierarchies {
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
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(cgroupRoot, e.Name())); err == nil {
			links[e.Name()] = to
		}
	}
	const cloneNewCgroup = 0x02000000
	if err := syscall.Unshare(cloneNewCgroup); err != nil {
		return fmt.Errorf("making a cgroup namespace: %w", err)
	}
	// Detached rather than covered: runc also finds mounts that are covered.
	if err := syscall.Unmount(cgroupRoot, syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("unmounting %s: %w", cgroupRoot, err)
	}
	if err := syscall.Mount("tmpfs", cgroupRoot, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mounting %s: %w", cgroupRoot, err)
	}
	for _, h := range hierarchies {
		if err := os.Mkdir(h.dir, 0o755); err != nil {
			return err
		}
		if err := syscall.Mount("cgroup", h.dir, h.fstype, 0, h.options); err != nil {
			return fmt.Errorf("mounting %s: %w", h.dir, err)
		}
	}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(cgroupRoot, name)); err != nil {
			return err
		}
	}
	return nil
}

// removeCgroups removes the groups of that name with all below, once their
// processes are gone, which the kernel finishes shortly after their end.
func removeCgroups(name string) {
	if !strings.HasPrefix(name, dirPrefix) {
		return
	}
	for range 100 {
		var busy bool
		for _, h := range cgroupHierarchies() {
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

// sweepCgroups removes the groups of killed runs whose folder is gone already. A
// living one has its init in its group, but for the moment in which it is made.
func sweepCgroups() {
	for _, h := range cgroupHierarchies() {
		groups, _ := filepath.Glob(filepath.Join(h.dir, dirPrefix+"*"))
		for _, group := range groups {
			info, err := os.Stat(group)
			procs, readErr := os.ReadFile(filepath.Join(group, "cgroup.procs"))
			if err == nil && readErr == nil && len(procs) == 0 && time.Since(info.ModTime()) > time.Minute {
				removeCgroups(filepath.Base(group))
			}
		}
	}
}

// foregroundGroup gives the process group that has the terminal.
func foregroundGroup(tty *os.File) int {
	var group int32
	if _, _, err := syscall.Syscall(syscall.SYS_IOCTL, tty.Fd(), syscall.TIOCGPGRP, uintptr(unsafe.Pointer(&group))); err != 0 {
		return -1
	}
	return int(group)
}
