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
	"fabrique/bench/giteaadmin"
	"fabrique/steps/secret"
)

// GitEnv is [giteaadmin.GitEnv] for this Gitea.
func GitEnv(token secret.Secret) []string { return giteaadmin.GitEnv(GiteaURL, token) }

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
