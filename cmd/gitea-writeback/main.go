// Command gitea-writeback brings an app's record in the apps repository to what
// was built.
package main

import (
	"time"

	"github.com/spf13/pflag"

	"fabrique/steps/gitea"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/record"
	"fabrique/steps/step"
	"fabrique/steps/writeback"
)

func main() {
	f := writeback.Flags{Options: writeback.Options{AppsBranch: "main", SourceBranch: "main"}}
	step.Main(step.Spec[writeback.Result]{
		Use: "gitea-writeback", Short: "Write a deployed digest into an app's record",
		Long: writeback.Help,
		Example: `  gitea-writeback --gitea-url http://gitea:3000 --apps-repository cluster/apps --record citation.yaml \
    --app citation --source-repository atlas/atlas --revision 7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210 \
    --source-key "$KEY" --image registry:80/citation --digest "$DIGEST" --token-file /run/secrets/writer`,
		Timeout:  5 * time.Minute,
		Required: []string{"gitea-url", "apps-repository", "record", "app", "source-repository", "revision", "source-key", "image"},
		Flags: func(fs *pflag.FlagSet) {
			step.Var(fs, &f.URL, "gitea-url", "Gitea, http(s)://host:port", gitea.ParseURL)
			step.Var(fs, &f.Apps, "apps-repository", "owner/name of the repository with the records", gitea.ParseRepository)
			step.Var(fs, &f.AppsBranch, "apps-branch", "its branch (default main)", gitref.ParseBranch)
			step.Var(fs, &f.Record, "record", "path of the app's file in it", gitref.ParsePath)
			step.Var(fs, &f.App, "app", "metadata.name of the app's Application", record.ParseApp)
			step.Var(fs, &f.Source, "source-repository", "owner/name of the repository with the code", gitea.ParseRepository)
			step.Var(fs, &f.SourceBranch, "source-branch", "its branch (default main)", gitref.ParseBranch)
			step.Var(fs, &f.Revision, "revision", "full commit id that was built", gitref.ParseRevision)
			step.Var(fs, &f.SourceKey, "source-key", "source key of the app at the revision", gitref.ParseSourceKey)
			step.Var(fs, &f.Repository, "image", "registry:port/name, without a tag", image.ParseRepository)
			f.Rest(fs)
		},
		Run: f.Run,
	})
}
