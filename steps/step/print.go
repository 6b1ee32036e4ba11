package step

import (
	"regexp"
	"strings"
	"unicode"
)

// maxPrinted bounds a printed message, in bytes: it must fit in a Workflow's
// status.
const maxPrinted = 16 << 10

// Printable makes a message safe to print and to store: user information of URLs
// and of "user:password@host" is masked, control characters that a terminal would
// obey are replaced, and what is longer than 16 KiB loses its middle.
func Printable(message string) string {
	message = RedactURLs(strings.ToValidUTF8(message, "\uFFFD"))
	message = strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) {
			return '\uFFFD'
		}
		return r
	}, message)
	if len(message) > maxPrinted {
		const cut = "\n… (cut) …\n"
		half := (maxPrinted - len(cut)) / 2
		message = strings.ToValidUTF8(message[:half], "") + cut + strings.ToValidUTF8(message[len(message)-half:], "")
	}
	return message
}

var (
	urlUser   = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^/@\s"']+@`)
	bareUser  = regexp.MustCompile(`[\w.%+~-]+:[^\s"'@/:]+@(?:sha256:)?`)
	ofADigest = "@sha256:"
)

// RedactURLs masks the user information of every URL in text, and of
// "user:password@host". References by digest stay as they are.
func RedactURLs(text string) string {
	text = urlUser.ReplaceAllString(text, "${1}***@")
	return bareUser.ReplaceAllStringFunc(text, func(found string) string {
		if strings.HasSuffix(found, ofADigest) {
			return found
		}
		return "***@"
	})
}
