package record

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/step"
)

var update = flag.Bool("update", false, "write the golden files")

const (
	oldRevision = gitref.Revision("1111111111111111111111111111111111111111")
	newRevision = gitref.Revision("7222512345e2722251234572722251234527222a")
)

var (
	oldKey    = gitref.SourceKey(strings.Repeat("a", 64))
	newKey    = gitref.SourceKey(strings.Repeat("b", 64))
	rejected  = gitref.SourceKey(strings.Repeat("c", 64))
	newDigest = image.Digest("sha256:" + strings.Repeat("2", 64))
	noKey     gitref.SourceKey
	noHold    string
	reason    = "broken \"migration\" \\ see\nthe ticket\x1b[31m"
)

// changes are by folder of testdata.
var changes = map[string]Change{
	"deploy":   {Deploy: &deployment, RollbackOf: &noKey},
	"hold":     {Hold: &reason},
	"release":  {Hold: &noHold, RollbackOf: &noKey},
	"rollback": {Deploy: &deployment, RollbackOf: &rejected},
}

var deployment = Deployment{newRevision, newKey, image.Repository{Registry: "registry:80", Name: "citation"}, newDigest}

// TestApply compares edited files byte by byte with testdata/<change>/<case>.
func TestApply(t *testing.T) {
	for kind, change := range changes {
		cases, err := filepath.Glob(filepath.Join("testdata", kind, "*"))
		if err != nil || len(cases) == 0 {
			t.Fatalf("no cases of %s: %v", kind, err)
		}
		for _, dir := range cases {
			t.Run(kind+"/"+filepath.Base(dir), func(t *testing.T) {
				original, err := os.ReadFile(filepath.Join(dir, "original.yaml"))
				if err != nil {
					t.Fatal(err)
				}
				got, err := Apply("app.yaml", original, "citation", change)
				if err != nil {
					t.Fatal(err)
				}
				golden(t, filepath.Join(dir, "expected.yaml"), got)

				again, err := Apply("app.yaml", got, "citation", change)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, again) {
					t.Errorf("a second time changes the file:\n%s", cmp.Diff(string(got), string(again)))
				}
				if bytes.Contains(original, []byte("\r\n")) && bytes.Count(got, []byte("\n")) != bytes.Count(got, []byte("\r\n")) {
					t.Errorf("a new line has another line end")
				}
				if change.Deploy != nil && !bytes.Contains(got, []byte(`"`+string(newRevision)+`"`)) {
					t.Errorf("the revision is not quoted")
				}
			})
		}
	}
}

// TestRefused compares the errors for testdata/refused with their golden text.
func TestRefused(t *testing.T) {
	cases, err := filepath.Glob("testdata/refused/*.yaml")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range cases {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, err = ParseFile("apps/"+name+".yaml", data)
			if err == nil {
				t.Fatal("no error")
			}
			if step.ExitCode(err) != step.ExitInvalid {
				t.Errorf("exit code %d", step.ExitCode(err))
			}
			golden(t, strings.TrimSuffix(file, ".yaml")+".txt", []byte(err.Error()+"\n"))
			if edited, err := Apply("apps/"+name+".yaml", data, "citation", changes["deploy"]); err == nil && name != "app-twice" {
				t.Errorf("edited all the same:\n%s", edited)
			}
		})
	}
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (go test -update writes it)", err)
	}
	if !bytes.Equal(want, got) {
		t.Errorf("%s differs:\n%s", file, cmp.Diff(string(want), string(got)))
	}
}

