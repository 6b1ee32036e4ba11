package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"fabrique/manifests/kubeconfig"
	"fabrique/steps/chain"
	"fabrique/steps/config"
	"fabrique/steps/gitref"
	"fabrique/steps/reconcile"
	"fabrique/workflows/story"
)

func (c *cli) statusCommand() *cobra.Command {
	var file string
	asJSON := false
	cmd := &cobra.Command{
		Use:   "status [APP...]",
		Short: "Show every app: what is deployed, what is due and why; and the runs in flight",
		Long: `Compares the head of the source branch with the records in the apps repository. Nothing is changed.

REASON is "up to date", "source changed", "never built", "the record has no digest", "targetRevision is
not the deployed revision", "held: ..." or what is broken.

Below come the runs in flight, from the cluster: what started each (push, schedule or hand), the commit, and
what each of its apps is doing. Without a kubeconfig, or with a configuration that names no cluster, they are
left out ("runs": null); a cluster that cannot be reached is a warning. "fabrique logs APP" follows a build,
"fabrique why SHA" tells a commit's story.`,
		Example: `  fabrique status
  fabrique status citation --json
  watch fabrique status --kubeconfig ~/.kube/config`,
		ValidArgsFunction: c.completeApps(math.MaxInt),
		RunE: func(cmd *cobra.Command, apps []string) error {
			conf, err := c.config()
			if err != nil {
				return err
			}
			plan, err := chain.Plan(cmd.Context(), c.log(), conf, "", apps)
			if err != nil {
				return err
			}
			runs, err := c.inFlight(cmd.Context(), conf, file, apps)
			if err != nil {
				return err
			}
			if asJSON {
				return c.printJSON(struct {
					Head   gitref.Revision    `json:"head"`
					Apps   []reconcile.App    `json:"apps"`
					Broken []reconcile.Broken `json:"broken"`
					Runs   []story.InFlight   `json:"runs"`
				}{plan.Head, append([]reconcile.App{}, plan.Apps...), append([]reconcile.Broken{}, plan.Broken...), runs})
			}
			if err := writeStatus(c.stdout, conf, plan); err != nil {
				return err
			}
			return story.WriteInFlight(c.stdout, runs, time.Now())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	kubeconfig.Flag(cmd.Flags(), &file)
	return cmd
}

// clusterTime is how long the runs in flight may take to be asked for.
const clusterTime = 5 * time.Second

// inFlight gives the runs in flight, nil when there is no cluster to ask. One that
// cannot be reached is a warning.
func (c *cli) inFlight(ctx context.Context, conf config.Config, file string, apps []string) ([]story.InFlight, error) {
	reach, _, err := cluster(conf, file)
	if err != nil || reach == nil {
		return nil, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, clusterTime, fmt.Errorf("no answer within %s", clusterTime))
	defer cancel()
	runs, err := story.RunsInFlight(limited, reach, apps)
	if err != nil && ctx.Err() == nil {
		c.log().Warn("leaving out the runs in flight: " + err.Error())
		return nil, nil
	}
	return runs, err
}

func writeStatus(w io.Writer, conf config.Config, plan reconcile.Plan) error {
	head := "no commit yet"
	if plan.Head != "" {
		head = string(plan.Head)
	}
	fmt.Fprintf(w, "%s %s: %s\n\n", conf.Source.Repository, conf.Source.Branch, head)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "APP\tHEAD\tDEPLOYED\tDIGEST\tDUE\tREASON")
	for _, a := range plan.Apps {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", a.App, short(plan.Head, 12), short(a.DeployedRevision, 12), short(a.DeployedDigest, 19), yesNo(a.Due), a.Reason)
	}
	for _, b := range plan.Broken {
		name := b.App
		if name == "" {
			name = b.Record
		}
		fmt.Fprintf(table, "%s\t%s\t-\t-\tno\tbroken: %s\n", name, short(plan.Head, 12), b.Error)
	}
	if len(plan.Apps)+len(plan.Broken) == 0 {
		fmt.Fprintf(table, "no app is declared in %s; push an Application with the annotation fabrique/context\n", conf.Apps.Repository)
	}
	return table.Flush()
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
