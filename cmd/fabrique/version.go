package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker (-X main.version=…); see the Makefile.
var version = "devel"

func (c *cli) versionCommand() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  fabrique version --json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version  string `json:"version"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
				BuildKit string `json:"buildkit"` // the client's version
			}{version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, "unknown"}
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, dep := range info.Deps {
					if dep.Path == "github.com/moby/buildkit" {
						v.BuildKit = dep.Version
					}
				}
			}
			if asJSON {
				return c.printJSON(v)
			}
			_, err := fmt.Fprintf(c.stdout, "fabrique %s (%s, %s, BuildKit client %s)\n", v.Version, v.Go, v.Platform, v.BuildKit)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
