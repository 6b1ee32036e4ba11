// Package frontend says which frontends a Dockerfile's "# syntax=" line may name,
// as the configuration and buildkit-build take it. A frontend is a program that
// runs in the builder, so a name that is not listed is refused. All errors have
// exit code 2.
package frontend

import (
	"regexp"
	"strings"

	"fabrique/steps/image"
	"fabrique/steps/step"
)

// Builtin stands for the Dockerfile frontend that buildkitd contains.
const Builtin = "builtin"

// Allowed gives for the name of a frontend image ([ParseName]) what is used in
// its place: [Builtin], or the reference of an image ([ParseReplacement]).
type Allowed map[string]string

// Default replaces Docker's own frontend, in every version, with the built-in
// one, so that nothing is fetched.
func Default() Allowed { return Allowed{"docker/dockerfile": Builtin} }

// Replacement gives what is used for the reference that a Dockerfile names.
func (a Allowed) Replacement(named string) (string, bool) {
	replacement, ok := a[canonical(named)]
	return replacement, ok
}

var nameForm = regexp.MustCompile(`^[a-z0-9]+([._:/-]+[a-z0-9]+)*$`)

// ParseName accepts an image name without tag and digest, which stands for all
// its versions, and gives its shortest spelling: docker.io/docker/dockerfile and
// docker/dockerfile are one.
func ParseName(s string) (string, error) {
	name := canonical(s)
	if len(s) > 255 || !nameForm.MatchString(s) || image.Untagged(s) != s || canonical(name) != name {
		return "", step.Invalidf("parsing the frontend's name %q: want an image name without tag and digest, as in docker/dockerfile", step.Clip(s))
	}
	return name, nil
}

// ParseReplacement accepts [Builtin], or an image in a registry named with its
// port, by tag or digest.
func ParseReplacement(s string) (string, error) {
	if s == Builtin {
		return s, nil
	}
	if err := image.CheckReference(s); err != nil {
		return "", step.Invalidf("parsing the frontend's replacement: want %s, or an image in a registry named with its port: %w", Builtin, err)
	}
	return s, nil
}

// Parse reads "name=replacement,name=replacement"; the empty text allows none.
func Parse(s string) (Allowed, error) {
	allowed := Allowed{}
	if s == "" {
		return allowed, nil
	}
	for pair := range strings.SplitSeq(s, ",") {
		given, replacement, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok {
			return nil, step.Invalidf("parsing the frontend %q: want name=%s or name=registry:80/replacement:tag", step.Clip(pair), Builtin)
		}
		name, err := ParseName(given)
		if err != nil {
			return nil, err
		}
		if allowed[name] != "" {
			return nil, step.Invalidf("parsing the frontend %q: %q is given twice; keep one", step.Clip(pair), name)
		}
		if allowed[name], err = ParseReplacement(replacement); err != nil {
			return nil, err
		}
	}
	return allowed, nil
}

// canonical drops the public registry's name, the tag and the digest, so that
// all spellings of one image are one.
func canonical(reference string) string {
	name := image.Untagged(reference)
	for _, prefix := range []string{"docker.io/", "index.docker.io/", "registry-1.docker.io/"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			name = rest
			break
		}
	}
	if rest, ok := strings.CutPrefix(name, "library/"); ok && !strings.Contains(rest, "/") {
		name = rest
	}
	return name
}
