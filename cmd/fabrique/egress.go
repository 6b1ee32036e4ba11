package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	gateway "fabrique/manifests/egress"
	"fabrique/manifests/kubeconfig"
	"fabrique/manifests/zone"
	"fabrique/steps/egress"
	"fabrique/steps/record"
	"fabrique/steps/step"
)

func (c *cli) egressCommand() *cobra.Command {
	parent := &cobra.Command{
		Use:   "egress",
		Short: "Show what builds asked for outside, and what to allow",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	parent.AddCommand(c.egressReportCommand(), c.egressSuggestCommand())
	return parent
}

func (c *cli) egressReportCommand() *cobra.Command {
	var file string
	asJSON := false
	cmd := &cobra.Command{
		Use:   "report [APP]",
		Short: "List what builds asked for, allowed and refused",
		Long: `Asks the egress gateway in the cluster what builds, or those of one app, asked for. It remembers this in
memory only: since it was started, and at most 10,000 different lines. A request without a valid credential
has no app.

VERDICT is "allowed", "refused", "failed" (allowed, but the other side was not reached) or "asked" (for the
credential; it may have come again with it). COUNT is how many requests.`,
		Example:           "  fabrique egress report\n  fabrique egress report citation --json",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: c.completeApps(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := filter(args)
			if err != nil {
				return err
			}
			report, err := askGateway(cmd.Context(), file, f)
			if err != nil {
				return err
			}
			if asJSON {
				return c.printJSON(report)
			}
			return writeEgress(c.stdout, report)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	kubeconfig.Flag(cmd.Flags(), &file)
	return cmd
}

func (c *cli) egressSuggestCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "suggest APP",
		Short: "Print the lines that would allow what an app's builds were refused",
		Long: `Asks the egress gateway in the cluster what it refused to the builds of one app, and prints the lines to add
to the configuration, on standard output. What the configuration allows already is left out. A refused name may
have been asked for by anyone who can change the app's source: allow what you know.`,
		Example:           "  fabrique egress suggest citation",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeApps(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			conf, err := c.config()
			if err != nil {
				return err
			}
			f, err := filter(args)
			if err != nil {
				return err
			}
			f.Verdict = egress.Refused
			report, err := askGateway(cmd.Context(), file, f)
			if err != nil {
				return err
			}
			lines, others := suggestion(conf.Egress, f.App, report)
			for _, other := range others {
				fmt.Fprintf(c.stderr, "not to be listed: %s\n", other)
			}
			if len(lines) == 0 {
				fmt.Fprintf(c.stderr, "nothing to add for %s; refusals are known since %s\n", f.App, report.Since.Local().Format(time.DateTime))
				return nil
			}
			fmt.Fprintf(c.stdout, "egress:\n  apps:\n    %s:\n", f.App)
			for _, line := range lines {
				fmt.Fprintf(c.stdout, "      - %s\n", line)
			}
			return nil
		},
	}
	kubeconfig.Flag(cmd.Flags(), &file)
	return cmd
}

func filter(args []string) (egress.Filter, error) {
	if len(args) == 0 {
		return egress.Filter{}, nil
	}
	app, err := record.ParseApp(args[0])
	return egress.Filter{App: app}, err
}

// askGateway reaches the gateway's admin port through the API server, as who the
// kubeconfig names (it must be allowed to get services/proxy in that namespace).
func askGateway(ctx context.Context, file string, f egress.Filter) (egress.Report, error) {
	config, err := kubeconfig.Load(file)
	if err != nil {
		return egress.Report{}, err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return egress.Report{}, step.Invalidf("reading the kubeconfig: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return egress.Report{}, step.Invalidf("reading the kubeconfig: %w", err)
	}
	admin := base.JoinPath("api/v1/namespaces", zone.Egress, "services", gateway.Service+":"+gateway.AdminName, "proxy")
	return egress.Client{HTTP: client, URL: admin.String()}.Requests(ctx, f)
}

func writeEgress(w io.Writer, report egress.Report) error {
	fmt.Fprintf(w, "since %s\n", report.Since.Local().Format(time.DateTime))
	if report.Dropped > 0 {
		fmt.Fprintf(w, "%d older lines had to make room\n", report.Dropped)
	}
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "APP\tDESTINATION\tVERDICT\tCOUNT\tRECEIVED\tLAST\tWORKFLOW\tMESSAGE")
	for _, r := range report.Requests {
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", short(r.App, 63), step.Printable(r.Destination), r.Verdict, r.Count, r.Received,
			r.Last.Local().Format(time.DateTime), short(r.Workflow, 63), step.Printable(r.Message))
	}
	if len(report.Requests) == 0 {
		fmt.Fprintln(table, "nothing was asked for")
	}
	return table.Flush()
}

// suggestion gives what to list for an app, and what was refused and cannot be listed.
func suggestion(rules egress.Rules, app string, report egress.Report) (lines, others []string) {
	policy := egress.NewPolicy(rules)
	for _, r := range report.Requests {
		d, err := egress.ParseDestination(r.Destination)
		if err != nil {
			others = append(others, step.Printable(r.Message))
			continue
		}
		target, err := egress.ParseTarget(string(d), 0)
		switch {
		case err != nil:
		case policy.Name(app, target) != nil:
			lines = append(lines, string(d))
		case !strings.HasSuffix(r.Message, "allow it under egress.allow"):
			others = append(others, step.Printable(r.Message)) // listed, and led to a refused address
		}
	}
	slices.Sort(lines)
	slices.Sort(others)
	return slices.Compact(lines), slices.Compact(others)
}
