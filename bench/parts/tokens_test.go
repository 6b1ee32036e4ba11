package parts

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLeaks(t *testing.T) {
	token := keep("a-token-that-no-log-may-hold")
	dir := t.TempDir()
	for name, text := range map[string]string{
		"clean.log": "nothing here",
		"plain.log": "x " + token.Reveal() + " y",
		"basic.log": "Authorization: " + token.BasicAuth(),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := leaks(dir); len(got) != 2 {
		t.Errorf("got %v, want an error for each of two logs", got)
	}
}
