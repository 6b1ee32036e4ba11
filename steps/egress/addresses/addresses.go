// Package addresses keeps the NetworkPolicy that limits the egress gateway's own way
// out to where the listed names lead: NetworkPolicies know addresses, no names.
//
// Guarantees:
//
//   - For each listed port the policy has the addresses that the names listed with this
//     port led to within the time to keep them (names behind a CDN rotate their
//     answers), each by itself. What the gateway would refuse to dial
//     ([egress.Policy.Address]) is never among them, nor is 0.0.0.0/0 or ::/0.
//   - A port that is listed with a wildcard cannot be enumerated: it has all networks
//     that the gateway may dial at all, [egress.Policy.Networks].
//   - A name that does not resolve keeps its addresses for as long, and stops no other.
//     One that is not listed any more loses them at once.
//   - A run that finds everything as it should be writes nothing. One that loses a race
//     reads and decides again.
//
// When an address was last seen stands in an annotation of the object, so nothing is
// forgotten with a pod. The rules belong to the field manager of this step (server-side
// apply, KEP-555): "fabrique apply" makes the object without rules, which lets nothing
// out, and leaves those that are there alone.
package addresses

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"

	"fabrique/manifests/zone"
	"fabrique/steps/egress"
	"fabrique/steps/step"
)

// Annotation holds [Seen].
const Annotation = "fabrique/egress-seen"

// manager owns the rules and the annotation.
const manager = "egress-addresses"

// Options of [Update].
type Options struct {
	Rules     egress.Rules
	Keep      time.Duration             // how long an address stays that no answer has any more
	Namespace string                    // of the gateway
	Policies  dynamic.ResourceInterface // the NetworkPolicies there
	Resolver  *net.Resolver
	Now       func() time.Time
}

// Result is the step's result.
type Result struct {
	Result     string   `json:"result"`     // created, updated or unchanged
	Names      int      `json:"names"`      // without the wildcards
	Addresses  int      `json:"addresses"`  // of them all
	Unresolved []string `json:"unresolved"` // names without an answer
	Refused    []string `json:"refused"`    // answers that the gateway would refuse too
	OpenPorts  []uint16 `json:"openPorts"`  // listed with a wildcard
	Dropped    int      `json:"dropped"`    // addresses beyond the most that are kept

	notes map[string]string // what a person should know, and more on it
}

const maxTries = 5

