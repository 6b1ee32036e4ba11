// Package digest asks a registry which image a revision's tag names, and
// checks that it is the image it should be. The digest it gives is the
// deployed anchor (adr-0095 §2).
package digest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/step"
)

// In the chain of an error of [Inspect], both with exit code 2: what building
// this revision mends.
var (
	ErrNotFound = errors.New("the registry has no such tag")
	ErrOther    = errors.New("it is not the wanted image")
)

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
// another revision, source key or platform ([ErrOther]) and a registry that is
// not what the configuration says; 1 for a digest other than Expect, which a run
// beside this one may have pushed, for the network and for what the registry
// fails to do.
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
	only := NewTransport(o.PlainHTTP)
	result, err := read(ctx, tag, only, o)
	if err != nil {
		return Result{}, only.Classify(err)
	}
	if o.Expect != "" && o.Expect != result.Digest {
		return Result{}, step.Retryf("the build reported %s, but the registry has %s: something else pushed this tag, or the push went wrong; nothing is deployed, run the build again", o.Expect, result.Digest)
	}
	return result, nil
}

func read(ctx context.Context, tag name.Tag, only *Transport, o Options) (Result, error) {
	descriptor, err := remote.Get(tag, remote.WithContext(ctx), remote.WithTransport(only))
	if err != nil {
		return Result{}, err
	}
	result := Result{
		Digest:    image.Digest(descriptor.Digest.String()),
		MediaType: string(descriptor.MediaType),
	}
	result.Image = o.Repository.At(result.Digest)
	images, err := ByPlatform(descriptor)
	if err != nil {
		return Result{}, err
	}
	result.Platforms = slices.Sorted(maps.Keys(images))
	img, ok := images[o.Platform]
	if !ok {
		return Result{}, step.Invalidf("%w: it is for %s, wanted is %s; build it for that platform", ErrOther, list(result.Platforms), o.Platform)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return Result{}, err
	}
	labels := config.Config.Labels
	if got := labels[image.LabelRevision]; got != string(o.Revision) {
		return Result{}, step.Invalidf("%w: its label %s is %q, wanted is %q: it was not built from this revision", ErrOther, image.LabelRevision, got, o.Revision)
	}
	if got := labels[image.LabelSourceKey]; o.SourceKey != "" && got != "" && got != string(o.SourceKey) {
		return Result{}, step.Invalidf("%w: its label %s is %q, wanted is %q: it was built from this revision with other inputs", ErrOther, image.LabelSourceKey, got, o.SourceKey)
	}
	manifest, err := img.Manifest()
	if err != nil {
		return Result{}, err
	}
	result.Size = manifest.Config.Size
	for _, layer := range manifest.Layers {
		result.Size += layer.Size
	}
	return result, nil
}

// ByPlatform gives the images that the descriptor leads to. Entries of an index
// that are no images for a machine (attestations have "unknown/unknown") are
// left out.
func ByPlatform(d *remote.Descriptor) (map[image.Platform]v1.Image, error) {
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
	// "v8" is what linux/arm64 means (containerd normalizes it away).
	if p.Variant != "" && s+"/"+p.Variant != "linux/arm64/v8" {
		s += "/" + p.Variant
	}
	return image.Platform(s)
}

func list(platforms []image.Platform) string {
	if len(platforms) == 0 {
		return "no platform"
	}
	var texts []string
	for _, p := range platforms {
		texts = append(texts, string(p))
	}
	return strings.Join(texts, ", ")
}

// Transport speaks one scheme with registries. The registry client tries HTTPS and
// then HTTP with some of them; here the configuration decides. It keeps the last
// failure, which the client buries among those of its other tries.
type Transport struct {
	scheme string

	mu     sync.Mutex
	failed error
}

// NewTransport gives a transport for HTTP and nothing else, or HTTPS and nothing else.
func NewTransport(plainHTTP bool) *Transport {
	if plainHTTP {
		return &Transport{scheme: "http"}
	}
	return &Transport{scheme: "https"}
}

// RoundTrip is that of [http.RoundTripper].
func (s *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != s.scheme {
		return nil, fmt.Errorf("not speaking %s with %s: it is configured for %s", r.URL.Scheme, r.URL.Host, s.scheme)
	}
	answer, err := remote.DefaultTransport.RoundTrip(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = err
	return answer, err
}

func (s *Transport) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Classify gives a failure of the registry client that used this transport its exit
// code: 2 for what the registry refuses or does not have and for a scheme that it does
// not speak, 1 for the rest.
func (s *Transport) Classify(err error) error {
	if step.ExitCode(err) != step.ExitRetry {
		return err
	}
	var answer *transport.Error
	if errors.As(err, &answer) {
		return classifyAnswer(answer)
	}
	if failed := s.failure(); failed != nil {
		err = failed
	}
	var untrusted *tls.CertificateVerificationError
	var notTLS tls.RecordHeaderError
	switch {
	case errors.As(err, &notTLS):
		return step.Invalidf("the registry speaks HTTP, and HTTPS is configured; configure plain HTTP (--plain-http), or the registry's HTTPS address")
	case errors.As(err, &untrusted):
		return step.Invalidf("the registry's certificate is not trusted: %w", untrusted.Err)
	}
	return fmt.Errorf("the registry cannot be reached or does not answer as one: %w", err)
}

func classifyAnswer(answer *transport.Error) error {
	path := ""
	if answer.Request != nil {
		path = answer.Request.URL.Path
	}
	switch code := answer.StatusCode; {
	case code == http.StatusNotFound && strings.Contains(path, "/manifests/") && !strings.Contains(path, "/manifests/sha256:"):
		return step.Invalidf("%w; build this revision first", ErrNotFound)
	case code == http.StatusNotFound && path != "/v2/":
		return step.Invalidf("%w: the registry lost a part of it; build this revision again: %w", ErrOther, answer)
	case code == http.StatusNotFound:
		return step.Invalidf("what answers at this address is not a registry; correct the address: %w", answer)
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return step.Invalidf("the registry refuses access: %w", answer)
	case code == http.StatusBadRequest && strings.Contains(answer.Error(), "HTTP request to an HTTPS server"):
		return step.Invalidf("the registry speaks HTTPS, and plain HTTP is configured; drop --plain-http, or name the registry's HTTP address")
	}
	return fmt.Errorf("the registry answers %d: %w", answer.StatusCode, answer)
}
