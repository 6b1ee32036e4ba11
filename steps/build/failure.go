package build

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	solvererrdefs "github.com/moby/buildkit/solver/errdefs"
	"github.com/moby/buildkit/util/grpcerrors"
	"google.golang.org/grpc/codes"

	"fabrique/steps/step"
)

// Phrases in BuildKit's messages; it has no codes for these.
var (
	// A RUN instruction that ended by itself with another exit code than 0.
	instructionFailed = []string{"did not complete successfully: exit code"}
	// What the network, the registry or the daemon did.
	outsideFailed = []string{
		"connection refused", "connection reset", "i/o timeout", "no such host", "TLS handshake", "broken pipe",
		"unexpected EOF", "error reading from server", "network is unreachable", "no route to host",
		"no space left on device", "500 Internal Server Error", "502 Bad Gateway", "503 Service Unavailable",
		"504 Gateway", "429 Too Many Requests", "failed to push", "failed to do request", "CNI setup error",
	}
	// What a Dockerfile may not ask for, or does not say right. Errors with a
	// place in the Dockerfile need no phrase.
	sourceFailed = []string{
		"dockerfile parse error", "failed to read dockerfile", "target stage",
		"security.insecure is not allowed", "network.host is not allowed", "device is not allowed",
	}
	// A registry that speaks HTTP, met with HTTPS.
	notHTTPS = []string{"server gave HTTP response to HTTPS client", "first record does not look like a TLS handshake"}
)

// classify gives a failed build its exit code and a message that shows the last
// lines of the build step that failed.
func classify(ctx context.Context, o Options, address string, s seen, redact func(string) string, err error) error {
	if ctx.Err() != nil {
		return step.Retryf("cut off: %w", context.Cause(ctx))
	}
	said := redact(err.Error())
	has := func(phrases []string) bool {
		return slices.ContainsFunc(phrases, func(p string) bool { return strings.Contains(said, p) })
	}
	code := grpcerrors.Code(err)
	switch {
	case strings.Contains(said, "exit code: 137"):
		return step.Retryf("%s; a process of it was killed, most likely for want of memory: give the builder more, or build less at once", s.explain(said))
	case has(instructionFailed) && strings.Contains(s.explain(said), "No space left on device"):
		return step.Retryf("%s; the builder has no space left: give its volume more, or limit its cache (builder.maxCacheBytes)", s.explain(said))
	case has(instructionFailed):
		return step.Sourcef("%s", s.explain(said))
	case has(notHTTPS):
		return step.Invalidf("%s; the builder speaks HTTPS with a registry that speaks HTTP: declare %q with http = true in its buildkitd.toml", s.explain(said), o.Repository.Registry)
	case code == codes.Unavailable && s.total() == 0:
		return step.Retryf("the builder at %s cannot be reached: %s; is buildkitd running there?", address, said)
	case code == codes.Unavailable, code == codes.Canceled, errors.Is(err, context.Canceled):
		return step.Retryf("the builder at %s went away: %s", address, said)
	case strings.Contains(said, "failed to push") && has([]string{"401 Unauthorized", "403 Forbidden"}):
		return step.Invalidf("the registry refuses the builder's push: %s", s.explain(said))
	case strings.Contains(said, syntaxArgument+" = ") && strings.HasSuffix(said, ": not found"):
		return step.Invalidf("the frontend that builder.frontends names is not there; push it, or correct its name: %s", s.explain(said))
	case has(outsideFailed):
		return step.Retryf("%s", s.explain(said))
	case len(solvererrdefs.Sources(err)) > 0, code == codes.InvalidArgument, code == codes.NotFound, has(sourceFailed):
		return step.Sourcef("%s", s.explain(said))
	}
	return fmt.Errorf("%s", s.explain(said))
}

// explain adds what the failed build step printed last.
func (s seen) explain(said string) string {
	for _, failed := range s.failed {
		if lines := s.output[failed]; len(lines) > 0 {
			return said + "; its last output:\n    " + strings.Join(lines, "\n    ")
		}
	}
	return said
}
