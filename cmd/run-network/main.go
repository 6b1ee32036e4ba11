// Command run-network is the network of RUN instructions: a way to the egress gateway
// and nothing else.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"fabrique/steps/runnetwork"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	code := runnetwork.Execute(ctx, os.Args, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
