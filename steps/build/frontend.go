package build

import (
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/parser"

	"fabrique/steps/frontend"
	"fabrique/steps/step"
)

// syntaxArgument makes BuildKit take another frontend than the Dockerfile names.
const syntaxArgument = "build-arg:BUILDKIT_SYNTAX"

// chooseFrontend settles which frontend reads the Dockerfile. Left alone, BuildKit
// would fetch whatever the "# syntax=" line names, from a public registry too.
func chooseFrontend(log *slog.Logger, allowed frontend.Allowed, src source, attrs map[string]string) error {
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
	replacement, ok := allowed.Replacement(named)
	switch {
	case !ok:
		list := "none"
		if len(allowed) > 0 {
			list = strings.Join(slices.Sorted(maps.Keys(allowed)), ", ")
		}
		return step.Sourcef("reading %s:%d: it asks for the frontend %q, which is not allowed here; remove the \"# syntax=\" line, or list the frontend under builder.frontends (allowed: %s)",
			src.display, line, named, list)
	case replacement != frontend.Builtin:
		delete(attrs, noSyntaxLine)
		attrs[syntaxArgument] = replacement
	}
	log.Info("replacing the frontend", "asked", named, "used", replacement)
	return nil
}
