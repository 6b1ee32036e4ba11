// Package clone fetches exactly one commit of a repository into a folder.
//
// Guarantees:
//   - The commit that was asked for, or an error; never a branch's tip in its
//     place. Depth 1: no history.
//   - The folder holds either nothing of use or the whole commit: everything is
//     made aside and moved into place, clone.json last. A run that was killed
//     at any moment leaves remains that the next run removes.
//   - A second run for the same commit changes nothing and says so.
//   - Git LFS pointers and submodules are refused by name (exit code 3) when
//     they lie under the wanted paths: their content is not in the commit, and
//     a build without it would be wrong without notice.
package clone

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"fabrique/steps/git"
	"fabrique/steps/gitref"
	"fabrique/steps/step"
)

// Options says what to fetch and where to.
type Options struct {
	Remote   git.Remote
	Revision gitref.Revision
	// Dir is a folder that belongs to this step; it is created if need be.
	Dir string
	// Paths are the paths that the build will use; Git LFS files and
	// submodules elsewhere do no harm. None means the whole tree.
	Paths []gitref.Path
}

// Result is what was fetched.
type Result struct {
	Revision gitref.Revision `json:"revision"`
	Tree     string          `json:"tree"` // the commit's tree id
	Path     string          `json:"path"` // folder with the files, Dir/tree
	Files    int             `json:"files"`
	Bytes    int64           `json:"bytes"` // of the files as they are in the commit
	// Unchanged says that an earlier run had done it all.
	Unchanged bool `json:"unchanged"`
}

// Names inside Options.Dir.
const (
	lockName    = ".clone-at-sha" // marks the folder as ours, and is locked while a run works in it
	treeName    = "tree"
	gitName     = "git"
	resultName  = "clone.json" // there only while tree and git are whole
	partialName = "partial-"
)

// What a checkout may take: a few small objects can stand for any number of
// files.
const (
	maxFiles = 1_000_000
	maxBytes = 50 << 30
)

// Run fetches the commit. Errors: exit code 2 for a revision that does not
// exist, a wrong token or a folder that is not ours, 3 for Git LFS files and
// submodules, 1 for the network and for another run in the same folder.
func Run(ctx context.Context, log *slog.Logger, o Options) (Result, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return Result{}, step.Invalidf("reading the folder %q: %w", o.Dir, err)
	}
	held, err := lock(ctx, dir)
	if err != nil {
		return Result{}, err
	}
	defer held.Close()
	o.Remote = o.Remote.Holding(held)

	if done, ok := finished(ctx, dir, o); ok {
		// A run may have been killed after all was in place.
		if err := clean(dir, func(name string) bool { return strings.HasPrefix(name, partialName) }); err != nil {
			return done, err
		}
		log.Info("unchanged", "revision", o.Revision, "path", done.Path)
		repo := repository(dir, o)
		entries, err := repo.Tree(ctx, o.Revision, ".")
		if err != nil {
			return done, err
		}
		return done, refuse(ctx, repo, entries, done, o)
	}
	if ctx.Err() != nil {
		return Result{}, context.Cause(ctx) // perhaps it is whole, so it stays
	}
	if err := clean(dir, func(string) bool { return true }); err != nil {
		return Result{}, err
	}
	started := time.Now()
	log.Info("fetching", "revision", o.Revision, "from", o.Remote.String())
	result, entries, err := fetch(ctx, log, dir, o)
	if err != nil {
		return Result{}, err
	}
	log.Info("fetched", "revision", o.Revision, "files", result.Files, "bytes", result.Bytes, "took", time.Since(started).Round(time.Millisecond))
	return result, refuse(ctx, repository(dir, o), entries, result, o)
}

// patience is how long a run waits for another in the same folder: long enough
// for the last git processes of one that was killed to end.
const patience = 5 * time.Second

