package gateway

import (
	"context"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"fabrique/steps/egress"
	"fabrique/steps/step"
)

const help = `Serves a forward proxy (CONNECT and plain HTTP) that lets builds reach the names of the policy and nothing
else, and on a second port /healthz, /metrics and /requests. The policy and the key are read again when their
files change, without touching what is open. It serves until SIGTERM, then lets what is open end.

Who asks is told by the credential in the proxy's address, which buildkit-build makes with the same key. Without
one, only what all apps may reach is let through.

Every flag falls back to an environment variable: --some-flag to FABRIQUE_SOME_FLAG. Logs go to standard error,
one line for each request.

Exit codes: 0 ended by SIGTERM or SIGINT
            1 it cannot serve any more
            2 bad policy, key or flags`

// Execute runs the program with args and gives its exit code.
func Execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	log := step.NewLogger(stderr, slog.LevelInfo)
	var o Options
	ran := false
	cmd := &cobra.Command{
		Use: "egress-gateway", Short: "Let builds out, to listed names only", Long: help,
		Example: "  egress-gateway --policy /etc/egress/policy.json --key-file /run/secrets/egress/key",
		Args:    cobra.NoArgs, SilenceErrors: true, SilenceUsage: true,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			ran = true
			return step.CheckFlags(cmd.Flags(), []string{"policy"})
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return Run(cmd.Context(), log, o) },
	}
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	cmd.SetArgs(args)
	f := cmd.Flags()
	f.StringVar(&o.Listen, "listen", ":3128", "address of the proxy")
	f.StringVar(&o.Admin, "admin", ":9090", "address of /healthz, /metrics and /requests")
	f.StringVar(&o.Policy, "policy", "", "file with the policy, as fabrique render writes it")
	f.StringVar(&o.Key, "key-file", "", "file with the key of the credentials (or "+egress.EnvKey+"; default: none)")
	err := cmd.ExecuteContext(ctx)
	if !ran && err != nil {
		err = step.Invalidf("%w; see egress-gateway --help", err) // cobra's own complaints
	}
	if err != nil {
		log.Error(err.Error(), "exit_code", step.ExitCode(err))
	}
	return step.ExitCode(err)
}
