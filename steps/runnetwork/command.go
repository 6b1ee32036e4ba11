package runnetwork

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"fabrique/steps/step"
)

const help = `The network of RUN instructions: a loopback interface, on which one port leads to the egress gateway.

  run-network install DIR     puts the plugin into DIR, where buildkitd looks for it (cniBinaryPath)
  run-network relay           takes connections from the ports that the plugin opens, until SIGTERM

Called by the name of a plugin, run-network or loopback, with CNI_COMMAND set, it is that plugin.

Every flag falls back to an environment variable: --some-flag to FABRIQUE_SOME_FLAG. Logs go to standard error.

Exit codes: 0 done, or ended by SIGTERM or SIGINT
            1 it cannot serve any more
            2 bad flags or folder`

// Execute runs the program, args[0] being the name that it was called by, and gives
// its exit code.
func Execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if name := called(args); os.Getenv("CNI_COMMAND") != "" && (name == Plugin || name == loopback) {
		return plugin(name)
	}
	log := step.NewLogger(stderr, slog.LevelInfo)
	ran := false
	root := &cobra.Command{
		Use: "run-network", Short: "The network of RUN instructions", Long: help,
		Example:      "  run-network relay --gateway egress-gateway.fabrique-egress.svc:3128",
		SilenceUsage: true, SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	install := &cobra.Command{
		Use: "install DIR", Short: "Put the plugin where buildkitd looks for it", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			ran = true
			result, err := Install(args[0])
			if err == nil {
				log.Info("installed the plugin", "folder", args[0], "result", result)
			}
			return err
		},
	}
	var gateway, socket string
	relay := &cobra.Command{
		Use: "relay", Short: "Lead the plugin's ports to the egress gateway", Args: cobra.NoArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			ran = true
			return step.CheckFlags(cmd.Flags(), []string{"gateway"})
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			host, port, err := net.SplitHostPort(gateway)
			if n, portErr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || portErr != nil || n == 0 {
				return step.Invalidf("parsing the gateway's address %q: want host:port", step.Clip(gateway))
			}
			return NewRelay(log, gateway).Run(cmd.Context(), socket)
		},
	}
	relay.Flags().StringVar(&gateway, "gateway", "", "the egress gateway's proxy port, host:port")
	relay.Flags().StringVar(&socket, "socket", Socket, "where the plugin finds the relay")
	root.AddCommand(install, relay)
	root.SetHelpCommand(&cobra.Command{Hidden: true})
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetArgs(args[min(1, len(args)):])
	err := root.ExecuteContext(ctx)
	if !ran && err != nil {
		err = step.Invalidf("%w; see run-network --help", err) // cobra's own complaints
	}
	if err != nil {
		log.Error(err.Error(), "exit_code", step.ExitCode(err))
	}
	return step.ExitCode(err)
}

// Install puts this program into a folder, by the plugins' names, and tells "created",
// "updated" or "unchanged". Exit code 2 for a folder that cannot be written to.
func Install(dir string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", step.Retryf("finding this program: %w", err)
	}
	text, err := os.ReadFile(self)
	if err != nil {
		return "", step.Retryf("reading this program: %w", err)
	}
	result := "unchanged"
	for _, name := range []string{Plugin, loopback} {
		path := filepath.Join(dir, name)
		before, err := os.ReadFile(path)
		switch {
		case err == nil && string(before) == string(text):
			continue
		case err == nil:
			result = "updated"
		case result == "unchanged":
			result = "created"
		}
		// A daemon that runs may call it at this moment: it finds the old or the new one.
		fresh := path + ".new"
		if err := os.WriteFile(fresh, text, 0o755); err != nil {
			return "", step.Invalidf("installing the plugin: %w", err)
		}
		if err := os.Rename(fresh, path); err != nil {
			return "", step.Invalidf("installing the plugin: %w", err)
		}
	}
	return result, nil
}
