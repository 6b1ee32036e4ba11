package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"fabrique/manifests/render"
	"fabrique/steps/step"
)

func (c *cli) renderCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "render",
		Short: "Write the factory's manifests for a cluster",
		Long: `Writes all that runs in the cluster, from the configuration file: namespaces with their Pod Security
level, service accounts and roles, the EventBus, EventSource and Sensor, buildkitd, the WorkflowTemplate and
the CronWorkflow. Without -o it prints them. The same configuration gives the same bytes. Files that end in
.example are for secrets: copy them, fill them in, and do not commit them.`,
		Example: `  fabrique render -o rendered
  fabrique render | kubectl apply --server-side --dry-run=server -f -`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			conf, err := c.config()
			if err != nil {
				return err
			}
			files, err := render.Files(conf)
			if err != nil {
				return err
			}
			for _, path := range slices.Sorted(maps.Keys(files)) {
				if dir == "" {
					if filepath.Ext(path) == ".yaml" {
						if _, err := c.stdout.Write(files[path]); err != nil {
							return err
						}
					}
					continue
				}
				done, err := write(filepath.Join(dir, path), files[path])
				if err != nil {
					return err
				}
				fmt.Fprintf(c.stdout, "%-9s %s\n", done, filepath.Join(dir, path))
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&dir, "output", "o", "", "folder to write the files to (default: print them)")
	return cmd
}

// write writes a file unless it holds that text already. It is there whole or as it was
// before, whenever the process ends.
func write(path string, text []byte) (done string, err error) {
	there, err := os.ReadFile(path)
	if err == nil && bytes.Equal(there, text) {
		return "unchanged", nil
	}
	done = "updated"
	if os.IsNotExist(err) {
		done = "created"
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", step.Invalidf("making the folder for %s: %w", path, err)
	}
	// The name is always the same, so that the next run takes away what a killed one left.
	fresh := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	err = os.WriteFile(fresh, text, fileMode)
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return "", step.Invalidf("writing %s: %w", path, err)
	}
	return done, nil
}
