// Command commit-status shows on a commit in Gitea what a Workflow makes of it.
package main

import (
	"time"

	"github.com/spf13/pflag"

	"fabrique/steps/commitstatus"
	"fabrique/steps/step"
)

func main() {
	var f commitstatus.Flags
	step.Main(step.Spec[commitstatus.Result]{
		Use: "commit-status", Short: "Show on the commit what a Workflow makes of it",
		Long: commitstatus.Help,
		Example: `  commit-status --namespace fabrique --workflow push-7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210 --end \
    --gitea-url http://gitea:3000 --source-repository atlas/atlas --token-file /run/secrets/status`,
		Timeout:  10 * time.Minute,
		Required: []string{"namespace", "workflow", "gitea-url", "source-repository"},
		Flags:    func(flags *pflag.FlagSet) { f.Declare(flags) },
		Run:      f.Run,
	})
}
