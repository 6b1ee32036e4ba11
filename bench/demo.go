package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"fabrique/bench/action"
	"fabrique/bench/cases"
	"fabrique/bench/cluster"
	"fabrique/bench/demo"
	"fabrique/bench/kubectl"
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
			d, unlock, err := factory(cmd, program)
			if err != nil {
				return err
			}
			defer unlock()
			revision, err := d.Run(ctx, out)
			if err != nil {
				return err
			}
			outside, err := d.Outside(ctx)
			if err != nil {
				return err
			}
			kubectl, err := kubectl.Program(ctx, progress)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, `
Look around:
  export KUBECONFIG=%[1]s PATH=%[2]s:$PATH
  kubectl get workflows -n fabrique       kubectl get applications -n argocd
  kubectl port-forward -n gitea svc/gitea 3000 &
  %[3]s status -c %[4]s                   # every app, and the runs in flight
  %[3]s why %[5]s -c %[4]s
  %[3]s egress report -c %[4]s
`, d.Kubectl.Kubeconfig, filepath.Dir(kubectl), program, outside, revision[:12])
			return nil
		},
	}
	cmd.Flags().StringVar(&program, "fabrique", "bin/fabrique", "the fabrique program")
	return cmd
}

func gatesCommand() *cobra.Command {
	var program, file, only string
	var list bool
	cmd := &cobra.Command{
		Use:   "gates",
		Short: "Prove the ADR's gates and every scenario of the chain on the cluster, and measure each stage of a push",
		Long: `Installs the factory as demo does, and then runs the scenarios: the gates first (an app is added by its record
alone; ten pushes in a row over two apps; five pushes without the event path), then forged, repeated and odd
deliveries, odd records, interruptions, faults and full disks, and what accounts and tokens may not. Each cleans up
after itself, and one that fails does not stop the others. Ends with a table; the exit code is non-zero when any failed. All take more than an hour.`,
		Example: `  bench gates --list
  bench gates --only '^(F|W7$)'       # some of them, by a regular expression for their names`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			selected, err := cases.Select(only)
			if err != nil {
				return err
			}
			if list {
				for _, c := range selected {
					fmt.Fprintf(out, "%-18s %s\n", c.Name, c.Title)
				}
				return nil
			}
			d, unlock, err := factory(cmd, program)
			if err != nil {
				return err
			}
			defer unlock()
			report, err := cases.Run(cmd.Context(), out, d, selected)
			if file == "" {
				return err
			}
			text, failed := json.MarshalIndent(report, "", "  ")
			if failed == nil {
				failed = os.WriteFile(file, append(text, '\n'), 0o644)
			}
			return errors.Join(err, failed)
		},
	}
	f := cmd.Flags()
	f.StringVar(&program, "fabrique", "bin/fabrique", "the fabrique program")
	f.StringVar(&file, "json", "", "also write the results to this file")
	f.StringVar(&only, "only", "", "run only the scenarios whose name this regular expression matches")
	f.BoolVar(&list, "list", false, "print the scenarios and run none")
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
