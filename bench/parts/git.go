package parts

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"fabrique/bench/cache"
	"fabrique/steps/secret"
)

// GitEnv gives the environment with which the git program reaches Gitea with
// token, without the token on its command line and without the machine's git
// configuration. Commits are a person's, "Ada <ada@bench.invalid>".
func GitEnv(token secret.Secret) []string {
	return append(os.Environ(),
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@bench.invalid",
		"GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@bench.invalid",
		"GIT_CONFIG_COUNT=2",
		"GIT_CONFIG_KEY_0=http."+GiteaURL+"/.extraHeader", "GIT_CONFIG_VALUE_0=Authorization: "+token.BasicAuth(),
		"GIT_CONFIG_KEY_1=init.defaultBranch", "GIT_CONFIG_VALUE_1=main",
	)
}

// Git runs the git program in dir as the administrator and gives its trimmed
// output. The error shows the command and what it wrote.
func (g *GiteaServer) Git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	cmd.Env = GitEnv(g.Admin.Token)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("running %s: %w\n%s", cache.Shell(cmd.Args...), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(stdout.String()), nil
}

// PushTree makes the files of tree, and nothing else, the content of repo
// ("owner/name") in a new commit on branch, and pushes it with the git program.
// It gives the commit id. The branch is created when it does not exist.
func (g *GiteaServer) PushTree(ctx context.Context, repo, branch string, tree fs.FS, message string) (string, error) {
	dir, err := os.MkdirTemp(Dir(), "push-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	heads, err := g.Git(ctx, dir, "ls-remote", "--heads", CloneURL(repo), branch)
	if err != nil {
		return "", err
	}
	if heads == "" {
		_, err = g.Git(ctx, dir, "init", "--quiet", "--initial-branch", branch)
	} else {
		_, err = g.Git(ctx, dir, "clone", "--quiet", "--depth", "1", "--no-checkout", "--branch", branch, CloneURL(repo), ".")
	}
	if err != nil {
		return "", err
	}
	if err := os.CopyFS(dir, tree); err != nil {
		return "", fmt.Errorf("copying the tree to push: %w", err)
	}
	for _, args := range [][]string{
		{"add", "--all", "--force", "."},
		{"commit", "--quiet", "--allow-empty", "--message", message},
		{"push", "--quiet", CloneURL(repo), "HEAD:refs/heads/" + branch},
	} {
		if _, err := g.Git(ctx, dir, args...); err != nil {
			return "", err
		}
	}
	return g.Git(ctx, dir, "rev-parse", "HEAD")
}
