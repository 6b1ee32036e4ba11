// Command digest-inspect asks a registry for the digest behind a revision's tag
// and checks the image.
package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/spf13/pflag"

	"fabrique/steps/digest"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/step"
)

func main() {
	o := digest.Options{Platform: "linux/amd64"}
	step.Main(step.Spec[digest.Result]{
		Use:   "digest-inspect",
		Short: "Read and check the digest behind a revision's tag",
		Long: `Asks the registry for the tag <image>:<first 12 digits of the revision> and gives its digest, after
checking the platform, the label org.opencontainers.image.revision and, with --expect, that it is the
digest which the build reported.`,
		Example: `  digest-inspect --image registry:80/citation --plain-http \
    --revision 7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210`,
		Timeout:  time.Minute,
		Required: []string{"image", "revision"},
		Flags: func(f *pflag.FlagSet) {
			step.Var(f, &o.Repository, "image", "registry:port/name, without a tag", image.ParseRepository)
			step.Var(f, &o.Revision, "revision", "full commit id that the image must be built from", gitref.ParseRevision)
			step.Var(f, &o.Platform, "platform", "os/architecture that the image must be for (default linux/amd64)", image.ParsePlatform)
			step.Var(f, &o.SourceKey, "source-key", "source key that the image must be built from", gitref.ParseSourceKey)
			step.Var(f, &o.Expect, "expect", "digest that the build reported", image.ParseDigest)
			f.BoolVar(&o.PlainHTTP, "plain-http", false, "the registry speaks HTTP, not HTTPS")
		},
		Run: func(ctx context.Context, log *slog.Logger) (digest.Result, error) {
			return digest.Inspect(ctx, log, o)
		},
	})
}
