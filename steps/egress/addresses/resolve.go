package addresses

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	lookupTimeout = 10 * time.Second // of one name; the gateway waits as long
	lookups       = 16               // at once
)

// resolve asks for the addresses, of both families, of names as they are, never below
// one of the cluster's search domains. Each name's are in order.
func resolve(ctx context.Context, resolver *net.Resolver, names []string) (answers map[string][]netip.Addr, unresolved map[string]error) {
	answers, unresolved = map[string][]netip.Addr{}, map[string]error{}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(lookups)
	for _, name := range names {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
			defer cancel()
			found, err := resolver.LookupNetIP(ctx, "ip", name+".")
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				unresolved[name] = err
			}
			for _, a := range found {
				answers[name] = append(answers[name], a.Unmap())
			}
			slices.SortFunc(answers[name], netip.Addr.Compare)
			answers[name] = slices.Compact(answers[name])
			return nil
		})
	}
	group.Wait()
	return answers, unresolved
}
