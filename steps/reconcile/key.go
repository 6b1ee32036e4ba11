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
// inputs in the record does not matter. An input that does not exist counts as
// absent; a context or Dockerfile that does not exist is the source's fault
// (exit code 3).
func sourceKey(r record.Record, revision gitref.Revision, entries map[gitref.Path]git.TreeEntry) (gitref.SourceKey, error) {
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
		fmt.Fprintf(h, "input %q %s %s\n", p, entries[p].Mode, entries[p].ID)
	}
	fmt.Fprintf(h, "build-args %q\ntarget %q\n", r.BuildArgs.String(), r.Target)
	return gitref.SourceKey(hex.EncodeToString(h.Sum(nil))), nil
}
