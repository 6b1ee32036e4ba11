package gc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"fabrique/steps/digest"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/step"
)

// found is a tag with what its image says of itself.
type found struct {
	Tag
	foreign   string // why it is not one that Fabrique made, "" if it is
	created   time.Time
	sourceKey gitref.SourceKey
	children  []image.Digest // of an index
}

var shortForm = regexp.MustCompile(`^[0-9a-f]{12}$`)

type registry struct {
	o        Options
	through  http.RoundTripper
	classify func(error) error
}

func newRegistry(o Options) *registry {
	through := digest.NewTransport(o.PlainHTTP)
	return &registry{o, through, through.Classify}
}

func (r *registry) options(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithTransport(r.through)}
}

func (r *registry) repository(n image.Name) (name.Repository, error) {
	repo, err := name.NewRepository(image.Repository{Registry: r.o.Registry, Name: n}.String(), name.StrictValidation, name.Insecure)
	if err != nil {
		return repo, step.Invalidf("parsing the image's name: %w", err)
	}
	return repo, nil
}

// tags looks at all tags of an image. One that was never pushed has none.
func (r *registry) tags(ctx context.Context, n image.Name) ([]found, error) {
	repo, err := r.repository(n)
	if err != nil {
		return nil, err
	}
	names, err := remote.List(repo, r.options(ctx)...)
	if status(err) == http.StatusNotFound && code(err, transport.NameUnknownErrorCode) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing the tags of %s: %w", repo, r.classify(err))
	}
	slices.Sort(names)
	var all []found
	for _, tag := range names {
		f, err := r.look(ctx, repo, tag)
		if err != nil {
			return nil, fmt.Errorf("looking at %s:%s: %w", repo, tag, r.classify(err))
		}
		f.Image, f.Tag.Tag = n, tag
		all = append(all, f)
	}
	return all, nil
}

func (r *registry) look(ctx context.Context, repo name.Repository, tag string) (f found, err error) {
	descriptor, err := remote.Get(repo.Tag(tag), r.options(ctx)...)
	if status(err) == http.StatusNotFound && code(err, transport.ManifestUnknownErrorCode) {
		f.foreign = "the registry has no manifest for it"
		return f, nil
	}
	if err != nil {
		return f, err
	}
	f.Digest = image.Digest(descriptor.Digest.String())
	switch {
	case descriptor.MediaType.IsIndex():
		f.foreign = "not ours: it is an index"
		index, err := descriptor.ImageIndex()
		if err != nil {
			return f, err
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			return f, err
		}
		for _, entry := range manifest.Manifests {
			f.children = append(f.children, image.Digest(entry.Digest.String()))
		}
		return f, nil
	case !shortForm.MatchString(tag):
		f.foreign = "not ours: the tag is no revision"
		return f, nil
	case !descriptor.MediaType.IsImage():
		f.foreign = "not ours: it is no image"
		return f, nil
	}
	img, err := descriptor.Image()
	if err != nil {
		return f, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return f, err
	}
	manifest, err := img.Manifest()
	if err != nil {
		return f, err
	}
	f.Bytes = manifest.Config.Size
	for _, layer := range manifest.Layers {
		f.Bytes += layer.Size
	}
	f.created = config.Created.Time
	f.sourceKey = gitref.SourceKey(config.Config.Labels[image.LabelSourceKey])
	revision, err := gitref.ParseRevision(config.Config.Labels[image.LabelRevision])
	if err != nil || revision.Short() != tag {
		f.foreign = fmt.Sprintf("not ours: its label %s does not fit the tag", image.LabelRevision)
	}
	return f, nil
}

// remove removes the image of a tag, unless the tag means another one by now. The
// digests that are gone already are noted.
func (r *registry) remove(ctx context.Context, t *Tag, gone map[string]bool) error {
	repo, err := r.repository(t.Image)
	if err != nil {
		return err
	}
	ref := repo.Digest(string(t.Digest))
	t.Result = Removed
	if gone[ref.String()] {
		return nil
	}
	now, err := remote.Head(repo.Tag(t.Tag), r.options(ctx)...)
	switch {
	case status(err) == http.StatusNotFound: // another run was faster
		return nil
	case err != nil:
		return fmt.Errorf("looking at %s:%s again: %w", repo, t.Tag, r.classify(err))
	case image.Digest(now.Digest.String()) != t.Digest:
		t.Result, t.Reason = Kept, "it was pushed anew meanwhile"
		return nil
	}
	err = remote.Delete(ref, r.options(ctx)...)
	switch status(err) {
	case 0, http.StatusNotFound:
	case http.StatusMethodNotAllowed:
		return step.Invalidf("removing %s: the registry does not allow it; set storage.delete.enabled: true in its configuration", ref)
	}
	if err != nil && status(err) != http.StatusNotFound {
		return fmt.Errorf("removing %s: %w", ref, r.classify(err))
	}
	gone[ref.String()] = true
	return nil
}

// status gives the HTTP status of a registry's refusal, 0 when err is none.
func status(err error) int {
	var answer *transport.Error
	if errors.As(err, &answer) {
		return answer.StatusCode
	}
	return 0
}

// code reports whether a registry's refusal has an error code, or none at all as the
// answer to a HEAD request.
func code(err error, want transport.ErrorCode) bool {
	var answer *transport.Error
	return errors.As(err, &answer) && slices.ContainsFunc(answer.Errors, func(d transport.Diagnostic) bool {
		return strings.EqualFold(string(d.Code), string(want))
	})
}
