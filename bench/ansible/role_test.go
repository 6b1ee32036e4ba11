package ansible_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"fabrique/bench/binaries"
	"fabrique/bench/images"
	"fabrique/bench/parts"
	"fabrique/bench/script"
	"fabrique/steps/record"
)

func TestMain(m *testing.M) { parts.Main(m) }

// node is this machine as the role sees it, with folders of its own to install
// into, and a project for it to build.
type node struct {
	t       *testing.T
	gitea   *parts.GiteaServer
	project parts.Project
	name    string
	root    string         // where the role installs
	vars    map[string]any // of the role
}

func newNode(t *testing.T, name string) *node {
	t.Helper()
	n := &node{t: t, gitea: parts.Gitea(t), name: name, root: t.TempDir()}
	parts.Registry(t)
	if _, err := images.Busybox.Push(t.Context(), parts.RegistryAddress); err != nil {
		t.Fatal(err)
	}
	var err error
	if n.project, err = n.gitea.NewProject(t.Context(), name+"/atlas", name+"-cluster/apps"); err != nil {
		t.Fatal(err)
	}
	n.vars = map[string]any{
		"platform_build_images_fabrique": filepath.Join(binaries.Dir(t), "fabrique"),
		"platform_build_images_program":  filepath.Join(n.root, "fabrique"),
		"platform_build_images_folder":   filepath.Join(n.root, "etc"),
		"platform_build_images_delay":    1,
		"platform_build_images_poll":     1,
		"platform_build_images_config": map[string]any{
			"gitea":    map[string]any{"url": parts.GiteaURL},
			"source":   map[string]any{"repository": n.project.Source},
			"apps":     map[string]any{"repository": n.project.Apps},
			"registry": map[string]any{"address": "registry:80", "plainHTTP": true},
			"builder":  map[string]any{"address": parts.BuildKit(t).Address},
		},
		"platform_build_images_reader_token": n.project.Reader.Reveal(),
		"platform_build_images_writer_token": n.project.Writer.Reveal(),
	}
	return n
}

// push makes the apps, each with its Dockerfile, the content of the source.
func (n *node) push(dockerfiles map[string]string) {
	n.t.Helper()
	tree := fstest.MapFS{}
	for app, text := range dockerfiles {
		tree[app+"/Dockerfile"] = &fstest.MapFile{Data: []byte(text)}
	}
	if _, err := n.gitea.PushTree(n.t.Context(), n.project.Source, "main", tree, "Change it"); err != nil {
		n.t.Fatal(err)
	}
}

// declare pushes a record for each app.
func (n *node) declare(apps ...string) {
	n.t.Helper()
	tree := fstest.MapFS{}
	for _, app := range apps {
		tree[app+".yaml"] = &fstest.MapFile{Data: fmt.Appendf(nil, `apiVersion: argoproj.io/v1alpha1
kind: Application
metadata:
  name: %s
  annotations:
    fabrique/context: %s
    fabrique/image: %s/%s
spec:
  source:
    repoURL: %s
    path: %s
`, app, app, n.name, app, n.project.SourceURL(), app)}
	}
	if _, err := n.gitea.PushTree(n.t.Context(), n.project.Apps, "main", tree, "Declare them"); err != nil {
		n.t.Fatal(err)
	}
}

// played is the outcome of a play.
type played struct {
	output  string
	code    int
	changed string // of the recap
}

var changedForm = regexp.MustCompile(`(?m)^node +: ok=\d+ +changed=(\d+) `)

// play runs the example's playbook against this machine. Whatever comes of it, no
// token stands in what it prints.
func (n *node) play(args ...string) played {
	n.t.Helper()
	return n.watch(func(string) {}, args...)
}

