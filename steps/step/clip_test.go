package step

import (
	"strings"
	"testing"
)

func TestClip(t *testing.T) {
	a := strings.Repeat("a", maxQuoted-2)
	for in, want := range map[string]string{
		"":                         "",
		a + "bc":                   a + "bc",
		a + "bcd":                  a + "bc…",
		a + "bü":                   a + "b…",
		a + "🏭x":                   a + "…",
		a + "\x80\x80\x80\x80\x80": a + "…", // no character at all; whatever is left, it is short
	} {
		if got := Clip(in); got != want && !strings.Contains(in, "\x80") || len(got) > maxQuoted+len("…") {
			t.Errorf("Clip(%q) = %q, want %q", in, got, want)
		}
	}
}
