package build

import (
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/parser"

	"fabrique/steps/step"
)

// Frontends says what a Dockerfile's "# syntax=" line may lead to: image names
// without tag or digest, each with [Builtin] or the reference of the image to
// take instead. A frontend is a program that runs in the builder, so a name
// that is not listed is refused; left alone, BuildKit would also try to fetch
// it from a public registry.
type Frontends map[string]string

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
		if !ok || name == "" || replacement == "" {
			return nil, step.Invalidf("parsing the frontend %q: want name=builtin or name=registry:80/replacement:tag", pair)
		}
		frontends[name] = replacement
	}
	return frontends, nil
}

// choose settles which frontend reads the Dockerfile.
func (f Frontends) choose(log *slog.Logger, src source, attrs map[string]string) error {
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
	case replacement == Builtin:
		// With this attribute set BuildKit does not look for a syntax line.
		attrs["cmdline"] = "dockerfile.v0"
	default:
		attrs["build-arg:BUILDKIT_SYNTAX"] = replacement
	}
	log.Info("replacing the frontend", "asked", named, "used", replacement)
	return nil
}

// frontendName drops the public registry's name, the tag and the digest, so
// that all spellings of one image are one.
func frontendName(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if slash, colon := strings.LastIndex(ref, "/"), strings.LastIndex(ref, ":"); colon > slash {
		ref = ref[:colon]
	}
	for _, prefix := range []string{"docker.io/", "index.docker.io/", "registry-1.docker.io/"} {
		ref = strings.TrimPrefix(ref, prefix)
	}
	return ref
}
