// Package image parses image names, registry addresses, digests and platforms,
// each in one strict parser. All errors have exit code 2.
//
// The rules are those of the OCI distribution specification (repository
// names), of the OCI image specification (digests), and of Fabrique's own need
// for an explicit registry: a name is never completed to a public registry.
package image

import (
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"

	"fabrique/steps/gitref"
	"fabrique/steps/step"
)

// Registry is a registry's address, host:port ("registry:80").
type Registry string

var hostForm = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?$`)

// ParseRegistry accepts host:port. The port is required: clients read
// "registry/app" as a repository of a public registry.
func ParseRegistry(s string) (Registry, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", step.Invalidf("parsing the registry %q: want host:port, the port included, as in registry:80", step.Clip(s))
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", step.Invalidf("parsing the registry %q: %q is not a port between 1 and 65535", step.Clip(s), step.Clip(port))
	}
	if net.ParseIP(host) == nil && !hostForm.MatchString(host) {
		return "", step.Invalidf("parsing the registry %q: %q is not a host name", step.Clip(s), step.Clip(host))
	}
	return Registry(s), nil
}

// Name is an image's repository name inside the registry ("citation",
// "team/citation"), at most 63 characters.
type Name string

var nameForm = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)

// ParseName accepts a repository name as the OCI distribution specification
// has it, without a registry, tag or digest.
func ParseName(s string) (Name, error) {
	if len(s) > 63 {
		return "", step.Invalidf("parsing the image name %q: %d characters, at most 63 are allowed", step.Clip(s), len(s))
	}
	if !nameForm.MatchString(s) {
		return "", step.Invalidf("parsing the image name %q: want lower-case letters and digits, separated by one of . _ - /, without registry, tag or digest", step.Clip(s))
	}
	return Name(s), nil
}

// Repository is a name in a registry.
type Repository struct {
	Registry Registry
	Name     Name
}

// ParseRepository accepts "registry:80/citation".
func ParseRepository(s string) (Repository, error) {
	host, rest, ok := strings.Cut(s, "/")
	if !ok {
		return Repository{}, step.Invalidf("parsing the image %q: want registry:port/name", step.Clip(s))
	}
	registry, err := ParseRegistry(host)
	if err != nil {
		return Repository{}, fmt.Errorf("parsing the image %q: %w", step.Clip(s), err)
	}
	name, err := ParseName(rest)
	if err != nil {
		return Repository{}, err
	}
	return Repository{registry, name}, nil
}

func (r Repository) String() string { return string(r.Registry) + "/" + string(r.Name) }

// Tag gives the reference by the readable tag, registry:80/citation:<sha12>.
func (r Repository) Tag(revision gitref.Revision) string { return r.String() + ":" + revision.Short() }

// At gives the reference by digest, registry:80/citation@sha256:….
func (r Repository) At(d Digest) string { return r.String() + "@" + string(d) }

var tagForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)

// CheckReference wants a repository ([ParseRepository]) with a tag or a digest
// behind it.
func CheckReference(s string) error {
	name := Untagged(s)
	if _, err := ParseRepository(name); err != nil {
		return err
	}
	tag, digest, byDigest := strings.Cut(s[len(name):], "@")
	tag, tagged := strings.CutPrefix(tag, ":")
	switch {
	case !tagged && !byDigest:
		return step.Invalidf("parsing the image %q: want a tag or a digest behind it", step.Clip(s))
	case tagged && !tagForm.MatchString(tag):
		return step.Invalidf("parsing the image %q: %q is not a tag", step.Clip(s), step.Clip(tag))
	case byDigest:
		_, err := ParseDigest(digest)
		return err
	}
	return nil
}

// Untagged drops the tag and the digest of any reference, also of one that names
// no registry.
func Untagged(reference string) string {
	name, _, _ := strings.Cut(reference, "@")
	if colon := strings.LastIndex(name, ":"); colon > strings.LastIndex(name, "/") {
		return name[:colon]
	}
	return name
}

// Digest is "sha256:" and 64 lower-case hex digits.
type Digest string

var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// ParseDigest accepts a SHA-256 digest in its one canonical form.
func ParseDigest(s string) (Digest, error) {
	if !digestForm.MatchString(s) {
		return "", step.Invalidf("parsing the digest %q: want sha256: and 64 lower-case hex digits", step.Clip(s))
	}
	return Digest(s), nil
}

// Platform is "os/architecture" or "os/architecture/variant".
type Platform string

var platformForm = regexp.MustCompile(`^[a-z0-9]+/[a-z0-9_]+(/[a-z0-9]+)?$`)

// ParsePlatform accepts one platform as the OCI image specification names it.
func ParsePlatform(s string) (Platform, error) {
	if !platformForm.MatchString(s) {
		return "", step.Invalidf("parsing the platform %q: want os/architecture, as in linux/amd64", step.Clip(s))
	}
	return Platform(s), nil
}

// Labels that buildkit-build puts on every image and digest-inspect checks.
const (
	LabelRevision  = "org.opencontainers.image.revision" // OCI image spec, annotations
	LabelSourceKey = "fabrique.source-key"
)
