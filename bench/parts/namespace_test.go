package parts

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHostsFile(t *testing.T) {
	got := withParts("127.0.0.1 localhost # registry\n127.9.9.9 registry gitea\n10.0.0.1 vm registry\n::1 localhost", "127.1.2.3")
	want := "127.0.0.1 localhost # registry\n10.0.0.1 vm\n::1 localhost\n127.1.2.3 registry gitea\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
