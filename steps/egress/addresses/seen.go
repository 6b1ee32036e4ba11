package addresses

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/netip"
	"slices"
	"time"

	"fabrique/steps/egress"
	"fabrique/steps/step"
)

// Seen is when each address of each name was last seen in an answer.
type Seen map[string]map[netip.Addr]time.Time

// maxAddresses bounds what is remembered, and with it the NetworkPolicy: even of the
// longest names, one address each, the annotation stays below the 256 KiB that an
// object's annotations may have together.
const maxAddresses = 800

// ParseSeen reads what [Seen.String] wrote, strictly; empty is nothing. Exit code 2.
func ParseSeen(text string) (Seen, error) {
	if text == "" {
		return Seen{}, nil
	}
	refuse := func(format string, args ...any) (Seen, error) {
		return nil, step.Invalidf("parsing what was seen: "+format, args...)
	}
	var plain map[string]map[string]int64
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	if err := d.Decode(&plain); err != nil {
		return refuse("%w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return refuse("something stands behind it")
	}
	seen, n := Seen{}, 0
	for name, at := range plain {
		if destination, err := egress.ParseDestination(name + ":1"); err != nil {
			return refuse("%w", err)
		} else if host, _, wildcard := destination.Split(); wildcard || host != name {
			return refuse("%q is no name", step.Clip(name))
		}
		seen[name] = map[netip.Addr]time.Time{}
		for text, unix := range at {
			a, err := netip.ParseAddr(text)
			if err != nil || a.String() != text || a.Zone() != "" || a.Is4In6() {
				return refuse("%q is no address in its canonical form", step.Clip(text))
			}
			if unix < 0 || unix > maxUnix {
				return refuse("%d is no time", unix)
			}
			seen[name][a] = time.Unix(unix, 0)
			n++
		}
		if len(at) == 0 {
			return refuse("%q has no address", name)
		}
	}
	if n > maxAddresses {
		return refuse("%d addresses are too many", n)
	}
	return seen, nil
}

// maxUnix is the last second with ten digits, in the year 2286.
const maxUnix = 9999999999

// String gives the annotation's text, JSON of seconds since 1970 by name and address.
// The same gives the same bytes, nothing gives nothing.
func (s Seen) String() string {
	plain := map[string]map[netip.Addr]int64{}
	for name, at := range s {
		for a, t := range at {
			if plain[name] == nil {
				plain[name] = map[netip.Addr]int64{}
			}
			plain[name][a] = t.Unix()
		}
	}
	if len(plain) == 0 {
		return ""
	}
	text, err := json.Marshal(plain)
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(text)
}

func (s Seen) count() (n int) {
	for _, at := range s {
		n += len(at)
	}
	return n
}

// next gives what is remembered after the answers of now, for the names that are
// listed: what is in an answer, and what was in one within the time to keep it. What
// the gateway refuses to dial is not.
//
// Times are written anew, all of the answers' at once, only when one of them is new or
// older than a quarter of the time to keep: the same answers do not make a write each
// round.
func (s Seen) next(policy *egress.Policy, listed []string, answers map[string][]netip.Addr, now time.Time, keep time.Duration) (after Seen, refused []string, dropped int) {
	now = now.Truncate(time.Minute)
	after, fresh := Seen{}, false
	answered := func(name string, a netip.Addr) bool { return slices.Contains(answers[name], a) }
	for _, name := range listed {
		after[name] = map[netip.Addr]time.Time{}
		for a, t := range s[name] {
			if t.After(now) {
				t = now // by another clock
			}
			if policy.Address(a) == nil && now.Sub(t) < keep {
				after[name][a] = t
			}
		}
		for _, a := range answers[name] {
			if err := policy.Address(a); err != nil {
				var refusal *egress.Refusal
				errors.As(err, &refusal)
				refused = append(refused, name+" leads to "+refusal.Address+", "+refusal.Detail)
				continue
			}
			if t, known := after[name][a]; !known || now.Sub(t) >= keep/4 {
				fresh = true
				after[name][a] = now
			}
		}
	}
	if fresh {
		for name, at := range after {
			for a := range at {
				if answered(name, a) {
					at[a] = now
				}
			}
		}
	}
	return after, refused, after.shrink(answered)
}

// shrink drops what is too much: first what is in no answer, the oldest of it first.
func (s Seen) shrink(answered func(string, netip.Addr) bool) (dropped int) {
	if dropped = s.count() - maxAddresses; dropped <= 0 {
		return 0
	}
	type entry struct {
		name    string
		address netip.Addr
	}
	var all []entry
	for _, name := range slices.Sorted(maps.Keys(s)) {
		for _, a := range slices.SortedFunc(maps.Keys(s[name]), netip.Addr.Compare) {
			all = append(all, entry{name, a})
		}
	}
	// Of what is in an answer the same ones stay each time.
	age := func(e entry) int64 {
		if answered(e.name, e.address) {
			return 0
		}
		return maxUnix - s[e.name][e.address].Unix()
	}
	slices.SortStableFunc(all, func(a, b entry) int { return cmp.Compare(age(a), age(b)) })
	for _, e := range all[maxAddresses:] {
		delete(s[e.name], e.address)
	}
	return dropped
}
