package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"fabrique/bench/debian"
	"fabrique/bench/images"
	"fabrique/bench/tools"
)

func installCommand() *cobra.Command {
	var cluster bool
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install the Debian packages, build the tools, make the base images; what is there already costs nothing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			start := time.Now()
			progress := cmd.ErrOrStderr()
			if err := debian.Install(cmd.Context(), progress, debian.Packages...); err != nil {
				return err
			}
			if _, err := tools.Ensure(cmd.Context(), progress, true); err != nil {
				return err
			}
			for _, base := range []images.Image{images.Busybox, images.Debian} {
				if _, cached, err := base.Ensure(cmd.Context(), progress); err != nil {
					return err
				} else if cached {
					fmt.Fprintf(progress, "%-12s cached\n", base.Name)
				}
			}
			if cluster {
				if err := debian.Install(cmd.Context(), progress, debian.ClusterPackages...); err != nil {
					return err
				}
				for _, tool := range tools.Cluster {
					if _, err := tool.Ensure(cmd.Context(), progress, true); err != nil {
						return err
					}
				}
				for _, image := range images.Cluster() {
					if _, _, err := image.Ensure(cmd.Context(), progress); err != nil {
						return err
					}
				}
			}
			fmt.Fprintf(progress, "%-12s in %s\n", "installed", time.Since(start).Round(time.Second))
			return nil
		},
	}
	cmd.Flags().BoolVar(&cluster, "cluster", false, "also what the cluster is made of; without a cache this takes most of an hour")
	return cmd
}
