package secret_test

import (
	"strings"
	"testing"

	"fabrique/steps/secret"
	"fabrique/steps/step"
)

func TestParseID(t *testing.T) {
	for _, good := range []string{"netrc", "b.2", "A_b-c", strings.Repeat("a", 63)} {
		if got, err := secret.ParseID(good); err != nil || got != good {
			t.Errorf("ParseID(%q) = %q, %v", good, got, err)
		}
	}
	for _, bad := range []string{"", ".a", "-a", "a b", "a,b", "a=b", "a/b", "ü", "a\n", strings.Repeat("a", 64)} {
		if _, err := secret.ParseID(bad); step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("ParseID(%q): %v, want an error with exit code 2", bad, err)
		}
	}
}
