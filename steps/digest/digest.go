// Package digest asks a registry which image a revision's tag names, and
// checks that it is the image it should be. The digest it gives is the
// deployed anchor (adr-0095 §2).
package digest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/step"
)

// ErrNotFound is in the chain of the error when the registry has no such tag.
var ErrNotFound = errors.New("the registry has no such tag")

// Options says which image to look at and what it must be.
type Options struct {
	Repository image.Repository
	Revision   gitref.Revision
	Platform   image.Platform
	// PlainHTTP speaks HTTP with the registry, and nothing else; otherwise
	// HTTPS and nothing else. It is never guessed.
	PlainHTTP bool
	// SourceKey, when set, must equal the image's label, if it has one.
	SourceKey gitref.SourceKey
	// Expect, when set, is the digest that the build reported; another one in
	// the registry is an error.
	Expect image.Digest
}

// Result describes the image.
type Result struct {
	Digest    image.Digest     `json:"digest"` // the tag's own descriptor, also when it is an index
	MediaType string           `json:"mediaType"`
	Platforms []image.Platform `json:"platforms"` // without attestations
	Size      int64            `json:"size"`      // bytes of the wanted platform's layers and configuration, compressed
	Image     string           `json:"image"`     // registry:80/name@sha256:…
}

// Inspect reads the tag registry/name:<sha12>. The digest is computed from the
// manifest's bytes, so that a registry that leaves the Docker-Content-Digest
// header out (OCI distribution specification: it should send it) is no trouble.
//
// Errors: exit code 2 for a tag that does not exist ([ErrNotFound]), an image of
// another revision, source key or platform, and a digest other than Expect; 1
// for the network and for what the registry fails to do.
func Inspect(ctx context.Context, log *slog.Logger, o Options) (Result, error) {
	ref := o.Repository.Tag(o.Revision)
	result, err := inspect(ctx, ref, o)
	if err != nil {
		return Result{}, fmt.Errorf("inspecting %s: %w", ref, err)
	}
	log.Info("inspected", "image", ref, "digest", result.Digest)
	return result, nil
}

func inspect(ctx context.Context, ref string, o Options) (Result, error) {
	tag, err := name.NewTag(ref, name.StrictValidation, name.Insecure)
	if err != nil {
		return Result{}, step.Invalidf("parsing the reference: %w", err)
	}
	if tag.RegistryStr() != string(o.Repository.Registry) {
		return Result{}, step.Invalidf("parsing the reference: it means the registry %q", tag.RegistryStr())
	}
	scheme := "https"
	if o.PlainHTTP {
		scheme = "http"
	}
	descriptor, err := remote.Get(tag, remote.WithContext(ctx), remote.WithTransport(onlyScheme(scheme)))
	if err != nil {
		return Result{}, classify(err)
	}
	result := Result{
		Digest:    image.Digest(descriptor.Digest.String()),
		MediaType: string(descriptor.MediaType),
	}
	result.Image = o.Repository.At(result.Digest)
	if o.Expect != "" && o.Expect != result.Digest {
		return Result{}, step.Invalidf("the build reported %s, but the registry has %s: something else pushed this tag, or the push went wrong; nothing is deployed, run the build again", o.Expect, result.Digest)
	}
	images, err := byPlatform(descriptor)
	if err != nil {
		return Result{}, classify(err)
	}
	for p := range images {
		result.Platforms = append(result.Platforms, p)
	}
	slices.Sort(result.Platforms)
	img, ok := images[o.Platform]
	if !ok {
		return Result{}, step.Invalidf("it is for %v, wanted is %s; build it for that platform", result.Platforms, o.Platform)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return Result{}, classify(err)
	}
	labels := config.Config.Labels
	if got := labels[image.LabelRevision]; got != string(o.Revision) {
		return Result{}, step.Invalidf("its label %s is %q, wanted is %q: it was not built from this revision", image.LabelRevision, got, o.Revision)
	}
	if got := labels[image.LabelSourceKey]; o.SourceKey != "" && got != "" && got != string(o.SourceKey) {
		return Result{}, step.Invalidf("its label %s is %q, wanted is %q: it was built from this revision with other inputs", image.LabelSourceKey, got, o.SourceKey)
	}
	manifest, err := img.Manifest()
	if err != nil {
		return Result{}, classify(err)
	}
	result.Size = manifest.Config.Size
	for _, layer := range manifest.Layers {
		result.Size += layer.Size
	}
	return result, nil
}

// byPlatform gives the images that the descriptor leads to. Entries of an index
// that are no images for a machine (attestations have "unknown/unknown") are
// left out.
func byPlatform(d *remote.Descriptor) (map[image.Platform]v1.Image, error) {
	found := map[image.Platform]v1.Image{}
	if !d.MediaType.IsIndex() {
		img, err := d.Image()
		if err != nil {
			return nil, err
		}
		config, err := img.ConfigFile()
		if err != nil {
			return nil, err
		}
		found[platform(config.Platform())] = img
		return found, nil
	}
	index, err := d.ImageIndex()
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, entry := range manifest.Manifests {
		if entry.Platform == nil || entry.Platform.OS == "unknown" || entry.Platform.Architecture == "unknown" || !entry.MediaType.IsImage() {
			continue
		}
		img, err := index.Image(entry.Digest)
		if err != nil {
			return nil, err
		}
		found[platform(entry.Platform)] = img
	}
	return found, nil
}

func platform(p *v1.Platform) image.Platform {
	s := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		s += "/" + p.Variant
	}
	return image.Platform(s)
}

// onlyScheme is a transport that speaks one scheme. The registry client tries
// HTTPS before HTTP for a registry marked insecure; here the configuration
// decides.
type onlyScheme string

func (s onlyScheme) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != string(s) {
		return nil, fmt.Errorf("not speaking %s with %s: it is configured for %s", r.URL.Scheme, r.URL.Host, string(s))
	}
	return remote.DefaultTransport.RoundTrip(r)
}

// classify gives the registry's answer its exit code.
func classify(err error) error {
	var answer *transport.Error
	if !errors.As(err, &answer) {
		return fmt.Errorf("the registry cannot be reached or does not answer as one: %w", err)
	}
	switch answer.StatusCode {
	case http.StatusNotFound:
		return step.Invalidf("%w; build this revision first", ErrNotFound)
	case http.StatusUnauthorized, http.StatusForbidden:
		return step.Invalidf("the registry refuses access: %w", err)
	}
	return fmt.Errorf("the registry answers %d: %w", answer.StatusCode, err)
}
