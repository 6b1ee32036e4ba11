package chain_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"fabrique/bench/images"
	"fabrique/bench/parts"
	"fabrique/steps/chain"
	"fabrique/steps/config"
	"fabrique/steps/step"
)

func TestMain(m *testing.M) { parts.Main(m) }

const password = "correct-horse-battery-staple"

func application(app, url string) *fstest.MapFile {
	return &fstest.MapFile{Data: fmt.Appendf(nil, `apiVersion: argoproj.io/v1alpha1
kind: Application
metadata:
  name: %s
  annotations:
    fabrique/context: %s
spec:
  source:
    repoURL: %s
    path: %s
`, app, app, url, app)}
}

// Four apps in one run: one that needs a build secret and gets it, one that
// asks for it and must not have it, one whose build fails, one that is held. None
// stops another, and neither the secret nor a token stands in anything written.
func TestRun(t *testing.T) {
	ctx := t.Context()
	gitea, buildkit := parts.Gitea(t), parts.BuildKit(t)
	parts.Registry(t)
	if _, err := images.Busybox.Push(ctx, "registry:80"); err != nil {
		t.Fatal(err)
	}
	project, err := gitea.NewProject(ctx, "chain/atlas", "chain-cluster/apps")
	if err != nil {
		t.Fatal(err)
	}
	const head = "FROM registry:80/base/busybox:latest\n"
	const needsSecret = head + "RUN --mount=type=secret,id=pip,required=true cat /run/secrets/pip && cat /run/secrets/pip | sha256sum > /sum\n"
	if _, err := gitea.PushTree(ctx, project.Source, "main", fstest.MapFS{
		"allowed/Dockerfile": {Data: []byte(needsSecret)},
		// Another instruction: BuildKit's cache does not look at a secret's content.
		"forbidden/Dockerfile": {Data: []byte(strings.Replace(needsSecret, "/sum", "/other", 1))},
		"broken/Dockerfile":    {Data: []byte(head + "RUN echo the reason is here; false\n")},
		"waiting/Dockerfile":   {Data: []byte(head)},
	}, "Begin"); err != nil {
		t.Fatal(err)
	}
	records := fstest.MapFS{}
	for _, app := range []string{"allowed", "forbidden", "broken", "waiting"} {
		records[app+".yaml"] = application(app, project.SourceURL())
	}
	if _, err := gitea.PushTree(ctx, project.Apps, "main", records, "Declare four apps"); err != nil {
		t.Fatal(err)
	}
	conf := configuration(t, project, buildkit.Address)

	var log, progress bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(&log, nil))
	if _, err := chain.Hold(ctx, logger, conf, "waiting", "not yet"); err != nil {
		t.Fatal(err)
	}
	report, err := chain.Run(ctx, logger, conf, chain.Options{Progress: &progress})
	if step.ExitCode(err) != step.ExitSource {
		t.Errorf("exit code %d, want 3: %v", step.ExitCode(err), err)
	}
	got := map[string]string{}
	for _, a := range report.Apps {
		got[a.App] = a.Result
	}
	want := map[string]string{"allowed": "updated", "forbidden": chain.Failed, "broken": chain.Failed, "waiting": chain.NotDue}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("results (-want +got):\n%s\n%v", diff, err)
	}
	if !report.Changed || !strings.Contains(err.Error(), "the reason is here") {
		t.Errorf("changed %v, error %v; want true, and the failing build's output", report.Changed, err)
	}
	if !strings.Contains(progress.String(), "2/2] RUN --mount=type=secret") {
		t.Errorf("the progress lacks the build's steps:\n%s", progress.String())
	}
	everything := log.String() + progress.String() + err.Error() + fmt.Sprintf("%+v", report)
	for name, text := range map[string]string{"the build secret": password, "the reader's token": project.Reader.Reveal(), "the writer's token": project.Writer.Reveal()} {
		if strings.Contains(everything, text) {
			t.Errorf("%s stands in what was written", name)
		}
	}

	t.Run("again", func(t *testing.T) {
		report, err := chain.Run(ctx, logger, conf, chain.Options{Apps: []string{"allowed"}})
		if err != nil || report.Changed {
			t.Errorf("changed %v, %v; want unchanged", report.Changed, err)
		}
	})
	t.Run("cut off", func(t *testing.T) {
		cut, cancel := context.WithCancel(ctx)
		defer cancel()
		report, err := chain.Run(cut, logger, conf, chain.Options{Stage: func(string, string) { cancel() }})
		if step.ExitCode(err) != step.ExitRetry || report.Changed {
			t.Errorf("changed %v, exit code %d, %v; want unchanged and exit code 1", report.Changed, step.ExitCode(err), err)
		}
	})
}

func configuration(t *testing.T, p parts.Project, builder string) config.Config {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"reader": p.Reader.Reveal(), "writer": p.Writer.Reveal(), "pip": password,
		config.FileName: fmt.Sprintf(`gitea: {url: "%s", reader: {tokenFile: reader}, writer: {tokenFile: writer}}
source: {repository: %s}
apps: {repository: %s}
registry: {address: "registry:80", plainHTTP: true}
builder:
  address: %s
  secrets: [{id: pip, file: pip, apps: [allowed]}]
`, parts.GiteaURL, p.Source, p.Apps, builder),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	conf, err := config.Load(filepath.Join(dir, config.FileName))
	if err != nil {
		t.Fatal(err)
	}
	return conf
}
