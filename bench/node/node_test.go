package node_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fabrique/bench/cgroup"
	"fabrique/bench/node"
)

func TestMain(m *testing.M) {
	node.Intercept()
	os.Exit(m.Run())
}

const (
	hosts  = "127.0.0.1 localhost\n192.0.2.1 somebody\n"
	resolv = "nameserver 192.0.2.53\n"
)

// newNode gives a node that does not run yet. The test fails if anything of it is
// left when it ends.
func newNode(t *testing.T, below string) node.Node {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("nodes need root")
	}
	dir, err := os.MkdirTemp(below, "fabrique-test-node-")
	if err != nil {
		t.Fatal(err)
	}
	n := node.Node{Name: "test-" + strings.ToLower(rand.Text()[:8]), Dir: filepath.Join(dir, "node")}
	t.Cleanup(func() {
		destroy(t, n)
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return n
}

func up(t *testing.T, n node.Node) {
	t.Helper()
	changed, err := n.Up(t.Context(), hosts, resolv)
	if err != nil {
		t.Fatal(err)
	}
	if !changed {
		t.Fatal("starting it is no change")
	}
}

// destroy takes the node away and fails if anything is left.
func destroy(t *testing.T, n node.Node) {
	t.Helper()
	if err := n.Destroy(context.Background()); err != nil {
		t.Fatal(err)
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		line, _ := os.ReadFile(filepath.Join(p, "cmdline"))
		groups, _ := os.ReadFile(filepath.Join(p, "cgroup"))
		if strings.Contains(string(line), n.Name) || strings.Contains(string(groups), n.Name) {
			t.Errorf("the process %s is left: %q", p, line)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), n.Dir) {
		t.Errorf("mounts below %s are left", n.Dir)
	}
	if left := append(cgroup.Named(node.Prefix+n.Name), n.Processes()...); len(left) > 0 {
		t.Errorf("control groups or processes are left: %v", left)
	}
	if _, err := os.Lstat(n.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder is left: %v", err)
	}
	if n.PID() != 0 || n.Memory() != 0 {
		t.Errorf("it still has process %d and %d bytes", n.PID(), n.Memory())
	}
}

// inside runs a program in the node and gives its trimmed output.
func inside(t *testing.T, n node.Node, args ...string) string {
	t.Helper()
	var log strings.Builder
	if err := n.Run(t.Context(), &log, nil, args...); err != nil {
		t.Fatal(err)
	}
	_, out, _ := strings.Cut(log.String(), "\n") // the first line is the command
	return strings.TrimSpace(out)
}

// soon waits until ok holds.
func soon(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

func TestNode(t *testing.T) {
	t.Setenv("FABRIQUE_TEST", "of this machine")
	n := newNode(t, "/var/tmp")
	up(t, n)

	t.Run("a second up changes nothing", func(t *testing.T) {
		before := n.PID()
		changed, err := n.Up(t.Context(), "other", "other")
		if err != nil || changed || n.PID() != before {
			t.Errorf("changed %v, %v; its process was %d and is %d", changed, err, before, n.PID())
		}
	})

	t.Run("it is a machine of its own", func(t *testing.T) {
		for _, test := range []struct{ what, line, want string }{
			{"host name", "cat /proc/sys/kernel/hostname", n.Name},
			{"first process", "tr '\\0' ' ' </proc/1/cmdline | cut -d ' ' -f 1,2", "fabrique-bench-node " + n.Name},
			{"processes", "ls -d /proc/[0-9]* | wc -l | xargs test 8 -gt && echo few", "few"},
			{"networks", "tail -n +2 /proc/net/route", ""},
			{"links", "grep -c eth /proc/net/dev", "0"},
			{"/run", "ls -A /run", "lock"},
			{"/tmp", "ls -A /tmp", ""},
			{"/var", "ls -A /var | xargs", "lib log tmp"}, // tmp, as its own folder is below
			{"/var/lib", "ls -A /var/lib", ""},
			{"hosts", "cat /etc/hosts", strings.TrimSpace(hosts)},
			{"resolver", "cat /etc/resolv.conf", strings.TrimSpace(resolv)},
			{"rights on /tmp", "stat -c %a /tmp", "1777"},
			{"environment", "env | grep -v -e ^PWD= -e ^SHLVL= -e ^_= | cut -d = -f 1 | sort | xargs", "HOME LANG PATH"},
			{"folder", "pwd", "/"},
			{"the machine's files", "test -x /usr/bin/env && echo there", "there"},
		} {
			if got := inside(t, n, "sh", "-c", test.line+"; true"); got != test.want {
				t.Errorf("%s: %q, want %q", test.what, got, test.want)
			}
		}
		for _, kind := range []string{"pid", "mnt", "net", "uts", "ipc"} {
			own, err := os.Readlink("/proc/self/ns/" + kind)
			if err != nil {
				t.Fatal(err)
			}
			if theirs := inside(t, n, "readlink", "/proc/self/ns/"+kind); theirs == own || !strings.HasPrefix(theirs, kind+":") {
				t.Errorf("its namespace %s is ours: %s", kind, theirs)
			}
		}
	})

	t.Run("its control groups", func(t *testing.T) {
		groups := cgroup.Named(node.Prefix + n.Name)
		if len(groups) == 0 {
			t.Fatal("the node has no control groups")
		}
		for line := range strings.Lines(inside(t, n, "cat", "/proc/self/cgroup")) {
			// A hierarchy that is not mounted below /sys/fs/cgroup has none.
			if fields := strings.SplitN(strings.TrimSpace(line), ":", 3); fields[2] != "/" && cgroupMounted(t, fields[1]) {
				t.Errorf("it sees itself in %s", line)
			}
		}
		if n.Memory() <= 0 {
			t.Errorf("it uses %d bytes", n.Memory())
		}
		first := strconv.Itoa(n.PID())
		if all := n.Processes(); !slices.Contains(all, first) || len(all) < 2 {
			t.Errorf("the processes %v are not its first one, %s, and the agent", all, first)
		}
	})

	t.Run("programs that run once", func(t *testing.T) {
		for _, test := range []struct {
			name, stdin string
			args        []string
			log, err    string
		}{
			{"output", "", []string{"echo", "a", "b"}, n.Name + "$ echo a b\na b\n", ""},
			{"input", "from here", []string{"cat"}, n.Name + "$ cat\nfrom here", ""},
			{"a failure", "in\n", []string{"sh", "-c", "cat; echo why >&2; exit 3"}, n.Name + "$ sh -c cat; echo why >&2; exit 3\nin\nwhy\n",
				"running sh -c cat; echo why >&2; exit 3 on " + n.Name + ": exit status 3\nin\nwhy"},
			{"no program", "", []string{"/no/such", "x"}, n.Name + "$ /no/such x\n",
				"running /no/such x on " + n.Name + ": fork/exec /no/such: no such file or directory\n"},
		} {
			t.Run(test.name, func(t *testing.T) {
				var log bytes.Buffer
				got := ""
				if err := n.Run(t.Context(), &log, []byte(test.stdin), test.args...); err != nil {
					got = err.Error()
				}
				if diff := cmp.Diff([2]string{test.log, test.err}, [2]string{log.String(), got}); diff != "" {
					t.Errorf("log and error: -want +got\n%s", diff)
				}
			})
		}
		interrupt := errors.New("interrupted")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(50*time.Millisecond, func() { cancel(interrupt) })
		if err := n.Run(ctx, io.Discard, nil, "sleep", "60"); !errors.Is(err, interrupt) {
			t.Errorf("after an interrupt: %v", err)
		}
	})

	t.Run("services", func(t *testing.T) { services(t, n) })
}

func services(t *testing.T, n node.Node) {
	start := func(s node.Service) bool {
		t.Helper()
		changed, err := n.Start(s)
		if err != nil {
			t.Fatal(err)
		}
		return changed
	}
	state := func(name string) node.State {
		t.Helper()
		all, err := n.State()
		if err != nil {
			t.Fatal(err)
		}
		return all[name]
	}
	log := func(name string) string {
		text, _ := os.ReadFile(n.LogFile(name)) // it may not be there yet
		return string(text)
	}
	lives := func(pid int) bool {
		return n.Run(t.Context(), io.Discard, nil, "kill", "-0", strconv.Itoa(pid)) == nil
	}
	one := node.Service{Name: "one", Args: []string{"/bin/sh", "-c", `echo "$0 $WORD begins"; exec sleep 3600`, "it"}, Env: []string{"WORD=now"}}
	if !start(one) {
		t.Error("starting it is no change")
	}
	soon(t, "it says nothing", func() bool { return log("one") == "it now begins\n" })
	first := state("one")
	if first.PID == 0 || first.Restarts != 0 || !lives(first.PID) {
		t.Fatalf("it is %+v", first)
	}
	if start(one) || state("one") != first {
		t.Errorf("starting it again made of %+v %+v", first, state("one"))
	}

	if err := n.Run(t.Context(), io.Discard, nil, "kill", "-9", strconv.Itoa(first.PID)); err != nil {
		t.Fatal(err)
	}
	soon(t, "it is not started again", func() bool { s := state("one"); return s.Restarts == 1 && s.PID != 0 })
	second := state("one")
	if second.PID == first.PID || second.Last != "signal: killed" {
		t.Errorf("after a kill it is %+v", second)
	}
	soon(t, "it says nothing the second time", func() bool { return log("one") == "it now begins\nit now begins\n" })

	for _, other := range []node.Service{
		{Name: "one", Args: one.Args, Env: []string{"WORD=then"}},
		{Name: "one", Args: []string{"/bin/sleep", "3600"}, Env: []string{"WORD=then"}},
	} {
		before := state("one")
		if !start(other) {
			t.Errorf("starting it as %q is no change", other)
		}
		if lives(before.PID) {
			t.Error("the old one lives beside the new one")
		}
		if after := state("one"); after.PID == 0 || after.PID == before.PID || after.Restarts != 0 {
			t.Errorf("after %+v it is %+v", before, after)
		}
		if start(other) {
			t.Errorf("starting it again as %q is a change", other)
		}
	}

	if _, err := n.Start(node.Service{Name: "broken", Args: []string{"/no/such"}}); err == nil || !strings.Contains(err.Error(), "starting broken on "+n.Name+": fork/exec /no/such") {
		t.Errorf("a program that is not there: %v", err)
	}
	start(node.Service{Name: "ends", Args: []string{"/bin/sh", "-c", "exit 5"}})
	soon(t, "its end is not told", func() bool { s := state("ends"); return s.Restarts > 0 && s.Last == "exit status 5" })
	all, err := n.State()
	if _, there := all["broken"]; err != nil || len(all) != 2 || there {
		t.Errorf("the services are %v, %v", all, err)
	}
	// An orphan, whose end only the node's first process sees; destroy looks for it.
	if err := n.Run(t.Context(), io.Discard, nil, "setsid", "--fork", "sh", "-c", "exec >/dev/null 2>&1; sleep 3600; true", n.Name); err != nil {
		t.Error(err)
	}
}

// cgroupMounted tells whether a hierarchy, by its controllers as in
// /proc/PID/cgroup, is one that nodes have groups in.
func cgroupMounted(t *testing.T, controllers string) bool {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		mount, fs, _ := strings.Cut(strings.TrimSpace(line), " - ")
		if !strings.Contains(mount, " "+cgroup.Root+"/") {
			continue
		}
		if (controllers == "" && strings.HasPrefix(fs, "cgroup2 ")) || (controllers != "" && strings.HasSuffix(fs, controllers)) {
			return true
		}
	}
	return false
}

// A node's own folder and what it keeps are seen inside at their own paths,
// wherever they are, and what it writes there stays.
func TestFolders(t *testing.T) {
	for _, below := range []string{"/tmp", "/var/tmp", "/opt"} {
		t.Run(below, func(t *testing.T) {
			n := newNode(t, below)
			kept, err := os.MkdirTemp(below, "fabrique-test-kept-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(kept) })
			if err := os.WriteFile(filepath.Join(kept, "in"), []byte("from here"), 0o644); err != nil {
				t.Fatal(err)
			}
			n.Keep = []string{kept}
			up(t, n)
			if got := inside(t, n, "cat", filepath.Join(kept, "in")); got != "from here" {
				t.Errorf("it reads %q", got)
			}
			inside(t, n, "sh", "-c", fmt.Sprintf("echo out >%s/out; echo var >/var/lib/f; echo tmp >/tmp/f; echo dir >%s/f", kept, n.Dir))
			for file, want := range map[string]string{kept + "/out": "out\n", n.Dir + "/var/lib/f": "var\n", n.Dir + "/tmp/f": "tmp\n", n.Dir + "/f": "dir\n"} {
				if got, err := os.ReadFile(file); err != nil || string(got) != want {
					t.Errorf("%s holds %q, %v", file, got, err)
				}
			}
			destroy(t, n)
			if _, err := os.Stat(filepath.Join(kept, "out")); err != nil {
				t.Errorf("what it keeps went with it: %v", err)
			}
		})
	}
}

// A node that was interrupted at any moment of its start can be destroyed and
// started.
func TestHalfStarted(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		for _, next := range []string{"destroy", "up"} {
			t.Run(signal.String()+", then "+next, func(t *testing.T) {
				n := newNode(t, "/var/tmp")
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					n.Up(ctx, hosts, resolv) // it may have been quicker than the signal
				}()
				first := 0
				soon(t, "it does not begin", func() bool { first = n.PID(); return first != 0 })
				if err := syscall.Kill(first, signal); err != nil {
					t.Fatal(err)
				}
				<-ended
				if next == "destroy" {
					destroy(t, n)
					return
				}
				if _, err := n.Up(t.Context(), hosts, resolv); err != nil {
					t.Fatal(err)
				}
				inside(t, n, "true")
			})
		}
	}
}

