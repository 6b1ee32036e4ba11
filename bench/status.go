package main

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"fabrique/bench/cluster"
)

func statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the nodes, their services and what runs in the cluster",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cluster.Default()
			if err != nil {
				return err
			}
			return status(cmd, cmd.OutOrStdout(), c)
		},
	}
}

func status(cmd *cobra.Command, out io.Writer, c cluster.Cluster) error {
	var memory int64
	up := false
	for _, n := range c.Nodes() {
		states, err := n.State()
		if err != nil {
			fmt.Fprintf(out, "%-14s down\n", n.Name)
			continue
		}
		up = true
		used := n.Memory()
		memory += used
		fmt.Fprintf(out, "%-14s up, %.1f GiB\n", n.Name, float64(used)/(1<<30))
		for _, name := range slices.Sorted(maps.Keys(states)) {
			s := states[name]
			line := fmt.Sprintf("  %-24s running", name)
			if s.PID == 0 {
				line = fmt.Sprintf("  %-24s ended: %s", name, s.Last)
			}
			if s.Restarts > 0 {
				line += fmt.Sprintf(", restarted %d times, the last time after: %s", s.Restarts, s.Last)
			}
			fmt.Fprintln(out, line)
		}
	}
	if !up {
		fmt.Fprintln(out, "bench up brings the cluster up")
		return nil
	}
	fmt.Fprintf(out, "%-14s %.1f GiB of memory in all, without page cache\n\n", "", float64(memory)/(1<<30))
	pods, err := c.Kubectl().Run(cmd.Context(), nil, "get", "deployments,statefulsets,pods", "-A")
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, pods)
	return err
}