// lock claims the folder for this run, until the file is closed here and in the
// git processes that inherit it.
func lock(ctx context.Context, dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, step.Invalidf("creating the folder: %w", err)
	}
	marker := filepath.Join(dir, lockName)
	if _, err := os.Lstat(marker); errors.Is(err, fs.ErrNotExist) {
		names, err := ours(dir)
		if err != nil {
			return nil, err
		}
		if len(names) > 0 {
			return nil, step.Invalidf("using the folder %q: it holds a %q that this step did not make; name another folder", dir, names[0])
		}
	}
	f, err := os.OpenFile(marker, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, step.Invalidf("creating the lock file: %w", err)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			f.Close()
			return nil, step.Retryf("locking the folder %q: another run works in it", dir)
		}
	}
}

// finished gives the result of an earlier run that is still whole.
func finished(ctx context.Context, dir string, o Options) (Result, bool) {
	raw, err := os.ReadFile(filepath.Join(dir, resultName))
	if err != nil {
		return Result{}, false
	}
	var r Result
	if json.Unmarshal(raw, &r) != nil || r.Revision != o.Revision || r.Path != filepath.Join(dir, treeName) {
		return Result{}, false
	}
	changed, err := repository(dir, o).Git(ctx, nil, "status", "--porcelain", "--untracked-files=all", "--ignored", "--no-renames")
	if err != nil || len(changed) > 0 {
		return Result{}, false
	}
	r.Unchanged = true
	return r, true
}

func repository(dir string, o Options) *git.Repository {
	return git.Open(o.Remote, filepath.Join(dir, gitName), filepath.Join(dir, treeName))
}

// clean removes what earlier runs left, the sign of completeness first.
func clean(dir string, which func(name string) bool) error {
	names, err := ours(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !which(name) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("removing an earlier clone: %w", err)
		}
	}
	return nil
}

// ours lists what is in the folder under a name that this step uses and
// removes, the sign of completeness first.
func ours(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, step.Invalidf("reading the folder: %w", err)
	}
	var names []string
	for _, e := range entries {
		switch name := e.Name(); {
		case name == resultName:
			names = slices.Insert(names, 0, name)
		case name == treeName, name == gitName, strings.HasPrefix(name, partialName):
			names = append(names, name)
		}
	}
	return names, nil
}

func fetch(ctx context.Context, log *slog.Logger, dir string, o Options) (_ Result, _ []git.TreeEntry, err error) {
	partial, err := os.MkdirTemp(dir, partialName)
	if err != nil {
		return Result{}, nil, step.Invalidf("creating a folder: %w", err)
	}
	defer func() {
		err = errors.Join(err, os.RemoveAll(partial))
	}()
	gitDir, tree := filepath.Join(partial, gitName), filepath.Join(partial, treeName)
	if err := os.Mkdir(tree, 0o755); err != nil {
		return Result{}, nil, err
	}
	stop := progress(log, partial, 5*time.Second)
	defer stop()

	repo, err := git.Init(ctx, o.Remote, gitDir, tree, o.Revision)
	if err != nil {
		return Result{}, nil, fmt.Errorf("creating the git folder: %w", err)
	}
	if err := repo.Fetch(ctx, o.Revision, ""); err != nil {
		return Result{}, nil, err
	}
	// Counting them in the commit costs a tenth of looking at each on the disk, and
	// shows in time what would fill it.
	var counted Result
	entries, err := repo.Tree(ctx, o.Revision, ".")
	if err != nil {
		return Result{}, nil, fmt.Errorf("listing commit %s: %w", o.Revision, err)
	}
	for _, e := range entries {
		if e.Mode != git.ModeSubmodule {
			counted.Files++
			counted.Bytes += e.Size
		}
	}
	if counted.Files > maxFiles || counted.Bytes > maxBytes {
		return Result{}, nil, step.Sourcef("reading commit %s: it has %d files of %d bytes, at most %d of %d are taken", o.Revision.Short(), counted.Files, counted.Bytes, maxFiles, int64(maxBytes))
	}
	if _, err := repo.Git(ctx, nil, "checkout", "--quiet", "--detach", string(o.Revision)); err != nil {
		if strings.Contains(err.Error(), "invalid path") { // such as .git/config
			err = step.Sourcef("%w", err)
		}
		return Result{}, nil, fmt.Errorf("checking out commit %s: %w", o.Revision, err)
	}
	id, err := repo.Git(ctx, nil, "rev-parse", "HEAD^{commit}", "HEAD^{tree}")
	if err != nil {
		return Result{}, nil, err
	}
	ids := strings.Fields(string(id))
	if len(ids) != 2 || ids[0] != string(o.Revision) {
		return Result{}, nil, fmt.Errorf("checking out commit %s: git has %q checked out", o.Revision, ids)
	}
	result := Result{Revision: o.Revision, Tree: ids[1], Path: filepath.Join(dir, treeName), Files: counted.Files, Bytes: counted.Bytes}
	if err := os.Chmod(partial, 0o755); err != nil {
		return Result{}, nil, err
	}
	for _, name := range []string{gitName, treeName} {
		if err := os.Rename(filepath.Join(partial, name), filepath.Join(dir, name)); err != nil {
			return Result{}, nil, fmt.Errorf("moving the clone into place: %w", err)
		}
	}
	return result, entries, save(filepath.Join(partial, resultName), filepath.Join(dir, resultName), result)
}

