package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"fabrique/bench/check"
	"fabrique/bench/cluster"
	"fabrique/bench/kubectl"
)

func checkCommand() *cobra.Command {
	var kubeconfig string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Prove that the cluster is what the bench claims it to be",
		Long: `Does each thing that the bench promises, for real, in namespaces of its own that it removes again:
pod network and DNS, NetworkPolicy, Pod Security, volumes, pulls by digest, user namespaces, refusal of
strangers, Argo Workflows, Argo Events, Argo CD, and that the control plane keeps strangers' pods away.
Prints a line for each check, and fails if any failed. The last check cordons the workers for some seconds.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			c, err := cluster.Default()
			if err != nil {
				return err
			}
			if kubeconfig == "" {
				if _, err := os.Stat(c.Kubeconfig()); err != nil {
					return fmt.Errorf("there is no cluster in %s: run bench up first, or name one by --kubeconfig", c.Dir)
				}
			}
			unlock, err := only(c)
			if err != nil {
				return err
			}
			defer unlock()
			p, err := describe(ctx, c)
			if err != nil {
				return err
			}
			if kubeconfig != "" {
				p.Kubectl = kubectl.Kubectl{Kubeconfig: kubeconfig}
			}
			return check.Run(ctx, cmd.OutOrStdout(), p)
		},
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "check this cluster, into which bench up --kubeconfig has installed")
	return cmd
}
