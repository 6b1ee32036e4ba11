// Package record reads and edits records: the Argo CD Application manifests in
// the apps repository that declare an app and say what of it is deployed.
//
// A YAML document is a record if it is an Application of Argo CD's API group
// with the annotation fabrique/context; everything else in a file is ignored
// and left alone; a file without these words is not even parsed. The fields:
//
//	annotation fabrique/context      folder in the source repository, required
//	annotation fabrique/dockerfile   path relative to the context, default "Dockerfile"
//	annotation fabrique/inputs       further paths whose change rebuilds, comma separated
//	annotation fabrique/image        image name, default metadata.name
//	annotation fabrique/build-args   KEY=value,KEY2=value (package buildarg)
//	annotation fabrique/target       stage of the Dockerfile
//	annotation fabrique/hold         a reason: nothing is deployed while it is there
//	annotation fabrique/rollback-of  source key that was rolled back and must not come again
//	annotation fabrique/revision     what is deployed: the source's commit …
//	annotation fabrique/source-key   … and its source key
//	spec.source.targetRevision       the same commit, for the manifests
//	spec.source.kustomize.images     entry <image>=<registry>/<image>@sha256:…
//	spec.source.helm.parameters      instead, where the file has image.digest there: sha256:…
//
// [ParseFile] reads, [Apply] writes the last five and hold, byte for byte
// nothing else. All errors have exit code 2 and name the file, the line and the
// column.
package record

import (
	"errors"
	"path"
	"regexp"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"fabrique/steps/buildarg"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/step"
)

// Annotations of a record.
const (
	AnnotationContext    = "fabrique/context"
	AnnotationDockerfile = "fabrique/dockerfile"
	AnnotationInputs     = "fabrique/inputs"
	AnnotationImage      = "fabrique/image"
	AnnotationBuildArgs  = "fabrique/build-args"
	AnnotationTarget     = "fabrique/target"
	AnnotationHold       = "fabrique/hold"
	AnnotationRollbackOf = "fabrique/rollback-of"
	AnnotationRevision   = "fabrique/revision"
	AnnotationSourceKey  = "fabrique/source-key"
)

// annotations are all of them.
var annotations = []string{
	AnnotationContext, AnnotationDockerfile, AnnotationInputs, AnnotationImage, AnnotationBuildArgs,
	AnnotationTarget, AnnotationHold, AnnotationRollbackOf, AnnotationRevision, AnnotationSourceKey,
}

// helmParameter is the Helm parameter that takes the digest.
const helmParameter = "image.digest"

// MaxSize is the size in bytes above which a file is refused.
const MaxSize = 1 << 20

// Record is one app as its Application declares it.
type Record struct {
	File     string // path in the apps repository, as given to ParseFile
	Document int    // which YAML document of the file, from 0

	// What people declare.
	App           string // metadata.name, a DNS-1123 label
	Context       gitref.Path
	Dockerfile    gitref.Path   // relative to Context
	Inputs        []gitref.Path // relative to the repository
	Image         image.Name
	BuildArgs     buildarg.Args
	Target        string // "" is the last stage
	Hold          string // one line; "" is not held
	SourceRepoURL string // spec.source.repoURL

	// What Fabrique deployed. Empty for an app that was never built.
	Revision       gitref.Revision
	SourceKey      gitref.SourceKey
	Digest         image.Digest // "" also when the image is given by a tag
	TargetRevision string       // spec.source.targetRevision, whoever wrote it
	RollbackOf     gitref.SourceKey
}

// IsManifest reports whether the file's name is that of a YAML file, the only
// files that may hold records.
func IsManifest(file string) bool {
	ext := path.Ext(file)
	return ext == ".yaml" || ext == ".yml"
}

// ParseFile reads all records of a file. With an error it still gives the
// records that are well formed, so that one broken document does not stop the
// other apps. A file without records gives none.
func ParseFile(file string, data []byte) ([]Record, error) {
	src, err := parseSource(file, data)
	if err != nil {
		return nil, err
	}
	var records []Record
	var errs []error
	seen := map[string]bool{}
	for i, doc := range src.docs {
		manifest, err := src.application(doc)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if manifest == nil {
			continue
		}
		record, err := manifest.record()
		if err == nil && seen[record.App] {
			err = src.errorAt(manifest.name, "the app %q is declared twice in this file; keep one", record.App)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		seen[record.App] = true
		record.Document = i
		records = append(records, record)
	}
	return records, errors.Join(errs...)
}

var (
	labelForm  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	targetForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)
)

// ParseApp accepts an app's name: a DNS-1123 label, as the name becomes part of
// Kubernetes names and of image names.
func ParseApp(s string) (string, error) {
	if !labelForm.MatchString(s) {
		return "", step.Invalidf("parsing the app name %q: want a DNS-1123 label: lower-case letters, digits and -, starting and ending with a letter or digit, at most 63 characters", step.Clip(s))
	}
	return s, nil
}

// ParseTarget accepts the name of a Dockerfile's stage.
func ParseTarget(s string) (string, error) {
	if !targetForm.MatchString(s) {
		return "", step.Invalidf("parsing the target %q: want the name of a stage: letters, digits and _.-, at most 63", step.Clip(s))
	}
	return s, nil
}

