// Package gitref parses the names that come from outside and lead into git:
// revisions, branches and paths. Each has one strict parser; everything past it
// may rely on the form. All errors have exit code 2.
package gitref

import (
	"path"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"fabrique/steps/step"
)

// Revision is a full commit id: 40 (SHA-1) or 64 (SHA-256) lower-case hex
// digits, never all zeros. The zero value means "none".
type Revision string

var revisionForm = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// ParseRevision accepts a full commit id and nothing else: no branch, no
// abbreviation, no upper case, and not the all-zero id with which git says
// "no commit" (a deleted branch in a push event).
func ParseRevision(s string) (Revision, error) {
	if !revisionForm.MatchString(s) {
		return "", step.Invalidf("parsing the revision %q: want a full commit id of 40 or 64 lower-case hex digits", step.Clip(s))
	}
	if strings.Trim(s, "0") == "" {
		return "", step.Invalidf("parsing the revision %q: all zeros means that there is no commit (a deleted branch)", s)
	}
	return Revision(s), nil
}

// Short gives the first 12 digits, the readable image tag (adr-0095 §2).
func (r Revision) Short() string {
	if len(r) < 12 {
		return string(r)
	}
	return string(r[:12])
}

// Prefix is the beginning of a commit id, 7 to 64 lower-case hex digits; a whole id
// is one too.
type Prefix string

var prefixForm = regexp.MustCompile(`^[0-9a-f]{7,64}$`)

// ParsePrefix accepts a commit id or at least its first 7 digits, and no name of a
// branch or tag.
func ParsePrefix(s string) (Prefix, error) {
	if !prefixForm.MatchString(s) || strings.Trim(s, "0") == "" {
		return "", step.Invalidf("parsing the commit %q: want its id, or at least the first 7 of its lower-case hex digits", step.Clip(s))
	}
	return Prefix(s), nil
}

// Of reports whether the revision begins with it.
func (p Prefix) Of(r Revision) bool { return strings.HasPrefix(string(r), string(p)) }

// Branch is a branch's short name ("main"), valid by the rules of
// git-check-ref-format and without characters that mean something to a shell,
// a template or a refspec.
type Branch string

var branchForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._/+-]{0,199}$`)

// ParseBranch accepts a short branch name. "refs/heads/main" is refused, as
// are names that git itself refuses ("a..b", "a.lock", "a//b", "a/.b").
func ParseBranch(s string) (Branch, error) {
	switch {
	case !branchForm.MatchString(s):
		return "", step.Invalidf("parsing the branch %q: want letters, digits and ._/+- only, at most 200", step.Clip(s))
	case strings.HasPrefix(s, "refs/"):
		return "", step.Invalidf("parsing the branch %q: want its short name, without refs/heads/", s)
	case s == "HEAD", strings.Contains(s, ".."), strings.Contains(s, "//"), strings.Contains(s, "/."),
		strings.HasSuffix(s, "/"), strings.HasSuffix(s, "."), strings.HasSuffix(s, ".lock"), strings.Contains(s, ".lock/"):
		return "", step.Invalidf("parsing the branch %q: git does not allow this name", s)
	}
	return Branch(s), nil
}

// Ref gives the full name, "refs/heads/main".
func (b Branch) Ref() string { return "refs/heads/" + string(b) }

// Path is a slash-separated path inside a repository, clean and relative;
// "." is the root.
type Path string

// ParsePath accepts a relative path that stays inside the repository. A
// leading "./" and a trailing "/" are dropped; "..", absolute paths, back
// slashes, control characters, ".git" components, commas (which separate lists of
// paths) and "{{" (which begins a template wherever a path is handed on) are refused.
func ParsePath(s string) (Path, error) {
	if s == "" || len(s) > 1024 {
		return "", step.Invalidf("parsing the path %q: want 1 to 1024 characters", step.Clip(s))
	}
	for _, r := range s {
		if !unicode.IsPrint(r) || r == '\\' || r == ',' || r == utf8.RuneError {
			return "", step.Invalidf("parsing the path %q: what cannot be printed, back slashes and commas are not allowed", step.Clip(s))
		}
	}
	if strings.Contains(s, "{{") {
		return "", step.Invalidf("parsing the path %q: \"{{\" is not allowed", step.Clip(s))
	}
	if path.IsAbs(s) {
		return "", step.Invalidf("parsing the path %q: want a path relative to the repository's root", step.Clip(s))
	}
	for part := range strings.SplitSeq(s, "/") {
		if part == ".." {
			return "", step.Invalidf("parsing the path %q: it must not leave the repository with \"..\"", step.Clip(s))
		}
		if strings.EqualFold(part, ".git") {
			return "", step.Invalidf("parsing the path %q: .git is not part of the source", step.Clip(s))
		}
	}
	return Path(path.Clean(s)), nil
}

// Contains reports whether p is other or one of its parent folders.
func (p Path) Contains(other Path) bool {
	return p == "." || p == other || strings.HasPrefix(string(other), string(p)+"/")
}

// SourceKey is the hash over everything that goes into an app's image at a
// revision; the same key means the same source (design: "source key"). It is
// 64 lower-case hex digits. The zero value means "none".
type SourceKey string

var sourceKeyForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// ParseSourceKey accepts 64 lower-case hex digits.
func ParseSourceKey(s string) (SourceKey, error) {
	if !sourceKeyForm.MatchString(s) {
		return "", step.Invalidf("parsing the source key %q: want 64 lower-case hex digits", step.Clip(s))
	}
	return SourceKey(s), nil
}
