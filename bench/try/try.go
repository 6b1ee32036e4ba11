// Package try shows the first step (adr-0095 §1.a) from beginning to end with
// real parts: git push, fabrique build, the digest in cluster/apps, and the image
// that it names running. Every claim it prints is checked; one that does not hold
// ends it with an error.
package try

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"fabrique/bench/images"
	"fabrique/bench/parts"
	"fabrique/bench/runimage"
	"fabrique/bench/sample"
	"fabrique/manifests/buildkitd"
	"fabrique/steps/chain"
	"fabrique/steps/config"
	"fabrique/steps/record"
	"fabrique/steps/secret"
)

// Names of the two repositories, as in the ADR's examples.
const (
	source = "atlas/atlas"
	apps   = "cluster/apps"
)

// demo is one run of the demonstration.
type demo struct {
	out      io.Writer
	fabrique string // the program
	dir      string // with fabrique.yaml, the tokens and the clones
	started  time.Time
	gitea    *parts.GiteaServer
	project  parts.Project
	config   config.Config
}

// Run shows it all on out. It must run inside the namespaces of package parts.
func Run(ctx context.Context, fabrique string, out io.Writer) error {
	program, err := filepath.Abs(fabrique)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(parts.Dir(), "try-")
	if err != nil {
		return err
	}
	d := &demo{out: out, fabrique: program, dir: dir, started: time.Now()}
	for _, act := range []struct {
		title string
		play  func(context.Context) error
	}{
		{"Gitea, a registry on plain HTTP and buildkitd with runc start on this machine", d.startParts},
		{"A person pushes the source and declares two apps", d.pushAll},
		{"fabrique status: both apps are due", d.status},
		{"fabrique build: clone, build, push, read the digest, write it back", d.buildAll},
		{"What appeared in " + apps, d.showDiff},
		{"fabrique build again: nothing to do", d.buildAgain},
		{"A push that touches one app builds one app", d.pushOne},
		{"The images run, pulled by the digests in " + apps, d.runImages},
	} {
		fmt.Fprintf(out, "\n== %s  [%s]\n\n", act.title, time.Since(d.started).Round(time.Second))
		if err := act.play(ctx); err != nil {
			return fmt.Errorf("showing %q: %w", act.title, err)
		}
	}
	fmt.Fprintf(out, "\n== Done in %s. Everything has been stopped and removed again.\n", time.Since(d.started).Round(time.Second))
	return nil
}

func (d *demo) startParts(ctx context.Context) (err error) {
	if d.gitea, err = parts.StartGitea(ctx); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "Gitea      %s\n", d.gitea.URL)
	registry, err := parts.StartRegistry(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "registry   %s\n", registry.Address)
	if d.project, err = d.gitea.NewProject(ctx, source, apps); err != nil {
		return err
	}
	if err := d.configure(""); err != nil {
		return err
	}
	toml, err := buildkitd.Generate(d.config)
	if err != nil {
		return err
	}
	daemon, err := parts.StartBuildKit(ctx, string(toml))
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "buildkitd  with the buildkitd.toml that \"fabrique config buildkitd\" prints\n")
	for _, base := range []images.Image{images.Busybox, images.Debian} {
		ref, err := base.Push(ctx, registry.Address)
		if err != nil {
			return err
		}
		fmt.Fprintf(d.out, "base image %s\n", ref)
	}
	return d.configure(daemon.Address)
}

// configure writes fabrique.yaml and the token files, and reads them as the
// program will.
func (d *demo) configure(builder string) (err error) {
	for name, token := range map[string]secret.Secret{"reader": d.project.Reader, "writer": d.project.Writer} {
		if err := os.WriteFile(filepath.Join(d.dir, name+"-token"), []byte(token.Reveal()+"\n"), 0o600); err != nil {
			return err
		}
	}
	if builder != "" {
		builder = "  address: " + builder + "\n"
	}
	file := filepath.Join(d.dir, config.FileName)
	if err := os.WriteFile(file, fmt.Appendf(nil, `gitea:
  url: %s
  reader:
    tokenFile: reader-token
  writer:
    tokenFile: writer-token
source:
  repository: %s
apps:
  repository: %s
registry:
  address: registry:80
  plainHTTP: true
builder:
%s  timeout: 30m
author:
  name: Fabrique
  email: fabrique@example.org
`, d.gitea.URL, source, apps, builder), 0o644); err != nil {
		return err
	}
	d.config, err = config.Load(file)
	return err
}