// Update brings the NetworkPolicy to what DNS says now. Exit codes: 1 when the API
// server cannot be reached, when the object is not there and may not be made, and,
// after what is not listed any more was closed, when no address is known at all; 2 when
// the API server refuses it.
func Update(ctx context.Context, log *slog.Logger, o Options) (Result, error) {
	result := Result{Unresolved: []string{}, Refused: []string{}, OpenPorts: []uint16{}, notes: map[string]string{}}
	var names []string
	for _, d := range o.Rules.Destinations() {
		switch name, port, wildcard := d.Split(); {
		case !wildcard:
			names = append(names, name)
		case !slices.Contains(result.OpenPorts, port):
			result.OpenPorts = append(result.OpenPorts, port)
			result.notes[fmt.Sprintf("port %d is listed with a wildcard, which has no addresses: it stays open to all networks", port)] = string(d)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	slices.Sort(result.OpenPorts)
	result.Names = len(names)
	answers, unresolved := resolve(ctx, o.Resolver, names)
	for _, name := range names {
		if err := unresolved[name]; err != nil {
			result.Unresolved = append(result.Unresolved, name)
			result.notes[name+" does not resolve"] = err.Error()
		}
	}
	for try := 1; ; try++ {
		err := o.update(ctx, log, names, answers, &result)
		if apierrors.IsConflict(err) && try < maxTries && ctx.Err() == nil {
			log.Info("somebody changed it meanwhile; trying again")
			continue
		}
		if err != nil {
			return result, err
		}
		break
	}
	if result.Names > 0 && len(result.Unresolved) == result.Names && result.Addresses == 0 {
		return result, step.Retryf("resolving the listed names: none of %d does, and none did before: %w", result.Names, unresolved[names[0]])
	}
	return result, nil
}

func (o Options) update(ctx context.Context, log *slog.Logger, names []string, answers map[string][]netip.Addr, result *Result) error {
	before, err := o.Policies.Get(ctx, zone.AddressesPolicy, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		before, err = nil, nil
	}
	if err != nil {
		return explain("reading the NetworkPolicy", err)
	}
	var there networkingv1.NetworkPolicy
	if before != nil {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(before.Object, &there); err != nil {
			return fmt.Errorf("reading the NetworkPolicy: %w", err)
		}
	}
	seen, err := ParseSeen(there.Annotations[Annotation])
	if err != nil {
		result.notes["forgetting what was seen before"] = err.Error()
	}
	policy := egress.NewPolicy(o.Rules)
	after, refused, dropped := seen.next(policy, names, answers, o.Now(), o.Keep)
	result.Addresses, result.Refused, result.Dropped = after.count(), append([]string{}, refused...), dropped
	for _, what := range refused {
		result.notes[what] = "the gateway refuses it"
	}
	if dropped > 0 {
		result.notes[fmt.Sprintf("more than %d addresses: the oldest are left out", maxAddresses)] = strconv.Itoa(dropped)
	}
	wanted := object(o.Namespace, o.Rules, policy, after)
	if before != nil && equality.Semantic.DeepEqual(there.Spec, wanted.Spec) && there.Annotations[Annotation] == wanted.Annotations[Annotation] {
		result.Result = "unchanged"
		return nil
	}
	// Whoever comes in between makes it a conflict.
	wanted.ResourceVersion = there.ResourceVersion
	if err := o.apply(ctx, wanted); err != nil {
		if before == nil && apierrors.IsForbidden(err) {
			return step.Retryf("making the NetworkPolicy %s in %s: it is not there, and fabrique apply makes it: %w", zone.AddressesPolicy, o.Namespace, err)
		}
		return explain("writing the NetworkPolicy", err)
	}
	result.Result = "updated"
	if before == nil {
		result.Result = "created"
	}
	log.Info(result.Result, "names", result.Names, "addresses", result.Addresses, "rules", len(wanted.Spec.Egress))
	return nil
}

// explain gives what the API server refuses exit code 2.
func explain(doing string, err error) error {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		return step.Invalidf("%s: %w", doing, err)
	}
	return step.Retryf("%s: %w", doing, err)
}

func (o Options) apply(ctx context.Context, p *networkingv1.NetworkPolicy) error {
	plain, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p)
	if err != nil {
		return err
	}
	unstructured.RemoveNestedField(plain, "metadata", "creationTimestamp")
	text, err := json.Marshal(plain)
	if err != nil {
		return err
	}
	force := true
	_, err = o.Policies.Patch(ctx, p.Name, types.ApplyPatchType, text, metav1.PatchOptions{
		FieldManager: manager, Force: &force, FieldValidation: metav1.FieldValidationStrict,
	})
	return err
}

// object gives the NetworkPolicy. A port without any address has no rule: one that
// names nobody would be for everybody.
func object(namespace string, rules egress.Rules, policy *egress.Policy, seen Seen) *networkingv1.NetworkPolicy {
	p := Empty(namespace)
	if text := seen.String(); text != "" {
		p.Annotations = map[string]string{Annotation: text}
	}
	where := map[uint16][]netip.Prefix{}
	var ports, open []uint16
	for _, d := range rules.Destinations() {
		name, port, wildcard := d.Split()
		if !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
		if wildcard {
			open = append(open, port)
			continue
		}
		for a := range seen[name] {
			where[port] = append(where[port], netip.PrefixFrom(a, a.BitLen()))
		}
	}
	slices.Sort(ports)
	for _, number := range ports {
		prefixes := where[number]
		if slices.Contains(open, number) {
			prefixes = policy.Networks()
		} else {
			slices.SortFunc(prefixes, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
			prefixes = slices.Compact(prefixes)
		}
		if len(prefixes) == 0 {
			continue
		}
		protocol, port := corev1.ProtocolTCP, intstr.FromInt32(int32(number))
		rule := networkingv1.NetworkPolicyEgressRule{Ports: []networkingv1.NetworkPolicyPort{{Protocol: &protocol, Port: &port}}}
		for _, prefix := range prefixes {
			rule.To = append(rule.To, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: prefix.String()}})
		}
		p.Spec.Egress = append(p.Spec.Egress, rule)
	}
	return p
}

// Empty is the NetworkPolicy as "fabrique apply" makes it: without rules.
func Empty(namespace string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		TypeMeta: zone.Type("networking.k8s.io/v1", "NetworkPolicy"), ObjectMeta: zone.Meta(namespace, zone.AddressesPolicy),
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: zone.Labels(zone.EgressGateway)},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		},
	}
}
