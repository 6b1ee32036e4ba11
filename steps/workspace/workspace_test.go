package workspace_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"fabrique/steps/workspace"
)

const asOwner = "FABRIQUE_TEST_WORKSPACE_OWNER"

// In the child process of a test this makes a folder, says its name and waits
// to be killed.
func TestMain(m *testing.M) {
	if os.Getenv(asOwner) == "" {
		os.Exit(m.Run())
	}
	dir, _, err := workspace.Make("child")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(dir)
	select {}
}

func TestRemove(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dir, remove, err := workspace.Make("mine")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", dir, err)
	}
}

func TestKilledOwner(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), asOwner+"=1")
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	theirs := line[:len(line)-1]
	makeAnother := func() {
		t.Helper()
		_, remove, err := workspace.Make("mine")
		if err != nil {
			t.Fatal(err)
		}
		if err := remove(); err != nil {
			t.Fatal(err)
		}
	}
	makeAnother()
	if _, err := os.Lstat(theirs); err != nil {
		t.Errorf("the folder of a living process was removed: %v", err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	makeAnother()
	if _, err := os.Lstat(theirs); !os.IsNotExist(err) {
		t.Errorf("the folder of a killed process is still there: %v", err)
	}
}

func TestForeignFolder(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	elsewhere := t.TempDir()
	if err := os.Symlink(elsewhere, filepath.Join(temp, fmt.Sprintf("fabrique-%d", os.Getuid()))); err != nil {
		t.Fatal(err)
	}
	if _, _, err := workspace.Make("mine"); err == nil {
		t.Error("a link in the place of the workspace was followed")
	}
}
