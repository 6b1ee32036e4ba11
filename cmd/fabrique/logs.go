package main

import (
	"time"

	"github.com/spf13/cobra"

	"fabrique/manifests/kubeconfig"
	"fabrique/steps/step"
	"fabrique/workflows/buildlog"
)

func (c *cli) logsCommand() *cobra.Command {
	var file string
	follow, wait := true, time.Duration(0)
	cmd := &cobra.Command{
		Use:   "logs APP|SHA",
		Short: "Follow the build of an app, or of a commit's apps, in the cluster",
		Long: `Shows the log of the newest build of an app, or of the apps that a commit had due: what its pod says
while it clones and builds, on standard output. While the run is in flight it waits for the pod and follows
the log until the build is over. On standard error it says what it waits for, and how the build ended. Of
several apps, each line has its app before it.

The pod of a build that succeeded is removed after a minute; then only the outcome is told. That of one that
failed stays as long as its Workflow, a week. Control characters in the log are replaced.

Exit codes: 0 the build succeeded, or nothing was to be built; else the build's own:
            1 a failure that a retry may mend, 3 the source is at fault
            2 also when there is no such app or run, or no kubeconfig`,
		Example: `  fabrique logs citation                # follow, or wait for, its newest build
  fabrique logs 7222512345e2            # every app that this commit builds
  git push && fabrique logs $(git rev-parse HEAD) --wait 1m
  fabrique logs citation --follow=false > build.log`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return step.Invalidf("want an app or a commit, got %d arguments; see %s --help", len(args), cmd.CommandPath())
			}
			return nil
		},
		ValidArgsFunction: c.completeApps(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			target, err := buildlog.ParseTarget(args[0])
			if err != nil {
				return err
			}
			reach, err := kubeconfig.Load(file)
			if err != nil {
				return err
			}
			from, err := buildlog.NewCluster(reach)
			if err != nil {
				return err
			}
			return buildlog.Show(cmd.Context(), from, buildlog.Options{Target: target, Follow: follow, Wait: wait, Out: c.stdout, Notes: c.stderr})
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", true, "wait for what is in flight and follow it to its end")
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long a run may take to appear, as after a push")
	kubeconfig.Flag(cmd.Flags(), &file)
	return cmd
}