// watch is play with each line of the output given to see, as it comes.
func (n *node) watch(see func(line string), args ...string) played {
	n.t.Helper()
	dir := n.t.TempDir()
	vars, err := json.Marshal(n.vars)
	if err != nil {
		n.t.Fatal(err)
	}
	// Without ansible_async_dir one side takes it from HOME, the other from the user.
	inventory := fmt.Sprintf(`image_builder:
  hosts:
    node: {ansible_connection: local, ansible_python_interpreter: "{{ ansible_playbook_python }}", ansible_async_dir: %s}
`, filepath.Join(dir, "async"))
	for name, content := range map[string]string{"vars.json": string(vars), "inventory.yml": inventory} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			n.t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(n.t.Context(), "ansible-playbook", append([]string{
		"-i", filepath.Join(dir, "inventory.yml"), "-e", "@" + filepath.Join(dir, "vars.json"), "site.yml",
	}, args...)...)
	cmd.Env = environment(dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	var text strings.Builder
	for reader := bufio.NewReader(out); ; {
		line, err := reader.ReadString('\n')
		text.WriteString(line)
		see(line)
		if err != nil {
			break
		}
	}
	p := played{output: text.String()}
	var failure *exec.ExitError
	if err := cmd.Wait(); errors.As(err, &failure) {
		p.code = failure.ExitCode()
	} else if err != nil {
		n.t.Fatal(err)
	}
	if found := changedForm.FindStringSubmatch(p.output); found != nil {
		p.changed = found[1]
	}
	script.Check(n.t.Errorf, p.output, n.project.Reader, n.project.Writer)
	return p
}

func environment(home string) []string {
	return append(os.Environ(), "HOME="+home, "ANSIBLE_HOME="+home, "ANSIBLE_LOCAL_TEMP="+home,
		"TMPDIR="+home, "LC_ALL=C.UTF-8", "ANSIBLE_NOCOLOR=1", "NO_COLOR=1")
}

// wants checks a play's exit code, how many tasks changed something ("+" for any),
// and what it says.
func (n *node) wants(p played, code int, changed string, says ...string) {
	n.t.Helper()
	if p.code != code {
		n.t.Errorf("exit code %d, want %d", p.code, code)
	}
	if changed == "+" && (p.changed == "0" || p.changed == "") || changed != "+" && changed != p.changed {
		n.t.Errorf("changed=%s, want %s", p.changed, changed)
	}
	for _, text := range says {
		if !strings.Contains(p.output, text) {
			n.t.Errorf("it does not say %q", text)
		}
	}
	if n.t.Failed() {
		n.t.Fatalf("the play:\n%s", p.output)
	}
}

// state is all that a play may change: the node's files with their modes, the heads
// of the repositories, the registry's tags.
func (n *node) state() map[string]string {
	n.t.Helper()
	state := map[string]string{}
	if err := filepath.WalkDir(n.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			state[path] = fmt.Sprint(info.Mode(), info.ModTime())
		}
		return err
	}); err != nil {
		n.t.Fatal(err)
	}
	for _, repo := range []string{n.project.Source, n.project.Apps} {
		heads, err := n.gitea.Git(n.t.Context(), n.root, "ls-remote", parts.CloneURL(repo))
		if err != nil {
			n.t.Fatal(err)
		}
		state[repo] = heads
	}
	state["registry"] = strings.Join(manifests(n.t), "\n")
	return state
}

