// Package build has BuildKit build one app's image and push it.
//
// Guarantees:
//   - A tag that the registry already has, built from this revision and source,
//     is reused; nothing is built or pushed a second time.
//   - What the repository says is not trusted: a Dockerfile, .dockerignore or
//     context that leads out of the clone through a symbolic link is refused,
//     a "# syntax=" line leads only to the frontends that the configuration
//     names.
//   - The image carries the revision and the source key as labels, and is a
//     single manifest for one platform (adr-0095 §2, "écart assumé").
//   - The registry cache is a help, never a need: a build goes on without it.
//   - A cache mount (RUN --mount=type=cache) is the repository's own: no other
//     repository's build on the same buildkitd sees it, whatever id it names.
//   - So is what buildkitd remembers of RUN instructions: a result comes from the
//     cache only when a build of the same repository made it.
package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/moby/buildkit/client"
	"github.com/moby/buildkit/exporter/containerimage/exptypes"
	"github.com/tonistiigi/fsutil"

	"fabrique/steps/buildarg"
	"fabrique/steps/digest"
	"fabrique/steps/frontend"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/step"
)

// Options says what to build.
type Options struct {
	// Addresses are the buildkitds, unix:///… or tcp://host:port. A repository's
	// builds all go to the same one as long as it answers.
	Addresses  []string
	Dir        string      // the clone's files (clone-at-sha's path)
	Context    gitref.Path // folder in Dir
	Dockerfile gitref.Path // relative to Context
	BuildArgs  buildarg.Args
	Target     string // stage of the Dockerfile, empty for the last

	Repository image.Repository
	Revision   gitref.Revision
	SourceKey  gitref.SourceKey // may be empty
	Platform   image.Platform
	PlainHTTP  bool // for the look into the registry; buildkitd has its own setting

	Cache     Cache
	Frontends frontend.Allowed // what a "# syntax=" line may name
	Secrets   Secrets
	Proxy     Proxy // the way out of RUN instructions

	// Progress gets BuildKit's display: its live view on a terminal, plain
	// lines otherwise. Nil shows nothing.
	Progress io.Writer
}

// Cache says what of the build is also kept in the registry, under the tag
// "buildcache" of the image's repository.
type Cache string

// The modes of a [Cache], as BuildKit names them.
const (
	CacheOff Cache = "off" // buildkitd's own cache only
	CacheMin Cache = "min" // the layers of the image
	CacheMax Cache = "max" // the layers of all stages
)

// ParseCache accepts off, min and max.
func ParseCache(s string) (Cache, error) {
	switch c := Cache(s); c {
	case CacheOff, CacheMin, CacheMax:
		return c, nil
	}
	return "", step.Invalidf("parsing the cache mode %q: want off, min or max", s)
}

// Result says what came out.
type Result struct {
	Digest image.Digest `json:"digest"` // as BuildKit reports it, or the registry for a reused image
	Image  string       `json:"image"`  // registry:80/name:<sha12>
	Cached int          `json:"cached"` // build steps taken from the cache
	Total  int          `json:"total"`  // build steps in all
	Reused bool         `json:"reused"` // the registry had it; nothing was built
	// Builder is the address of the buildkitd that built it, empty for none.
	Builder string `json:"builder"`
}

// Run builds and pushes. Errors: exit code 3 when the source is at fault, 2 for
// bad input and a builder that is set up wrongly, 1 when the daemon or the
// registry cannot be reached, or the build was cut off.
func Run(ctx context.Context, log *slog.Logger, o Options) (Result, error) {
	tag := o.Repository.Tag(o.Revision)
	known, err := digest.Inspect(ctx, log, digest.Options{
		Repository: o.Repository, Revision: o.Revision, Platform: o.Platform, PlainHTTP: o.PlainHTTP, SourceKey: o.SourceKey,
	})
	switch {
	case err == nil:
		log.Info("reused", "image", tag, "digest", known.Digest)
		return Result{Digest: known.Digest, Image: tag, Reused: true}, nil
	case errors.Is(err, digest.ErrNotFound):
	case errors.Is(err, digest.ErrOther):
		log.Warn("building again", "image", tag, "because", err.Error())
	default:
		return Result{}, err
	}
	result, err := solve(ctx, log, o)
	if err != nil {
		return result, fmt.Errorf("building %s: %w", tag, err)
	}
	return result, nil
}

