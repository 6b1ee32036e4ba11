package build

import (
	"os"
	"regexp"
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

var secretID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// ParseSecrets parses "id=file,id=file".
func ParseSecrets(s string) (Secrets, error) {
	secrets := Secrets{}
	for pair := range strings.SplitSeq(s, ",") {
		id, file, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || !secretID.MatchString(id) || file == "" {
			return nil, step.Invalidf("parsing the build secrets: want id=file, the id of letters, digits and ._- (the content is never given here)")
		}
		secrets[id] = file
	}
	return secrets, nil
}

// load offers the files to the build, and gives a function that takes their
// lines, and the user information of URLs, out of the build's output.
func (s Secrets) load() ([]session.Attachable, func(string) string, error) {
	var sources []secretsprovider.Source
	var content []secret.Secret
	for id, file := range s {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, step.Invalidf("reading the build secret %q: %w", id, err)
		}
		for line := range strings.Lines(string(raw)) {
			if line = strings.TrimSpace(line); line != "" {
				content = append(content, secret.New(line))
			}
		}
		sources = append(sources, secretsprovider.Source{ID: id, FilePath: file})
	}
	redact := func(text string) string {
		for _, c := range content {
			text = c.Redact(text)
		}
		return secret.RedactURLs(text)
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
