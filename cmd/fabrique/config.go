package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"fabrique/manifests/buildkitd"
	"fabrique/steps/config"
	"fabrique/steps/step"
)

func (c *cli) initCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "init",
		Short: "Write a commented fabrique.yaml to start from",
		Long: `Writes a commented configuration file (--config, default fabrique.yaml) to start from. A file that
is already there is left alone.`,
		Example: "  fabrique init && $EDITOR fabrique.yaml && fabrique config check",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			f, err := os.OpenFile(c.configFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
			if errors.Is(err, fs.ErrExist) {
				fmt.Fprintf(c.stdout, "unchanged: %s is there already\n", c.configFile)
				return nil
			}
			if err != nil {
				return step.Invalidf("creating the configuration file: %w", err)
			}
			_, err = f.Write(config.Template())
			if err = errors.Join(err, f.Close()); err != nil {
				return errors.Join(fmt.Errorf("writing the configuration file: %w", err), os.Remove(c.configFile))
			}
			fmt.Fprintf(c.stdout, "created %s; adjust it, then run: fabrique config check\n", c.configFile)
			return nil
		},
	}
}

func (c *cli) configCommand() *cobra.Command {
	parent := &cobra.Command{
		Use:   "config",
		Short: "Look after the configuration file",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	parent.AddCommand(&cobra.Command{
		Use:   "check",
		Short: "Check the configuration file, strictly",
		Long: `Checks every field of the configuration file and that the token files can be read. All mistakes are
shown at once, as file:line:column: field: what is wrong; what to do. Nothing is contacted.`,
		Example: "  fabrique config check --config fabrique.yaml",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			conf, err := c.config()
			if err != nil {
				return err
			}
			_, readerErr := conf.ReaderToken()
			_, writerErr := conf.WriterToken()
			if err := errors.Join(readerErr, writerErr); err != nil {
				return err
			}
			fmt.Fprintf(c.stdout, "%s: ok\n", c.configFile)
			return nil
		},
	})
	parent.AddCommand(&cobra.Command{
		Use:   "buildkitd",
		Short: "Print the buildkitd.toml that fits the configuration",
		Long: `Prints the configuration of the BuildKit daemon: the registry, by plain HTTP if so configured (a daemon
does not inherit containerd's hosts.toml), and the limit of its cache.`,
		Example: "  fabrique config buildkitd > /etc/buildkit/buildkitd.toml",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			conf, err := c.config()
			if err != nil {
				return err
			}
			text, err := buildkitd.Generate(conf)
			if err != nil {
				return err
			}
			_, err = c.stdout.Write(text)
			return err
		},
	})
	return parent
}
