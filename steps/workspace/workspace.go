// Package workspace makes temporary folders that do not pile up: one that a
// killed process left is removed by the next process of the same user that asks
// for one.
package workspace

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Make makes a folder and gives a function that removes it. It lies in the
// system's folder for temporary files, readable by this user only. The folders
// of processes that were killed are removed first: each is locked by its owner
// as long as that lives. Errors have exit code 1.
func Make(prefix string) (dir string, remove func() error, err error) {
	top := filepath.Join(os.TempDir(), fmt.Sprintf("fabrique-%d", os.Getuid()))
	if err := os.MkdirAll(top, 0o700); err != nil {
		return "", nil, fmt.Errorf("creating the workspace: %w", err)
	}
	turn, err := lock(top, syscall.LOCK_EX)
	if err != nil {
		return "", nil, fmt.Errorf("locking the workspace: %w", err)
	}
	defer turn.Close()
	if err := sweep(top); err != nil {
		return "", nil, err
	}
	if dir, err = os.MkdirTemp(top, prefix+"-"); err != nil {
		return "", nil, fmt.Errorf("creating the workspace: %w", err)
	}
	own, err := lock(dir, syscall.LOCK_EX)
	if err != nil {
		return "", nil, fmt.Errorf("locking the workspace: %w", err)
	}
	return dir, func() error {
		defer own.Close()
		return os.RemoveAll(dir)
	}, nil
}

func sweep(top string) error {
	if info, err := os.Lstat(top); err != nil || !info.IsDir() || info.Sys().(*syscall.Stat_t).Uid != uint32(os.Getuid()) {
		return fmt.Errorf("using the workspace %q: it is not a folder of this user", top)
	}
	entries, err := os.ReadDir(top)
	if err != nil {
		return fmt.Errorf("reading the workspace: %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(top, e.Name())
		left, err := lock(dir, syscall.LOCK_EX|syscall.LOCK_NB)
		if err != nil {
			continue // its owner lives
		}
		err = os.RemoveAll(dir)
		left.Close()
		if err != nil {
			return fmt.Errorf("removing the remains of an earlier run: %w", err)
		}
	}
	return nil
}

// lock locks a folder until the file is closed or the process ends.
func lock(dir string, how int) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), how); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
