// Package policy generates the NetworkPolicies of the zones (adr-0095, reserves on
// egress; design: zones): in every namespace nothing comes in and nothing goes out
// but what is listed here, pod by pod. No policy names 0.0.0.0/0 or ::/0.
//
// One of them, gateway-addresses, is made here without rules, which are those of
// package [fabrique/steps/egress/addresses]: applying it again leaves them alone.
package policy

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fabrique/eventsources"
	"fabrique/manifests/buildkitd"
	"fabrique/manifests/bus"
	"fabrique/manifests/egress"
	"fabrique/manifests/zone"
	"fabrique/sensors"
	"fabrique/steps/config"
	"fabrique/steps/egress/addresses"
	"fabrique/workflows/run"
)

// busPort is where NATS takes clients.
const busPort = 4222

// Objects gives the policies.
func Objects(c config.Config) []any {
	n := c.Cluster.Network
	cilium := n.FQDNPolicies == config.CiliumPolicies
	var objects []any
	for _, namespace := range []string{zone.Workflows, zone.Events, zone.Builder, zone.Egress} {
		objects = append(objects, denyAll(namespace))
		if cilium && namespace == zone.Egress {
			continue // it would let every question through that the gateway's own policy does not
		}
		objects = append(objects, policy(namespace, "dns", nil, nil, dns(n)...))
	}
	all := []string{run.Plan, run.Announce, run.Recheck, run.Build, run.Publish, run.Report}
	busPods, builders := pods("", labels("eventbus-name", bus.Name), busPort), pods(zone.Builder, buildkitd.Labels(), buildkitd.Port)
	gateway := func(port int32) peer { return pods(zone.Egress, egress.Labels(), port) }
	if cilium {
		objects = append(objects, byName(c))
	} else {
		objects = append(objects, policy(zone.Egress, zone.EgressAddresses, labelled(zone.Labels(zone.EgressAddresses)), nil, to(n.APIServer)), addresses.Empty(zone.Egress))
	}
	return append(objects,
		// Steps, and the executor beside each, which writes what they put out.
		policy(zone.Workflows, "steps", steps(all...), nil, to(n.Gitea), to(n.APIServer)),
		policy(zone.Workflows, "registry", steps(run.Build, run.Publish), nil, to(n.Registry)),
		policy(zone.Workflows, "builder", steps(run.Build), nil, builders, gateway(egress.AdminPort)),

		policy(zone.Builder, "buildkitd", labelled(buildkitd.Labels()), []peer{{port: buildkitd.Port, where: []networkingv1.NetworkPolicyPeer{{
			NamespaceSelector: name(zone.Workflows), PodSelector: steps(run.Build),
		}}}}, to(n.Registry), gateway(egress.Port)),

		// Where the gateway goes is another policy's: its lists hold names, whose addresses
		// a pod keeps there, or Cilium.
		policy(zone.Egress, "gateway", labelled(egress.Labels()), []peer{
			pods(zone.Builder, buildkitd.Labels(), egress.Port),
			{port: egress.AdminPort, where: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: name(zone.Workflows), PodSelector: steps(run.Build)}}},
			withPort(to(n.APIServer), egress.AdminPort),
		}),

		policy(zone.Events, "eventsource", labelled(labels("eventsource-name", eventsources.Name)), []peer{withPort(to(n.Deliveries()), eventsources.Port)}, busPods),
		policy(zone.Events, "sensor", labelled(labels("sensor-name", sensors.Name)), nil, busPods, to(n.APIServer)),
		policy(zone.Events, "eventbus", labelled(labels("eventbus-name", bus.Name)), []peer{{port: busPort, where: []networkingv1.NetworkPolicyPeer{
			{PodSelector: labelled(labels("eventsource-name", eventsources.Name))}, {PodSelector: labelled(labels("sensor-name", sensors.Name))},
		}}}),
	)
}

// peer is where a connection goes to or comes from.
type peer struct {
	where []networkingv1.NetworkPolicyPeer
	port  int32
	udp   bool // also by UDP
}

func to(p config.Peer) peer {
	if p.Namespace != "" {
		return pods(p.Namespace, p.Labels, p.Port)
	}
	var where []networkingv1.NetworkPolicyPeer
	for _, address := range p.Addresses {
		where = append(where, block(address))
	}
	return peer{where: where, port: p.Port}
}

// block is one address; the configuration holds no other form.
func block(address string) networkingv1.NetworkPolicyPeer {
	a := netip.MustParseAddr(address)
	return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: netip.PrefixFrom(a, a.BitLen()).String()}}
}

// pods of a namespace, of the policy's own if that is empty.
func pods(namespace string, labels map[string]string, port int32) peer {
	where := networkingv1.NetworkPolicyPeer{PodSelector: labelled(labels)}
	if namespace != "" {
		where.NamespaceSelector = name(namespace)
	}
	return peer{where: []networkingv1.NetworkPolicyPeer{where}, port: port}
}

func withPort(p peer, port int32) peer {
	p.port = port
	return p
}

// dnsServers gives the cluster's DNS pods, by their container's port, and the node's own
// cache, which has no other than 53.
func dnsServers(n config.Network) []config.Peer {
	if n.NodeLocalDNS == "" {
		return []config.Peer{n.DNS}
	}
	return []config.Peer{n.DNS, {Addresses: []string{n.NodeLocalDNS}, Port: 53}}
}

func dns(n config.Network) []peer {
	var peers []peer
	for _, server := range dnsServers(n) {
		p := to(server)
		p.udp = true
		peers = append(peers, p)
	}
	return peers
}

func labels(key, value string) map[string]string { return map[string]string{key: value} }

func labelled(labels map[string]string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: labels}
}

// name selects a namespace; Kubernetes puts this label on each.
func name(namespace string) *metav1.LabelSelector {
	return labelled(labels(corev1.LabelMetadataName, namespace))
}

// steps selects the Workflow pods of these templates.
func steps(templates ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: zone.StepLabel, Operator: metav1.LabelSelectorOpIn, Values: templates,
	}}}
}

func denyAll(namespace string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		TypeMeta: zone.Type("networking.k8s.io/v1", "NetworkPolicy"), ObjectMeta: zone.Meta(namespace, "deny-all"),
		Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}},
	}
}

// policy lets these pods, all of the namespace if there is no selector, be reached
// from some peers and reach others.
func policy(namespace, name string, selector *metav1.LabelSelector, from []peer, to ...peer) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{
		TypeMeta: zone.Type("networking.k8s.io/v1", "NetworkPolicy"), ObjectMeta: zone.Meta(namespace, name),
	}
	if selector != nil {
		p.Spec.PodSelector = *selector
	}
	if len(from) > 0 {
		p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress)
	}
	if len(to) > 0 {
		p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
	}
	for _, f := range from {
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: f.where, Ports: f.ports()})
	}
	for _, t := range to {
		p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: t.where, Ports: t.ports()})
	}
	return p
}

func (p peer) ports() []networkingv1.NetworkPolicyPort {
	port := intstr.FromInt32(p.port)
	tcp, udp := corev1.ProtocolTCP, corev1.ProtocolUDP
	ports := []networkingv1.NetworkPolicyPort{{Protocol: &tcp, Port: &port}}
	if p.udp {
		ports = append(ports, networkingv1.NetworkPolicyPort{Protocol: &udp, Port: &port})
	}
	return ports
}
