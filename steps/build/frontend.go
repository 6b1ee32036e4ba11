package build

import (
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/parser"

	"fabrique/steps/image"
	"fabrique/steps/step"
)

// Frontends says what a Dockerfile's "# syntax=" line may lead to: image names
// without tag or digest, each with [Builtin] or the reference of the image to
// take instead. A frontend is a program that runs in the builder, so a name
// that is not listed is refused; left alone, BuildKit would also try to fetch
// it from a public registry.
type Frontends map[string]string

// syntaxArgument makes BuildKit take another frontend than the Dockerfile names.
const syntaxArgument = "build-arg:BUILDKIT_SYNTAX"

// Builtin stands for the Dockerfile frontend that buildkitd contains.
const Builtin = "builtin"

// DefaultFrontends replaces Docker's own frontend, in every version, with the
// built-in one.
func DefaultFrontends() Frontends { return Frontends{"docker/dockerfile": Builtin} }

// ParseFrontends parses "name=replacement,name=replacement".
func ParseFrontends(s string) (Frontends, error) {
	frontends := Frontends{}
	for pair := range strings.SplitSeq(s, ",") {
		name, replacement, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || !frontendForm.MatchString(name) {
			return nil, step.Invalidf("parsing the frontend %q: want name=builtin or name=registry:80/replacement:tag", pair)
		}
		if name = frontendName(name); frontends[name] != "" {
			return nil, step.Invalidf("parsing the frontend %q: the name %q is given twice; keep one", pair, name)
		}
		if replacement != Builtin {
			repository, _, _ := strings.Cut(replacement, "@")
			if _, err := image.ParseRepository(untagged(repository)); err != nil {
				return nil, step.Invalidf("parsing the frontend %q: want %s, or an image in a registry named with its port: %w", pair, Builtin, err)
			}
		}
		frontends[name] = replacement
	}
	return frontends, nil
}

var frontendForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,254}$`)

// choose settles which frontend reads the Dockerfile.
func (f Frontends) choose(log *slog.Logger, src source, attrs map[string]string) error {
	// With this attribute set BuildKit does not look for a syntax line itself,
	// whatever its version takes for one.
	const noSyntaxLine = "cmdline"
	attrs[noSyntaxLine] = "dockerfile.v0"
	named, _, where, ok := parser.DetectSyntax(src.dockerfile)
	if !ok {
		return nil
	}
	line := 1
	if len(where) > 0 {
		line = where[0].Start.Line
	}
	known := Frontends{}
	for name, replacement := range f {
		known[frontendName(name)] = replacement
	}
	replacement, ok := known[frontendName(named)]
	switch {
	case !ok:
		return step.Sourcef("reading %s:%d: it asks for the frontend %q, which is not allowed here; remove the \"# syntax=\" line, or list the frontend under builder.frontends (allowed: %s)",
			src.display, line, named, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	case replacement != Builtin:
		delete(attrs, noSyntaxLine)
		attrs[syntaxArgument] = replacement
	}
	log.Info("replacing the frontend", "asked", named, "used", replacement)
	return nil
}

// frontendName drops the public registry's name, the tag and the digest, so
// that all spellings of one image are one.
func frontendName(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	ref = untagged(ref)
	for _, prefix := range []string{"docker.io/", "index.docker.io/", "registry-1.docker.io/"} {
		ref = strings.TrimPrefix(ref, prefix)
	}
	return ref
}

func untagged(ref string) string {
	if slash, colon := strings.LastIndex(ref, "/"), strings.LastIndex(ref, ":"); colon > slash {
		return ref[:colon]
	}
	return ref
}
