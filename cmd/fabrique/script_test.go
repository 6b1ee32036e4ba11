package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/rogpeppe/go-internal/testscript"

	"fabrique/bench/binaries"
	"fabrique/bench/images"
	"fabrique/bench/parts"
	"fabrique/bench/script"
	"fabrique/steps/secret"
)

func TestMain(m *testing.M) { parts.Main(m) }

// TestScripts runs the real program against the real parts. Each script has a
// project of its own: a source repository $SOURCE, an apps repository $APPS, the
// two users' tokens in secrets/, and a fabrique.yaml that names all of it.
//
// Commands beside testscript's own:
//
//	push REPO DIR      makes DIR the content of REPO with git push; the commit is in $HEAD
//	exits N CMD ARG... runs the program and wants exit code N
//	record FILE        copies a file of the apps repository to ./FILE
//	commits REPO N     wants N commits on the branch main
//	force REPO REV     force-pushes main to an older revision
//	upstream N IMAGE…  serves small images under these names; their registry is $UPSTREAM, N makes other ones
//	down               ends the last of them
//	lose FILE          takes the first image that the file names by digest out of its registry
func TestScripts(t *testing.T) {
	ctx := t.Context()
	gitea, buildkit := parts.Gitea(t), parts.BuildKit(t)
	parts.Registry(t)
	if _, err := images.Busybox.Push(ctx, "registry:80"); err != nil {
		t.Fatal(err)
	}
	programs := binaries.Dir(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			script := strings.TrimPrefix(filepath.Base(env.WorkDir), "script-")
			project, err := gitea.NewProject(ctx, script+"/atlas", script+"-cluster/apps")
			if err != nil {
				return err
			}
			env.Setenv("PATH", programs+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("SOURCE", project.Source)
			env.Setenv("SOURCE_URL", project.SourceURL())
			env.Setenv("APPS", project.Apps)
			env.Setenv("NAME", script)
			env.Setenv("BUILDER", buildkit.Address)
			env.Values["project"] = project
			env.Values["upstream"] = new(*http.Server)
			return configure(env.WorkDir, project, buildkit.Address)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"push": func(ts *testscript.TestScript, _ bool, args []string) {
				head, err := gitea.PushTree(ctx, args[0], "main", os.DirFS(ts.MkAbs(args[1])), "Change it")
				ts.Check(err)
				ts.Setenv("HEAD", head)
			},
			"exits": func(ts *testscript.TestScript, _ bool, args []string) {
				project := ts.Value("project").(parts.Project)
				script.Exits(ts, args, project.Reader, project.Writer)
			},
			"record": func(ts *testscript.TestScript, _ bool, args []string) {
				content, err := gitea.Git(ctx, checkout(ctx, ts, gitea, ts.Getenv("APPS")), "show", "HEAD:"+args[0])
				ts.Check(err)
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(content+"\n"), 0o644))
			},
			"upstream": func(ts *testscript.TestScript, _ bool, args []string) { upstream(ts, args) },
			"down": func(ts *testscript.TestScript, _ bool, _ []string) {
				ts.Check((*ts.Value("upstream").(**http.Server)).Close())
			},
			"lose": func(ts *testscript.TestScript, _ bool, args []string) {
				ref, err := name.NewDigest(byDigest.FindString(ts.ReadFile(args[0])), name.Insecure)
				ts.Check(err)
				ts.Check(remote.Delete(ref, remote.WithContext(ctx)))
			},
			"commits": func(ts *testscript.TestScript, _ bool, args []string) {
				count, err := gitea.Git(ctx, checkout(ctx, ts, gitea, args[0]), "rev-list", "--count", "HEAD")
				ts.Check(err)
				if count != args[1] {
					ts.Fatalf("%s has %s commits, want %s", args[0], count, args[1])
				}
			},
			"force": func(ts *testscript.TestScript, _ bool, args []string) {
				_, err := gitea.Git(ctx, checkout(ctx, ts, gitea, args[0]), "push", "--quiet", "--force", parts.CloneURL(args[0]), args[1]+":refs/heads/main")
				ts.Check(err)
			},
		},
	})
}

// configure writes fabrique.yaml and the token files into dir.
func configure(dir string, p parts.Project, builder string) error {
	if err := os.Mkdir(filepath.Join(dir, "secrets"), 0o700); err != nil {
		return err
	}
	for name, token := range map[string]secret.Secret{"reader": p.Reader, "writer": p.Writer} {
		if err := os.WriteFile(filepath.Join(dir, "secrets", name), []byte(token.Reveal()+"\n"), 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "fabrique.yaml"), fmt.Appendf(nil, `gitea:
  url: %s
  reader: {tokenFile: secrets/reader}
  writer: {tokenFile: secrets/writer}
source: {repository: %s}
apps: {repository: %s}
registry: {address: registry:80, plainHTTP: true}
builder: {address: %s}
`, parts.GiteaURL, p.Source, p.Apps, builder), 0o644)
}

// checkout clones a repository with its history into a new folder.
func checkout(ctx context.Context, ts *testscript.TestScript, g *parts.GiteaServer, repo string) string {
	dir, err := os.MkdirTemp(ts.MkAbs("."), ".checkout-")
	ts.Check(err)
	_, err = g.Git(ctx, dir, "clone", "--quiet", parts.CloneURL(repo), ".")
	ts.Check(err)
	return dir
}

var byDigest = regexp.MustCompile(`[a-z0-9.:/-]+@sha256:[0-9a-f]{64}`)

// upstream is the command of that name.
func upstream(ts *testscript.TestScript, args []string) {
	seed, err := strconv.ParseInt(args[0], 10, 64)
	ts.Check(err)
	listener, err := net.Listen("tcp", parts.Address()+":0")
	ts.Check(err)
	server := &http.Server{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	ts.Defer(func() { server.Close() })
	go server.Serve(listener)
	for i, image := range args[1:] {
		source, err := name.ParseReference(image)
		ts.Check(err)
		target, err := name.NewTag(listener.Addr().String()+"/"+source.Context().RepositoryStr()+":"+source.Identifier(), name.Insecure)
		ts.Check(err)
		index, err := images.SmallIndex(seed + int64(i))
		ts.Check(err)
		ts.Check(remote.WriteIndex(target, index))
	}
	*ts.Value("upstream").(**http.Server) = server
	ts.Setenv("UPSTREAM", "http://"+listener.Addr().String())
}
