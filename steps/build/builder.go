package build

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/moby/buildkit/client"

	"fabrique/steps/image"
	"fabrique/steps/step"
)

// connectTimeout is how long one of several builders may take to answer.
const connectTimeout = 10 * time.Second

// connect gives the first of the builders that answers, in the repository's order.
// A single one is not asked first: what is wrong with it the build will say.
func connect(ctx context.Context, log *slog.Logger, o Options) (*client.Client, string, error) {
	addresses := order(o.Addresses, o.Repository)
	var problems []string
	for _, address := range addresses {
		daemon, err := client.New(ctx, address)
		if err != nil {
			return nil, "", step.Invalidf("using the builder's address %q: %w", address, err)
		}
		if len(addresses) == 1 {
			return daemon, address, nil
		}
		err = answers(ctx, daemon)
		if err == nil {
			return daemon, address, nil
		}
		daemon.Close()
		log.Warn("this builder does not answer", "builder", address, "because", err.Error())
		problems = append(problems, fmt.Sprintf("%s: %v", address, err))
	}
	return nil, "", step.Retryf("no builder can be reached: %s", problems)
}

// answers tells whether the daemon has a worker that could build.
func answers(ctx context.Context, daemon *client.Client) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	workers, err := daemon.ListWorkers(ctx)
	if err == nil && len(workers) == 0 {
		return fmt.Errorf("it has no worker")
	}
	return err
}

// order gives a repository's order of the addresses, by rendezvous hashing: one
// address more or less moves only the repositories that come to it or leave it,
// and each builder keeps the cache of its own.
func order(addresses []string, repository image.Repository) []string {
	weight := func(address string) []byte {
		sum := sha256.Sum256([]byte(repository.String() + "\x00" + address))
		return sum[:]
	}
	sorted := slices.Clone(addresses)
	slices.SortFunc(sorted, func(a, b string) int { return bytes.Compare(weight(b), weight(a)) })
	return sorted
}