func TestParseFile(t *testing.T) {
	data, err := os.ReadFile("testdata/deploy/comments/original.yaml")
	if err != nil {
		t.Fatal(err)
	}
	data = bytes.Replace(data, []byte("        other/one:"), []byte(strings.Join([]string{
		"        fabrique/inputs: lib/common, proto/",
		"        fabrique/dockerfile: docker/Dockerfile.prod",
		"        fabrique/build-args: B=2,A=1",
		"        fabrique/target: run",
		"        fabrique/hold: \"\"",
		"        other/one:",
	}, "\n")), 1)
	got, err := ParseFile("apps/citation.yaml", append([]byte("kind: Other\n---\n"), data...))
	if err != nil {
		t.Fatal(err)
	}
	want := []Record{{
		File: "apps/citation.yaml", Document: 1,
		App: "citation", Context: "dataops/citation-dagster", Dockerfile: "docker/Dockerfile.prod",
		Inputs: []gitref.Path{"lib/common", "proto"}, Image: "citation",
		BuildArgs: map[string]string{"A": "1", "B": "2"}, Target: "run", Hold: "no reason given",
		SourceRepoURL: "http://gitea:3000/atlas/atlas.git",
		Revision:      oldRevision, SourceKey: oldKey, TargetRevision: string(oldRevision),
		Digest: image.Digest("sha256:" + strings.Repeat("1", 64)),
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A broken document is reported and the other apps of the file are still there.
func TestParseFileKeepsGoodDocuments(t *testing.T) {
	good, err := os.ReadFile("testdata/deploy/never-built/original.yaml")
	if err != nil {
		t.Fatal(err)
	}
	bad := bytes.Replace(good, []byte("dataops/citation-dagster"), []byte("../x"), 1)
	records, err := ParseFile("apps.yaml", slicesJoin(bad, good))
	if err == nil || !strings.Contains(err.Error(), `"apps.yaml": line 7, column 23`) {
		t.Errorf("error %v", err)
	}
	if len(records) != 1 || records[0].Document != 1 {
		t.Errorf("records %+v", records)
	}
}

func slicesJoin(docs ...[]byte) []byte { return bytes.Join(docs, []byte("---\n")) }

func TestApplyRefuses(t *testing.T) {
	good, err := os.ReadFile("testdata/deploy/never-built/original.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		app    string
		change Change
		want   string
	}{
		"unknown app": {"other", changes["deploy"], `holds no Application "other"`},
		"other image": {"citation", Change{Deploy: &Deployment{newRevision, newKey, image.Repository{Registry: "registry:80", Name: "other"}, newDigest}}, `the image "registry:80/other" is not the app's`},
	} {
		if _, err := Apply("a.yaml", good, c.app, c.change); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Hostile files are refused, and soon.
func TestParseFileHostile(t *testing.T) {
	for name, text := range map[string]string{
		"too large":       strings.Repeat("#", MaxSize+1),
		"deep sequences":  strings.Repeat("[", MaxSize),
		"deep mappings":   strings.Repeat("{a: ", MaxSize/4),
		"not UTF-8":       "a: \xff\n",
		"a UTF-16 file":   "\xff\xfea\x00:\x00",
		"control bytes":   "a: \x00\n",
		"alias of itself": "a: &a [*a]\nb: *c\n",
	} {
		started := time.Now()
		_, err := ParseFile("a.yaml", []byte(text))
		if err == nil || step.ExitCode(err) != step.ExitInvalid || len(err.Error()) > 500 {
			t.Errorf("%s: %.500v", name, err)
		}
		if took := time.Since(started); took > 5*time.Second {
			t.Errorf("%s: took %s", name, took)
		}
	}
}

func TestOneLine(t *testing.T) {
	for in, want := range map[string]string{
		"":                         "",
		" a\r\n\tb\x1b[31m\u202ec": "a b [31m c",
		"a\xffb":                   "a\uFFFDb",
		strings.Repeat("ü", 300):   strings.Repeat("ü", 200) + "…",
	} {
		if got := OneLine(in); got != want {
			t.Errorf("OneLine(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzParseFile(f *testing.F) {
	seed(f, func(data []byte) { f.Add(data) })
	f.Fuzz(func(t *testing.T, data []byte) {
		records, err := ParseFile("a.yaml", data)
		if err != nil && step.ExitCode(err) != step.ExitInvalid {
			t.Fatalf("exit code %d", step.ExitCode(err))
		}
		for _, r := range records {
			if _, err := ParseApp(r.App); err != nil || r.Context == "" || r.Image == "" {
				t.Fatalf("a record that is not valid: %+v", r)
			}
		}
	})
}

// FuzzApply edits whatever parses. Apply itself verifies that nothing else
// changes; here that check must never fire on a file it should have refused
// with a reason or edited rightly, and an accepted edit must be stable.
func FuzzApply(f *testing.F) {
	seed(f, func(data []byte) {
		for n := range len(changes) {
			f.Add(data, uint8(n))
		}
	})
	kinds := []string{"deploy", "hold", "release", "rollback"}
	f.Fuzz(func(t *testing.T, data []byte, n uint8) {
		change := changes[kinds[int(n)%len(kinds)]]
		records, _ := ParseFile("a.yaml", data)
		for _, r := range records {
			if change.Deploy != nil {
				d := *change.Deploy
				d.Repository.Name = r.Image
				change.Deploy = &d
			}
			edited, err := Apply("a.yaml", data, r.App, change)
			if err != nil {
				if edited != nil || step.ExitCode(err) != step.ExitInvalid {
					t.Fatalf("exit code %d with %d bytes: %v", step.ExitCode(err), len(edited), err)
				}
				continue
			}
			again, err := Apply("a.yaml", edited, r.App, change)
			if err != nil || !bytes.Equal(edited, again) {
				t.Fatalf("not stable: %v\n%s", err, cmp.Diff(string(edited), string(again)))
			}
			after, _ := ParseFile("a.yaml", edited)
			for _, other := range records {
				if other.App == r.App {
					continue
				}
				found := false
				for _, a := range after {
					found = found || cmp.Equal(a, other)
				}
				if !found {
					t.Fatalf("the record of %q changed", other.App)
				}
			}
		}
	})
}

func seed(f *testing.F, add func([]byte)) {
	for _, pattern := range []string{"testdata/*/*/original.yaml", "testdata/refused/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err = errors.Join(err); err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			add(data)
		}
	}
}
