package main

import (
	"errors"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"fabrique/manifests/kubeconfig"
	"fabrique/steps/config"
	"fabrique/steps/gitref"
	"fabrique/steps/step"
	"fabrique/workflows/story"
)

func (c *cli) whyCommand() *cobra.Command {
	var file, argoCD string
	asJSON := false
	cmd := &cobra.Command{
		Use:   "why SHA",
		Short: "Tell a commit's story: received, due, built, written back, synced, running",
		Long: `Tells what became of a commit of the source repository, and when: whether it was received (pushed, and
by which run), for each app whether it was due and why, how it was built, its digest, what was written into
its record, when Argo CD synced it, and which pods run it. Failures come with their message in full and with
what to do next. Nothing is changed.

SHA is a commit id or its first 7 digits or more. AFTER counts from the push, or from the first moment that
is known; the commit's own time is by its author's clock.

Three witnesses are asked: Gitea (the source, the records and their history), the Workflows, which are kept
for a day, failed ones for a week, and Argo CD with the pods. Without a kubeconfig, or with a configuration
that names no cluster, Gitea is asked alone, and the story says so.

Exit codes: 0 the story is told, 1 Gitea cannot be reached, 2 there is no such commit, or several begin so`,
		Example: `  fabrique why 7222512345e2
  fabrique why $(git rev-parse HEAD) --kubeconfig ~/.kube/config
  fabrique why 7222512345e2 --json | jq '.apps[] | {app, digest, running}'`,
		Args:              oneCommit,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			commit, err := gitref.ParsePrefix(args[0])
			if err != nil {
				return err
			}
			conf, err := c.config()
			if err != nil {
				return err
			}
			reach, notAsked, err := cluster(conf, file)
			if err != nil {
				return err
			}
			var witness *story.Cluster
			if reach != nil {
				if witness, err = story.NewCluster(reach, argoCD); err != nil {
					return err
				}
			}
			told, err := story.Tell(cmd.Context(), c.log(), conf, commit, witness, notAsked)
			if err != nil {
				return err
			}
			if asJSON {
				return c.printJSON(told)
			}
			return told.Write(c.stdout)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.StringVar(&argoCD, "argocd-namespace", "argocd", "namespace of Argo CD's Applications")
	kubeconfig.Flag(f, &file)
	return cmd
}

// oneCommit wants exactly one argument.
func oneCommit(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return step.Invalidf("want one commit, got %d arguments; see %s --help", len(args), cmd.CommandPath())
	}
	return nil
}

// cluster finds the cluster that the factory runs in. Where there is none to be
// asked it gives the reason instead. Exit code 2 for a kubeconfig that was named and
// cannot be read.
func cluster(conf config.Config, file string) (reach *rest.Config, notAsked string, err error) {
	if err := conf.CheckCluster(); err != nil {
		return nil, err.Error(), nil
	}
	reach, err = kubeconfig.Load(file)
	if errors.Is(err, kubeconfig.ErrNone) {
		return nil, "there is no kubeconfig; name one by --kubeconfig", nil
	}
	return reach, "", err
}
