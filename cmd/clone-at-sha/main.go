// Command clone-at-sha fetches exactly one commit into a folder.
package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/spf13/pflag"

	"fabrique/steps/clone"
	"fabrique/steps/git"
	"fabrique/steps/gitref"
	"fabrique/steps/secret"
	"fabrique/steps/step"
)

func main() {
	var o clone.Options
	var url, tokenFile string
	step.Main(step.Spec[clone.Result]{
		Use:   "clone-at-sha",
		Short: "Fetch exactly one commit of a repository into a folder",
		Long: `Fetches exactly the commit --revision, without history, into --dir/tree. A branch's tip is
never taken in its place. A second run for the same commit changes nothing.
Git LFS pointers and submodules under the --path folders are refused by name.`,
		Example: `  clone-at-sha --url http://gitea:3000/atlas/atlas.git \
    --revision 7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210 --dir /workspace --token-file /run/secrets/reader`,
		Timeout:  10 * time.Minute,
		Required: []string{"url", "revision", "dir"},
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&url, "url", "", "repository, http(s)://host/owner/name.git, without credentials")
			step.Var(f, &o.Revision, "revision", "full commit id, 40 or 64 hex digits", gitref.ParseRevision)
			f.StringVar(&o.Dir, "dir", "", "folder that belongs to this step; the files come to DIR/tree")
			step.ListVar(f, &o.Paths, "path", "path that the build will use (repeatable; default: the whole tree)", gitref.ParsePath)
			f.StringVar(&tokenFile, "token-file", "", "file with a token that may read the repository (or "+secret.EnvReaderToken+")")
		},
		Run: func(ctx context.Context, log *slog.Logger) (r clone.Result, err error) {
			if o.Remote, err = git.LoadRemote(url, tokenFile); err != nil {
				return r, err
			}
			return clone.Run(ctx, log, o)
		},
	})
}
