// Command attacker is what a hostile RUN instruction of the bench runs: it tries what
// a shell cannot, and prints for each whether the kernel let it. What it reads it
// prints, so that it can be looked for. It ends with 0 whatever it could do.
package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	runtime.LockOSThread() // ptrace and namespaces are the thread's
	for _, t := range []struct {
		name string
		try  func() error
	}{
		{"tracing every process", eachProcess(trace)},
		{"reading the memory of every process", eachProcess(memory)},
		{"entering the namespaces of every process", eachProcess(namespaces)},
		{"reading the keys of others", keys},
		{"a packet socket", socket(unix.AF_PACKET, unix.SOCK_RAW, 0x0300)},
		{"a raw socket", socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)},
		{"a netlink socket for the kernel's messages", socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT)},
		{"the daemon's socket for traces", func() error { return dial("unix", "/dev/otel-grpc.sock") }},
		{"the daemon's port", func() error { return dial("tcp", "127.0.0.1:1234") }},
		{"a user namespace", func() error { return unix.Unshare(unix.CLONE_NEWUSER) }},
		{"a mount namespace", func() error { return unix.Unshare(unix.CLONE_NEWNS) }},
		{"a new /proc", func() error { return unix.Mount("proc", "/mnt", "proc", 0, "") }},
		{"a file system in memory", func() error { return unix.Mount("tmpfs", "/mnt", "tmpfs", 0, "") }},
		{"opening by handle", byHandle},
		{"a kernel module", func() error { return unix.InitModule([]byte("x"), "") }},
		{"the kernel's log", func() error { _, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, make([]byte, 4096)); return err }},
		{"the machine's name", func() error { return unix.Sethostname([]byte("taken")) }},
		{"the machine's clock", func() error {
			var now unix.Timeval // as it is: where this works it is to do no harm
			if err := unix.Gettimeofday(&now); err != nil {
				return err
			}
			return unix.Settimeofday(&now)
		}},
	} {
		verdict := "yes"
		if err := t.try(); err != nil {
			verdict = "no: " + err.Error()
		}
		fmt.Printf("attacker: %s: %s\n", t.name, verdict)
	}
}

// eachProcess tries all that can be seen but this one, and gives the last error.
func eachProcess(try func(pid int) error) func() error {
	return func() error {
		err := fmt.Errorf("there is no other process")
		dirs, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range dirs {
			if pid, bad := strconv.Atoi(filepath.Base(dir)); bad == nil && pid != os.Getpid() {
				err = try(pid)
			}
		}
		return err
	}
}

func trace(pid int) error {
	if err := unix.PtraceAttach(pid); err != nil {
		return err
	}
	var status unix.WaitStatus
	_, _ = unix.Wait4(pid, &status, unix.WALL, nil)
	return unix.PtraceDetach(pid)
}

// memory prints what a process can write to, at most 1 MiB of each part.
func memory(pid int) error {
	parts, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return err
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return err
	}
	defer mem.Close()
	for line := range strings.Lines(string(parts)) {
		var from, to int64
		var mode string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); n != 3 || !strings.HasPrefix(mode, "rw") {
			continue
		}
		text := make([]byte, min(to-from, 1<<20))
		n, err := mem.ReadAt(text, from)
		if err != nil {
			return err
		}
		os.Stdout.Write(bytes.ReplaceAll(text[:n], []byte{0}, nil))
		fmt.Println()
	}
	return nil
}

func namespaces(pid int) error {
	for name, kind := range map[string]int{"mnt": unix.CLONE_NEWNS, "net": unix.CLONE_NEWNET, "ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, name))
		if err != nil {
			return err
		}
		err = unix.Setns(int(f.Fd()), kind)
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// keys prints the keys of the rings that are known by a fixed number, and those that
// the kernel lists.
func keys() error {
	listed, err := os.ReadFile("/proc/keys")
	os.Stdout.Write(listed)
	for ring := -8; ring < 0; ring++ {
		text := make([]byte, 4096)
		n, reading := unix.KeyctlBuffer(unix.KEYCTL_READ, ring, text, 0)
		if reading == nil {
			fmt.Printf("ring %d: %q\n", ring, text[:min(n, len(text))])
		}
		err = reading
	}
	return err
}

func socket(domain, kind, protocol int) func() error {
	return func() error {
		fd, err := unix.Socket(domain, kind, protocol)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	}
}

func dial(network, address string) error {
	c, err := net.Dial(network, address)
	if err != nil {
		return err
	}
	return c.Close()
}

// byHandle asks for the root of the file system below, whose inode is 2, past every mount.
func byHandle() error {
	handle := unix.NewFileHandle(1, []byte{2, 0, 0, 0, 0, 0, 0, 0})
	fd, err := unix.OpenByHandleAt(unix.AT_FDCWD, handle, unix.O_RDONLY)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}
