package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"fabrique/manifests/apply"
	"fabrique/manifests/kubeconfig"
	"fabrique/manifests/render"
)

func (c *cli) applyCommand() *cobra.Command {
	var file string
	var dryRun, prune bool
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Bring a cluster to what fabrique render writes",
		Long: `Applies the factory's manifests to a cluster by server-side apply, and removes what an earlier
version of them had and this one has not (objects with the label app.kubernetes.io/managed-by: fabrique
in the factory's namespaces; volumes and Secrets stay). Prints a line for each object: created, updated,
unchanged or removed. A second run says unchanged. Argo Workflows and Argo Events must be there.`,
		Example: `  fabrique apply --dry-run      # what would change?
  fabrique apply --kubeconfig ~/.kube/config`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			conf, err := c.config()
			if err != nil {
				return err
			}
			objects, err := render.Objects(conf)
			if err != nil {
				return err
			}
			cluster, err := apply.Connect(file)
			if err != nil {
				return err
			}
			changed, err := cluster.Apply(cmd.Context(), objects, apply.Options{DryRun: dryRun, Prune: prune}, func(did apply.Done, object string) {
				fmt.Fprintf(c.stdout, "%-9s %s\n", did, object)
			})
			if err != nil {
				return err
			}
			switch {
			case changed == 0:
				fmt.Fprintln(c.stdout, "unchanged")
			case dryRun:
				fmt.Fprintf(c.stdout, "%d objects would change\n", changed)
			}
			return nil
		},
	}
	f := cmd.Flags()
	kubeconfig.Flag(f, &file)
	f.BoolVar(&dryRun, "dry-run", false, "let the API server check everything and change nothing")
	f.BoolVar(&prune, "prune", true, "remove what the factory owns and does not need any more")
	return cmd
}