func save(aside, place string, result Result) error {
	raw, err := json.Marshal(result)
	if err != nil {
		return err
	}
	if err := os.WriteFile(aside, raw, 0o644); err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	return os.Rename(aside, place)
}

// progress logs now and then how much has arrived, until stop is called.
func progress(log *slog.Logger, dir string, every time.Duration) (stop func()) {
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				if files, size, err := measure(dir); err == nil {
					log.Info("still fetching", "files", files, "bytes", size)
				}
			}
		}
	}()
	return func() { close(done); <-ended }
}

// measure counts the files below dir and their bytes. Files that vanish
// meanwhile do not count.
func measure(dir string) (files int, size int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		files++
		size += info.Size()
		return nil
	})
	return files, size, err
}

// refuse names the Git LFS pointers and submodules under the wanted paths.
func refuse(ctx context.Context, repo *git.Repository, entries []git.TreeEntry, result Result, o Options) error {
	wanted := o.Paths
	if len(wanted) == 0 {
		wanted = []gitref.Path{"."}
	}
	usesLFS := false
	for _, e := range entries {
		if filepath.Base(e.Path) == ".gitattributes" && e.Mode != git.ModeLink {
			raw, err := os.ReadFile(filepath.Join(result.Path, e.Path))
			if err == nil && bytes.Contains(raw, []byte("filter=lfs")) {
				usesLFS = true
			}
		}
	}
	for _, e := range entries {
		path := gitref.Path(e.Path)
		// A wanted path inside a submodule is not in the tree at all.
		if e.Mode == git.ModeSubmodule && slices.ContainsFunc(wanted, func(p gitref.Path) bool { return p.Contains(path) || path.Contains(p) }) {
			return step.Sourcef("reading commit %s: %q is a submodule, which the factory does not fetch; commit its content instead", o.Revision.Short(), e.Path)
		}
		if !usesLFS || !slices.ContainsFunc(wanted, func(p gitref.Path) bool { return p.Contains(path) }) {
			continue
		}
		if e.Mode == git.ModeLink || e.Mode == git.ModeSubmodule || !isPointer(filepath.Join(result.Path, e.Path)) {
			continue
		}
		filter, err := repo.Git(ctx, nil, "check-attr", "--cached", "-z", "filter", "--", e.Path)
		if err != nil {
			return err
		}
		if bytes.HasSuffix(filter, []byte("\x00lfs\x00")) {
			return step.Sourcef("reading commit %s: %q is a Git LFS pointer, whose content the factory does not fetch; commit the file itself, or fetch it in the Dockerfile", o.Revision.Short(), e.Path)
		}
	}
	return nil
}

// pointerStart begins every Git LFS pointer file (Git LFS specification).
const pointerStart = "version https://git-lfs.github.com/spec/"

func isPointer(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	start := make([]byte, len(pointerStart))
	_, err = io.ReadFull(f, start)
	return err == nil && string(start) == pointerStart
}
