// Command egress-gateway lets builds out, to listed names only.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"fabrique/steps/egress/gateway"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	code := gateway.Execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
