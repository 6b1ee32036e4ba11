package runnetwork

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"fabrique/steps/step"
)

// Live tells whether the relay is still the one that it was when a process, buildkitd,
// started. A relay that has restarted knows nothing of the ports that it had, and
// BuildKit uses the namespaces of those again: the daemon has to start anew as well.
// Exit code 1 when it has, or cannot be found out.
func Live(socket string, pid int) error {
	info, err := os.Stat(socket)
	if err != nil {
		return step.Retryf("looking for the relay: %w", err)
	}
	since, err := started(pid)
	if err != nil {
		return step.Retryf("looking for the daemon: %w", err)
	}
	if made := info.ModTime(); made.After(since) {
		return step.Retryf("the relay has restarted at %s, after the daemon at %s: what RUN instructions have for a network leads nowhere",
			made.Format(time.RFC3339Nano), since.Format(time.RFC3339Nano))
	}
	return nil
}

// ticks is how many the kernel counts in a second in what it tells of processes (USER_HZ).
const ticks = 100

// started gives the time at which a process started (proc_pid_stat(5)).
func started(pid int) (time.Time, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	text, err := os.ReadFile(path)
	if err != nil {
		return time.Time{}, err
	}
	// The second field, the program's name, may hold anything but ends with the last ")".
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 {
		return time.Time{}, fmt.Errorf("reading %s: it has only %d fields", path, len(fields)+2)
	}
	sinceBoot, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("reading %s: %w", path, err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return time.Time{}, err
	}
	age := time.Duration(now.Nano()) - time.Duration(sinceBoot)*(time.Second/ticks)
	return time.Now().Add(-age), nil
}
