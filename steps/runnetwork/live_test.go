package runnetwork

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fabrique/steps/step"
)

// A relay that was made before the process is the one that it knows; one made after it
// is not. The kernel tells the start of a process to a hundredth of a second.
func TestLive(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "relay.sock")
	process := exec.Command("sleep", "600")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { process.Process.Kill(); process.Wait() })
	now := time.Now()
	for name, c := range map[string]struct {
		made time.Time // of the socket; zero for none
		pid  int
		want string
	}{
		"before the daemon": {now.Add(-time.Second), process.Process.Pid, ""},
		"after the daemon":  {now.Add(time.Second), process.Process.Pid, "the relay has restarted"},
		"no relay":          {time.Time{}, process.Process.Pid, "no such file"},
		"no daemon":         {now, 1 << 30, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			os.Remove(socket)
			if !c.made.IsZero() {
				if err := os.WriteFile(socket, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Chtimes(socket, c.made, c.made); err != nil {
					t.Fatal(err)
				}
			}
			err := Live(socket, c.pid)
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || step.ExitCode(err) != 1 || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v (exit code %d), want %q", err, step.ExitCode(err), c.want)
			}
		})
	}
}
