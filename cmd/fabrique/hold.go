package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"fabrique/steps/chain"
	"fabrique/steps/gitref"
	"fabrique/steps/record"
	"fabrique/steps/step"
	"fabrique/steps/writeback"
)

func (c *cli) rollbackCommand() *cobra.Command {
	var to gitref.Revision
	asJSON := false
	cmd := &cobra.Command{
		Use:   "rollback APP --to SHA",
		Short: "Set an app back to an older revision and hold it there",
		Long: `Sets the app's record back to the revision --to, with the digest of that revision's image (built again
if the registry has it no more), and holds it there until a newer source commit changes the app.
"fabrique release" ends that earlier.`,
		Example:           "  fabrique rollback citation --to 7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210",
		Args:              oneApp,
		ValidArgsFunction: c.completeApps(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if to == "" {
				return step.Invalidf("missing --to; see fabrique rollback --help")
			}
			conf, err := c.config()
			if err != nil {
				return err
			}
			o := chain.Options{Progress: c.stderr, Stage: c.showStage}
			result, err := chain.Rollback(cmd.Context(), c.log(), conf, o, args[0], to)
			return c.showWrite(result, err, asJSON)
		},
	}
	step.Var(cmd.Flags(), &to, "to", "commit to go back to, a full id", gitref.ParseRevision)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (c *cli) holdCommand() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "hold APP REASON...",
		Short: "Keep an app from being deployed, with a reason",
		Long: `Puts the annotation fabrique/hold with the reason on the app's record: nothing is built or deployed
while it is there. "fabrique release" takes it away.`,
		Example: "  fabrique hold citation waiting for the schema migration",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return step.Invalidf("want an app and a reason; see fabrique hold --help")
			}
			_, err := record.ParseApp(args[0])
			return err
		},
		ValidArgsFunction: c.completeApps(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			conf, err := c.config()
			if err != nil {
				return err
			}
			result, err := chain.Hold(cmd.Context(), c.log(), conf, args[0], strings.Join(args[1:], " "))
			return c.showWrite(result, err, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (c *cli) releaseCommand() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "release APP",
		Short: "End an app's hold or rollback",
		Long: `Takes the annotations of "fabrique hold" and "fabrique rollback" off the app's record. The next
"fabrique build" deploys its newest source.`,
		Example:           "  fabrique release citation",
		Args:              oneApp,
		ValidArgsFunction: c.completeApps(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			conf, err := c.config()
			if err != nil {
				return err
			}
			result, err := chain.Release(cmd.Context(), c.log(), conf, args[0])
			return c.showWrite(result, err, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// oneApp wants exactly one valid app name.
func oneApp(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return step.Invalidf("want one app, got %d arguments; see %s --help", len(args), cmd.CommandPath())
	}
	_, err := record.ParseApp(args[0])
	return err
}

func (c *cli) showStage(app, stage string) { fmt.Fprintf(c.stderr, "%s: %s\n", app, stage) }

// showWrite prints what happened to a record.
func (c *cli) showWrite(r writeback.Result, err error, asJSON bool) error {
	if err != nil {
		return err
	}
	if asJSON {
		return c.printJSON(struct {
			Changed bool `json:"changed"`
			writeback.Result
		}{r.Commit != "", r})
	}
	line := r.App + ": " + r.Result
	if r.Reason != "" {
		line += ": " + r.Reason
	}
	_, err = fmt.Fprintln(c.stdout, line)
	return err
}
