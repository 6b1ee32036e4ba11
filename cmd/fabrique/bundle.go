package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"fabrique/manifests/bundle"
	"fabrique/steps/config"
	"fabrique/steps/image"
	"fabrique/steps/step"
)

// bundling is what the verbs below bundle share.
type bundling struct {
	*cli
	dir    string
	o      bundle.Options
	prefix string
	update bool
}

func (c *cli) bundleCommand() *cobra.Command {
	b := &bundling{cli: c}
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Write the operators' installs for an air-gapped cluster, by digest, with a lock",
		Long: `Writes what the factory stands on, to be committed: Argo Workflows, Argo Events, and the NATS images of its
bus, one folder each. The manifests come from the Go modules that this program was built with, by the go program,
which downloads them unless its cache has them. Every image, also in arguments, variables and ConfigMaps, becomes its
mirror in registry.address, by the digest of the mirror's own descriptor: the index, where all platforms were copied.

First copy the images ("fabrique bundle images" lists them for any tool, "fabrique bundle mirror" copies). The digests
are kept in DIR/` + bundle.LockName + `: a tag that has moved since is reported and changes nothing, until --update.

Of the bus only the version cluster.eventBus.version is taken; argo-server is left out. Beside the manifests are
examples for .trivyignore.yaml, .prettierignore, .yamllint.yaml and .jscpd.json. A second run says unchanged.`,
		Example: `  fabrique bundle images
  fabrique bundle mirror
  fabrique bundle -o platform/bundles
  fabrique bundle verify platform/bundles
  kubectl apply --server-side -R -f platform/bundles`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.write(cmd) },
	}
	b.flags(cmd.Flags())
	step.Var(cmd.Flags(), &b.o.Path, "path", "DIR's place in the repository, for the examples (default: the lock's, else DIR if it is relative, else its name)", bundle.ParseFolder)
	cmd.AddCommand(b.imagesCommand(), b.mirrorCommand(), b.verifyCommand())
	return cmd
}

func (b *bundling) flags(f *pflag.FlagSet) {
	f.StringVarP(&b.dir, "output", "o", "bundles", "folder with the lock and the manifests")
	step.Var(f, &b.prefix, "prefix", "folder of the mirrors in the registry (default "+bundle.DefaultPrefix+"; . for none)", parsePrefix)
	step.ListVar(f, &b.o.Versions, "module", "another version of an operator's Go module, path@v1.2.3; may be repeated", bundle.ParseVersion)
	f.BoolVar(&b.update, "update", false, "take the digests that the tags have now, not the lock's")
}

func parsePrefix(s string) (string, error) {
	if s == "." {
		return s, nil
	}
	name, err := image.ParseName(s)
	return string(name), err
}

// plan reads the configuration, the lock and the modules. The lock is empty where
// there is none.
func (b *bundling) plan(cmd *cobra.Command) (*bundle.Plan, bundle.Lock, error) {
	var err error
	if b.o.Config, err = b.config(); err != nil {
		return nil, bundle.Lock{}, err
	}
	switch b.prefix {
	case "":
		b.o.Prefix = bundle.DefaultPrefix
	case ".":
		b.o.Prefix = ""
	default:
		b.o.Prefix = b.prefix
	}
	lock, err := bundle.ReadLock(b.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, bundle.Lock{}, err
	}
	if b.o.Path == "" {
		b.o.Path = lock.Path
	}
	if b.o.Path == "" {
		place := filepath.ToSlash(filepath.Clean(b.dir))
		if !filepath.IsLocal(b.dir) {
			place = filepath.Base(b.dir)
		}
		if b.o.Path, err = bundle.ParseFolder(place); err != nil {
			return nil, bundle.Lock{}, fmt.Errorf("%w; name it: --path", err)
		}
	}
	plan, err := bundle.NewPlan(cmd.Context(), b.o)
	return plan, lock, err
}

