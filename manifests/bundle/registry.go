package bundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"fabrique/steps/config"
	"fabrique/steps/digest"
	"fabrique/steps/image"
	"fabrique/steps/step"
)

// registry is the configured one.
type registry struct{ plainHTTP bool }

func (r registry) options(ctx context.Context) (*digest.Transport, []remote.Option) {
	only := digest.NewTransport(r.plainHTTP)
	return only, []remote.Option{remote.WithContext(ctx), remote.WithTransport(only)}
}

// parse reads a reference to the registry, which speaks what is configured.
func (r registry) parse(ref string) (name.Reference, error) {
	options := []name.Option{name.StrictValidation}
	if r.plainHTTP {
		options = append(options, name.Insecure)
	}
	parsed, err := name.ParseReference(ref, options...)
	if err != nil {
		return nil, step.Invalidf("parsing the image %q: %w", ref, err)
	}
	return parsed, nil
}

// errNotThere is in the chain when the registry answers and lacks what was asked for.
var errNotThere = errors.New("the registry does not have it")

func missing(err error) bool {
	var answer *transport.Error
	return errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound && answer.Request != nil && answer.Request.URL.Path != "/v2/"
}

// describe gives what the registry has at a reference.
func (r registry) describe(ctx context.Context, ref string) (*remote.Descriptor, map[image.Platform]v1.Image, error) {
	parsed, err := r.parse(ref)
	if err != nil {
		return nil, nil, err
	}
	only, options := r.options(ctx)
	descriptor, err := remote.Get(parsed, options...)
	if err == nil {
		var images map[image.Platform]v1.Image
		if images, err = digest.ByPlatform(descriptor); err == nil {
			return descriptor, images, nil
		}
	}
	if missing(err) {
		return nil, nil, step.Invalidf("asking for %s: %w", ref, errNotThere)
	}
	return nil, nil, fmt.Errorf("asking for %s: %w", ref, only.Classify(err))
}

// Outcome is what came of one image.
type Outcome struct {
	Image Image
	// Did is "new", "unchanged" or "updated".
	Did string
	// Moved is the digest that the mirror's tag has now, where the lock keeps another.
	Moved image.Digest
	// Single tells that the mirror is no index: it has one platform alone.
	Single bool
}

// Resolve completes the plan's images. One that the lock has keeps its digest, also
// when the mirror's tag leads elsewhere by now or nowhere, unless update is set; of the
// others the registry tells what the tag is. Each must have the platform that is
// configured (builder.platform).
//
// Errors: exit code 2 for images that the registry lacks, all of them listed, and for
// one without the platform; 1 for a registry that does not answer.
func (p *Plan) Resolve(ctx context.Context, lock Lock, update bool) ([]Outcome, error) {
	registry := registry{p.options.Config.Registry.PlainHTTP}
	var outcomes []Outcome
	var lacking []error
	for _, i := range p.Images {
		locked := lock.Image(i.Source)
		descriptor, platforms, err := registry.describe(ctx, i.Mirror)
		if err != nil && !errors.Is(err, errNotThere) {
			return nil, err
		}
		outcome := Outcome{Image: i, Did: "new"}
		switch {
		case locked != nil && !update:
			outcome.Did = "unchanged"
			outcome.Image.Digest, outcome.Image.MediaType, outcome.Image.Platforms = locked.Digest, locked.MediaType, locked.Platforms
			if descriptor != nil && descriptor.Digest.String() != string(locked.Digest) {
				outcome.Moved = image.Digest(descriptor.Digest.String())
			}
			if outcome.Image.Mirror != locked.Mirror {
				outcome.Did = "updated"
			}
		case err != nil:
			lacking = append(lacking, step.Invalidf("%s is not there; copy %s to it, with all platforms", i.Mirror, i.Source))
			continue
		default:
			outcome.Image.Digest, outcome.Image.MediaType = image.Digest(descriptor.Digest.String()), string(descriptor.MediaType)
			outcome.Image.Platforms = slices.Sorted(maps.Keys(platforms))
			switch {
			case locked != nil && locked.Digest == outcome.Image.Digest && locked.Mirror == i.Mirror:
				outcome.Did = "unchanged"
			case locked != nil:
				outcome.Did = "updated"
			}
		}
		if wanted := p.options.Config.Builder.Platform; !slices.Contains(outcome.Image.Platforms, wanted) {
			lacking = append(lacking, step.Invalidf("%s is for %s, and not for %s (builder.platform); copy all platforms of %s", i.Mirror, joined(outcome.Image.Platforms), wanted, i.Source))
			continue
		}
		outcome.Single = !isIndex(outcome.Image.MediaType)
		outcomes = append(outcomes, outcome)
	}
	if len(lacking) > 0 {
		return nil, step.Invalidf("reading the mirrors in %s: %w", p.options.Config.Registry.Address, errors.Join(lacking...))
	}
	return outcomes, nil
}

