package gc

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"fabrique/steps/git"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/record"
)

// needed is what is not removed.
type needed struct {
	digests map[image.Digest]string // and why
	// revisions holds the first twelve digits; under "" those of all images.
	revisions map[image.Name]map[string]string
	keys      map[gitref.SourceKey]bool
	broken    [][]byte // files that are no records but would be
}

func newNeeded() *needed {
	return &needed{digests: map[image.Digest]string{}, revisions: map[image.Name]map[string]string{}, keys: map[gitref.SourceKey]bool{}}
}

// reason says why a tag is needed, "" if it is not.
func (n *needed) reason(t Tag) string {
	if why := n.digests[t.Digest]; why != "" {
		return why
	}
	for _, name := range []image.Name{t.Image, ""} {
		if why := n.revisions[name][t.Tag]; why != "" {
			return why
		}
	}
	for _, text := range n.broken {
		if bytes.Contains(text, []byte(t.Image)) {
			return "a broken record names the image"
		}
	}
	return ""
}

var (
	digestForm = regexp.MustCompile(`sha256:[0-9a-f]{64}`)
	hexForm    = regexp.MustCompile(`[0-9a-f]{12,}`)
)

// addDigests keeps every digest in a text.
func (n *needed) addDigests(text []byte) {
	for _, d := range digestForm.FindAll(text, -1) {
		n.digests[image.Digest(d)] = "it is in use"
	}
}

func (n *needed) addRevision(name image.Name, short, why string) {
	if n.revisions[name] == nil {
		n.revisions[name] = map[string]string{}
	}
	n.revisions[name][short] = why
}

// add keeps what a file names. Its text is searched as well as its records, so that
// also what stands in a comment, or in a file that is none of ours, is kept.
func (n *needed) add(text []byte) {
	const why = "a record names it"
	records, err := record.ParseFile("", text)
	if err != nil {
		n.broken = append(n.broken, text)
	}
	for _, d := range digestForm.FindAll(text, -1) {
		n.digests[image.Digest(d)] = why
	}
	names := map[image.Name]bool{}
	for _, r := range records {
		names[r.Image] = true
		if r.Digest != "" {
			n.digests[r.Digest] = why
		}
		if r.Revision != "" {
			n.addRevision(r.Image, r.Revision.Short(), why)
		}
		n.keys[r.SourceKey], n.keys[r.RollbackOf] = true, true
	}
	if err != nil || len(names) == 0 {
		names[""] = true // of all images, as nobody can say of which
	}
	for _, digits := range hexForm.FindAll(text, -1) {
		for name := range names {
			n.addRevision(name, string(digits[:12]), why)
		}
	}
}

// history is what the two branches tell.
type history struct {
	o      Options
	dir    string
	needed *needed
	names  map[image.Name]bool // of all images that a record names or named
	// The heads that have been read.
	appsHead, sourceHead gitref.Revision
	apps, source         *git.Repository
}

// images lists the names that records name or named.
func (h *history) images() []image.Name { return slices.Sorted(maps.Keys(h.names)) }

// read reads all of both histories.
func (h *history) read(ctx context.Context) error {
	h.names = map[image.Name]bool{}
	return h.refresh(ctx)
}

// refresh reads what came to the branches since.
func (h *history) refresh(ctx context.Context) error {
	if err := h.readApps(ctx); err != nil {
		return err
	}
	return h.readSource(ctx)
}

func (h *history) readApps(ctx context.Context) error {
	commits, err := follow(ctx, h.o.Apps, h.o.AppsBranch, h.folder("apps"), "", &h.apps, &h.appsHead)
	if err != nil || commits == nil {
		return err
	}
	inWindow, err := h.apps.Files(ctx, git.Since(commits, h.o.Now.Add(-h.o.Keep)))
	if err != nil {
		return err
	}
	var all []gitref.Revision
	for _, c := range commits {
		all = append(all, c.ID)
	}
	files, err := h.apps.Files(ctx, all)
	if err != nil {
		return err
	}
	isNeeded := map[string]bool{}
	for _, id := range inWindow {
		isNeeded[id] = true
	}
	// Some at a time: git's answer is bounded.
	for ids := range slices.Chunk(files, 500) {
		texts, err := h.apps.Blobs(ctx, ids)
		if err != nil {
			return fmt.Errorf("reading the history of %s: %w", h.o.Apps, err)
		}
		for i, text := range texts {
			if isNeeded[ids[i]] {
				h.needed.add(bytes.Clone(text))
			}
			records, _ := record.ParseFile("", text) // a broken one names no image to look at
			for _, r := range records {
				h.names[r.Image] = true
			}
		}
	}
	return nil
}

func (h *history) readSource(ctx context.Context) error {
	commits, err := follow(ctx, h.o.Source, h.o.SourceBranch, h.folder("source"), "tree:0", &h.source, &h.sourceHead)
	if err != nil {
		return err
	}
	for _, id := range git.Since(commits, h.o.Now.Add(-h.o.Keep)) {
		h.needed.addRevision("", id.Short(), "its commit was the source's head within the window")
	}
	return nil
}

// follow gives the history of a branch, nil when its head is the one that was read
// last or there is no commit.
func follow(ctx context.Context, remote git.Remote, branch gitref.Branch, dir, filter string, repo **git.Repository, last *gitref.Revision) ([]git.Commit, error) {
	head, err := remote.Head(ctx, branch)
	if err != nil || head == "" || head == *last {
		return nil, err
	}
	if *repo == nil {
		if *repo, err = git.Init(ctx, remote, dir, "", head); err != nil {
			return nil, fmt.Errorf("creating the git folder: %w", err)
		}
	}
	if err := (*repo).FetchHistory(ctx, head, filter); err != nil {
		return nil, err
	}
	commits, err := (*repo).History(ctx, head)
	if err == nil {
		*last = head
	}
	return commits, err
}
