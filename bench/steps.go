package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"fabrique/bench/parts"
	"fabrique/bench/speed"
)

func stepsCommand() *cobra.Command {
	var jsonFile string
	var only []string
	cmd := &cobra.Command{
		Use:   "bench-steps",
		Short: "Measure the steps against their peers: git, go-git, buildctl, curl",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			parts.Run(func() int {
				report, err := speed.Measure(cmd.Context(), cmd.ErrOrStderr(), only...)
				if err == nil {
					err = report.WriteText(cmd.OutOrStdout())
				}
				if err == nil && jsonFile != "" {
					err = report.WriteJSON(jsonFile)
				}
				if err != nil {
					fmt.Fprintln(os.Stderr, "bench:", err)
					return 1
				}
				return 0
			})
		},
	}
	cmd.Flags().StringVar(&jsonFile, "json", "", "also write the report, with every single run, to this file")
	cmd.Flags().StringSliceVar(&only, "only", nil, "measure only these of "+strings.Join(speed.Names, ", "))
	return cmd
}
