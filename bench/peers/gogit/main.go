// Command gogit does with the library go-git what clone-at-sha does with the
// git program: it fetches one commit, depth 1, and checks it out. The benchmarks
// run it so that the choice between the two rests on figures.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	formatcfg "github.com/go-git/go-git/v5/plumbing/format/config"
	"github.com/go-git/go-git/v5/plumbing/transport/http"
)

// tokenEnv names the variable with a token that may read the repository; a
// server that asks for none is not sent any.
const tokenEnv = "GOGIT_TOKEN"

func main() {
	url := flag.String("url", "", "repository")
	revision := flag.String("revision", "", "full commit id")
	dir := flag.String("dir", "", "folder for the files, created")
	flag.Parse()
	if err := run(context.Background(), *url, *revision, *dir); err != nil {
		fmt.Fprintln(os.Stderr, "gogit:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, url, revision, dir string) error {
	repo, err := git.PlainInitWithOptions(dir, &git.PlainInitOptions{ObjectFormat: objectFormat(revision)})
	if err != nil {
		return fmt.Errorf("creating the repository: %w", err)
	}
	remote, err := repo.CreateRemote(&config.RemoteConfig{Name: "origin", URLs: []string{url}})
	if err != nil {
		return fmt.Errorf("naming the remote: %w", err)
	}
	options := &git.FetchOptions{
		RefSpecs: []config.RefSpec{config.RefSpec(revision + ":refs/heads/wanted")},
		Depth:    1,
		Tags:     git.NoTags,
	}
	if token := os.Getenv(tokenEnv); token != "" {
		options.Auth = &http.BasicAuth{Username: "bench", Password: token}
	}
	if err := remote.FetchContext(ctx, options); err != nil {
		return fmt.Errorf("fetching %s: %w", revision, err)
	}
	tree, err := repo.Worktree()
	if err != nil {
		return fmt.Errorf("opening the work tree: %w", err)
	}
	if err := tree.Checkout(&git.CheckoutOptions{Hash: plumbing.NewHash(revision)}); err != nil {
		return fmt.Errorf("checking out %s: %w", revision, err)
	}
	return nil
}

// objectFormat is empty for SHA-1: go-git would write a name for it that the git
// program does not read.
func objectFormat(revision string) formatcfg.ObjectFormat {
	if len(revision) == 64 {
		return formatcfg.SHA256
	}
	return ""
}