// record reads the fields of an application.
func (m *manifest) record() (Record, error) {
	r := Record{File: m.src.file}
	var errs []error
	check := func(at *yaml.Node, what string, err error) {
		if err != nil {
			errs = append(errs, m.src.errorAt(at, "%s: %w", what, err))
		}
	}
	var err error

	r.App, err = ParseApp(m.name.Value)
	check(m.name, "metadata.name", err)

	// annotation calls read with the value of an annotation that is there.
	annotation := func(key string, read func(string) error) {
		node, err := m.annotation(key)
		if err != nil {
			errs = append(errs, err)
			return
		}
		if node == nil {
			return
		}
		// Values become parameters of Workflows, whose templates these would begin.
		if strings.Contains(node.Value, "{{") && key != AnnotationHold {
			check(node, "annotation "+key, step.Invalidf("it holds {{, the mark of a Workflow's template; choose another spelling"))
			return
		}
		check(node, "annotation "+key, read(node.Value))
	}
	annotation(AnnotationContext, func(s string) (err error) {
		r.Context, err = gitref.ParsePath(s)
		return err
	})
	r.Dockerfile = "Dockerfile"
	annotation(AnnotationDockerfile, func(s string) (err error) {
		r.Dockerfile, err = gitref.ParsePath(s)
		if err == nil && r.Dockerfile == "." {
			err = step.Invalidf("parsing the path %q: want a file inside the context", s)
		}
		return err
	})
	annotation(AnnotationInputs, func(s string) (err error) {
		r.Inputs, err = parseInputs(s)
		return err
	})
	r.Image = image.Name(r.App) // every DNS-1123 label is an image name
	annotation(AnnotationImage, func(s string) (err error) {
		r.Image, err = image.ParseName(s)
		return err
	})
	r.BuildArgs = buildarg.Args{}
	annotation(AnnotationBuildArgs, func(s string) (err error) {
		r.BuildArgs, err = buildarg.Parse(s)
		return err
	})
	annotation(AnnotationTarget, func(s string) (err error) {
		r.Target, err = ParseTarget(s)
		return err
	})
	annotation(AnnotationHold, func(s string) error {
		r.Hold = OneLine(s)
		if r.Hold == "" {
			r.Hold = "no reason given"
		}
		return nil
	})
	annotation(AnnotationRollbackOf, func(s string) (err error) {
		r.RollbackOf, err = gitref.ParseSourceKey(s)
		return err
	})
	annotation(AnnotationRevision, func(s string) (err error) {
		r.Revision, err = gitref.ParseRevision(s)
		return err
	})
	annotation(AnnotationSourceKey, func(s string) (err error) {
		r.SourceKey, err = gitref.ParseSourceKey(s)
		return err
	})
	if r.Revision == "" && r.SourceKey != "" && len(errs) == 0 {
		node, _ := m.annotation(AnnotationSourceKey)
		check(node, "annotation "+AnnotationSourceKey, errors.New("it stands without "+AnnotationRevision+"; remove it, or restore both"))
	}
	if len(errs) > 0 {
		return Record{}, errors.Join(errs...)
	}

	if node, err := m.src.scalar(m.source, "repoURL"); err != nil {
		errs = append(errs, err)
	} else if node != nil {
		r.SourceRepoURL = node.Value
	}
	if node, err := m.src.scalar(m.source, "targetRevision"); err != nil {
		errs = append(errs, err)
	} else if node != nil {
		r.TargetRevision = node.Value
	}
	slot, err := m.imageSlot(r.Image)
	if err != nil {
		return Record{}, errors.Join(append(errs, err)...)
	}
	if slot.value != nil {
		digest := slot.value.Value
		ok := slot.helm && digest != ""
		if !slot.helm {
			_, digest, ok = strings.Cut(digest, "@")
		}
		if ok {
			r.Digest, err = image.ParseDigest(digest)
			check(slot.value, "image", err)
		}
	}
	return r, errors.Join(errs...)
}

// parseInputs reads a comma-separated list of paths.
func parseInputs(s string) ([]gitref.Path, error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	var paths []gitref.Path
	seen := map[gitref.Path]bool{}
	for item := range strings.SplitSeq(s, ",") {
		p, err := gitref.ParsePath(strings.TrimSpace(item))
		if err != nil {
			return nil, err
		}
		if seen[p] {
			return nil, step.Invalidf("parsing the path %q: it is listed twice; keep one", p)
		}
		seen[p] = true
		paths = append(paths, p)
	}
	return paths, nil
}

// OneLine makes text from a person fit for one line of a log, a table or a
// commit message: every control or format character and every run of white
// space becomes one space, and it ends after 200 characters.
func OneLine(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	if runes := []rune(s); len(runes) > 200 {
		s = strings.TrimSpace(string(runes[:200])) + "…"
	}
	return s
}

// isOurs reports whether an entry of kustomize.images is the one for name, in
// any form that Argo CD reads, [name=]newname[:tag][@digest]: citation,
// citation:tag, citation=registry:80/citation:tag, registry:80/citation@sha256:….
func isOurs(entry string, name image.Name) bool {
	given, _, renames := strings.Cut(entry, "=")
	if !renames {
		given = image.Untagged(entry)
	}
	if given == string(name) {
		return true
	}
	repository, err := image.ParseRepository(given)
	return err == nil && repository.Name == name
}
