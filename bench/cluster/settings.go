package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// settings are what the cluster changes of the whole machine, below /proc/sys:
// bench lets it forward packets, and each kubelet makes the others
// (setupKernelTunables in its cm package). They cannot be hidden from a kubelet: a
// /proc with a mount over it is one that no user namespace may mount.
var settings = []string{
	forwarding,
	"vm/overcommit_memory", "vm/panic_on_oom",
	"kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

const forwarding = "net/ipv4/ip_forward"

func setting(name string) string { return filepath.Join("/proc/sys", name) }

func (c Cluster) settingsFile() string { return filepath.Join(c.Dir, "settings.json") }

// saveSettings keeps the machine's own settings, once.
func (c Cluster) saveSettings() error {
	if _, err := os.Stat(c.settingsFile()); err == nil {
		return nil
	}
	saved := map[string]string{}
	for _, name := range settings {
		value, err := os.ReadFile(setting(name))
		if err != nil {
			return fmt.Errorf("keeping the machine's settings: %w", err)
		}
		saved[name] = strings.TrimSpace(string(value))
	}
	text, err := json.Marshal(saved)
	if err != nil {
		return err
	}
	partial := c.settingsFile() + ".partial"
	if err := os.WriteFile(partial, text, 0o600); err != nil {
		return err
	}
	return os.Rename(partial, c.settingsFile())
}

// restoreSettings sets the machine's own settings again where they differ.
func (c Cluster) restoreSettings() (changed bool, err error) {
	text, err := os.ReadFile(c.settingsFile())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // nothing was started
	}
	if err != nil {
		return false, err
	}
	var saved map[string]string
	if err := json.Unmarshal(text, &saved); err != nil {
		return false, fmt.Errorf("reading the machine's settings in %s: %w", c.settingsFile(), err)
	}
	for name, value := range saved {
		now, readErr := os.ReadFile(setting(name))
		if readErr == nil && strings.TrimSpace(string(now)) == value {
			continue
		}
		changed = true
		if writeErr := os.WriteFile(setting(name), []byte(value), 0o644); writeErr != nil {
			err = errors.Join(err, fmt.Errorf("restoring %s to %s: %w", name, value, writeErr))
		}
	}
	return changed, err
}
