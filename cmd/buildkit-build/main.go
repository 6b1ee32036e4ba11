// Command buildkit-build has BuildKit build one app's image and push it.
package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/pflag"

	"fabrique/steps/build"
	"fabrique/steps/buildarg"
	"fabrique/steps/config"
	"fabrique/steps/frontend"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/record"
	"fabrique/steps/step"
)

func main() {
	o := build.Options{Dockerfile: "Dockerfile", Platform: "linux/amd64", Frontends: frontend.Default(), Progress: os.Stderr}
	step.Main(step.Spec[build.Result]{
		Use: "buildkit-build", Short: "Build an app's image with BuildKit and push it",
		Long: `Builds the Dockerfile of --context in the clone --dir and pushes <image>:<first 12 digits of the
revision>. A tag that the registry already has, built from the same revision, is reused.`,
		Example: `  buildkit-build --address tcp://buildkitd.fabrique-build:1234 --dir /workspace/tree --plain-http \
    --context dataops/citation-dagster --image registry:80/citation --revision 7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210`,
		Timeout: time.Hour, Required: []string{"address", "dir", "context", "image", "revision"},
		Flags: func(f *pflag.FlagSet) {
			step.ListVar(f, &o.Addresses, "address", "buildkitd: unix:///path or tcp://host:port (repeatable: an image always goes to the same one that answers)", config.ParseBuilderAddress)
			f.StringVar(&o.Dir, "dir", "", "the clone's files, clone-at-sha's \"path\"")
			step.Var(f, &o.Context, "context", "folder of the app in the repository", gitref.ParsePath)
			step.Var(f, &o.Dockerfile, "dockerfile", "path in the context (default Dockerfile)", gitref.ParsePath)
			step.Var(f, &o.BuildArgs, "build-args", "KEY=value,KEY2=value; no secrets", buildarg.Parse)
			step.Var(f, &o.Target, "target", "stage to build (default: the last)", record.ParseTarget)
			step.Var(f, &o.Repository, "image", "registry:port/name, without a tag", image.ParseRepository)
			step.Var(f, &o.Revision, "revision", "full commit id that the clone holds", gitref.ParseRevision)
			step.Var(f, &o.SourceKey, "source-key", "source key of the app at the revision", gitref.ParseSourceKey)
			step.Var(f, &o.Platform, "platform", "os/architecture (default linux/amd64)", image.ParsePlatform)
			f.BoolVar(&o.PlainHTTP, "plain-http", false, "the registry speaks HTTP, not HTTPS")
			step.Var(f, &o.Cache, "cache", "also keep the cache in the registry: off, min or max (default off)", build.ParseCache)
			step.Var(f, &o.Frontends, "frontends", "what \"# syntax=\" may name: name=builtin or name=replacement, by comma", frontend.Parse)
			step.Var(f, &o.Secrets, "secrets", "files for RUN --mount=type=secret: id=file, by comma", build.ParseSecrets)
			o.Proxy.Declare(f)
		},
		Run: func(ctx context.Context, log *slog.Logger) (build.Result, error) { return build.Run(ctx, log, o) },
	})
}
