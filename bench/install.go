package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"fabrique/bench/tools"
)

func installCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "install",
		Short: "Install the Debian packages, build the tools, make the base images; what is there already costs nothing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			start := time.Now()
			progress := cmd.ErrOrStderr()
			if _, err := tools.Ensure(cmd.Context(), progress, true); err != nil {
				return err
			}
			fmt.Fprintf(progress, "%-12s in %s\n", "installed", time.Since(start).Round(time.Second))
			return nil
		},
	}
}