func solve(ctx context.Context, log *slog.Logger, o Options) (Result, error) {
	tag := o.Repository.Tag(o.Revision)
	src, err := openSource(o.Dir, o.Context, o.Dockerfile)
	if err != nil {
		return Result{}, err
	}
	attrs, err := frontendAttrs(log, src, o)
	if err != nil {
		return Result{}, err
	}
	contextFS, err := fsutil.NewFS(src.context)
	if err != nil {
		return Result{}, step.Sourcef("reading the context %q: %w", o.Context, err)
	}
	dockerfileFS, err := fsutil.NewFS(src.dockerfileDir)
	if err != nil {
		return Result{}, step.Sourcef("reading the Dockerfile: %w", err)
	}
	attachables, redactSecrets, err := o.Secrets.load()
	if err != nil {
		return Result{}, err
	}
	redactProxy, err := o.Proxy.attrs(ctx, o.BuildArgs, src, attrs)
	if err != nil {
		return Result{}, err
	}
	redact := func(text string) string { return redactProxy(redactSecrets(text)) }
	daemon, address, err := connect(ctx, log, o)
	if err != nil {
		return Result{}, err
	}
	defer daemon.Close()

	imports, exports := cacheOptions(o)
	started := time.Now()
	log.Info("building", "image", tag, "context", o.Context, "dockerfile", o.Dockerfile, "builder", address)
	watch, wait := newWatch(o.Progress, redact)
	response, err := daemon.Solve(ctx, nil, client.SolveOpt{
		Frontend:      "dockerfile.v0",
		FrontendAttrs: attrs,
		LocalMounts:   map[string]fsutil.FS{"context": contextFS, "dockerfile": dockerfileFS},
		SharedKey:     o.Repository.String(), // so that only changed files are sent again
		Exports: []client.ExportEntry{{
			Type: client.ExporterImage,
			Attrs: map[string]string{
				"name":           tag,
				"push":           "true",
				"oci-mediatypes": "true",
			},
		}},
		CacheImports: imports,
		CacheExports: exports,
		Session:      attachables,
	}, watch)
	seen := wait()
	result := Result{Image: tag, Builder: address, Cached: seen.cached(), Total: seen.total()}
	for _, problem := range seen.cache {
		log.Warn("going on without the registry cache", "problem", problem)
	}
	if err != nil {
		return result, o.Proxy.explain(ctx, log, started, classify(ctx, o, address, seen, redact, err))
	}
	pushed, err := image.ParseDigest(response.ExporterResponse[exptypes.ExporterImageDigestKey])
	if err != nil {
		return result, fmt.Errorf("reading the builder's answer: %w", err)
	}
	result.Digest = pushed
	_ = o.Proxy.explain(ctx, log, started, nil)
	log.Info("built", "image", tag, "digest", pushed, "cached", result.Cached, "total", result.Total, "took", time.Since(started).Round(time.Millisecond))
	return result, nil
}

// frontendAttrs gives the Dockerfile frontend its settings.
func frontendAttrs(log *slog.Logger, src source, o Options) (map[string]string, error) {
	attrs := map[string]string{
		"filename":                     src.dockerfileName,
		"platform":                     string(o.Platform),
		"label:" + image.LabelRevision: string(o.Revision),
	}
	if o.SourceKey != "" {
		attrs["label:"+image.LabelSourceKey] = string(o.SourceKey)
	}
	if o.Target != "" {
		attrs["target"] = o.Target
	}
	for name, value := range o.BuildArgs {
		attrs["build-arg:"+name] = value
	}
	attrs[cacheMountsArgument] = cacheMounts(o.Repository)
	attrs["hostname"] = hostname(o.Repository)
	return attrs, chooseFrontend(log, o.Frontends, src, attrs)
}

// cacheMountsArgument is what the frontend puts before the id of a cache mount, with a
// "/" between (Dockerfile reference, BUILDKIT_CACHE_MOUNT_NS). Apps cannot set it: package
// buildarg refuses such names.
const cacheMountsArgument = "build-arg:BUILDKIT_CACHE_MOUNT_NS"

// cacheMounts gives a repository's namespace for them. No repository's is the beginning
// of another's, so that "team" cannot reach the mount "x" of "team/app" by the id "app/x":
// a name holds no colon.
func cacheMounts(r image.Repository) string { return r.String() + ":" }

// hostname is what RUN instructions see as the machine's name. It is part of the key that
// their results are cached by, which leaves out the contents of secrets and cache mounts,
// the namespace of these, and the proxy (BuildKit, solver/llbsolver/ops/exec.go): without
// it one app could run another's instruction first, over a cache mount that it has filled,
// and the other would be given that result.
func hostname(r image.Repository) string {
	sum := sha256.Sum256([]byte(r.String()))
	return "build-" + hex.EncodeToString(sum[:16])
}

// cacheTag names the build cache beside the images; it can never be a sha12.
const cacheTag = "buildcache"

func cacheOptions(o Options) (imports, exports []client.CacheOptionsEntry) {
	if o.Cache == "" || o.Cache == CacheOff {
		return nil, nil
	}
	ref := o.Repository.String() + ":" + cacheTag
	return []client.CacheOptionsEntry{{Type: "registry", Attrs: map[string]string{"ref": ref}}},
		[]client.CacheOptionsEntry{{Type: "registry", Attrs: map[string]string{
			"ref":            ref,
			"mode":           string(o.Cache),
			"ignore-error":   "true",
			"image-manifest": "true",
			"oci-mediatypes": "true",
		}}}
}
