package addresses

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"fabrique/manifests/kubeconfig"
	"fabrique/manifests/zone"
	"fabrique/steps/egress"
	"fabrique/steps/step"
)

// Help is the binary's description.
const Help = `Resolves the names of the egress gateway's policy and brings the NetworkPolicy ` + zone.AddressesPolicy + ` to their
addresses, port by port, so that the gateway itself reaches nothing else. What the gateway would refuse to dial is
left out. A port that is listed with a wildcard keeps all networks that the gateway may dial.

Addresses that were seen within --keep stay, also of a name that does not resolve just now. When nothing has to
change, nothing is written. The policy is read again in every round of --every.`

// Flags are the binary's, as parsed.
type Flags struct {
	options          Options
	file, kubeconfig string
	client           dynamic.Interface
	noted            map[string]string // in the round before
}

// Declare declares the flags.
func (f *Flags) Declare(flags *pflag.FlagSet) {
	f.options.Resolver, f.options.Now = &net.Resolver{PreferGo: true}, time.Now
	flags.StringVar(&f.file, "policy", "", "file with the gateway's policy, as fabrique render writes it")
	flags.DurationVar(&f.options.Keep, "keep", 24*time.Hour, "how long an address stays after it was last seen")
	flags.StringVar(&f.options.Namespace, "namespace", zone.Egress, "namespace of the gateway")
	kubeconfig.Flag(flags, &f.kubeconfig)
}

// Run reads the policy and updates the NetworkPolicy. What it warned of it does not say
// again in the next round.
func (f *Flags) Run(ctx context.Context, log *slog.Logger) (Result, error) {
	result := Result{Unresolved: []string{}, Refused: []string{}, OpenPorts: []uint16{}}
	if f.options.Keep < minKeep {
		return result, step.Invalidf("parsing --keep %s: want at least %s", f.options.Keep, minKeep)
	}
	text, err := os.ReadFile(f.file)
	if err != nil {
		return result, step.Invalidf("reading the egress policy: %w", err)
	}
	if f.options.Rules, err = egress.ParseRules(text); err != nil {
		return result, err
	}
	if f.client == nil {
		config, err := kubeconfig.Load(f.kubeconfig)
		if err != nil {
			return result, err
		}
		if f.client, err = dynamic.NewForConfig(config); err != nil {
			return result, step.Invalidf("reading the kubeconfig: %w", err)
		}
	}
	f.options.Policies = f.client.Resource(schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}).Namespace(f.options.Namespace)
	result, err = Update(ctx, log, f.options)
	for _, what := range slices.Sorted(maps.Keys(result.notes)) {
		if _, known := f.noted[what]; !known {
			log.Warn(what, "more", result.notes[what])
		}
	}
	f.noted = result.notes
	return result, err
}

// minKeep leaves room for times that are rounded to minutes.
const minKeep = 10 * time.Minute