func (d *demo) pushAll(ctx context.Context) error {
	for _, repo := range []string{source, apps} {
		dir := d.clone(repo)
		files := sample.Atlas()
		if repo == apps {
			files = sample.Apps()
		}
		if err := os.CopyFS(dir, files); err != nil {
			return err
		}
		if err := d.git(ctx, dir, "init", "--quiet"); err != nil {
			return err
		}
		if err := d.git(ctx, dir, "remote", "add", "origin", parts.CloneURL(repo)); err != nil {
			return err
		}
		if err := d.push(ctx, dir, "Begin"); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) status(ctx context.Context) error {
	out, err := d.run(ctx, "status")
	if err != nil {
		return err
	}
	if strings.Count(out, "never built") != 2 {
		return fmt.Errorf("want two apps that were never built")
	}
	return nil
}

func (d *demo) buildAll(ctx context.Context) error {
	out, err := d.run(ctx, "build")
	if err != nil {
		return err
	}
	if !strings.Contains(out, "\nchanged") {
		return fmt.Errorf("want it to say changed")
	}
	return nil
}

func (d *demo) showDiff(ctx context.Context) error {
	dir := d.clone(apps)
	if err := d.git(ctx, dir, "pull", "--quiet", "origin", "main"); err != nil {
		return err
	}
	return d.git(ctx, dir, "log", "--patch", "--reverse", "--format=commit %h by %an%n%n%w(0,4,4)%B", "-2")
}

func (d *demo) buildAgain(ctx context.Context) error {
	out, err := d.run(ctx, "build")
	if err != nil {
		return err
	}
	if !strings.Contains(out, "\nunchanged") {
		return fmt.Errorf("want it to say unchanged")
	}
	return nil
}

// greeting is what the second push puts into the page.
const greeting = "Hello again from the second push"

func (d *demo) pushOne(ctx context.Context) error {
	dir := d.clone(source)
	if err := os.WriteFile(filepath.Join(dir, "web", "hello", "index.html"), []byte("<!doctype html>\n<title>hello</title>\n<p>"+greeting+"</p>\n"), 0o644); err != nil {
		return err
	}
	if err := d.push(ctx, dir, "Greet again"); err != nil {
		return err
	}
	out, err := d.run(ctx, "build", "--json")
	if err != nil {
		return err
	}
	var report chain.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return fmt.Errorf("reading the report: %w", err)
	}
	results := map[string]string{}
	for _, a := range report.Apps {
		results[a.App] = a.Result
	}
	if !report.Changed || results["hello"] != "updated" || results["citation"] != chain.NotDue {
		return fmt.Errorf("want hello updated and citation not due, got %v", results)
	}
	return nil
}

func (d *demo) runImages(ctx context.Context) error {
	dir := d.clone(apps)
	if err := d.git(ctx, dir, "pull", "--quiet", "origin", "main"); err != nil {
		return err
	}
	grpc := net.JoinHostPort(parts.Address(), "4266")
	if err := d.runImage(ctx, dir, "citation", runimage.Options{Env: []string{"GRPC_ADDRESS=" + grpc}}, func(c *runimage.Container) error {
		if err := c.WaitServing(ctx, grpc, "DagsterApi"); err != nil {
			return err
		}
		fmt.Fprintf(d.out, "  its gRPC health service answers: SERVING\n%s\n", indent(c.Log()))
		return nil
	}); err != nil {
		return err
	}
	web := net.JoinHostPort(parts.Address(), "8080")
	return d.runImage(ctx, dir, "hello", runimage.Options{Args: []string{web}}, func(c *runimage.Container) error {
		page, err := c.WaitHTTP(ctx, "http://"+web+"/")
		if err != nil {
			return err
		}
		if !strings.Contains(string(page), greeting) {
			return fmt.Errorf("the page is not that of the second push:\n%s", page)
		}
		fmt.Fprintf(d.out, "  its page holds the second push's text: %s\n", greeting)
		return nil
	})
}

// runImage runs the image that the app's record names while check looks at it.
func (d *demo) runImage(ctx context.Context, records, app string, o runimage.Options, check func(*runimage.Container) error) error {
	file := app + ".yaml"
	data, err := os.ReadFile(filepath.Join(records, file))
	if err != nil {
		return err
	}
	found, err := record.ParseFile(file, data)
	if err != nil {
		return err
	}
	if len(found) != 1 || found[0].Digest == "" {
		return fmt.Errorf("the record %s has no digest", file)
	}
	o.Image = d.config.Repository(found[0].Image).At(found[0].Digest)
	o.Env = append(o.Env, "REVISION="+string(found[0].Revision))
	fmt.Fprintf(d.out, "%s\n", o.Image)
	container, err := runimage.Start(ctx, o)
	if err != nil {
		return err
	}
	if err := check(container); err != nil {
		container.Stop()
		return fmt.Errorf("running %s: %w\n%s", o.Image, err, container.Log())
	}
	return container.Stop()
}

// clone gives the folder with a repository's files.
func (d *demo) clone(repo string) string {
	return filepath.Join(d.dir, strings.ReplaceAll(repo, "/", "-"))
}

// push commits all of a clone and pushes it.
func (d *demo) push(ctx context.Context, dir, message string) error {
	if err := d.git(ctx, dir, "add", "--all"); err != nil {
		return err
	}
	if err := d.git(ctx, dir, "commit", "--quiet", "--message", message); err != nil {
		return err
	}
	return d.git(ctx, dir, "push", "origin", "main")
}

// git shows a git command and what it prints.
func (d *demo) git(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Env = dir, parts.GitEnv(d.gitea.Admin.Token)
	_, err := d.show(cmd, "git")
	return err
}

// run shows a fabrique command and what it prints, and gives its standard output.
func (d *demo) run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, d.fabrique, args...)
	cmd.Dir = d.dir
	return d.show(cmd, "fabrique")
}

func (d *demo) show(cmd *exec.Cmd, name string) (string, error) {
	fmt.Fprintf(d.out, "$ %s %s\n", name, strings.Join(cmd.Args[1:], " "))
	var stdout bytes.Buffer
	cmd.Stdout = io.MultiWriter(d.out, &stdout)
	cmd.Stderr = os.Stderr // a terminal gets BuildKit's live display
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("running %s %s: %w", name, strings.Join(cmd.Args[1:], " "), err)
	}
	return stdout.String(), nil
}

func indent(text string) string {
	return "  | " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  | ")
}
