// Package git runs the git program against one remote repository, closed off
// from everything that is not passed to it: no system, user or repository
// configuration, no hooks, no prompts, no redirects, no transport but HTTP, no
// file name or revision that could be read as an option or a pattern.
//
// The token travels in the environment of the child process, never in its
// arguments, and is taken out of every error.
package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fabrique/steps/gitref"
	"fabrique/steps/secret"
	"fabrique/steps/step"
)

// Remote is a repository on a server.
type Remote struct {
	url   string
	token secret.Secret
	held  *os.File
}

// Holding gives a Remote whose git processes, with all that they start, keep f
// open: a lock on it lasts until the last of them has ended, also when this
// process is killed before them.
func (r Remote) Holding(f *os.File) Remote {
	r.held = f
	return r
}

// NewRemote checks the address: http or https, a host, and no user
// information, as an address stands in logs and process lists.
func NewRemote(address string, token secret.Secret) (Remote, error) {
	// A password may hold any character, also those that end a URL's host.
	if at := strings.LastIndex(address, "@"); at >= 0 {
		return Remote{}, step.Invalidf("parsing the repository's URL %q: it holds credentials; pass a token by file or environment", "***"+address[at:])
	}
	u, err := url.Parse(address)
	if err != nil {
		return Remote{}, step.Invalidf("parsing the repository's URL %q: it is not a URL", address)
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return Remote{}, step.Invalidf("parsing the repository's URL %q: want http:// or https://", address)
	case u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") == "":
		return Remote{}, step.Invalidf("parsing the repository's URL %q: want scheme://host/owner/name.git", address)
	case strings.ContainsFunc(address, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return Remote{}, step.Invalidf("parsing the repository's URL %q: white space and control characters are not allowed", address)
	}
	return Remote{url: u.String(), token: token}, nil
}

// String gives the address.
func (r Remote) String() string { return r.url }

// remoteName is how the remote is called inside the local repository.
const remoteName = "origin"

// Repository is a local git folder, fed from a Remote.
type Repository struct {
	remote Remote
	dir    string // the git folder
	work   string // the work tree, empty for none
}

// Init makes an empty git folder in dir, for ids of the revision's length. A
// work tree of "" makes it bare.
func Init(ctx context.Context, remote Remote, dir, work string, revision gitref.Revision) (*Repository, error) {
	r := &Repository{remote, dir, work}
	format := "sha1"
	if len(revision) == 64 {
		format = "sha256"
	}
	_, err := run(ctx, remote, nil, "init", "--quiet", "--bare", "--object-format="+format, "--template=", "--initial-branch=none", dir)
	return r, err
}

// Open gives the Repository of an existing git folder.
func Open(remote Remote, dir, work string) *Repository { return &Repository{remote, dir, work} }

// Git runs a git command in the repository and gives its standard output. What
// it reads from standard input may be nil.
func (r *Repository) Git(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	where := []string{"--git-dir=" + r.dir}
	if r.work != "" {
		where = append(where, "--work-tree="+r.work)
	}
	return run(ctx, r.remote, stdin, append(where, args...)...)
}

// Fetch brings exactly the commit, without its history. With a filter
// ("blob:none") it brings only the objects that pass it.
//
// The commit id is asked for by name; a server that does not know it, or does
// not give it because no branch points at it, is an error with exit code 2 and
// nothing else is taken in its place.
func (r *Repository) Fetch(ctx context.Context, revision gitref.Revision, filter string) error {
	args := []string{"fetch", "--quiet", "--depth=1", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules"}
	if filter != "" {
		args = append(args, "--filter="+filter)
	}
	_, err := r.Git(ctx, nil, append(args, remoteName, string(revision))...)
	if err != nil {
		return fmt.Errorf("fetching commit %s from %s: %w", revision, r.remote, err)
	}
	kind, err := r.Git(ctx, nil, "cat-file", "-t", string(revision))
	if err != nil {
		return fmt.Errorf("fetching commit %s from %s: %w", revision, r.remote, err)
	}
	if k := strings.TrimSpace(string(kind)); k != "commit" {
		return step.Invalidf("fetching commit %s from %s: this id is a %s, not a commit", revision, r.remote, k)
	}
	return nil
}

// TreeEntry is a path in a commit's tree.
type TreeEntry struct {
	Mode string // "040000" folder, "100644" file, "120000" link, "160000" submodule
	ID   string // the object's id
	Path string
	Size int64 // of a file or link in bytes, from [Repository.Tree] only
}

// Modes of a [TreeEntry].
const (
	ModeFolder    = "040000"
	ModeLink      = "120000"
	ModeSubmodule = "160000"
)

// pathsPerCall keeps a command line below the kernel's limit: 1,024 bytes at
// most for each path, 2 MiB in all.
const pathsPerCall = 1000

// Entries looks up the paths in the revision's tree. A path that is not there
// has no entry. The root is asked for as ".".
func (r *Repository) Entries(ctx context.Context, revision gitref.Revision, paths []gitref.Path) (map[gitref.Path]TreeEntry, error) {
	found := make(map[gitref.Path]TreeEntry, len(paths))
	asked := make(map[gitref.Path]bool, len(paths))
	var named []string
	for _, p := range paths {
		if asked[p] {
			continue
		}
		asked[p] = true
		if p == "." {
			id, err := r.Git(ctx, nil, "rev-parse", "--verify", "--end-of-options", string(revision)+"^{tree}")
			if err != nil {
				return nil, err
			}
			found[p] = TreeEntry{Mode: ModeFolder, ID: strings.TrimSpace(string(id)), Path: "."}
			continue
		}
		named = append(named, string(p))
	}
	slices.Sort(named)
	for chunk := range slices.Chunk(named, pathsPerCall) {
		// Without -t a folder is left out when a path below it is asked for too;
		// with it, folders on the way to such a path and that path's neighbours
		// are listed as well.
		out, err := r.Git(ctx, nil, append([]string{"ls-tree", "-t", "-z", "--full-tree", string(revision), "--"}, chunk...)...)
		if err != nil {
			return nil, err
		}
		entries, err := parseTree(out)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if p := gitref.Path(e.Path); asked[p] {
				found[p] = e
			}
		}
	}
	return found, nil
}

// Tree lists everything below folder in the revision's tree, with sizes: the
// objects' own, before any conversion of line ends.
func (r *Repository) Tree(ctx context.Context, revision gitref.Revision, folder gitref.Path) ([]TreeEntry, error) {
	args := []string{"ls-tree", "-r", "-l", "-z", "--full-tree", string(revision)}
	if folder != "." {
		args = append(args, "--", string(folder)+"/")
	}
	out, err := r.Git(ctx, nil, args...)
	if err != nil {
		return nil, err
	}
	return parseTree(out)
}

func parseTree(out []byte) ([]TreeEntry, error) {
	var entries []TreeEntry
	for line := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if line == "" {
			continue
		}
		meta, path, ok := strings.Cut(line, "\t")
		fields := strings.Fields(meta)
		if !ok || len(fields) < 3 || len(fields) > 4 {
			return nil, fmt.Errorf("reading git's list of files: unexpected line %q", line)
		}
		e := TreeEntry{Mode: fields[0], ID: fields[2], Path: path}
		if len(fields) == 4 && fields[3] != "-" { // "-" for what is no file
			size, err := strconv.ParseUint(fields[3], 10, 63)
			if err != nil {
				return nil, fmt.Errorf("reading git's list of files: unexpected line %q", line)
			}
			e.Size = int64(size)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// Blobs reads objects by id, in one call. Each must be there.
func (r *Repository) Blobs(ctx context.Context, ids []string) ([][]byte, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	out, err := r.Git(ctx, []byte(strings.Join(ids, "\n")+"\n"), "cat-file", "--batch")
	if err != nil {
		return nil, err
	}
	return parseBlobs(ids, out)
}

// parseBlobs reads the output of git cat-file --batch for the ids.
func parseBlobs(ids []string, out []byte) ([][]byte, error) {
	blobs := make([][]byte, 0, len(ids))
	for _, id := range ids {
		header, rest, ok := bytes.Cut(out, []byte("\n"))
		fields := strings.Fields(string(header))
		if !ok || len(fields) != 3 || fields[0] != id {
			return nil, fmt.Errorf("reading object %s: git answers %q", id, header)
		}
		size, err := strconv.Atoi(fields[2])
		if err != nil || size < 0 || size >= len(rest) || rest[size] != '\n' {
			return nil, fmt.Errorf("reading object %s: git answers %q", id, header)
		}
		blobs = append(blobs, rest[:size])
		out = rest[size+1:]
	}
	return blobs, nil
}

// Head asks the remote for the commit of a branch. It is empty when the
// repository has no commit at all; a repository that has other branches but
// not this one is an error with exit code 2.
func (r Remote) Head(ctx context.Context, branch gitref.Branch) (gitref.Revision, error) {
	out, err := run(ctx, r, nil, "ls-remote", "--quiet", "--heads", remoteName)
	if err != nil {
		return "", fmt.Errorf("reading the branches of %s: %w", r, err)
	}
	if len(out) == 0 {
		return "", nil
	}
	id, ok := parseHeads(out, branch)
	if !ok {
		return "", step.Invalidf("reading the branches of %s: there is no branch %q; push it or correct the branch's name", r, branch)
	}
	revision, err := gitref.ParseRevision(id)
	if err != nil {
		return "", fmt.Errorf("reading the branches of %s: %w", r, err)
	}
	return revision, nil
}

// parseHeads finds the branch's id in the output of git ls-remote.
func parseHeads(out []byte, branch gitref.Branch) (id string, ok bool) {
	for line := range strings.Lines(string(out)) {
		id, ref, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if ref == branch.Ref() {
			return id, true
		}
	}
	return "", false
}

// What git may write, in bytes: a tree of a few small objects can name more paths
// than there are atoms.
const (
	maxOutput = 128 << 20
	maxErrors = 1 << 20
)

// bounded is a buffer that takes so many bytes and no more; git then ends.
type bounded struct {
	content bytes.Buffer
	limit   int
	full    bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.content.Len()+len(p) > b.limit {
		b.full = true
		return 0, errors.New("git writes too much")
	}
	return b.content.Write(p)
}

// run executes git with nothing from the surroundings but the network's
// settings (proxy and CA bundle).
func run(ctx context.Context, remote Remote, stdin []byte, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Env = environment(remote)
	cmd.Dir = os.TempDir()
	stdout, stderr := bounded{limit: maxOutput}, bounded{limit: maxErrors}
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// git starts children of its own: the whole group ends with it, and git
	// itself when this process is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	if remote.held != nil {
		cmd.ExtraFiles = []*os.File{remote.held}
	}
	err := cmd.Run()
	if err == nil {
		return stdout.content.Bytes(), nil
	}
	if errors.Is(err, exec.ErrNotFound) {
		return nil, step.Invalidf("running git: the program is not installed; install the package git")
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if stdout.full {
		return nil, step.Sourcef("reading the repository: it holds more than the factory takes (%d MiB of names or records)", maxOutput>>20)
	}
	return nil, classify(remote, args, remote.token.Redact(lastLines(stderr.content.String(), 6)), err)
}

func environment(remote Remote) []string {
	env := []string{
		"LC_ALL=C",
		"HOME=/nonexistent",
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=" + os.DevNull,
		"GIT_TERMINAL_PROMPT=0",
		"GIT_ASKPASS=false",
		"GIT_ALLOW_PROTOCOL=http:https",
		"GIT_LITERAL_PATHSPECS=1",
		"GIT_NO_REPLACE_OBJECTS=1",
		"GIT_OPTIONAL_LOCKS=0",
	}
	for _, name := range []string{"PATH", "TMPDIR", "http_proxy", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "GIT_SSL_CAINFO", "SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	config := [][2]string{
		{"remote." + remoteName + ".url", remote.url},
		{"http.followRedirects", "false"},
		{"http.lowSpeedLimit", "1"},
		{"http.lowSpeedTime", "60"},
		{"core.hooksPath", os.DevNull},
		{"core.fsmonitor", "false"},
		{"core.deltaBaseCacheLimit", "32m"},
		{"core.packedGitLimit", "128m"},
		{"gc.auto", "0"},
		{"fetch.unpackLimit", "1"}, // a pack is read faster than single files
		{"maintenance.auto", "false"},
		{"advice.detachedHead", "false"},
		{"protocol.version", "2"},
	}
	if !remote.token.IsZero() {
		config = append(config, [2]string{"http." + remote.url + ".extraHeader", "Authorization: " + remote.token.BasicAuth()})
	}
	env = append(env, "GIT_CONFIG_COUNT="+strconv.Itoa(len(config)))
	for i, kv := range config {
		env = append(env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", i, kv[0]), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", i, kv[1]))
	}
	return env
}

// classify turns what git says into an error with the right exit code. git has
// one exit code for all failures, so its messages (in the C locale) decide.
func classify(remote Remote, args []string, said string, err error) error {
	verb := args[0]
	for _, a := range args {
		if !strings.HasPrefix(a, "-") {
			verb = a
			break
		}
	}
	if said == "" {
		said = err.Error()
	}
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(said, p) })
	}
	switch {
	case has("not our ref", "unadvertised object", "couldn't find remote ref", "did not send all necessary objects"):
		return step.Invalidf("the commit does not exist there, or the server does not give it by its id (git: %s)", said)
	case has("Authentication failed", "could not read Username", "could not read Password", "error: 401", "error: 403"):
		return step.Invalidf("the token is missing, wrong or may not read this repository (git: %s)", said)
	case has("' not found", "error: 404"):
		return step.Invalidf("there is no such repository, or the token may not see it (git: %s)", said)
	case has("unable to update url base from redirection", "error: 301", "error: 302", "error: 307", "error: 308"):
		return step.Invalidf("the server redirects; name the repository's own URL (git: %s)", said)
	case has("unexpected TLS packet", "wrong version number", "certificate verification failed", "certificate problem"):
		return step.Invalidf("the server does not speak HTTPS, or its certificate is not trusted (git: %s)", said)
	case has("mismatched algorithms"):
		return step.Invalidf("the id's length does not fit the repository's hash algorithm (git: %s)", said)
	}
	return fmt.Errorf("git %s: %s", verb, said)
}

// lastLines gives the last n lines of text in one line.
func lastLines(text string, n int) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "; ")
}

// LoadRemote is [NewRemote] with the token from a file or [secret.EnvReaderToken].
func LoadRemote(address, tokenFile string) (Remote, error) {
	token, err := secret.Load(tokenFile, secret.EnvReaderToken)
	if err != nil {
		return Remote{}, err
	}
	return NewRemote(address, token)
}
