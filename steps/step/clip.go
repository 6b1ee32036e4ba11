package step

import "unicode/utf8"

// maxQuoted is how many bytes of an input a message repeats.
const maxQuoted = 200

// Clip keeps a message readable that quotes an input of any length: it gives the
// input's beginning, cut between two characters.
func Clip(s string) string {
	if len(s) <= maxQuoted {
		return s
	}
	end := maxQuoted
	for end > maxQuoted-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}
