package reconcile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"

	"fabrique/steps/git"
	"fabrique/steps/gitref"
	"fabrique/steps/record"
	"fabrique/steps/step"
)

// paths lists what of the source repository goes into the app's image.
func paths(r record.Record) []gitref.Path {
	return append([]gitref.Path{r.Context, dockerfile(r)}, r.Inputs...)
}

func dockerfile(r record.Record) gitref.Path {
	return gitref.Path(path.Join(string(r.Context), string(r.Dockerfile)))
}

// sourceKey hashes the git objects of everything that goes into the app's
// image, with the settings that change what is made of them. The order of the
// inputs in the record does not matter. A path that does not exist is the
// source's fault (exit code 3), and so is an input that is a symbolic link, as a
// change of what it points to could not be seen. A Dockerfile may be one: it
// leads to a file in the context, or the build refuses it. At a revision to go
// back to (pinned) an input may not be there yet; it counts as absent.
func sourceKey(r record.Record, revision gitref.Revision, entries map[gitref.Path]git.TreeEntry, pinned bool) (gitref.SourceKey, error) {
	folder, ok := entries[r.Context]
	switch {
	case !ok:
		return "", step.Sourcef("the context %q does not exist at revision %s; push it, or correct %s in %s", r.Context, revision.Short(), record.AnnotationContext, r.File)
	case folder.Mode != git.ModeFolder:
		return "", step.Sourcef("the context %q is not a folder at revision %s (symbolic links are not followed); correct %s in %s", r.Context, revision.Short(), record.AnnotationContext, r.File)
	}
	file, ok := entries[dockerfile(r)]
	switch {
	case !ok:
		return "", step.Sourcef("the Dockerfile %q does not exist at revision %s; push it, or name another with %s in %s", dockerfile(r), revision.Short(), record.AnnotationDockerfile, r.File)
	case file.Mode == git.ModeFolder || file.Mode == git.ModeSubmodule:
		return "", step.Sourcef("the Dockerfile %q is not a file at revision %s", dockerfile(r), revision.Short())
	}
	h := sha256.New()
	fmt.Fprintf(h, "fabrique source key 1\ncontext %s\ndockerfile %q %s\n", folder.ID, r.Dockerfile, file.ID)
	inputs := slices.Clone(r.Inputs)
	slices.Sort(inputs)
	for _, p := range slices.Compact(inputs) {
		input, ok := entries[p]
		switch {
		case !ok && !pinned:
			return "", step.Sourcef("the input %q does not exist at revision %s; push it, or correct %s in %s", p, revision.Short(), record.AnnotationInputs, r.File)
		case input.Mode == git.ModeLink:
			return "", step.Sourcef("the input %q is a symbolic link at revision %s, and changes of what it points to could not be seen; name that in %s in %s instead", p, revision.Short(), record.AnnotationInputs, r.File)
		}
		fmt.Fprintf(h, "input %q %s %s\n", p, input.Mode, input.ID)
	}
	fmt.Fprintf(h, "build-args %q\ntarget %q\n", r.BuildArgs.String(), r.Target)
	return gitref.SourceKey(hex.EncodeToString(h.Sum(nil))), nil
}
