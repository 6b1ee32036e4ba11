package bundle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime/debug"
	"strings"

	"fabrique/steps/step"
)

// Module is a Go module at one version, and its files on this machine.
type Module struct {
	Path    string
	Version string
	Dir     string
}

// Modules are the Go modules that hold the operators' manifests, by the name of their
// bundle. Their archives lack symbolic links; nothing that is rendered needs one.
var modules = map[string]string{
	Workflows: "github.com/argoproj/argo-workflows/v3",
	Events:    "github.com/argoproj/argo-events",
}

// Version is a module's path and version, "path@v1.2.3".
type Version struct{ Path, Version string }

var versionForm = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)

// ParseVersion accepts "path@v1.2.3" of a module that is bundled. Exit code 2.
func ParseVersion(s string) (Version, error) {
	path, version, _ := strings.Cut(s, "@")
	if path != modules[Workflows] && path != modules[Events] {
		return Version{}, step.Invalidf("parsing the module %q: want %s@v… or %s@v…", step.Clip(s), modules[Workflows], modules[Events])
	}
	if !versionForm.MatchString(version) {
		return Version{}, step.Invalidf("parsing the module %q: %q is no version; want as in v1.2.3", step.Clip(s), step.Clip(version))
	}
	return Version{path, version}, nil
}

// Find gives the module at the version that this program is linked with, or at the
// wanted one, if there is one for it. The go program brings the archive to its module
// cache and checks it against the checksum database; for the linked version the
// checksum must be the program's own too.
//
// Errors: exit code 2 without the go program, when the build information lacks the
// module, and for an archive that is not the linked one; 1 for what the go program
// cannot download.
func Find(ctx context.Context, path string, wanted []Version) (Module, error) {
	version, sum := linked(path)
	for _, w := range wanted {
		if w.Path == path {
			version, sum = w.Version, ""
		}
	}
	if version == "" {
		return Module{}, step.Invalidf("finding the version of %s: this program does not say what it was built with; name it: --module %s@v…", path, path)
	}
	at := path + "@" + version
	program, err := exec.LookPath("go")
	if err != nil {
		return Module{}, step.Invalidf("finding %s: %w; the manifests come from Go modules: run this where Go is installed", at, err)
	}
	cmd := exec.CommandContext(ctx, program, "mod", "download", "-json", at)
	cmd.Dir = os.TempDir() // no module's own settings
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	var got struct{ Version, Dir, Sum, Error string }
	if decodeErr := json.Unmarshal(out, &got); decodeErr != nil && err == nil {
		err = decodeErr
	}
	if err != nil || got.Dir == "" {
		reason := strings.TrimSpace(got.Error + "\n" + said.String())
		return Module{}, step.Retryf("downloading %s with the go program: %w; it needs a module proxy, or the module in its cache", at, errors.Join(err, errors.New(step.Clip(reason))))
	}
	if sum != "" && got.Sum != sum {
		return Module{}, step.Invalidf("downloading %s: its checksum is %s, and this program was built from %s; clean the module cache (go clean -modcache)", at, got.Sum, sum)
	}
	return Module{path, version, got.Dir}, nil
}

// linked gives the version and the checksum of a module in this program, or nothing.
func linked(path string) (version, sum string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", ""
	}
	for _, dep := range info.Deps {
		if dep.Path == path && dep.Replace == nil {
			return dep.Version, dep.Sum
		}
	}
	return "", ""
}

func (m Module) String() string { return fmt.Sprintf("%s@%s", m.Path, m.Version) }