func (b *bundling) write(cmd *cobra.Command) error {
	plan, lock, err := b.plan(cmd)
	if err != nil {
		return err
	}
	outcomes, err := plan.Resolve(cmd.Context(), lock, b.update)
	if err != nil {
		return err
	}
	var images []bundle.Image
	for _, o := range outcomes {
		images = append(images, o.Image)
		fmt.Fprintf(b.stdout, "%-9s %s\n", o.Did, o.Image.Pinned())
		if o.Moved != "" {
			fmt.Fprintf(b.stderr, "fabrique: %s is %s now, the lock keeps %s; --update takes the new one\n", o.Image.Mirror, o.Moved, o.Image.Digest)
		}
		if o.Single {
			fmt.Fprintf(b.stderr, "fabrique: %s has one platform alone; if upstream's %s has more, copy all of them and bundle again with --update\n", o.Image.Mirror, o.Image.Source)
		}
	}
	rendered, err := plan.Render(images)
	if err != nil {
		return err
	}
	for _, what := range rendered.Unexplained {
		fmt.Fprintf(b.stderr, "fabrique: not in .trivyignore.yaml.example, as nobody has said why it must be: %s\n", what)
	}
	// What goes, goes first, and the lock comes before what it describes: wherever a run
	// is killed, the next one, with the digests of the lock, ends in the same state.
	if err := b.removeOld(lock, rendered); err != nil {
		return err
	}
	files := maps.Clone(rendered.Files)
	files[bundle.LockName] = rendered.Lock.Text()
	for _, file := range append([]string{bundle.LockName}, slices.Sorted(maps.Keys(rendered.Files))...) {
		done, err := write(filepath.Join(b.dir, filepath.FromSlash(file)), files[file])
		if err != nil {
			return err
		}
		fmt.Fprintf(b.stdout, "%-9s %s\n", done, filepath.Join(b.dir, file))
	}
	return nil
}

// removeOld takes away the files that the lock lists and that are no part of the bundle
// any more. A lock has no way to name anything outside the folder.
func (b *bundling) removeOld(lock bundle.Lock, rendered bundle.Rendered) error {
	if len(lock.Files) == 0 {
		return nil
	}
	root, err := os.OpenRoot(b.dir)
	if err != nil {
		return step.Invalidf("opening the bundle: %w", err)
	}
	defer root.Close()
	for _, f := range lock.Files {
		if rendered.Files[f.Path] != nil {
			continue
		}
		switch err := root.Remove(filepath.FromSlash(f.Path)); {
		case err == nil:
			fmt.Fprintf(b.stdout, "%-9s %s\n", "removed", filepath.Join(b.dir, f.Path))
		case !errors.Is(err, fs.ErrNotExist):
			return step.Invalidf("removing what is no part of the bundle any more: %w", err)
		}
	}
	return nil
}

func (b *bundling) imagesCommand() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "images",
		Short: "List upstream's images and their mirrors, for copying with any tool",
		Long: `Lists each image as upstream names it, and the place of its mirror in the configured registry. Copy whole
indexes, with all platforms, so that the digest stays.`,
		Example: `  fabrique bundle images
  fabrique bundle images --no-header | while read -r from to; do skopeo copy --all --dest-tls-verify=false docker://$from docker://$to; done`,
		Args: cobra.NoArgs,
	}
	noHeader := false
	b.flags(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&noHeader, "no-header", false, "print the lines alone")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		plan, _, err := b.plan(cmd)
		if err != nil {
			return err
		}
		if asJSON {
			type pair struct {
				Source string `json:"source"`
				Mirror string `json:"mirror"`
			}
			var pairs []pair
			for _, i := range plan.Images {
				pairs = append(pairs, pair{i.Source, i.Mirror})
			}
			return b.printJSON(pairs)
		}
		w := tabwriter.NewWriter(b.stdout, 0, 0, 2, ' ', 0)
		if !noHeader {
			fmt.Fprintln(w, "SOURCE\tMIRROR")
		}
		for _, i := range plan.Images {
			fmt.Fprintf(w, "%s\t%s\n", i.Source, i.Mirror)
		}
		return w.Flush()
	}
	return cmd
}

