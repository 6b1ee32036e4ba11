package main

import (
	"fmt"
	"io"
	"math"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"fabrique/steps/chain"
	"fabrique/steps/gitref"
	"fabrique/steps/step"
)

func (c *cli) buildCommand() *cobra.Command {
	var o chain.Options
	asJSON := false
	cmd := &cobra.Command{
		Use:   "build [APP...]",
		Short: "Build what is due, push it and write the digests back",
		Long: `Runs the five steps on this node, for the named apps or for all: decide what is due, clone the commit,
build with BuildKit, read the digest from the registry, write it into the app's record. Says
"unchanged" when nothing is due. A revision that is not the head of the branch any more is
superseded and not built; see "fabrique rollback" to go back.`,
		Example: `  fabrique build                # all that is due
  fabrique build citation --json
  fabrique build --revision 7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210 --dry-run`,
		ValidArgsFunction: c.completeApps(math.MaxInt),
		RunE: func(cmd *cobra.Command, apps []string) error {
			conf, err := c.config()
			if err != nil {
				return err
			}
			o.Apps, o.Progress, o.Stage = apps, c.stderr, c.showStage
			report, err := chain.Run(cmd.Context(), c.log(), conf, o)
			if asJSON {
				if printErr := c.printJSON(report); printErr != nil {
					return printErr
				}
				return err
			}
			if len(report.Apps) > 0 || err == nil {
				if printErr := writeReport(c.stdout, report, o.DryRun); printErr != nil {
					return printErr
				}
			}
			return err
		},
	}
	step.Var(cmd.Flags(), &o.Revision, "revision", "commit to build (default: the head of the source branch)", gitref.ParseRevision)
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "only say what would be built")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON; \"changed\" says whether a record was written")
	return cmd
}

// writeReport shows what became of each app, and the time that each stage took.
func writeReport(w io.Writer, r chain.Report, dryRun bool) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "APP\tRESULT\tREVISION\tDIGEST\tCLONE\tBUILD\tINSPECT\tWRITE-BACK\tCACHED\tREASON")
	for _, a := range r.Apps {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s", a.App, a.Result, short(a.Revision, 12), short(a.Digest, 19))
		for _, stage := range chain.Stages {
			if seconds, ok := a.Seconds[stage]; ok {
				fmt.Fprintf(table, "\t%.2fs", seconds)
			} else {
				fmt.Fprint(table, "\t-")
			}
		}
		cached := "-"
		switch {
		case a.Reused:
			cached = "image"
		case a.Total > 0:
			cached = fmt.Sprintf("%d/%d", a.Cached, a.Total)
		}
		reason := a.Reason
		if a.Error != "" {
			reason = "see below"
		}
		fmt.Fprintf(table, "\t%s\t%s\n", cached, reason)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	outcome := "unchanged"
	switch {
	case r.Changed && dryRun:
		outcome = "would change"
	case r.Changed:
		outcome = "changed"
	}
	if failed := r.Failed(); failed > 0 {
		outcome += fmt.Sprintf("; %d of %d apps failed", failed, len(r.Apps))
	}
	fmt.Fprintf(w, "\n%s (compared in %.2fs)\n", outcome, r.Seconds)
	return nil
}