// manifests gives all that the registry stores.
func manifests(t *testing.T) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(filepath.Join(parts.Dir(), "registry"), func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		found = append(found, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// deployed gives the digest in an app's record, which the registry must have.
func (n *node) deployed(app string) string {
	n.t.Helper()
	dir := n.t.TempDir()
	if _, err := n.gitea.Git(n.t.Context(), dir, "clone", "--quiet", parts.CloneURL(n.project.Apps), "."); err != nil {
		n.t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, app+".yaml"))
	if err != nil {
		n.t.Fatal(err)
	}
	records, err := record.ParseFile(app+".yaml", data)
	if err != nil || len(records) != 1 {
		n.t.Fatalf("%v, %v", records, err)
	}
	digest := string(records[0].Digest)
	if digest != "" {
		ref, err := name.NewDigest(parts.RegistryAddress+"/"+n.name+"/"+app+"@"+digest, name.Insecure)
		if err != nil {
			n.t.Fatal(err)
		}
		if _, err := remote.Head(ref, remote.WithContext(n.t.Context())); err != nil {
			n.t.Errorf("the record's image: %v", err)
		}
	}
	return digest
}

const (
	base = "FROM registry:80/base/busybox:latest\n"
	good = base + "COPY Dockerfile /\n"
)

// A check changes nothing and says what is due; the first run does it, the second
// has nothing to do, and a check agrees.
func TestIdempotent(t *testing.T) {
	n := newNode(t, "idempotent")
	n.push(map[string]string{"one": good, "two": good})
	n.declare("one", "two")

	before := n.state()
	n.wants(n.play("--check"), 0, "+", "one: would build", "two: would build", "never built")
	if diff := cmp.Diff(before, n.state()); diff != "" {
		t.Errorf("--check changed (-before +after):\n%s", diff)
	}
	n.wants(n.play(), 0, "+", "changed: [node] => (item=one)", "changed: [node] => (item=two)")
	first := map[string]string{"one": n.deployed("one"), "two": n.deployed("two")}
	if first["one"] == "" || first["two"] == "" {
		t.Errorf("the records have the digests %v", first)
	}
	for name, want := range map[string]fs.FileMode{
		"fabrique": 0o755, "etc": fs.ModeDir | 0o700, "etc/fabrique.yaml": 0o600,
		"etc/secrets": fs.ModeDir | 0o700, "etc/secrets/reader-token": 0o600, "etc/secrets/writer-token": 0o600,
	} {
		if info, err := os.Stat(filepath.Join(n.root, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", name, info, err, want)
		}
	}

	before = n.state()
	n.wants(n.play(), 0, "0", "one: not due", "up to date")
	n.wants(n.play("--check"), 0, "0", "two: not due")
	if diff := cmp.Diff(before, n.state()); diff != "" {
		t.Errorf("the second run changed (-before +after):\n%s", diff)
	}

	// New source of one app. The check counts the comparison alone.
	n.push(map[string]string{"one": good + "LABEL new=1\n", "two": good})
	n.wants(n.play("--check"), 0, "1", "one: would build", "source changed", "two: not due")
	n.vars["platform_build_images_apps"] = []string{"two"}
	n.wants(n.play(), 0, "0", "two: not due")
	n.vars["platform_build_images_apps"] = []string{"one"}
	n.wants(n.play(), 0, "1", "changed: [node] => (item=one)")
	if n.deployed("one") == first["one"] || n.deployed("two") != first["two"] {
		t.Errorf("after a change of one alone: %s and %s, before %v", n.deployed("one"), n.deployed("two"), first)
	}
}

// A Dockerfile that fails is named with its last words, which nobody takes for a
// template, and is not tried again; nor is a broken record. The other app is built.
func TestSourceAtFault(t *testing.T) {
	n := newNode(t, "fault")
	n.push(map[string]string{"bad": base + "RUN sleep 3; echo last {{7*7}} words; false\n", "good": good})
	n.declare("bad", "good", "lost")
	p := n.play()
	n.wants(p, 2, "+", "ASYNC POLL on node", "bad: exit code 3 (the source is at fault", "last {{7*7}} words\\n", "\\nlost: exit code 3", "changed: [node] => (item=good)")
	if strings.Contains(p.output, "RETRYING") {
		t.Errorf("it was tried again:\n%s", p.output)
	}
	if n.deployed("bad") != "" || n.deployed("good") == "" {
		t.Errorf("deployed: bad %q, good %q", n.deployed("bad"), n.deployed("good"))
	}
	n.wants(n.play("--check"), 2, "1", "bad: would build", "good: not due", "lost: exit code 3")
}

// What a retry may mend is tried again, and then said.
func TestRetry(t *testing.T) {
	n := newNode(t, "retry")
	n.push(map[string]string{"app": good})
	n.declare("app")
	stop := func(p *parts.Process) {
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	start := func(p *parts.Process) {
		if err := p.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for name, part := range map[string]*parts.Process{"Gitea": n.gitea.Process, "buildkitd": parts.BuildKit(t).Process} {
		stop(part)
		p := n.play()
		start(part)
		n.wants(p, 2, p.changed, "RETRYING", "exit code 1 (a retry may mend it, but did not)")
		if name == "buildkitd" && !strings.Contains(p.output, "app: exit code 1") {
			t.Errorf("%s is gone: the app is not named:\n%s", name, p.output)
		}
	}
	stop(n.gitea.Process)
	n.wants(n.watch(func(line string) {
		if strings.Contains(line, "RETRYING") {
			start(n.gitea.Process)
		}
	}), 0, "1", "changed: [node] => (item=app)")
}

// Whatever is wrong with the variables is said with the exit code's meaning, once, and
// without a token, however much is asked to be shown.
func TestBadInput(t *testing.T) {
	for name, c := range map[string]struct {
		change func(vars map[string]any)
		says   string
	}{
		"token": {func(vars map[string]any) {
			vars["platform_build_images_reader_token"] = strings.Repeat("5ec2e7", 6) + "0000"
		}, "exit code 2 (bad input or configuration, a retry is pointless): fabrique: reading the branches of"},
		"no token":      {func(vars map[string]any) { delete(vars, "platform_build_images_writer_token") }, "missing required arguments: platform_build_images_writer_token"},
		"no such app":   {func(vars map[string]any) { vars["platform_build_images_apps"] = []string{"--help"} }, "--help"},
		"shell":         {func(vars map[string]any) { vars["platform_build_images_apps"] = []string{"$(touch /x);`id`"} }, "$(touch /x);`id`"},
		"unknown field": {func(vars map[string]any) { vars["platform_build_images_config"].(map[string]any)["nope"] = 1 }, "nope"},
		"value": {func(vars map[string]any) {
			vars["platform_build_images_config"].(map[string]any)["author"] = map[string]any{"email": "a\nsource: {repository: x/y}"}
		}, "author.email"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "input-"+strings.ReplaceAll(name, " ", "-"))
			n.push(map[string]string{"app": good})
			n.declare("app")
			c.change(n.vars)
			p := n.play("-vvv", "--diff")
			n.wants(p, 2, p.changed, c.says)
			if strings.Contains(p.output, "RETRYING") {
				t.Errorf("it was tried again:\n%s", p.output)
			}
			if strings.Contains(p.output, "5ec2e7") {
				t.Errorf("the token stands in the output:\n%s", p.output)
			}
		})
	}
}

// The examples are whole, and the role passes ansible-lint's strictest profile.
func TestLint(t *testing.T) {
	for _, args := range [][]string{
		{"ansible-playbook", "--syntax-check", "-i", "inventory.example.yml", "-e", "@secrets.yml.example", "site.yml"},
		{"ansible-lint", "--offline", "--strict", "--profile", "production", "site.yml", "roles"},
	} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Env = environment(t.TempDir())
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			t.Errorf("%v: %v\n%s", args, err, &out)
		}
	}
}
