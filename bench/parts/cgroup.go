package parts

import (
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

// cgroupHierarchies gives the mounted cgroup v1 hierarchies. On a machine with
// only cgroup v2 there are none: there runc needs controllers that a group with
// processes cannot delegate, and the groups of killed runs stay, empty.
func cgroupHierarchies() []string {
	files, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	var dirs []string
	for _, f := range files {
		dirs = append(dirs, filepath.Dir(f))
	}
	return dirs
}

// joinCgroups moves this process into groups of its own. runc makes a
// container's group below its caller's, so all groups of an instance are found
// under one name.
func joinCgroups(name string) error {
	for _, hierarchy := range cgroupHierarchies() {
		group := filepath.Join(hierarchy, name)
		if err := os.Mkdir(group, 0o755); err != nil && !os.IsExist(err) {
			return err
		}
		// A new cpuset group is empty and takes no process before it is filled.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			parent, err := os.ReadFile(filepath.Join(hierarchy, file))
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
		for _, hierarchy := range cgroupHierarchies() {
			var groups []string
			filepath.WalkDir(filepath.Join(hierarchy, name), func(path string, d fs.DirEntry, err error) error {
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

// foregroundGroup gives the process group that has the terminal.
func foregroundGroup(tty *os.File) int {
	var group int32
	if _, _, err := syscall.Syscall(syscall.SYS_IOCTL, tty.Fd(), syscall.TIOCGPGRP, uintptr(unsafe.Pointer(&group))); err != 0 {
		return -1
	}
	return int(group)
}
