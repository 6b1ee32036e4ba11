package parts_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"fabrique/bench/images"
	"fabrique/bench/parts"
)

// envHold makes the test binary a program that starts all parts and a build,
// says so, and waits for a signal.
const envHold = "FABRIQUE_TEST_HOLD"

const holdCode = 7

func hold() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := holdAll(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	<-ctx.Done()
	return holdCode
}

func holdAll(ctx context.Context) error {
	registry, err := parts.StartRegistry(ctx)
	if err != nil {
		return err
	}
	if _, err := parts.StartGitea(ctx); err != nil {
		return err
	}
	d, err := parts.StartBuildKit(ctx, "")
	if err != nil {
		return err
	}
	if _, err := images.Busybox.Push(ctx, registry.Address); err != nil {
		return err
	}
	dir := filepath.Join(parts.Dir(), "context")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	dockerfile := "FROM registry:80/base/busybox\nRUN sh -c 'sleep 7654; true'\n"
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile), 0o644); err != nil {
		return err
	}
	build := exec.Command(d.Buildctl, "--addr", d.Address, "build", "--progress", "plain",
		"--frontend", "dockerfile.v0", "--local", "context="+dir, "--local", "dockerfile="+dir)
	progress, err := build.StderrPipe()
	if err != nil {
		return err
	}
	if err := build.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(progress)
	for lines.Scan() && !strings.Contains(lines.Text(), "RUN sh") {
	}
	addrs, err := net.LookupHost("registry")
	if err != nil {
		return err
	}
	_, err = fmt.Printf("ready %s %s\n", parts.Dir(), addrs[0])
	return err
}

// held is an instance of its own, started from inside this one.
type held struct {
	cmd       *exec.Cmd
	dir, addr string
}

func startHeld(t *testing.T, tmp string) *held {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	// Without this instance's variables it is an outer process again.
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "FABRIQUE_BENCH_STAGE=") && !strings.HasPrefix(v, "FABRIQUE_BENCH_INSTANCE=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, envHold+"=1", "TMPDIR="+tmp)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Signal(syscall.SIGTERM)
			cmd.Wait()
		}
	})
	h := &held{cmd: cmd}
	line, err := bufio.NewReader(out).ReadString('\n')
	if _, scanErr := fmt.Sscanf(line, "ready %s %s", &h.dir, &h.addr); err != nil || scanErr != nil {
		t.Fatalf("the instance says %q: %v", line, err)
	}
	waitFor(t, "the build's step to run", func() bool {
		return slices.ContainsFunc(h.processes(t), func(p string) bool { return strings.HasSuffix(p, " sleep 7654 ") })
	})
	if len(h.listeners(t)) != 2 || len(h.mounts(t)) == 0 || len(h.cgroups(t)) == 0 {
		t.Fatalf("the living instance at %s has %d processes, listeners %q, %d mounts, control groups %v: the test looks at the wrong things",
			h.addr, len(h.processes(t)), h.listeners(t), len(h.mounts(t)), h.cgroups(t))
	}
	return h
}

// processes gives those that belong to the instance, by their environment or
// command line, and the build step.
func (h *held) processes(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, dir := range dirs {
		env, _ := os.ReadFile(dir + "/environ")
		line, _ := os.ReadFile(dir + "/cmdline")
		group, _ := os.ReadFile(dir + "/cgroup")
		if bytes.Contains(env, []byte(h.dir+"\x00")) || bytes.Contains(line, []byte(h.dir)) || bytes.Contains(group, []byte(filepath.Base(h.dir)+"/")) {
			found = append(found, dir+" "+string(bytes.ReplaceAll(line, []byte{0}, []byte(" "))))
		}
	}
	return found
}

// mounts gives the mounts that name the instance in any namespace that is alive.
func (h *held) mounts(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		text, _ := os.ReadFile(file)
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, filepath.Base(h.dir)+"/") {
				found = append(found, file+" "+line)
			}
		}
	}
	return found
}

// listeners gives the sockets that listen on the instance's address.
func (h *held) listeners(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	addr := net.ParseIP(h.addr).To4()
	slices.Reverse(addr) // the kernel prints it in the machine's byte order
	var found []string
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if strings.HasPrefix(f[1], strings.ToUpper(hex.EncodeToString(addr))+":") && f[3] == "0A" {
			found = append(found, f[1])
		}
	}
	return found
}

func (h *held) cgroups(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("/sys/fs/cgroup/*/" + filepath.Base(h.dir))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func (h *held) expectGone(t *testing.T) {
	t.Helper()
	for _, look := range []func(*testing.T) []string{h.processes, h.listeners, h.mounts} {
		waitFor(t, "the instance to be gone", func() bool { return len(look(t)) == 0 })
	}
}

func TestEndLeavesNothing(t *testing.T) {
	tmp := t.TempDir()
	if err := os.Chmod(filepath.Dir(tmp), 0o755); err != nil {
		t.Fatal(err)
	}
	one, two := startHeld(t, tmp), startHeld(t, tmp)
	if one.addr == two.addr || one.dir == two.dir {
		t.Errorf("two instances share %s %s, %s %s", one.addr, one.dir, two.addr, two.dir)
	}

	// SIGTERM: the inner process ends as it likes.
	if err := one.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	one.cmd.Wait()
	if code := one.cmd.ProcessState.ExitCode(); code != holdCode {
		t.Errorf("exit code %d, want the inner process's %d", code, holdCode)
	}
	one.expectGone(t)
	if groups := one.cgroups(t); len(groups) > 0 {
		t.Errorf("control groups are left: %v", groups)
	}
	if _, err := os.Stat(one.dir); !os.IsNotExist(err) {
		t.Errorf("the folder is left: %v", err)
	}

	// kill -9: the kernel ends it, the next start cleans up.
	if err := two.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	two.cmd.Wait()
	two.expectGone(t)
	t.Logf("all was gone %v after kill -9", time.Since(start))
	three := startHeld(t, tmp)
	if _, err := os.Stat(two.dir); !os.IsNotExist(err) {
		t.Errorf("the killed instance's folder is left after the next start: %v", err)
	}
	if groups := two.cgroups(t); len(groups) > 0 {
		t.Errorf("the killed instance's control groups are left after the next start: %v", groups)
	}
	if err := three.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	three.cmd.Wait()
	three.expectGone(t)
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left in the folder for temporary files: %v, %v", left, err)
	}
}
