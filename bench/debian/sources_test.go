package debian

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadSources(t *testing.T) {
	for _, test := range []struct {
		name  string
		files map[string]string
		want  []Source
	}{
		{
			name: "stanzas",
			files: map[string]string{"sources.list.d/debian.sources": `# made by the installer
Types: deb deb-src
# an old address
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates bookworm-backports
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites:
 bookworm-security
Components: main

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
`},
			want: []Source{
				{"http://mirror.example/debian", []string{"bookworm", "bookworm-updates"}, []string{"main", "contrib"}},
				{"http://mirror.example/debian-security", []string{"bookworm-security"}, []string{"main"}},
			},
		},
		{
			name: "lines, beside another vendor's and a disabled file",
			files: map[string]string{
				"sources.list": `deb [arch=amd64] http://mirror.example/debian bookworm main # stable
deb-src http://mirror.example/debian bookworm main
deb http://mirror.example/debian trixie main
deb http://mirror.example/debian-security bookworm-security main
`,
				"sources.list.d/vendor.list":    "deb [signed-by=/usr/share/keyrings/vendor.gpg] https://vendor.example bookworm main\n",
				"sources.list.d/other.list.off": "deb http://off.example/debian bookworm main\n",
			},
			want: []Source{
				{"http://mirror.example/debian", []string{"bookworm"}, []string{"main"}},
				{"http://mirror.example/debian-security", []string{"bookworm-security"}, []string{"main"}},
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := readSources(tree(t, test.files), "bookworm")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			// What is written for the base image reads back as the same.
			again := tree(t, map[string]string{"sources.list.d/debian.sources": Deb822(got)})
			if back, err := readSources(again, "bookworm"); err != nil || !cmp.Equal(got, back) {
				t.Errorf("reading Deb822's text: %v, %s", err, cmp.Diff(got, back))
			}
		})
	}
}

func TestReadSourcesWithoutTheRelease(t *testing.T) {
	etc := tree(t, map[string]string{"sources.list": "deb http://mirror.example/debian trixie main\n"})
	if got, err := readSources(etc, "bookworm"); err == nil {
		t.Errorf("got %v, want an error that names the suite", got)
	}
}

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
