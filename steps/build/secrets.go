package build

import (
	"os"
	"slices"
	"strings"

	"github.com/moby/buildkit/session"
	"github.com/moby/buildkit/session/secrets/secretsprovider"

	"fabrique/steps/secret"
	"fabrique/steps/step"
)

// Secrets maps the id of a "RUN --mount=type=secret,id=…" to the file with its
// content. It reaches that instruction and nothing else: no layer, no history,
// no cache key.
type Secrets map[string]string

// ParseSecrets parses "id=file,id=file".
func ParseSecrets(s string) (Secrets, error) {
	secrets := Secrets{}
	for pair := range strings.SplitSeq(s, ",") {
		id, file, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if _, err := secret.ParseID(id); err != nil || !ok || file == "" {
			return nil, step.Invalidf("parsing the build secrets: want id=file, the id of letters, digits and ._- (the content is never given here)")
		}
		if _, twice := secrets[id]; twice {
			return nil, step.Invalidf("parsing the build secrets: the id %q is given twice; keep one", id)
		}
		secrets[id] = file
	}
	return secrets, nil
}

// load offers the files to the build, and gives a function that takes their
// content, and the user information of URLs, out of the build's output.
func (s Secrets) load() ([]session.Attachable, func(string) string, error) {
	var sources []secretsprovider.Source
	var content []secret.Secret
	for id, file := range s {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, step.Invalidf("reading the build secret %q: %w", id, err)
		}
		for _, text := range confidential(string(raw)) {
			content = append(content, secret.New(text))
		}
		sources = append(sources, secretsprovider.Source{ID: id, FilePath: file})
	}
	redact := func(text string) string {
		for _, c := range content {
			text = c.Redact(text)
		}
		return step.RedactURLs(text)
	}
	if len(sources) == 0 {
		return nil, redact, nil
	}
	store, err := secretsprovider.NewStore(sources)
	if err != nil {
		return nil, nil, step.Invalidf("reading the build secrets: %w", err)
	}
	return []session.Attachable{secretsprovider.NewSecretProvider(store)}, redact, nil
}

// Shorter texts are no secrets, and to mask them would make the output
// unreadable: the brackets of a JSON file, the words of a netrc file.
const (
	shortestLine = 4
	shortestWord = 6
)

// confidential lists what of a secret file must not be shown: its lines, and
// the words in them, as a program may print only the password of a file that
// also holds a user's name. The longest come first, so that none is masked in
// part.
func confidential(content string) []string {
	var texts []string
	for line := range strings.Lines(content) {
		if line = strings.TrimSpace(line); len(line) >= shortestLine {
			texts = append(texts, line)
		}
		for _, word := range strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\"',:=;", r) }) {
			if len(word) >= shortestWord {
				texts = append(texts, word)
			}
		}
	}
	slices.SortFunc(texts, func(a, b string) int { return len(b) - len(a) })
	return slices.Compact(texts)
}
