package record

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"go.yaml.in/yaml/v3"

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

// TestApply compares edited files byte by byte with testdata/<change>/<case>: R1
// (number-like), R2 (comments, own-order, two-documents, windows-line-ends) and R3
// (image-old-tag) among them.
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

// TestRefused compares the errors for testdata/refused with their golden text: R1
// (revision-number, context-number) and R8 (name-…) among them.
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

// W10: a revision of 64 digits is written, read again and makes the tag.
func TestLongRevision(t *testing.T) {
	long := gitref.Revision(strings.Repeat("7222512345e2", 6)[:64])
	original, err := os.ReadFile("testdata/deploy/never-built/original.yaml")
	if err != nil {
		t.Fatal(err)
	}
	change := Change{Deploy: &Deployment{long, newKey, deployment.Repository, newDigest}}
	edited, err := Apply("a.yaml", original, "citation", change)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`fabrique/revision: "` + string(long) + `"`, `targetRevision: "` + string(long) + `"`} {
		if !bytes.Contains(edited, []byte(want)) {
			t.Errorf("%s is not in\n%s", want, edited)
		}
	}
	records, err := ParseFile("a.yaml", edited)
	if err != nil || len(records) != 1 || records[0].Revision != long || records[0].TargetRevision != string(long) {
		t.Fatalf("%+v, %v", records, err)
	}
	if got, want := deployment.Repository.Tag(records[0].Revision), "registry:80/citation:7222512345e2"; got != want {
		t.Errorf("tag %s, want %s", got, want)
	}
	// Back to an id of the usual length, as after a move of the repository.
	if edited, err = Apply("a.yaml", edited, "citation", changes["deploy"]); err != nil || bytes.Contains(edited, []byte(long)) {
		t.Errorf("%v\n%s", err, edited)
	}
	for _, zeros := range []int{40, 64} {
		bad := bytes.Replace(edited, []byte(newRevision), bytes.Repeat([]byte("0"), zeros), 1)
		if _, err := ParseFile("a.yaml", bad); err == nil || !strings.Contains(err.Error(), "all zeros") {
			t.Errorf("%d zeros: %v", zeros, err)
		}
	}
}