// One whose first process was killed says so; nothing of it is in the way.
func TestKilled(t *testing.T) {
	n := newNode(t, "/var/tmp")
	up(t, n)
	if _, err := n.Start(node.Service{Name: "one", Args: []string{"/bin/sleep", "3600"}}); err != nil {
		t.Fatal(err)
	}
	first := n.PID()
	if first == 0 {
		t.Fatal("it has no process")
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	soon(t, "it does not end", func() bool { return n.PID() == 0 && len(n.Processes()) == 0 })
	_, stateErr := n.State()
	_, startErr := n.Start(node.Service{Name: "one", Args: []string{"/bin/sleep", "3600"}})
	for _, err := range []error{stateErr, startErr, n.Run(t.Context(), io.Discard, nil, "true")} {
		if want := "the node " + n.Name + " does not run"; err == nil || err.Error() != want {
			t.Errorf("it says %v, want %s", err, want)
		}
	}
	up(t, n)
	if all, err := n.State(); err != nil || len(all) != 0 {
		t.Errorf("the new one has the services %v, %v", all, err)
	}
}

// Two of one name would share control groups: the second is refused, and the
// first goes on.
func TestNamesake(t *testing.T) {
	n := newNode(t, "/var/tmp")
	up(t, n)
	other := node.Node{Name: n.Name, Dir: filepath.Join(t.TempDir(), "node")}
	want := "ending the node " + n.Name + ": one of that name runs with its files in " + n.Dir + "; a machine has one"
	_, err := other.Up(t.Context(), hosts, resolv)
	for _, err := range []error{err, other.Destroy(t.Context())} {
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	inside(t, n, "true")
}

// Nobody is left in the dark about why a node does not start.
func TestStartFails(t *testing.T) {
	n := newNode(t, "/var/tmp")
	n.Keep = []string{"/var/no/such/folder"}
	_, err := n.Up(t.Context(), hosts, resolv)
	for _, part := range []string{"starting the node " + n.Name, "its first process ended", "mounting /var/no/such/folder"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %v", part, err)
		}
	}
}

func TestDestroyWhatIsNotThere(t *testing.T) {
	destroy(t, newNode(t, "/var/tmp"))
}
