package main

import (
	"fmt"
	"io"
	"math"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"fabrique/steps/chain"
	"fabrique/steps/config"
	"fabrique/steps/gitref"
	"fabrique/steps/reconcile"
)

func (c *cli) statusCommand() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "status [APP...]",
		Short: "Show every app: what is deployed, what is due and why",
		Long: `Compares the head of the source branch with the records in the apps repository. Nothing is changed.

REASON is "up to date", "source changed", "never built", "the record has no digest", "targetRevision is
not the deployed revision", "held: ..." or what is broken.`,
		Example:           "  fabrique status\n  fabrique status citation --json",
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
			if asJSON {
				return c.printJSON(struct {
					Head   gitref.Revision    `json:"head"`
					Apps   []reconcile.App    `json:"apps"`
					Broken []reconcile.Broken `json:"broken"`
				}{plan.Head, append([]reconcile.App{}, plan.Apps...), append([]reconcile.Broken{}, plan.Broken...)})
			}
			return writeStatus(c.stdout, conf, plan)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
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
