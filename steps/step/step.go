// Package step is the contract that all step binaries share, so that a
// Workflow, a test and a person at a terminal meet the same behaviour:
//
//   - Every flag --some-name falls back to the environment variable
//     FABRIQUE_SOME_NAME. Secrets are never flags; a step takes the path of a
//     file or reads a variable named in its help.
//   - The result is one JSON object, the last line of standard output. With
//     --outputs DIR each field also becomes a file DIR/<field> without a
//     trailing newline (strings as they are, everything else as JSON), written
//     on failure too, together with DIR/error, so that Argo always finds its
//     output parameters.
//   - Logs go to standard error by log/slog: text on a terminal, JSON otherwise.
//   - In a pod the error's text is the container's termination message (the file
//     /dev/termination-log, at most 4 KiB), so that it stands in the pod's status.
//   - Exit codes are [ExitOK], [ExitRetry], [ExitInvalid] and [ExitSource].
//   - SIGTERM, SIGINT and --timeout cancel the context; a step then returns
//     promptly with what it started cleaned up, exit code 1.
//   - With --every, which a step has that may go on for good, the above holds for each
//     round: a failure is logged and the next round tries again, a result is printed
//     when it is not that of the round before, and a signal ends it with exit code 0.
//     A first round with exit code 2 ends it too.
package step

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// Spec describes a step whose result is the JSON object R, a struct with json
// tags.
type Spec[R any] struct {
	Use     string        // binary's name
	Short   string        // one line
	Long    string        // what it does, what it guarantees
	Example string        // a command that can be pasted
	Timeout time.Duration // default of --timeout

	// Flags declares the step's flags; see [Var] and [ListVar] for parsed ones.
	Flags func(*pflag.FlagSet)
	// Repeats gives the step --every.
	Repeats bool
	// Required names the flags that must be set, by option or environment.
	Required []string
	// Run does the work. The result is written also when it returns an error.
	Run func(context.Context, *slog.Logger) (R, error)
}

// Main runs the step with the process's arguments and ends the process.
func Main[R any](spec Spec[R]) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	code := Execute(ctx, spec, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Execute runs the step with args and gives its exit code.
func Execute[R any](ctx context.Context, spec Spec[R], args []string, stdout, stderr io.Writer) int {
	log := NewLogger(stderr, slog.LevelInfo)
	var outputs string
	timeout := spec.Timeout
	var every time.Duration
	var result R
	ran, ended := false, false

	printed := ""
	report := func(err error) error {
		if outputs != "" {
			if writeErr := WriteOutputs(outputs, result, err); writeErr != nil {
				err = errors.Join(err, writeErr)
			}
		}
		if err != nil {
			printed = ""
			log.Error(err.Error(), "exit_code", ExitCode(err))
			return err
		}
		line, err := json.Marshal(result)
		if err == nil && string(line) != printed {
			printed = string(line)
			_, err = fmt.Fprintln(stdout, printed)
		}
		if err != nil {
			err = Retryf("writing the result: %w", err)
			log.Error(err.Error(), "exit_code", ExitRetry)
		}
		return err
	}

	cmd := &cobra.Command{
		Use:           spec.Use,
		Short:         spec.Short,
		Long:          spec.Long + "\n\n" + contractHelp,
		Example:       spec.Example,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			return CheckFlags(cmd.Flags(), spec.Required)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return Invalidf("parsing --timeout %s: want a positive duration", timeout)
			}
			if every != 0 && every < time.Second {
				return Invalidf("parsing --every %s: want at least 1s, or 0 for once", every)
			}
			ran = true
			round := func() (err error) {
				ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout, fmt.Errorf("the deadline of %s passed (--timeout)", timeout))
				defer cancel()
				result, err = spec.Run(ctx, log)
				return WithCause(ctx, err)
			}
			err := round()
			if every == 0 || ExitCode(err) == ExitInvalid {
				return err
			}
			for ended = true; ctx.Err() == nil; {
				report(err)
				select {
				case <-ctx.Done():
				case <-time.After(every):
					err = round()
				}
			}
			log.Info("ending", "because", context.Cause(ctx).Error())
			return nil
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return Invalidf("%w; see %s --help", err, spec.Use)
	})
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	cmd.SetArgs(args)
	spec.Flags(cmd.Flags())
	cmd.Flags().StringVar(&outputs, "outputs", "", "folder that gets one file per field of the result")
	cmd.Flags().DurationVar(&timeout, "timeout", spec.Timeout, "deadline for the whole step")
	if spec.Repeats {
		cmd.Flags().DurationVar(&every, "every", 0, "do it again and again, with this pause, until a signal; --timeout is then each round's (default: once)")
	}

	err := cmd.ExecuteContext(ctx)
	if outputs == "" && err != nil {
		outputs = outputsFolder(args) // the flags were read only as far as the first unknown one
	}
	if !ran && err != nil && ExitCode(err) == ExitRetry {
		err = Invalidf("%w; see %s --help", err, spec.Use) // cobra's own complaints about the arguments
	}
	if err == nil && (!ran || ended) {
		return ExitOK // --help, or a signal after --every
	}
	if err = report(err); err != nil {
		if writeErr := writeTermination(terminationLog, err); writeErr != nil {
			log.Warn("writing the termination message: " + writeErr.Error())
		}
	}
	return ExitCode(err)
}

// outputsFolder finds --outputs in arguments that cannot be parsed, or in the
// environment.
func outputsFolder(args []string) string {
	for i, arg := range args {
		if value, ok := strings.CutPrefix(arg, "--outputs="); ok {
			return value
		}
		if arg == "--outputs" && i+1 < len(args) {
			return args[i+1]
		}
	}
	return os.Getenv(EnvName("outputs"))
}

const contractHelp = `Every flag falls back to an environment variable: --some-flag to FABRIQUE_SOME_FLAG.
The result is one JSON object, the last line of standard output; logs go to standard error.

Exit codes: 0 done, also when there was nothing to do
            1 a failure that a retry may mend (network, server error, deadline)
            2 bad input or configuration
            3 the source is at fault (Dockerfile missing, build failed)`

// NewLogger logs to w from a level on: text when w is a terminal, JSON lines
// otherwise. Every text in it goes through [Printable].
func NewLogger(w io.Writer, level slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindString {
			a.Value = slog.StringValue(Printable(a.Value.String()))
		}
		return a
	}}
	if IsTerminal(w) {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// WriteOutputs writes each field of result, a struct with json tags, to its own
// file in dir, and the error's text (or nothing) to the file "error".
func WriteOutputs(dir string, result any, failure error) error {
	raw, err := json.Marshal(result)
	if err != nil {
		return Invalidf("encoding the result: %w", err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return Invalidf("encoding the result: want a JSON object: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Invalidf("creating the --outputs folder: %w", err)
	}
	text := ""
	if failure != nil {
		text = Printable(failure.Error())
	}
	if err := os.WriteFile(filepath.Join(dir, "error"), []byte(text), 0o644); err != nil {
		return Invalidf("writing the --outputs: %w", err)
	}
	for name, value := range fields {
		var s string
		if value[0] != '"' || json.Unmarshal(value, &s) != nil {
			s = string(value)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(s), 0o644); err != nil {
			return Invalidf("writing the --outputs: %w", err)
		}
	}
	return nil
}

// WithCause adds why the context ended (a signal, the deadline) to an error
// that only says that it did. Such an error is worth a retry.
func WithCause(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	cause := context.Cause(ctx)
	if strings.Contains(err.Error(), cause.Error()) {
		return Retryf("%w", err)
	}
	return Retryf("%w: %w", cause, err)
}
