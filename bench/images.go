package main

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"text/tabwriter"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/spf13/cobra"

	"fabrique/bench/debian"
	"fabrique/bench/images"
)

func imagesCommand() *cobra.Command {
	var dir, registry string
	cmd := &cobra.Command{
		Use:   "images",
		Short: "Build the images of the steps",
		Long: `Builds an image of each step program and prints a line for each: name, digest and compressed size.
The same source, Go release and Debian packages give the same digest, so name the images by it.
Without a flag they are only in the bench's cache, where a second run finds them.

An image holds the static program and nothing else, no shell; reconcile-head and clone-at-sha also
have Debian's git. All run as user 65532 and on a read-only root (those with git want a writable /tmp).`,
		Example: `  bench images                    # what are the digests?
  bench images -o bin/images      # OCI layouts, for skopeo, crane or a USB stick
  bench images --push registry:80 # prints what to write into a manifest`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			if err := debian.Install(ctx, cmd.ErrOrStderr(), "git"); err != nil {
				return err
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, step := range images.Steps() {
				image, digest, err := step.Load(ctx, cmd.ErrOrStderr())
				if err != nil {
					return err
				}
				repository, _, _ := strings.Cut(step.Name, ":")
				line := repository + "\t" + digest
				if dir != "" {
					if err := writeLayout(filepath.Join(dir, path.Base(repository)), image); err != nil {
						return fmt.Errorf("writing %s: %w", repository, err)
					}
				}
				if registry != "" {
					if line, err = step.Push(ctx, registry); err != nil {
						return err
					}
				}
				size, err := compressedSize(image)
				if err != nil {
					return err
				}
				fmt.Fprintf(table, "%s\t%.1f MB\n", line, float64(size)/1e6)
			}
			return table.Flush()
		},
	}
	cmd.Flags().StringVarP(&dir, "output", "o", "", "also write each as an OCI layout, DIR/<program>")
	cmd.Flags().StringVar(&registry, "push", "", "also push them to this registry, by plain HTTP, and print their references")
	return cmd
}

// writeLayout makes dir an OCI layout with that image alone.
func writeLayout(dir string, image v1.Image) error {
	out, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := out.AppendImage(image); err != nil {
		return err
	}
	old, err := out.GarbageCollect()
	if err != nil {
		return err
	}
	for _, blob := range old {
		if err := out.RemoveBlob(blob); err != nil {
			return err
		}
	}
	return nil
}

// compressedSize is what a node pulls, but for the manifest.
func compressedSize(image v1.Image) (int64, error) {
	manifest, err := image.Manifest()
	if err != nil {
		return 0, err
	}
	size := manifest.Config.Size
	for _, layer := range manifest.Layers {
		size += layer.Size
	}
	return size, nil
}
