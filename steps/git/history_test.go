package git

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fabrique/steps/gitref"
)

// Which commits may have been the head since the hour 10.
func TestSince(t *testing.T) {
	id := func(name string) gitref.Revision { return gitref.Revision(strings.Repeat(name, 40)) }
	for name, c := range map[string]struct {
		history string // newest first: "id hour parents"
		want    string
	}{
		"the head however old":        {"c 3 b,b 2 a,a 1", "c"},
		"the one at the beginning":    {"c 12 b,b 9 a,a 1", "c b"},
		"exactly then":                {"c 10 b,b 9 a,a 1", "c b"},
		"all are newer":               {"c 13 b,b 12 a,a 11", "c b a"},
		"a clock that was behind":     {"c 2 b,b 12 a,a 1", "c b a"},
		"a clock that was far ahead":  {"c 2 b,b 1 a,a 99", "c b a"},
		"both sides of a merge":       {"d 12 b c,c 4 a,b 5 a,a 1", "d c b"},
		"a long branch merged lately": {"e 12 b d,d 11 c,c 3 a,b 5 a,a 1", "e d c b"},
		"nothing":                     {"", ""},
	} {
		var history []Commit
		for item := range strings.SplitSeq(c.history, ",") {
			fields := strings.Fields(item)
			if len(fields) == 0 {
				continue
			}
			hours, err := time.ParseDuration(fields[1] + "h")
			if err != nil {
				t.Fatal(err)
			}
			commit := Commit{ID: id(fields[0]), Time: time.Unix(0, 0).Add(hours)}
			for _, parent := range fields[2:] {
				commit.Parents = append(commit.Parents, id(parent))
			}
			history = append(history, commit)
		}
		var got []string
		for _, r := range Since(history, time.Unix(0, 0).Add(10*time.Hour)) {
			got = append(got, string(r[:1]))
		}
		if diff := cmp.Diff(c.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func FuzzParseHistory(f *testing.F) {
	f.Add("1765098000 " + strings.Repeat("a", 40) + " " + strings.Repeat("b", 40) + "\n")
	f.Add("x y\n")
	f.Add("1\n")
	f.Fuzz(func(t *testing.T, out string) {
		commits, err := parseHistory([]byte(out))
		if err != nil {
			return
		}
		for _, c := range commits {
			for _, id := range append([]gitref.Revision{c.ID}, c.Parents...) {
				if _, err := gitref.ParseRevision(string(id)); err != nil {
					t.Errorf("it gives %q of %q", id, out)
				}
			}
		}
		if since := Since(commits, time.Time{}); len(since) > len(commits) {
			t.Errorf("%d of %d commits", len(since), len(commits))
		}
	})
}