// R8: an app's name with a sha12 is an image reference, for the registry's client
// too; another name is refused with the rule.
func TestNames(t *testing.T) {
	original, err := os.ReadFile("testdata/deploy/never-built/original.yaml")
	if err != nil {
		t.Fatal(err)
	}
	parse := func(app string) ([]Record, error) {
		return ParseFile("a.yaml", bytes.Replace(original, []byte("  name: citation\n"), []byte("  name: \""+app+"\"\n"), 1))
	}
	for _, app := range []string{
		"ab", "a-b", "0", "a--b", "7222512345e2",
		strings.Repeat("a", 50), strings.Repeat("a", 63), "a" + strings.Repeat("-", 48) + "z", "a" + strings.Repeat("-", 61) + "z", strings.Repeat("7", 63),
	} {
		records, err := parse(app)
		if err != nil || len(records) != 1 || records[0].App != app || string(records[0].Image) != app {
			t.Errorf("%s: %+v, %v", app, records, err)
			continue
		}
		repository := image.Repository{Registry: "registry:80", Name: records[0].Image}
		if len(app) > 1 { // the client knows no names of one letter, though registries do
			tag, err := name.NewTag(repository.Tag(newRevision), name.StrictValidation)
			if err != nil || tag.RepositoryStr() != app || tag.TagStr() != "7222512345e2" || tag.RegistryStr() != "registry:80" {
				t.Errorf("%s: tag %v, %v", app, tag, err)
			}
			byDigest, err := name.NewDigest(repository.At(newDigest), name.StrictValidation)
			if err != nil || byDigest.RepositoryStr() != app || byDigest.DigestStr() != string(newDigest) {
				t.Errorf("%s: digest %v, %v", app, byDigest, err)
			}
		}
	}
	for _, app := range []string{"", "A_b", "a_b", "ünïcode", "../x", "a/b", "a.b", "-a", "a-", "a b", "a:b", "a@b", "{{x}}", strings.Repeat("a", 64), strings.Repeat("a", 300)} {
		_, err := parse(app)
		if err == nil || step.ExitCode(err) != step.ExitInvalid || !strings.Contains(err.Error(), "want a DNS-1123 label: lower-case letters, digits and -, starting and ending with a letter or digit, at most 63 characters") {
			t.Errorf("%q: %v", app, err)
		}
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

// hostile gives a file of n bytes, about, that is meant to keep its reader busy.
var hostile = map[string]func(n int) string{
	"square brackets":    func(n int) string { return ours + strings.Repeat("[", n) },
	"closed brackets":    func(n int) string { return ours + strings.Repeat("[", n/2) + strings.Repeat("]", n/2) },
	"braces":             func(n int) string { return ours + strings.Repeat("{", n) },
	"flow mappings":      func(n int) string { return ours + strings.Repeat("{a: ", n/4) },
	"dashes":             func(n int) string { return ours + strings.Repeat("- ", n/2) },
	"brackets in dashes": func(n int) string { return ours + strings.Repeat("- [", n/3) },
	"question marks":     func(n int) string { return ours + strings.Repeat("? ", n/2) },
	"anchors":            func(n int) string { return ours + "\n" + strings.Repeat("- &a b\n", n/7) },
	"documents":          func(n int) string { return ours + "\n" + strings.Repeat("---\n", n/4) },
	"keys":               func(n int) string { return ours + "{" + strings.Repeat("a,", n/2) + "}" },
	"comments":           func(n int) string { return ours + "\n" + strings.Repeat("- #a\n", n/5) },
	"an open quote":      func(n int) string { return ours + `"` + strings.Repeat("\n", n) },
	"tag directives":     func(n int) string { return numbered(n, "%%TAG !a%d! b\n") + "--- " + ours },
	"records": func(n int) string {
		return strings.Repeat("---\n"+fmt.Sprintf(records, "{}", "{}"), n/len(records))
	},
	"broken records": func(n int) string {
		return strings.Repeat("---\n"+fmt.Sprintf(records, "{}", "[]"), n/len(records))
	},
	"annotations": func(n int) string {
		return fmt.Sprintf(records, "{}", "{}") + numbered(n, "    fabrique/x%d: |\n     y\n")
	},
	"chain of anchors": func(n int) string {
		return bomb(n, "a%[1]d: &a%[1]d [*a%[2]d, *a%[2]d]\n", "[]", "*a%d")
	},
	"merge keys": func(n int) string {
		return bomb(n, "a%[1]d: &a%[1]d {<<: [*a%[2]d, *a%[2]d]}\n", "{}", "{<<: *a%d}")
	},
	"wide merge keys": func(n int) string {
		wide := strings.Repeat("*a%[2]d, ", 20)
		return bomb(n, "a%[1]d: &a%[1]d {<<: ["+wide+"]}\n", "{}", "{<<: *a%d}")
	},
	"parameters that are aliases": func(n int) string {
		return "big: &big {" + strings.Repeat("a: b, ", n/12) + "}\n" +
			fmt.Sprintf(records, "{}", "{helm: {parameters: ["+strings.Repeat("*big,", n/10)+"]}}")
	},
	"images that are aliases": func(n int) string {
		return "big: &big " + strings.Repeat("a", n/2) + "\n" +
			fmt.Sprintf(records, "{}", "{kustomize: {images: ["+strings.Repeat("*big,", n/10)+"]}}")
	},
}

const (
	ours = "fabrique/context: "
	// records is a record that lacks labels and a source.
	records = "apiVersion: argoproj.io/v1alpha1\nkind: Application\nspec: {source: %[2]s}\n" +
		"metadata:\n  name: citation\n  labels: %[1]s\n  annotations:\n    fabrique/context: a\n"
)

// numbered repeats a line with a number in it.
func numbered(n int, line string) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, line, i)
	}
	return b.String()
}

// bomb gives a record whose metadata.labels lead through a chain of anchors,
// each of which names the one before several times, and its annotations too.
func bomb(n int, line, first, last string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "a0: &a0 %s\n", first)
	i := 0
	for i++; b.Len() < n; i++ {
		fmt.Fprintf(&b, line, i, i-1)
	}
	last = fmt.Sprintf(last, i-1)
	return "apiVersion: argoproj.io/v1alpha1\nkind: Application\n" + b.String() +
		"spec: {source: " + last + "}\nmetadata: " + last + "\n# fabrique/context: a\n"
}

