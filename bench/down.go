package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"fabrique/bench/action"
	"fabrique/bench/cluster"
)

func downCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Take the cluster down and count what is left of it",
		Long: `Ends every process of the cluster and removes its mounts, namespaces, rules, control groups and files,
whatever state it is in, then counts them. It fails when anything is left. The cache of built tools stays.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cluster.Default()
			if err != nil {
				return err
			}
			unlock, err := only(c)
			if err != nil {
				return err
			}
			defer unlock()
			return down(cmd.Context(), cmd.ErrOrStderr(), c)
		},
	}
}

// removeScratch removes the temporary folders of killed runs.
func removeScratch() error {
	left, err := filepath.Glob(filepath.Join(os.TempDir(), cluster.ScratchPrefix+"*"))
	for _, dir := range left {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

func down(ctx context.Context, progress io.Writer, c cluster.Cluster) error {
	if _, err := c.Exists(); err != nil {
		return err
	}
	if err := removeScratch(); err != nil {
		return err
	}
	// The cluster's own folder goes, so the logs of its going are elsewhere.
	logs, err := os.MkdirTemp("", "fabrique-bench-down-")
	if err != nil {
		return err
	}
	if _, err := action.All(ctx, progress, logs, c.Down()...); err != nil {
		return err
	}
	left, err := c.Leftovers(ctx)
	if err != nil {
		return err
	}
	lines, any := cluster.Describe(left)
	for _, line := range lines {
		fmt.Fprintln(progress, "left:", line)
	}
	if any {
		return fmt.Errorf("something of the cluster is left on this machine, see above; logs are in %s", logs)
	}
	return os.RemoveAll(logs)
}
