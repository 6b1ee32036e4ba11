package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"fabrique/steps/chain"
	"fabrique/steps/config"
	"fabrique/steps/step"
)

// cli is what all verbs share: where they write, and the global flags.
type cli struct {
	stdout, stderr io.Writer
	configFile     string
	verbose        bool
}

// run executes the command line and gives the exit code of package step.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c := &cli{stdout: stdout, stderr: stderr}
	root := c.root()
	root.SetArgs(args)
	ran := false
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		ran = true
		return step.CheckFlags(cmd.Flags(), nil)
	}
	err := step.WithCause(ctx, root.ExecuteContext(ctx))
	if err == nil {
		return step.ExitOK
	}
	code := step.ExitCode(err)
	if !ran && code == step.ExitRetry { // cobra's own complaints about the arguments
		code = step.ExitInvalid
	}
	fmt.Fprintf(stderr, "fabrique: %s\n", step.Printable(err.Error()))
	return code
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "fabrique",
		Short: "Turn a pushed commit into a deployed image, by digest",
		Long: `Fabrique builds the images of the apps that are declared in the apps repository, whenever their
source has changed, and writes the digests back, so that Argo CD deploys exactly that commit.

Start with "fabrique init", then "fabrique config check", "fabrique status" and "fabrique build". In a cluster,
"fabrique why SHA" tells what became of a commit, and "fabrique logs APP" follows a build.

Every flag falls back to an environment variable: --some-flag to FABRIQUE_SOME_FLAG.

Exit codes: 0 done, also when there was nothing to do
            1 a failure that a retry may mend (network, server error, deadline)
            2 bad input or configuration
            3 the source is at fault (Dockerfile missing, build failed)
            4 a check found a difference (seed --check)`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(c.stdout)
	root.SetErr(c.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return step.Invalidf("%w; see %s --help", err, cmd.CommandPath())
	})
	root.PersistentFlags().StringVarP(&c.configFile, "config", "c", config.FileName, "configuration file")
	root.PersistentFlags().BoolVarP(&c.verbose, "verbose", "v", false, "log every step to standard error")
	if err := root.MarkPersistentFlagFilename("config", "yaml", "yml"); err != nil {
		panic(err) // the flag stands one line above
	}
	root.AddCommand(c.initCommand(), c.configCommand(), c.statusCommand(), c.whyCommand(), c.logsCommand(), c.buildCommand(),
		c.renderCommand(), c.bundleCommand(), c.applyCommand(), c.seedCommand(), c.egressCommand(), c.rollbackCommand(), c.holdCommand(), c.releaseCommand(), c.gcCommand(), c.versionCommand())
	return root
}

// config loads the configuration file.
func (c *cli) config() (config.Config, error) { return config.Load(c.configFile) }

// log shows warnings, and with --verbose every step: the verbs show the rest
// themselves.
func (c *cli) log() *slog.Logger {
	if c.verbose {
		return step.NewLogger(c.stderr, slog.LevelInfo)
	}
	return step.NewLogger(c.stderr, slog.LevelWarn)
}

// printJSON writes one JSON object on standard output.
func (c *cli) printJSON(v any) error {
	encoder := json.NewEncoder(c.stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// completionTime bounds how long a shell waits for the names of apps.
const completionTime = 3 * time.Second

// completeApps offers the declared apps to the shell, up to max of them on one
// command line.
func (c *cli) completeApps(max int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= max {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		conf, err := c.config()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		plan, err := chain.Plan(ctx, slog.New(slog.DiscardHandler), conf, "", nil)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []string
		for _, a := range plan.Apps {
			names = append(names, cobra.CompletionWithDesc(a.App, a.Reason))
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// short abbreviates an id for a table; "-" stands for none.
func short[T ~string](id T, n int) string {
	switch {
	case id == "":
		return "-"
	case len(id) > n:
		return string(id[:n])
	}
	return string(id)
}

// fileMode of what the command line writes.
const fileMode os.FileMode = 0o644
