package speed

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"fabrique/bench/parts"
)

const cloneRounds = 3

// clone measures clone-at-sha against the git program and against go-git.
func (b *bench) clone(ctx context.Context, report *Report) error {
	head := b.history.revisions[0]
	reader, err := b.tokenFile("reader", b.project.Reader.Reveal())
	if err != nil {
		return err
	}
	url, work := b.project.SourceURL(), filepath.Join(b.dir, "clone")
	empty := func() error {
		if err := os.RemoveAll(work); err != nil {
			return err
		}
		return os.Mkdir(work, 0o755)
	}
	git := func(script string) contender {
		return contender{
			name: script,
			prepare: func(context.Context, int) (program, error) {
				return program{
					args: []string{"sh", "-ec", script, "sh", url, head}, dir: work,
					secretEnv: parts.GitEnv(b.project.Reader),
				}, empty()
			},
			check: func(ctx context.Context, _ int, _ run) error { return checkedOut(ctx, work+"/.git", head) },
		}
	}
	ours := contender{
		name: "clone-at-sha",
		prepare: func(context.Context, int) (program, error) {
			return program{args: []string{b.program("clone-at-sha"), "--url", url, "--revision", head, "--dir", work, "--token-file", reader}}, empty()
		},
		check: func(ctx context.Context, _ int, _ run) error { return checkedOut(ctx, work+"/git", head) },
	}
	shallow := git(`git init -q; git fetch -q --depth 1 "$1" "$2"; git checkout -q "$2"`)
	shallow.name = "git fetch --depth 1 SHA; git checkout"
	full := git(`git clone -q "$1" .`)
	full.name = "git clone"
	goGit := contender{
		name: "go-git",
		prepare: func(context.Context, int) (program, error) {
			return b.goGit(url, head, work, b.project.Reader.Reveal()), empty()
		},
		check: func(ctx context.Context, _ int, _ run) error { return checkedOut(ctx, work+"/.git", head) },
	}
	runs, err := compete(ctx, b.progress, "clone", cloneRounds, ours, shallow, full, goGit)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("clone-at-sha, %d files, %d MB of history", apps*filesPerApp, b.history.packed/1_000_000)
	mine, memory := measured(what, "s", seconds(runs[0])), measured("clone-at-sha, peak memory", "MiB", mebibytes(runs[0]))
	report.Rows = append(report.Rows,
		mine.against(shallow.name, seconds(runs[1])).timesAtMost(1.2),
		mine.against(full.name, seconds(runs[2])).timesAtMost(0.3),
		mine.against(goGit.name, seconds(runs[3])),
		memory.against(shallow.name, mebibytes(runs[1])).atMost(256),
		memory.against(goGit.name, mebibytes(runs[3])).atMost(256),
	)
	report.Notes = append(report.Notes,
		"Times are medians of whole processes from start to end; the sides take turns, the order changes with each round, the first round does not count.",
		"The folders of all sides are in memory (tmpfs): on a disk all would take longer, by the same amount, and differ less.",
		"Peak memory is the sum of the resident memory of the process and all its children at one moment, sampled every 10 ms, and never less than the kernel's own peak of the largest of them (rusage). Shared and mapped pages count for each process, the page cache does not.",
	)
	return b.cloneFacts(ctx, report, url, work, empty)
}

func (b *bench) goGit(url, revision, dir, token string) program {
	return program{args: []string{b.gogit, "-url", url, "-revision", revision, "-dir", dir}, secretEnv: []string{"GOGIT_TOKEN=" + token}}
}

// checkedOut makes sure that a contender did the work.
func checkedOut(ctx context.Context, gitDir, revision string) error {
	out, err := program{args: []string{"git", "--git-dir", gitDir, "rev-parse", "HEAD"}, env: gitEnv}.run(ctx)
	if err != nil {
		return err
	}
	if got := strings.TrimSpace(string(out.stdout)); got != revision {
		return fmt.Errorf("%q is checked out, want %s", got, revision)
	}
	return nil
}

// cloneFacts finds what go-git and clone-at-sha can fetch at all. A refusal by
// go-git is an answer; one by clone-at-sha is an error.
func (b *bench) cloneFacts(ctx context.Context, report *Report, url, work string, empty func() error) error {
	for _, format := range []string{"sha1", "sha256"} {
		server, err := newGitServer(filepath.Join(b.dir, "served-"+format), format)
		if err != nil {
			return err
		}
		defer server.close()
		revisions, err := server.commit(ctx, 2)
		if err != nil {
			return err
		}
		for _, c := range []struct{ what, url, revision string }{
			{"commit behind the branch's tip, " + format + ", git's own server", server.url, revisions[0]},
			{"commit behind the branch's tip, " + format + ", Gitea", url, b.history.revisions[3]},
		} {
			if format == "sha256" && c.url == url {
				continue // this Gitea has no such repositories with Debian 12's git
			}
			if err := empty(); err != nil {
				return err
			}
			reader := filepath.Join(b.dir, "reader")
			if _, err := (program{args: []string{b.program("clone-at-sha"), "--url", c.url, "--revision", c.revision, "--dir", work, "--token-file", reader}}).run(ctx); err != nil {
				return err
			}
			if err := empty(); err != nil {
				return err
			}
			answer := "clone-at-sha yes, go-git yes"
			if _, err := b.goGit(c.url, c.revision, work, b.project.Reader.Reveal()).run(ctx); err != nil {
				lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
				answer = "clone-at-sha yes, go-git no: " + lines[len(lines)-1]
			}
			report.Facts = append(report.Facts, Fact{c.what, answer})
		}
	}
	return nil
}

// gitServer serves one bare repository with the git program's own HTTP server.
type gitServer struct {
	url    string
	dir    string
	server *http.Server
}

func newGitServer(dir, format string) (*gitServer, error) {
	s := &gitServer{dir: dir}
	if out, err := exec.Command("git", "init", "--quiet", "--bare", "--initial-branch=main", "--object-format="+format, dir).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("creating a repository: %w: %s", err, out)
	}
	path, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		return nil, fmt.Errorf("finding git's own programs: %w", err)
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("starting a git server: %w", err)
	}
	s.url = "http://" + listener.Addr().String() + "/" + filepath.Base(dir)
	s.server = &http.Server{Handler: &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(path)), "git-http-backend"),
		Env:  append([]string{"GIT_PROJECT_ROOT=" + filepath.Dir(dir), "GIT_HTTP_EXPORT_ALL=1"}, gitEnv...),
	}}
	go s.server.Serve(listener)
	return s, nil
}

func (s *gitServer) close() { s.server.Close() }

// commit makes n commits and gives their ids, the oldest first.
func (s *gitServer) commit(ctx context.Context, n int) ([]string, error) {
	var ids []string
	for i := range n {
		script := `blob=$(echo "$1" | git hash-object -w --stdin)
tree=$(printf '100644 blob %s\tfile\n' "$blob" | git mktree)
commit=$(git commit-tree -m "$1" ${2:+-p "$2"} "$tree")
git update-ref refs/heads/main "$commit"
echo "$commit"`
		args := []string{"sh", "-ec", script, "sh", fmt.Sprint(i)}
		args = append(args, ids[max(0, len(ids)-1):]...)
		out, err := program{args: args, dir: s.dir, env: append([]string{
			"GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@bench.invalid", "GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@bench.invalid",
		}, gitEnv...)}.run(ctx)
		if err != nil {
			return nil, err
		}
		ids = append(ids, strings.TrimSpace(string(out.stdout)))
	}
	return ids, nil
}
