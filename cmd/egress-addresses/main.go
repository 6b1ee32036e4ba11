// Command egress-addresses limits the egress gateway's own way out to the addresses of
// the names that it lets builds reach.
package main

import (
	"time"

	"github.com/spf13/pflag"

	"fabrique/steps/egress/addresses"
	"fabrique/steps/step"
)

func main() {
	var f addresses.Flags
	step.Main(step.Spec[addresses.Result]{
		Use: "egress-addresses", Short: "Limit the egress gateway's own way out to the listed names' addresses",
		Long:     addresses.Help,
		Example:  "  egress-addresses --policy /etc/egress/policy.json --every 30s",
		Timeout:  2 * time.Minute,
		Required: []string{"policy"},
		Repeats:  true,
		Flags:    func(flags *pflag.FlagSet) { f.Declare(flags) },
		Run:      f.Run,
	})
}
