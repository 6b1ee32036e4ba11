package step

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTermination writes over what is there, keeps both ends of a long text, and
// makes no file where there is none.
func TestTermination(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	long := "first words" + strings.Repeat("x", 3*terminationLength) + "last words"
	if err := writeTermination(file, errors.New(long)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("a file was made outside a pod: %v", err)
	}
	for _, text := range []string{long, "short, at https://user:secret@gitea"} {
		if err := os.WriteFile(file, []byte(strings.Repeat("before ", 100)), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := writeTermination(file, errors.New(text)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) > terminationLength || !strings.HasPrefix(string(got), text[:5]) || !strings.HasSuffix(string(got), text[len(text)-5:]) || strings.Contains(string(got), "secret") {
			t.Errorf("%d bytes: %.40s … %s", len(got), got, got[max(0, len(got)-40):])
		}
	}
}
