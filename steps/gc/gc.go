// Package gc removes images from the registry that nothing needs any more. It knows
// what is needed from git, and removes on whole knowledge only.
//
// A candidate is a tag of twelve hex digits, on an image that some record names or
// once named, whose image carries the label of exactly that revision: what
// Fabrique made and nothing else. Of these it keeps
//
//   - what any file names, by digest, revision or source key, in any commit of the
//     apps repository that was the branch's head within the window: also the one
//     that was it when the window began, and the head however old it is. So what is
//     deployed, held or rolled back is kept;
//   - what was built from a commit that was the head of the source branch within the
//     window, as a build or a rollback may be on its way to write it into a record;
//   - what was built within the grace period, for builds of commits that are on the
//     branch no more;
//   - what a pod in the cluster runs, where there is one to ask;
//   - what another tag means that is kept, as registries remove by digest.
//
// A file that cannot be read as a record keeps every image whose name stands in it.
// All is decided before the first image is removed, and before each both
// branches are looked at again. Killed at any moment and run again, it ends in the
// same state. Times are those that commits state; what a force push took off a
// branch is not seen.
//
// The registry frees the space when its own garbage collection runs.
package gc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"fabrique/steps/git"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/workspace"
)

// Options says what to look at and what to keep.
type Options struct {
	Source, Apps             git.Remote
	SourceBranch, AppsBranch gitref.Branch
	Registry                 image.Registry
	PlainHTTP                bool
	Keep                     time.Duration // the window
	Grace                    time.Duration // how long an image is kept after it was built
	Now                      time.Time     // where both end
	// Protected are texts whose digests are kept too: what pods run, the factory's
	// own images.
	Protected []string
	Delete    bool // remove; otherwise only say what would be
	// Decided, when set, is told of each tag as soon as its result is known.
	Decided func(Tag)
}

// Results of a tag.
const (
	Removed     = "removed"
	WouldRemove = "would remove"
	Kept        = "kept"
)

// Tag is what became of a tag.
type Tag struct {
	Image  image.Name   `json:"image"`
	Tag    string       `json:"tag"`
	Digest image.Digest `json:"digest,omitempty"` // empty for a tag without a manifest
	Bytes  int64        `json:"bytes"`            // of its layers and configuration, compressed; other images may share them
	Result string       `json:"result"`
	Reason string       `json:"reason"`
}

// Report is the outcome of a run.
type Report struct {
	Changed bool  `json:"changed"` // something was removed (or would be, in a dry run)
	Images  int   `json:"images"`  // names that were looked at
	Kept    int   `json:"kept"`
	Removed int   `json:"removed"`
	Bytes   int64 `json:"bytes"` // of what was removed, counted for each image
	Tags    []Tag `json:"tags"`
}

// Run decides about all tags and, with Options.Delete, removes. Whatever cannot be
// read ends it before anything is removed. Errors: exit code 2 for a branch or token
// that is wrong and a registry that does not allow deletion, 1 for the network and
// for what a server fails to do. The report tells how far it came.
func Run(ctx context.Context, log *slog.Logger, o Options) (report Report, err error) {
	report.Tags = []Tag{}
	dir, remove, err := workspace.Make("gc")
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, remove()) }()

	h := &history{o: o, dir: dir, needed: newNeeded()}
	for _, text := range o.Protected {
		h.needed.addDigests([]byte(text))
	}
	if err := h.read(ctx); err != nil {
		return report, err
	}
	r := newRegistry(o)
	var found []found
	for _, name := range h.images() {
		tags, err := r.tags(ctx, name)
		if err != nil {
			return report, err
		}
		found = append(found, tags...)
	}
	report.Images = len(h.images())
	decided := decide(found, h.needed, o)
	log.Info("decided", "images", report.Images, "tags", len(decided))
	return report, carryOut(ctx, log, o, h, r, decided, &report)
}

// carryOut goes through the decisions, and looks at the branches once more before
// each image that it removes.
func carryOut(ctx context.Context, log *slog.Logger, o Options, h *history, r *registry, decided []Tag, report *Report) error {
	gone := map[string]bool{}
	for _, t := range decided {
		if t.Result == WouldRemove && o.Delete {
			if err := h.refresh(ctx); err != nil {
				return err
			}
			if reason := h.needed.reason(t); reason != "" {
				t.Result, t.Reason = Kept, reason
			} else if err := r.remove(ctx, &t, gone); err != nil {
				return err
			}
			log.Info("looked again", "image", t.Image, "tag", t.Tag, "result", t.Result)
		}
		report.Tags = append(report.Tags, t)
		if t.Result == Kept {
			report.Kept++
		} else {
			report.Changed = true
			report.Removed++
			report.Bytes += t.Bytes
		}
		if o.Decided != nil {
			o.Decided(t)
		}
	}
	return nil
}

// decide gives every tag its result.
func decide(all []found, n *needed, o Options) []Tag {
	// What a kept tag means, or an index lists, stays whatever else means it.
	shared := map[image.Digest]string{}
	decided := make([]Tag, 0, len(all))
	for _, f := range all {
		t := f.Tag
		t.Result = Kept
		switch {
		case f.foreign != "":
			t.Reason = f.foreign
		case n.reason(t) != "":
			t.Reason = n.reason(t)
		case f.sourceKey != "" && n.keys[f.sourceKey]:
			t.Reason = "a record names its source key"
		case o.Now.Sub(f.created) < o.Grace:
			t.Reason = fmt.Sprintf("built less than %s ago", o.Grace)
		default:
			t.Result, t.Reason = WouldRemove, "no record names it"
		}
		if t.Result == Kept {
			shared[t.Digest] = fmt.Sprintf("the tag %s means the same image", t.Tag)
			for _, child := range f.children {
				shared[child] = fmt.Sprintf("the tag %s lists it", t.Tag)
			}
		}
		decided = append(decided, t)
	}
	for i, t := range decided {
		if reason := shared[t.Digest]; t.Result == WouldRemove && reason != "" {
			decided[i].Result, decided[i].Reason = Kept, reason
		}
	}
	return decided
}

func (h *history) folder(name string) string { return filepath.Join(h.dir, name) }
