// Command bench sets up the real parts that Fabrique is tested and shown
// against: see the packages beside it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"fabrique/bench/node"
	"fabrique/bench/parts"
	"fabrique/bench/sink"
)

func main() {
	parts.Intercept()
	node.Intercept()
	sink.Intercept()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	root := &cobra.Command{
		Use:           "bench",
		Short:         "The real parts and a whole cluster on this machine, to test and show Fabrique against",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(installCommand(), upCommand(), checkCommand(), downCommand(), statusCommand(), soakCommand(), demoCommand(), gatesCommand(), tryCommand(), stepsCommand())
	root.AddCommand(imagesCommand())
	err := root.ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
