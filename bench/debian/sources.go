package debian

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Source is where apt finds some suites of Debian.
type Source struct {
	URI        string
	Suites     []string // "bookworm", "bookworm-updates", "bookworm-security"
	Components []string
}

// Keyring signs all of Debian's own suites; Debian puts it there.
const Keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// Sources gives the machine's sources of one release ("bookworm") with its
// updates and security updates, as apt's files have them. Other vendors' sources
// and other releases are left out.
func Sources(release string) ([]Source, error) {
	return readSources("/etc/apt", release)
}

func readSources(etc, release string) ([]Source, error) {
	files := []string{filepath.Join(etc, "sources.list")}
	for _, pattern := range []string{"*.list", "*.sources"} {
		more, err := filepath.Glob(filepath.Join(etc, "sources.list.d", pattern))
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
	}
	var sources []Source
	for _, file := range files {
		text, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading apt's sources: %w", err)
		}
		parse := parseList
		if strings.HasSuffix(file, ".sources") {
			parse = parseDeb822
		}
		for _, s := range parse(string(text)) {
			s.Suites = slices.DeleteFunc(s.Suites, func(suite string) bool {
				return suite != release && suite != release+"-updates" && suite != release+"-security"
			})
			if len(s.Suites) > 0 && slices.Contains(s.Components, "main") {
				sources = append(sources, s)
			}
		}
	}
	if Mirror(sources, release) == "" {
		return nil, fmt.Errorf("looking for Debian %s in apt's sources: no source of %s has that suite", release, etc)
	}
	return sources, nil
}

// Mirror gives the URI of the source that has the suite, "" if none has.
func Mirror(sources []Source, suite string) string {
	for _, s := range sources {
		if slices.Contains(s.Suites, suite) {
			return s.URI
		}
	}
	return ""
}

// parseList reads the one-line format (sources.list(5)).
func parseList(text string) []Source {
	var sources []Source
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		options := ""
		if open := strings.Index(line, "["); open >= 0 {
			if end := strings.Index(line, "]"); end > open {
				options, line = line[open+1:end], line[:open]+line[end+1:]
			}
		}
		f := strings.Fields(line)
		if len(f) < 4 || f[0] != "deb" {
			continue
		}
		signedBy := ""
		for _, o := range strings.Fields(options) {
			if v, ok := strings.CutPrefix(o, "signed-by="); ok {
				signedBy = v
			}
		}
		if debians(signedBy) {
			sources = append(sources, Source{URI: f[1], Suites: []string{f[2]}, Components: f[3:]})
		}
	}
	return sources
}

// parseDeb822 reads the stanza format (sources.list(5)).
func parseDeb822(text string) []Source {
	var sources []Source
	for stanza := range strings.SplitSeq(strings.ReplaceAll(text, "\r", ""), "\n\n") {
		fields := map[string]string{}
		last := ""
		for line := range strings.Lines(stanza) {
			line = strings.TrimRight(line, "\n")
			switch {
			case strings.HasPrefix(line, "#"):
			case strings.HasPrefix(line, " "), strings.HasPrefix(line, "\t"):
				fields[last] += " " + line
			default:
				name, value, _ := strings.Cut(line, ":")
				last = strings.ToLower(name)
				fields[last] = value
			}
		}
		if !slices.Contains(strings.Fields(fields["types"]), "deb") ||
			strings.EqualFold(strings.TrimSpace(fields["enabled"]), "no") || !debians(strings.TrimSpace(fields["signed-by"])) {
			continue
		}
		for _, uri := range strings.Fields(fields["uris"]) {
			sources = append(sources, Source{
				URI:        uri,
				Suites:     strings.Fields(fields["suites"]),
				Components: strings.Fields(fields["components"]),
			})
		}
	}
	return sources
}

// debians reports whether a source is Debian's own, by the key it is signed
// with; without one apt falls back to the trusted keys, which are Debian's.
func debians(signedBy string) bool {
	return signedBy == "" || strings.Contains(signedBy, "debian-archive-")
}

// Deb822 gives the sources as a file for /etc/apt/sources.list.d.
func Deb822(sources []Source) string {
	var b strings.Builder
	for i, s := range sources {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "Types: deb\nURIs: %s\nSuites: %s\nComponents: %s\nSigned-By: %s\n",
			s.URI, strings.Join(s.Suites, " "), strings.Join(s.Components, " "), Keyring)
	}
	return b.String()
}
