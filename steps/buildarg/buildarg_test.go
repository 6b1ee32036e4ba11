package buildarg

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fabrique/steps/step"
)

func TestParse(t *testing.T) {
	for in, want := range map[string]Args{
		"":                        {},
		"  ":                      {},
		"A=1":                     {"A": "1"},
		"A=1, B_2=x=y ,C=":        {"A": "1", "B_2": "x=y", "C": ""},
		"PUBLIC_KEY=abc":          {"PUBLIC_KEY": "abc"},
		"KEYBOARD=us":             {"KEYBOARD": "us"},
		"TOKENIZER=bpe":           {"TOKENIZER": "bpe"},
		"AUTHOR=me":               {"AUTHOR": "me"},
		"INDEX=http://mirror/x@1": {"INDEX": "http://mirror/x@1"},
	} {
		got, err := Parse(in)
		if err != nil {
			t.Errorf("Parse(%q): %v", in, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Parse(%q): %s", in, diff)
		}
	}
}

// B4: among others, what looks like a secret, with a pointer to secret mounts.
func TestParseRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"A":                                    "want KEY=value",
		"A=1,,B=2":                             "want KEY=value",
		"A=1,A=2":                              "given twice",
		"1A=x":                                 "want a name",
		"A-B=x":                                "want a name",
		"=x":                                   "want a name",
		"A=a\x00b":                             "cannot be printed",
		"A=\U000e0067":                         "cannot be printed",
		"A=\u202e":                             "cannot be printed",
		"A=a\nb":                               "cannot be printed",
		"NPM_TOKEN=hunter2":                    "secret",
		"password=hunter2":                     "secret",
		"DB_PASSWD=hunter2":                    "secret",
		"GITHUBTOKEN=hunter2":                  "secret",
		"MY_SECRET_THING=hunt":                 "secret",
		"API_KEY=hunter2":                      "secret",
		"APIKEY=hunter2":                       "secret",
		"BASIC_AUTH=hunter2":                   "secret",
		"AWS_CREDENTIALS=hunter":               "secret",
		"INDEX=http://u:hunter2@mirror/simple": "URL with a password",
		"A=" + strings.Repeat("x", 4097):       "4097 bytes",
	} {
		_, err := Parse(in)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%q) = %v, want an error with %q", in, err, want)
			continue
		}
		if step.ExitCode(err) != step.ExitInvalid {
			t.Errorf("Parse(%q): exit code %d", in, step.ExitCode(err))
		}
		if strings.Contains(err.Error(), "hunter") {
			t.Errorf("Parse(%q) shows the value: %v", in, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("A=1, B_2=x=y ,C=")
	f.Add("NPM_TOKEN=x")
	f.Fuzz(func(t *testing.T, in string) {
		args, err := Parse(in)
		if err != nil {
			if step.ExitCode(err) != step.ExitInvalid {
				t.Fatalf("exit code %d", step.ExitCode(err))
			}
			return
		}
		again, err := Parse(args.String())
		if err != nil || !maps.Equal(args, again) {
			t.Fatalf("Parse(%q) = %q, read again %q, %v", in, args, again, err)
		}
	})
}