func joined(platforms []image.Platform) string {
	texts := make([]string, len(platforms))
	for i, p := range platforms {
		texts[i] = string(p)
	}
	return strings.Join(texts, ", ")
}

func isIndex(mediaType string) bool {
	return strings.HasSuffix(mediaType, ".index.v1+json") || strings.HasSuffix(mediaType, ".list.v2+json")
}

// Origin is another place of all sources: a registry that has them under upstream's
// names. The zero value leaves each where upstream has it, over HTTPS.
type Origin struct {
	address   image.Registry
	plainHTTP bool
}

// ParseOrigin accepts http(s)://host:port. Exit code 2.
func ParseOrigin(s string) (Origin, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || strings.TrimRight(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return Origin{}, step.Invalidf("parsing the registry %q: want http://host:port or https://host:port", step.Clip(step.RedactURLs(s)))
	}
	address, err := image.ParseRegistry(u.Host)
	return Origin{address, u.Scheme == "http"}, err
}

// source gives the reference to copy an image from.
func (o Origin) source(i Image, locked *Image) (name.Reference, error) {
	ref, err := parseSource(i.Source)
	if err != nil {
		return nil, err
	}
	place := ref.Context().Name()
	if o.address != "" {
		place = string(o.address) + "/" + ref.Context().RepositoryStr()
	}
	if locked != nil {
		return registry{o.plainHTTP}.parse(place + "@" + string(locked.Digest))
	}
	if _, ok := ref.(name.Digest); ok {
		return registry{o.plainHTTP}.parse(place + "@" + ref.Identifier())
	}
	return registry{o.plainHTTP}.parse(place + ":" + ref.Identifier())
}

// Mirror copies an image to its mirror, whole: the index with all that it names, byte
// for byte, so that the digest stays. With an entry of the lock the copy is what that
// says, whatever upstream's tag leads to by now. It gives whether there was anything to
// copy. What an interrupted copy has brought over is not sent again; the mirror's tag
// comes last.
//
// Errors: exit code 2 for an image that upstream lacks and for what a registry refuses,
// 1 for the network.
func Mirror(ctx context.Context, c config.Config, from Origin, i Image, locked *Image, progress io.Writer) (copied bool, err error) {
	source, err := from.source(i, locked)
	if err != nil {
		return false, err
	}
	upstream, fromUpstream := registry{from.plainHTTP}.options(ctx)
	there, err := remote.Get(source, fromUpstream...)
	if err != nil {
		if missing(err) {
			return false, step.Invalidf("copying %s: %w; is the lock's image gone upstream? copy it from another mirror, or take a newer one: --update", source, errNotThere)
		}
		return false, fmt.Errorf("copying %s: %w", source, upstream.Classify(err))
	}
	ours := registry{c.Registry.PlainHTTP}
	target, err := ours.parse(i.Mirror)
	if err != nil {
		return false, err
	}
	only, toUs := ours.options(ctx)
	head, err := remote.Head(target, toUs...)
	if err == nil && head.Digest == there.Digest {
		return false, nil
	}
	if err != nil && !missing(err) {
		return false, fmt.Errorf("asking for %s: %w", target, only.Classify(err))
	}
	fmt.Fprintf(progress, "copying   %s\n", i.Source)
	if there.MediaType.IsIndex() {
		var index v1.ImageIndex
		if index, err = there.ImageIndex(); err == nil {
			err = remote.WriteIndex(target, index, toUs...)
		}
	} else {
		var single v1.Image
		if single, err = there.Image(); err == nil {
			err = remote.Write(target, single, toUs...)
		}
	}
	if err != nil {
		if errors.As(err, new(*transport.Error)) {
			return false, fmt.Errorf("copying %s to %s: %w", source, target, only.Classify(err))
		}
		return false, step.Retryf("copying %s to %s: %w", source, target, err)
	}
	return true, nil
}
