package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"fabrique/bench/action"
	"fabrique/bench/cluster"
	"fabrique/bench/demo"
)

func demoCommand() *cobra.Command {
	var program string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Install Fabrique into the cluster and show a git push become a running pod",
		Long: `Brings the cluster up if it is not, installs the factory by fabrique apply, gives it its secrets and
Gitea its webhook, declares two apps, and pushes: each stage shows with its time until the new pod answers
with the pushed commit. The cluster stays, to look around in.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, out, progress := cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr()
			c, err := cluster.Default()
			if err != nil {
				return err
			}
			fabrique, err := filepath.Abs(program)
			if err != nil {
				return err
			}
			if err := up(ctx, progress, out, upOptions{keep: true}); err != nil {
				return err
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
			d := demo.Demo{Platform: p, Registry: cluster.RegistryIP + ":80", Fabrique: fabrique, Dir: filepath.Join(c.Dir, "demo")}
			if _, err := action.Run(ctx, progress, filepath.Join(c.Dir, "log"), d.Install()...); err != nil {
				return err
			}
			if err := d.Run(ctx, out); err != nil {
				return err
			}
			fmt.Fprintf(out, `
Look around:
  export KUBECONFIG=%s
  kubectl get workflows -n fabrique       kubectl get applications -n argocd
  %s status --config %s
`, c.Kubeconfig(), program, filepath.Join(d.Dir, "fabrique.yaml"))
			return nil
		},
	}
	cmd.Flags().StringVar(&program, "fabrique", "bin/fabrique", "the fabrique program")
	return cmd
}
