package main

import (
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"fabrique/bench/parts"
	"fabrique/bench/script"
)

func TestMain(m *testing.M) { parts.Main(m) }

func TestScripts(t *testing.T) {
	g := parts.Gitea(t)
	project, err := g.NewProject(t.Context(), "reconcile/source", "reconcile/apps")
	if err != nil {
		t.Fatal(err)
	}
	empty, err := g.NewProject(t.Context(), "reconcile-empty/source", "reconcile-empty/apps")
	if err != nil {
		t.Fatal(err)
	}
	push := func(repo string, tree fstest.MapFS) string {
		id, err := g.PushTree(t.Context(), repo, "main", tree, "one more")
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text), Mode: 0o644} }
	record := func(name, context string) *fstest.MapFile {
		return file("apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata:\n  name: " + name + "\n  annotations:\n    fabrique/context: " + context + "\nspec:\n  source:\n    path: x\n")
	}
	source := fstest.MapFS{"one/Dockerfile": file("FROM scratch\n")}
	older := push(project.Source, source)
	source["README"] = file("hi\n")
	head := push(project.Source, source)
	push(project.Apps, fstest.MapFS{"one.yaml": record("one", "one"), "lost.yaml": record("lost", "lost"), "broken.yaml": record("../x", "one")})

	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(project.Reader.Reveal()), 0o600); err != nil {
		t.Fatal(err)
	}
	script.Run(t, map[string]string{
		"SOURCE": project.SourceURL(), "APPS": project.AppsURL(), "EMPTY_SOURCE": empty.SourceURL(), "EMPTY_APPS": empty.AppsURL(),
		"HEAD": head, "OLDER": older, "TOKEN_FILE": token, "TOKEN": project.Reader.Reveal(),
	}, project.Reader)
}
