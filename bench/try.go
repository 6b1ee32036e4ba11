package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"fabrique/bench/parts"
	"fabrique/bench/try"
)

func tryCommand() *cobra.Command {
	var fabrique string
	cmd := &cobra.Command{
		Use:   "try",
		Short: "Show it all: git push, build, digest written back, image running",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			parts.Run(func() int {
				if err := try.Run(cmd.Context(), fabrique, cmd.OutOrStdout()); err != nil {
					fmt.Fprintln(os.Stderr, "bench:", err)
					return 1
				}
				return 0
			})
		},
	}
	cmd.Flags().StringVar(&fabrique, "fabrique", "bin/fabrique", "the program to show")
	return cmd
}