// Reading takes time in proportion to the size, whatever the file holds. The
// limit, in processor time as the machine may be busy, is far above what is
// needed and far below what a loop in a loop takes.
func TestHostileTakesNoLonger(t *testing.T) {
	for name, text := range hostile {
		for _, n := range []int{900, maxForColumn - 500, MaxSize / 4} {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				data := []byte(text(n))
				started := processorTime(t)
				found, err := ParseFile("a.yaml", data)
				if err != nil && step.ExitCode(err) != step.ExitInvalid {
					t.Errorf("exit code %d: %.500v", step.ExitCode(err), err)
				}
				for _, r := range found {
					if _, err := Apply("a.yaml", data, r.App, Change{Hold: &reason}); err != nil && step.ExitCode(err) != step.ExitInvalid {
						t.Errorf("exit code %d: %.500v", step.ExitCode(err), err)
					}
				}
				if took := processorTime(t) - started; took > 10*time.Second {
					t.Errorf("%d bytes took %s", len(data), took)
				}
			})
		}
	}
}

// processorTime is what this process has used so far.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// A search looks at each node once, however many ways lead there.
func TestPeekLooksOnce(t *testing.T) {
	for _, name := range []string{"merge keys", "wide merge keys"} {
		src, err := parseSource("a.yaml", []byte(hostile[name](20_000)))
		if err != nil {
			t.Fatal(err)
		}
		nodes := 0
		var count func(*yaml.Node)
		count = func(n *yaml.Node) {
			nodes++
			for _, child := range n.Content {
				count(child)
			}
		}
		count(src.docs[0])
		l := lookup{"absent", map[*yaml.Node]bool{}}
		if found := l.in(peek(src.docs[0].Content[0], "metadata")); found != nil || len(l.seen) < 100 || len(l.seen) > nodes {
			t.Errorf("%s: %d of %d nodes, found %v", name, len(l.seen), nodes, found)
		}
	}
}

// A record is one also where a merge key or an alias makes it one, so that it
// is reported and not passed over.
func TestHiddenRecordsAreReported(t *testing.T) {
	for name, metadata := range map[string]string{
		"merged":              "{<<: *base}",
		"merged from a list":  "{<<: [{}, *base]}",
		"merged twice":        "{<<: {<<: *base}}",
		"annotations aliased": "{name: a, annotations: *annotations}",
		"annotations merged":  "{name: a, annotations: {<<: *annotations}}",
		"merged into itself":  "&self {<<: [*self, *base]}",
	} {
		text := "x: &base {name: a, annotations: &annotations {fabrique/context: a}}\n" +
			"apiVersion: argoproj.io/v1alpha1\nkind: Application\nspec: {source: {}}\nmetadata: " + metadata + "\n"
		if records, err := ParseFile("a.yaml", []byte(text)); err == nil || len(records) > 0 {
			t.Errorf("%s: %v, %v", name, records, err)
		}
	}
}

// Hostile files that mean nothing are refused.
func TestParseFileRefusesNonsense(t *testing.T) {
	for name, text := range map[string]string{
		"too large":       strings.Repeat("#", MaxSize+1),
		"deep sequences":  ours + strings.Repeat("[", MaxSize/2),
		"not UTF-8":       "a: \xff\n",
		"a UTF-16 file":   "\xff\xfea\x00:\x00",
		"control bytes":   ours + "\x00\n",
		"alias of itself": ours + "&a [*a]\nb: *c\n",
		"tag directives":  hostile["tag directives"](5000),
	} {
		_, err := ParseFile("a.yaml", []byte(text))
		if err == nil || step.ExitCode(err) != step.ExitInvalid || len(err.Error()) > 500 {
			t.Errorf("%s: %.500v", name, err)
		}
	}
}

// What does not speak of Fabrique is not its business, YAML or not.
func TestParseFileIgnoresOthers(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "Helm template": "{{- if .Values.x }}\na: {{ .Values.a }}\n{{- end }}\n", "broken": "a: [\n",
		"another Application": "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: a}\n",
		"a mention":           "# fabrique/context is explained elsewhere\na: b\n",
	} {
		if records, err := ParseFile("a.yaml", []byte(text)); err != nil || len(records) > 0 {
			t.Errorf("%s: %v, %v", name, records, err)
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
