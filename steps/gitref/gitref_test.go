package gitref_test

import (
	"path"
	"regexp"
	"strings"
	"testing"

	"fabrique/steps/gitref"
	"fabrique/steps/step"
)

const (
	sha1   = "7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210"
	sha256 = "7222512345e2aa0b8d4f6c1e9037b5d8a6c4f2107222512345e2aa0b8d4f6c1e"
)

// W10: both lengths of id, and no zeros; R1: what looks like a number is an id.
func TestParseRevision(t *testing.T) {
	for _, good := range []string{sha1, sha256, strings.Repeat("1", 40)} {
		got, err := gitref.ParseRevision(good)
		if err != nil || string(got) != good || got.Short() != good[:12] {
			t.Errorf("ParseRevision(%q) = %q, %v", good, got, err)
		}
	}
	for _, bad := range []string{
		"", "main", "HEAD", sha1[:12], sha1[:39], sha1 + "a", strings.ToUpper(sha1), sha1 + "\n", " " + sha1,
		strings.Repeat("0", 40), strings.Repeat("0", 64), strings.Repeat("g", 40), "--upload-pack=x", sha256 + "0",
	} {
		refuse(t, "ParseRevision", bad, func() error { _, err := gitref.ParseRevision(bad); return err })
	}
}

func TestParsePrefix(t *testing.T) {
	for _, good := range []string{sha1[:7], sha1, sha256, "1234567"} {
		got, err := gitref.ParsePrefix(good)
		if err != nil || string(got) != good || !got.Of(gitref.Revision(good+"0")) || got.Of("f"+gitref.Revision(good)) {
			t.Errorf("ParsePrefix(%q) = %q, %v", good, got, err)
		}
	}
	for _, bad := range []string{"", "main", "HEAD", sha1[:6], strings.ToUpper(sha1), sha1[:7] + "\n", sha1[:7] + "~1", "0000000", "-" + sha1, sha256 + "0"} {
		refuse(t, "ParsePrefix", bad, func() error { _, err := gitref.ParsePrefix(bad); return err })
	}
}

func TestParseBranch(t *testing.T) {
	for _, good := range []string{"main", "release/1.2", "feature-x", "a.b", "v1+2"} {
		if got, err := gitref.ParseBranch(good); err != nil || got.Ref() != "refs/heads/"+good {
			t.Errorf("ParseBranch(%q) = %q, %v", good, got, err)
		}
	}
	for _, bad := range []string{
		"", "refs/heads/main", "HEAD", "-f", "a..b", "a//b", "a/", "a.", "a.lock", "a.lock/b", "a/.b", ".a", "/a", "a b", "a\nb",
		"a';id;'", "fix-$(HOME)$$", "{{workflow.name}}", "a:b", "a^", "a~1", "a?", "a*", "a[", "a\\b", "a@{1}", strings.Repeat("a", 201),
	} {
		refuse(t, "ParseBranch", bad, func() error { _, err := gitref.ParseBranch(bad); return err })
	}
}

func TestParsePath(t *testing.T) {
	for in, want := range map[string]string{
		".": ".", "./": ".", "a": "a", "a/b/": "a/b", "./a": "a", "a//b": "a/b", "a b": "a b", "-x": "-x", "ünï": "ünï", "a/..b": "a/..b", ".gitignore": ".gitignore",
	} {
		if got, err := gitref.ParsePath(in); err != nil || string(got) != want {
			t.Errorf("ParsePath(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, bad := range []string{
		"", "/", "/a", "..", "../a", "a/../..", "a/../b", "a\\b", "a,b", "a\x00", "a\n", "a\x7f", "a\u009b31m", "a\u202eb", ".git", "a/.GIT/config", "\xff", strings.Repeat("a", 1025),
	} {
		refuse(t, "ParsePath", bad, func() error { _, err := gitref.ParsePath(bad); return err })
	}
}

func TestContains(t *testing.T) {
	for _, c := range []struct {
		outer, inner gitref.Path
		want         bool
	}{
		{".", "a/b", true}, {"a", "a", true}, {"a", "a/b", true}, {"a", "ab", false}, {"a/b", "a", false},
	} {
		if got := c.outer.Contains(c.inner); got != c.want {
			t.Errorf("%q.Contains(%q) = %v", c.outer, c.inner, got)
		}
	}
}

func TestParseSourceKey(t *testing.T) {
	if _, err := gitref.ParseSourceKey(sha256); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", sha1, strings.ToUpper(sha256), sha256 + "0"} {
		refuse(t, "ParseSourceKey", bad, func() error { _, err := gitref.ParseSourceKey(bad); return err })
	}
}

// refuse checks that the input is an error with exit code 2.
func refuse(t *testing.T, parser, input string, parse func() error) {
	t.Helper()
	err := parse()
	if step.ExitCode(err) != step.ExitInvalid {
		t.Errorf("%s(%.60q): %v (exit code %d), want an error with exit code 2", parser, input, err, step.ExitCode(err))
	}
}

func FuzzParseRevision(f *testing.F) {
	f.Add(sha1)
	f.Add(sha256)
	f.Add(strings.Repeat("0", 40))
	form := regexp.MustCompile(`^[0-9a-f]+$`)
	f.Fuzz(func(t *testing.T, s string) {
		r, err := gitref.ParseRevision(s)
		if err == nil && (string(r) != s || !form.MatchString(s) || len(s) != 40 && len(s) != 64) {
			t.Errorf("accepted %q as %q", s, r)
		}
	})
}

func FuzzParsePrefix(f *testing.F) {
	f.Add(sha1[:7])
	f.Add(sha256)
	form := regexp.MustCompile(`^[0-9a-f]{7,64}$`)
	f.Fuzz(func(t *testing.T, s string) {
		if p, err := gitref.ParsePrefix(s); err == nil && (string(p) != s || !form.MatchString(s)) {
			t.Errorf("accepted %q as %q", s, p)
		}
	})
}

func FuzzParseBranch(f *testing.F) {
	f.Add("main")
	f.Add("a/b.lock")
	f.Fuzz(func(t *testing.T, s string) {
		b, err := gitref.ParseBranch(s)
		if err == nil && (strings.ContainsAny(s, " \t\r\n\"'`$(){}[]<>|;&*?~^:\\\x00") || strings.HasPrefix(s, "-") || strings.Contains(s, "..") || string(b) != s) {
			t.Errorf("accepted %q as %q", s, b)
		}
	})
}

func FuzzParsePath(f *testing.F) {
	f.Add("dataops/citation-dagster")
	f.Add("./a/../b")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := gitref.ParsePath(s)
		if err != nil {
			return
		}
		joined := path.Join("/top", string(p))
		if joined != "/top" && !strings.HasPrefix(joined, "/top/") {
			t.Errorf("%q became %q, which leaves the repository", s, p)
		}
		if again, err := gitref.ParsePath(string(p)); err != nil || again != p {
			t.Errorf("%q became %q, which parses as %q, %v", s, p, again, err)
		}
	})
}
