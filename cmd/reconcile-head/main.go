// Command reconcile-head decides which apps are due.
package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/spf13/pflag"

	"fabrique/steps/git"
	"fabrique/steps/gitref"
	"fabrique/steps/reconcile"
	"fabrique/steps/record"
	"fabrique/steps/secret"
	"fabrique/steps/step"
)

func main() {
	o := reconcile.Options{SourceBranch: "main", AppsBranch: "main", AppsPath: "."}
	var sourceURL, appsURL, tokenFile string
	limit := 0
	step.Main(step.Spec[reconcile.Result]{
		Use: "reconcile-head", Short: "Decide which apps are due",
		Long: `Compares the head of the source branch with the records in the apps repository and lists the apps
whose source changed, with all that the next steps need. A --revision that is not the head any more
is superseded: nothing is due then. A broken record is listed and does not stop the others.`,
		Example: `  reconcile-head --source-url http://gitea:3000/atlas/atlas.git --apps-url http://gitea:3000/cluster/apps.git \
    --token-file /run/secrets/reader`,
		Timeout: 2 * time.Minute, Required: []string{"source-url", "apps-url"},
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&sourceURL, "source-url", "", "source repository, http(s)://host/owner/name.git")
			step.Var(f, &o.SourceBranch, "source-branch", "its branch (default main)", gitref.ParseBranch)
			f.StringVar(&appsURL, "apps-url", "", "repository with the records")
			step.Var(f, &o.AppsBranch, "apps-branch", "its branch (default main)", gitref.ParseBranch)
			step.Var(f, &o.AppsPath, "apps-path", "folder with the records (default: the whole repository)", gitref.ParsePath)
			step.Var(f, &o.Revision, "revision", "commit to build (default: the head of the branch)", gitref.ParseRevision)
			step.ListVar(f, &o.Only, "app", "app to look at (repeatable; default: all)", record.ParseApp)
			f.IntVar(&limit, "limit", 0, "give at most this many due apps, chosen by chance; 0: all")
			f.StringVar(&tokenFile, "token-file", "", "file with a token that may read both (or "+secret.EnvReaderToken+")")
		},
		Run: func(ctx context.Context, log *slog.Logger) (r reconcile.Result, err error) {
			if limit < 0 {
				return r, step.Invalidf("parsing --limit %d: want 0 or more", limit)
			}
			if o.Source, err = git.LoadRemote(sourceURL, tokenFile); err != nil {
				return r, err
			}
			if o.Apps, err = git.LoadRemote(appsURL, tokenFile); err != nil {
				return r, err
			}
			return reconcile.Decide(ctx, log, o, limit)
		},
	})
}
