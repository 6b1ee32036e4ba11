package main

import (
	"encoding/json"
	"fmt"
	"os"
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
			ctx, out := cmd.Context(), cmd.OutOrStdout()
			d, unlock, err := factory(cmd, program)
			if err != nil {
				return err
			}
			defer unlock()
			if err := d.Run(ctx, out); err != nil {
				return err
			}
			fmt.Fprintf(out, `
Look around:
  export KUBECONFIG=%s
  kubectl get workflows -n fabrique       kubectl get applications -n argocd
  %s status --config %s
`, d.Kubectl.Kubeconfig, program, filepath.Join(d.Dir, "fabrique.yaml"))
			return nil
		},
	}
	cmd.Flags().StringVar(&program, "fabrique", "bin/fabrique", "the fabrique program")
	return cmd
}

func gatesCommand() *cobra.Command {
	var program, file string
	cmd := &cobra.Command{
		Use:   "gates",
		Short: "Prove the ADR's gates on the cluster and measure each stage of a push",
		Long: `Like demo, and then: an app is added by its record alone; ten pushes in a row over two apps each end in pods
that run that commit by digest while the other app stays; one push without the event path, which the
CronWorkflow brings to life. Prints a table of stages, and with --json writes it to a file.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, unlock, err := factory(cmd, program)
			if err != nil {
				return err
			}
			defer unlock()
			result, err := d.Gates(cmd.Context(), cmd.OutOrStdout())
			if err != nil || file == "" {
				return err
			}
			text, err := json.MarshalIndent(result, "", "  ")
			if err != nil {
				return err
			}
			return os.WriteFile(file, append(text, '\n'), 0o644)
		},
	}
	cmd.Flags().StringVar(&program, "fabrique", "bin/fabrique", "the fabrique program")
	cmd.Flags().StringVar(&file, "json", "", "also write the results to this file")
	return cmd
}

// factory brings the cluster up and installs the factory into it. The cluster is
// not to be changed by another run until unlock is called.
func factory(cmd *cobra.Command, program string) (d demo.Demo, unlock func(), err error) {
	ctx, progress := cmd.Context(), cmd.ErrOrStderr()
	c, err := cluster.Default()
	if err != nil {
		return d, nil, err
	}
	fabrique, err := filepath.Abs(program)
	if err != nil {
		return d, nil, err
	}
	if err := up(ctx, progress, cmd.OutOrStdout(), upOptions{keep: true}); err != nil {
		return d, nil, err
	}
	if unlock, err = only(c); err != nil {
		return d, nil, err
	}
	p, err := describe(ctx, c)
	if err == nil {
		d = demo.Demo{Platform: p, Registry: cluster.RegistryIP + ":80", Fabrique: fabrique, Dir: filepath.Join(c.Dir, "demo")}
		_, err = action.Run(ctx, progress, filepath.Join(c.Dir, "log"), d.Install()...)
	}
	if err != nil {
		unlock()
	}
	return d, unlock, err
}
