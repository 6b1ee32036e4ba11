package git

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fabrique/steps/gitref"
	"fabrique/steps/secret"
	"fabrique/steps/step"
)

func TestParseTree(t *testing.T) {
	for name, test := range map[string]struct {
		out  string
		want []TreeEntry
		err  string
	}{
		"empty": {"", nil, ""},
		"kinds": {
			"040000 tree aa\tdir\x00100644 blob bb\tfile\x00120000 blob cc\tlink\x00160000 commit dd\tmodule\x00",
			[]TreeEntry{{"040000", "aa", "dir", 0}, {"100644", "bb", "file", 0}, {"120000", "cc", "link", 0}, {"160000", "dd", "module", 0}}, "",
		},
		"names": {
			"100644 blob aa\ta\tb\nc\x00100644 blob aa\t -x\"\xff \x00",
			[]TreeEntry{{"100644", "aa", "a\tb\nc", 0}, {"100644", "aa", " -x\"\xff ", 0}}, "",
		},
		"sizes": {
			"100644 blob aa    1234\tfile\x00160000 commit bb       -\tmodule\x00",
			[]TreeEntry{{"100644", "aa", "file", 1234}, {"160000", "bb", "module", 0}}, "",
		},
		"bad size":     {"100644 blob aa -3\tx\x00", nil, `reading git's list of files: unexpected line "100644 blob aa -3\tx"`},
		"no tab":       {"100644 blob aa\x00", nil, `reading git's list of files: unexpected line "100644 blob aa"`},
		"short":        {"100644 aa\tx\x00", nil, `reading git's list of files: unexpected line "100644 aa\tx"`},
		"error inside": {"100644 blob aa\tx\x00fatal: oops", nil, `reading git's list of files: unexpected line "fatal: oops"`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseTree([]byte(test.out))
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(test.err, text(err)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func FuzzParseTree(f *testing.F) {
	f.Add([]byte("040000 tree aa\tdir\x00100644 blob bb\ta\tb\nc\x00"))
	f.Add([]byte("100644 blob aa\x00"))
	f.Fuzz(func(t *testing.T, out []byte) {
		entries, err := parseTree(out)
		if err != nil {
			return
		}
		// Every record of the output became one entry, in order, name untouched.
		var records [][]byte
		for record := range bytes.SplitSeq(out, []byte{0}) {
			if len(record) > 0 {
				records = append(records, record)
			}
		}
		if len(records) != len(entries) {
			t.Fatalf("%d records gave %d entries", len(records), len(entries))
		}
		for i, e := range entries {
			if !strings.HasSuffix(string(records[i]), "\t"+e.Path) || e.Mode == "" || e.ID == "" {
				t.Errorf("record %q gave %+v", records[i], e)
			}
		}
	})
}

func TestParseBlobs(t *testing.T) {
	for name, test := range map[string]struct {
		ids  []string
		out  string
		want []string
		err  string
	}{
		"none":         {nil, "", nil, ""},
		"two":          {[]string{"aa", "bb"}, "aa blob 3\na\nb\nbb blob 0\n\n", []string{"a\nb", ""}, ""},
		"missing":      {[]string{"aa"}, "aa missing\n", nil, `reading object aa: git answers "aa missing"`},
		"other":        {[]string{"aa"}, "bb blob 1\nx\n", nil, `reading object aa: git answers "bb blob 1"`},
		"cut off":      {[]string{"aa"}, "aa blob 30\nx\n", nil, `reading object aa: git answers "aa blob 30"`},
		"no end":       {[]string{"aa"}, "aa blob 1\nxy", nil, `reading object aa: git answers "aa blob 1"`},
		"negative":     {[]string{"aa"}, "aa blob -1\n\n", nil, `reading object aa: git answers "aa blob -1"`},
		"not a number": {[]string{"aa"}, "aa blob x\n\n", nil, `reading object aa: git answers "aa blob x"`},
		"nothing":      {[]string{"aa"}, "", nil, `reading object aa: git answers ""`},
	} {
		t.Run(name, func(t *testing.T) {
			blobs, err := parseBlobs(test.ids, []byte(test.out))
			var got []string
			for _, b := range blobs {
				got = append(got, string(b))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(test.err, text(err)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func FuzzParseBlobs(f *testing.F) {
	f.Add("aa,bb", []byte("aa blob 3\na\nb\nbb blob 0\n\n"))
	f.Add("aa", []byte("aa blob -5\n\n"))
	f.Add("aa", []byte("aa blob 9223372036854775807\n\n"))
	f.Fuzz(func(t *testing.T, list string, out []byte) {
		ids := strings.Split(list, ",")
		blobs, err := parseBlobs(ids, out)
		if err == nil && len(blobs) != len(ids) {
			t.Errorf("%d ids gave %d blobs", len(ids), len(blobs))
		}
	})
}

func TestParseHeads(t *testing.T) {
	const out = "aa\trefs/heads/a/main\nbb\trefs/heads/main\ncc\trefs/heads/main2\n"
	for branch, want := range map[gitref.Branch]string{"main": "bb", "main2": "cc", "a/main": "aa", "mai": "", "in": ""} {
		if got, ok := parseHeads([]byte(out), branch); got != want || ok != (want != "") {
			t.Errorf("branch %q: got %q, %v, want %q", branch, got, ok, want)
		}
	}
}

func FuzzParseHeads(f *testing.F) {
	f.Add([]byte("aa\trefs/heads/main\n"))
	f.Add([]byte("aa\trefs/heads/main2\nrefs/heads/main"))
	f.Fuzz(func(t *testing.T, out []byte) {
		id, ok := parseHeads(out, "main")
		if ok && !bytes.Contains(out, []byte(id+"\trefs/heads/main")) {
			t.Errorf("the id %q is not that of the branch in %q", id, out)
		}
	})
}

func TestNewRemote(t *testing.T) {
	for address, want := range map[string]string{
		"http://gitea:3000/atlas/atlas.git":         "",
		"https://gitea.example/atlas/atlas":         "",
		"http://[::1]:3000/atlas/atlas.git":         "",
		"":                                          `parsing the repository's URL "": want http:// or https://`,
		"gitea:3000/atlas/atlas.git":                `parsing the repository's URL "gitea:3000/atlas/atlas.git": want http:// or https://`,
		"/srv/git/atlas.git":                        `parsing the repository's URL "/srv/git/atlas.git": want http:// or https://`,
		"file:///srv/git/atlas.git":                 `parsing the repository's URL "file:///srv/git/atlas.git": want http:// or https://`,
		"ssh://gitea/atlas/atlas.git":               `parsing the repository's URL "ssh://gitea/atlas/atlas.git": want http:// or https://`,
		"ext::sh -c id":                             `parsing the repository's URL "ext::sh -c id": want http:// or https://`,
		"http:///atlas/atlas.git":                   `parsing the repository's URL "http:///atlas/atlas.git": want scheme://host/owner/name.git`,
		"http://gitea:3000":                         `parsing the repository's URL "http://gitea:3000": want scheme://host/owner/name.git`,
		"http://:3000/atlas/atlas.git":              `parsing the repository's URL "http://:3000/atlas/atlas.git": want scheme://host/owner/name.git`,
		"http://gitea/atlas?x=1":                    `parsing the repository's URL "http://gitea/atlas?x=1": want scheme://host/owner/name.git`,
		"http://gitea/atlas#main":                   `parsing the repository's URL "http://gitea/atlas#main": want scheme://host/owner/name.git`,
		"http://gitea/a b":                          `parsing the repository's URL "http://gitea/a b": white space and control characters are not allowed`,
		"http://gitea/a\nb":                         `parsing the repository's URL "http://gitea/a\nb": it is not a URL`,
		"http://gitea:port/atlas":                   `parsing the repository's URL "http://gitea:port/atlas": it is not a URL`,
		"http://ada:hunter2@gitea/atlas/atlas.git":  `parsing the repository's URL "***@gitea/atlas/atlas.git": it holds credentials; pass a token by file or environment`,
		"http://hunter2@gitea/atlas/atlas.git":      `parsing the repository's URL "***@gitea/atlas/atlas.git": it holds credentials; pass a token by file or environment`,
		"http://ada:hun ter2@gitea/atlas/atlas.git": `parsing the repository's URL "***@gitea/atlas/atlas.git": it holds credentials; pass a token by file or environment`,
		"http://ada:1/hunter2@gitea/atlas.git":      `parsing the repository's URL "***@gitea/atlas.git": it holds credentials; pass a token by file or environment`,
		"http://ada:a@hunter2@gitea/atlas.git":      `parsing the repository's URL "***@gitea/atlas.git": it holds credentials; pass a token by file or environment`,
		"ssh://git:hunter2@gitea/atlas.git":         `parsing the repository's URL "***@gitea/atlas.git": it holds credentials; pass a token by file or environment`,
		"git@gitea:atlas/atlas.git":                 `parsing the repository's URL "***@gitea:atlas/atlas.git": it holds credentials; pass a token by file or environment`,
	} {
		remote, err := NewRemote(address, secret.Secret{})
		if diff := cmp.Diff(want, text(err)); diff != "" {
			t.Errorf("%q: %s", address, diff)
		}
		if err != nil && step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("%q: exit code %d", address, step.ExitCode(err))
		}
		if err == nil && remote.String() != address {
			t.Errorf("%q became %q", address, remote)
		}
	}
}

// Whatever the password, it is not shown and the address is not used.
func FuzzNewRemote(f *testing.F) {
	f.Add("hunter2", "gitea/atlas.git")
	f.Add("1/hun ter2", "gitea/atlas.git")
	f.Add("\x7f?#%zz", "gitea")
	f.Fuzz(func(t *testing.T, password, rest string) {
		_, err := NewRemote("http://ada:"+password+"@"+rest, secret.Secret{})
		if err == nil {
			t.Fatal("credentials were accepted")
		}
		if strings.Contains(text(err), "ada:") && !strings.Contains(rest, "ada:") {
			t.Errorf("shown: %v", err)
		}
		remote, err := NewRemote(rest, secret.Secret{})
		if err == nil && (strings.ContainsAny(string(remote.String()), "@ \n\x00") || !strings.HasPrefix(remote.String(), "http")) {
			t.Errorf("%q was accepted", remote)
		}
	})
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
