package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"fabrique/bench/cluster"
)

func soakCommand() *cobra.Command {
	var rounds, kills int
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Bring the cluster up and down again and again, and kill bench up at random moments",
		Long: `Runs up, up again (which is to change nothing), check and down --rounds times in a row, then kills "bench up" --kills times at a random moment
and runs down and up after it. Ends at the first failure; each "down" counts what it left. A round takes
4 minutes, a kill 2. There must be no cluster when it begins.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cluster.Default()
			if err != nil {
				return err
			}
			if _, err := os.Stat(c.Dir); err == nil {
				return fmt.Errorf("there is something in %s: run bench down first", c.Dir)
			}
			out := cmd.OutOrStdout()
			var shortest time.Duration
			for i := range rounds {
				took, err := cycle(cmd.Context(), out, fmt.Sprintf("round %d of %d", i+1, rounds), "up", "up", "check", "down")
				if err != nil {
					return err
				}
				if shortest == 0 || took < shortest {
					shortest = took
				}
			}
			if shortest == 0 {
				shortest = time.Minute
			}
			for i := range kills {
				if err := killed(cmd.Context(), out, fmt.Sprintf("kill %d of %d", i+1, kills), shortest); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().IntVar(&rounds, "rounds", 10, "how often to run up, check, down")
	cmd.Flags().IntVar(&kills, "kills", 10, "how often to kill up, and run down and up after it")
	return cmd
}

// cycle runs verbs of this program and prints a line with their times. It gives
// that of the first.
func cycle(ctx context.Context, out io.Writer, name string, verbs ...string) (first time.Duration, err error) {
	line := name + ":"
	for i, verb := range verbs {
		start := time.Now()
		text, err := self(ctx, verb).CombinedOutput()
		took := time.Since(start).Round(100 * time.Millisecond)
		if err != nil {
			return 0, fmt.Errorf("%s: bench %s after %s: %w\n%s", name, verb, took, err, text)
		}
		if i == 0 {
			first = took
		}
		// The second of two is to change nothing.
		if i > 0 && verb == verbs[i-1] {
			if !strings.Contains(string(text), ", unchanged\n") {
				return 0, fmt.Errorf("%s: the second bench %s changed something\n%s", name, verb, text)
			}
			verb = "unchanged"
		}
		line += fmt.Sprintf(" %s %s", verb, took)
	}
	fmt.Fprintln(out, line)
	return first, nil
}

// killed ends bench up by SIGKILL at a random moment within a whole run's time.
func killed(ctx context.Context, out io.Writer, name string, within time.Duration) error {
	moment := rand.N(within).Round(100 * time.Millisecond)
	cmd := self(ctx, "up")
	if err := cmd.Start(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(moment):
	}
	if err := errors.Join(context.Cause(ctx), cmd.Process.Kill()); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		return fmt.Errorf("%s: bench up ended by itself within %s: %s", name, moment, cmd.ProcessState)
	}
	_, err := cycle(ctx, out, fmt.Sprintf("%s, after %s", name, moment), "down", "up", "down")
	return err
}

func self(ctx context.Context, verb string) *exec.Cmd {
	return exec.CommandContext(ctx, "/proc/self/exe", verb)
}
