// Package buildarg parses build arguments, as a record declares them and as
// buildkit-build takes them. All errors have exit code 2.
//
// A build argument ends up in the image's history and in the build's log, so
// one that looks like a secret is refused here, wherever it comes from.
package buildarg

import (
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"fabrique/steps/step"
)

// Args are build arguments by name. Their canonical text is [Args.String].
type Args map[string]string

// Parse reads "KEY=value,KEY2=value": pairs separated by commas, white space
// around each pair dropped. A value may be empty and may hold "=", but no comma
// and nothing that cannot be printed. A name given twice is an error. The empty text
// gives no arguments. All together they are at most 16 KiB.
func Parse(s string) (Args, error) {
	args := Args{}
	if strings.TrimSpace(s) == "" {
		return args, nil
	}
	if len(s) > maxLength {
		return nil, step.Invalidf("parsing the build arguments: they have %d bytes, at most %d are allowed", len(s), maxLength)
	}
	for pair := range strings.SplitSeq(s, ",") {
		pair = strings.TrimSpace(pair)
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, step.Invalidf("parsing the build argument %q: want KEY=value, several separated by commas", step.Clip(pair))
		}
		if _, twice := args[name]; twice {
			return nil, step.Invalidf("parsing the build argument %q: it is given twice; keep one", step.Clip(name))
		}
		if err := Check(name, value); err != nil {
			return nil, err
		}
		args[name] = value
	}
	return args, nil
}

// maxLength bounds what a Workflow carries through many of its nodes.
const maxLength = 16 << 10

// String gives the arguments in the form that [Parse] reads, sorted by name.
func (a Args) String() string {
	pairs := make([]string, 0, len(a))
	for _, name := range slices.Sorted(maps.Keys(a)) {
		pairs = append(pairs, name+"="+a[name])
	}
	return strings.Join(pairs, ",")
}

var (
	nameForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

	// The words are those of BuildKit's own check SecretsUsedInArgOrEnv
	// (Dockerfile reference, build checks) and "pwd"; the longer ones count
	// also as the end of a word, as in GITHUBTOKEN.
	secretWord   = regexp.MustCompile(`(?i)(^|_)(auth|key|pword|pwd|[a-z0-9]*(apikey|credentials?|password|passwd|secrets?|token))(_|$)`)
	publicWord   = regexp.MustCompile(`(?i)(^|_)public(_|$)`)
	urlUserInfo  = regexp.MustCompile(`[a-zA-Z][a-zA-Z0-9+.-]*://[^/\s]*:[^/\s]*@`)
	secretAdvice = `mount it instead: RUN --mount=type=secret,id=… in the Dockerfile, and builder.secrets in the configuration`
)

// Check refuses a name that is not an ARG's name, a name that looks like a
// secret's, and a value that holds a comma, a control character or a URL with a
// password. The value of a refused secret is not part of the error.
func Check(name, value string) error {
	switch {
	case !nameForm.MatchString(name):
		return step.Invalidf("parsing the build argument %q: want a name of letters, digits and _, not starting with a digit", step.Clip(name))
	case strings.HasPrefix(name, "BUILDKIT_"):
		return step.Invalidf("parsing the build argument %q: names that begin with BUILDKIT_ steer the builder itself and are not an app's to set", name)
	case secretWord.MatchString(name) && !publicWord.MatchString(name):
		return step.Invalidf("parsing the build argument %q: its name looks like a secret's, and build arguments stay readable in the image; %s", name, secretAdvice)
	case hasPassword(value):
		return step.Invalidf("parsing the build argument %q: its value is a URL with a password, and build arguments stay readable in the image; %s", name, secretAdvice)
	case len(value) > 4096:
		return step.Invalidf("parsing the build argument %q: its value has %d bytes, at most 4096 are allowed", name, len(value))
	}
	for _, r := range value {
		// What Go would write as an escape is no JSON in a Workflow's parameters.
		if !unicode.IsPrint(r) || r == ',' || r == 0xfffd {
			return step.Invalidf("parsing the build argument %q: its value must not hold commas or what cannot be printed", name)
		}
	}
	return nil
}

func hasPassword(value string) bool {
	if urlUserInfo.MatchString(value) {
		return true
	}
	u, err := url.Parse(value)
	if err != nil || u.User == nil {
		return false
	}
	_, set := u.User.Password()
	return set
}
