package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"fabrique/manifests/kubeconfig"
	"fabrique/steps/gitea"
	"fabrique/steps/seed"
	"fabrique/steps/step"
)

func (c *cli) seedCommand() *cobra.Command {
	var file string
	var o seed.Options
	check, diff, asJSON := false, false, false
	cmd := &cobra.Command{
		Use:   "seed",
		Short: "Bring Gitea and the cluster to what the factory needs before it runs",
		Long: `Makes and mends, in Gitea: the repositories (pull mirrors where seed.repositories names an upstream), the first
commit of the apps repository, the three bots with exactly their rights and a token each, webhook #2, and the
branch protections. In the cluster: the namespaces, and the Secrets with the tokens, the webhook's secret, the
egress key, and those that are derived from others (seed.derive). It removes no repository.

Prints a line for each: created, updated, unchanged; missing, where others must make something first (exit
code 1, all else is done); or failed. A second run says "changed: 0".

It needs the token of an administrator of Gitea, from the file seed.adminTokenFile or FABRIQUE_ADMIN_TOKEN, and
may get, create and update Secrets and namespaces in the cluster. No secret is ever printed.`,
		Example: `  fabrique seed --check --diff      # what differs? exit code 4 if anything does
  fabrique seed
  fabrique seed --rotate            # new tokens for the bots; the old ones are revoked`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			conf, err := c.config()
			if err != nil {
				return err
			}
			cluster, err := kubeconfig.Load(file)
			if err != nil {
				return err
			}
			if o.Cluster, err = kubernetes.NewForConfig(cluster); err != nil {
				return step.Invalidf("reading the kubeconfig: %w", err)
			}
			items, err := seed.Items(cmd.Context(), conf, o)
			if err != nil {
				return err
			}
			report, err := seed.Run(cmd.Context(), c.log(), items, check, func(outcome seed.Outcome) {
				if !asJSON {
					writeOutcome(c.stdout, outcome, diff)
				}
			})
			if asJSON {
				if printErr := c.printJSON(report); printErr != nil {
					return printErr
				}
				return err
			}
			word := "changed"
			if check {
				word = "would change"
			}
			fmt.Fprintf(c.stdout, "%s: %d\n", word, report.Changes)
			return err
		},
	}
	f := cmd.Flags()
	kubeconfig.Flag(f, &file)
	step.Var(f, &o.GiteaURL, "gitea-url", "where Gitea answers from here (default: gitea.url, which is for pods)", gitea.ParseURL)
	f.BoolVar(&check, "check", false, "change nothing; exit code 4 when something differs")
	f.BoolVar(&diff, "diff", false, "say what differs, without secrets")
	f.BoolVar(&o.Rotate, "rotate", false, "make new tokens for the bots, and revoke the old ones once the new are stored")
	f.BoolVar(&asJSON, "json", false, "print the report as JSON; \"changed\" says whether anything was")
	return cmd
}

func writeOutcome(w io.Writer, o seed.Outcome, diff bool) {
	fmt.Fprintln(w, step.Printable(o.String()))
	if diff {
		for _, line := range o.Diff {
			fmt.Fprintf(w, "            %s\n", step.Printable(line))
		}
	}
}