func (b *bundling) mirrorCommand() *cobra.Command {
	var from bundle.Origin
	cmd := &cobra.Command{
		Use:   "mirror",
		Short: "Copy upstream's images to the configured registry, whole and by digest",
		Long: `Copies each image with all its platforms, byte for byte. Of an image that the lock in DIR has, the locked digest
is copied, whatever upstream's tag leads to by now; --update copies what the tag has. Says copied or unchanged for each.
Started again after a failure it goes on where it was. It signs in nowhere; where upstream or the registry want that, use
a tool that does with the list of "fabrique bundle images".`,
		Example: `  fabrique bundle mirror
  fabrique bundle mirror --from https://proxy.example.org:443`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			plan, lock, err := b.plan(cmd)
			if err != nil {
				return err
			}
			for _, i := range plan.Images {
				locked := lock.Image(i.Source)
				if b.update {
					locked = nil
				}
				copied, err := bundle.Mirror(cmd.Context(), b.o.Config, from, i, locked, b.stderr)
				if err != nil {
					return err
				}
				word := "unchanged"
				if copied {
					word = "copied"
				}
				fmt.Fprintf(b.stdout, "%-9s %s -> %s\n", word, i.Source, i.Mirror)
			}
			return nil
		},
	}
	b.flags(cmd.Flags())
	step.Var(cmd.Flags(), &from, "from", "registry that has upstream's images under their names, http(s)://host:port (default: upstream's own)", bundle.ParseOrigin)
	return cmd
}

func (b *bundling) verifyCommand() *cobra.Command {
	offline := false
	cmd := &cobra.Command{
		Use:   "verify DIR",
		Short: "Check a bundle: nothing floats, nothing was changed, and the registry has all of it",
		Long: `Checks without a network: every image in any YAML of DIR, also in arguments, variables and ConfigMaps, is of
the configured registry and by digest; the files are those of the lock; both name the same images. Then asks the
registry: every digest is there and of the kind that the lock says, an index has all its platforms' manifests, and that
of builder.platform all its layers.

Lists all that is wrong, as file:line. Exit codes: 0 fine, 1 the registry cannot be asked, 2 something is wrong.`,
		Example: `  fabrique bundle verify platform/bundles
  fabrique bundle verify --offline platform/bundles   # in a pipeline without the registry`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			conf, err := b.config()
			if err != nil {
				return err
			}
			lock, findings, err := bundle.Check(args[0], conf)
			if err != nil {
				return err
			}
			return b.verdict(cmd, args[0], conf, lock, findings, offline)
		},
	}
	cmd.Flags().BoolVar(&offline, "offline", false, "do not ask the registry")
	return cmd
}

// verdict asks the registry too, and prints what is wrong.
func (b *bundling) verdict(cmd *cobra.Command, dir string, conf config.Config, lock bundle.Lock, findings []bundle.Finding, offline bool) error {
	var unasked error
	if !offline {
		var more []bundle.Finding
		more, unasked = bundle.CheckRegistry(cmd.Context(), lock, conf)
		findings = append(findings, more...)
	}
	for _, f := range findings {
		fmt.Fprintln(b.stdout, step.Printable(filepath.Join(dir, f.String())))
	}
	switch {
	case len(findings) > 0:
		return errors.Join(step.Invalidf("verifying %s: what is wrong is listed on standard output: %d", dir, len(findings)), unasked)
	case unasked != nil:
		return fmt.Errorf("verifying %s: %w", dir, unasked)
	}
	fmt.Fprintf(b.stdout, "%s is fine: %d files, %d images\n", dir, len(lock.Files), len(lock.Images))
	return nil
}
