package policy

import (
	"net/netip"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fabrique/manifests/egress"
	"fabrique/manifests/zone"
	"fabrique/steps/config"
)

// The part of Cilium's CiliumNetworkPolicy, cilium.io/v2, that is used here
// (docs.cilium.io, Layer 3 Policies: DNS based; Layer 7 Policies: DNS).
type (
	ciliumNetworkPolicy struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              ciliumSpec `json:"spec"`
	}
	ciliumSpec struct {
		EndpointSelector *metav1.LabelSelector `json:"endpointSelector"`
		Egress           []ciliumEgress        `json:"egress"`
	}
	ciliumEgress struct {
		ToEndpoints []*metav1.LabelSelector `json:"toEndpoints,omitempty"`
		ToCIDR      []string                `json:"toCIDR,omitempty"`
		ToFQDNs     []ciliumName            `json:"toFQDNs,omitempty"`
		ToPorts     []ciliumPorts           `json:"toPorts"`
	}
	ciliumName struct {
		MatchName    string `json:"matchName,omitempty"`
		MatchPattern string `json:"matchPattern,omitempty"`
	}
	ciliumPorts struct {
		Ports []ciliumPort `json:"ports"`
		Rules *ciliumRules `json:"rules,omitempty"`
	}
	ciliumPort struct {
		Port     string `json:"port"`
		Protocol string `json:"protocol"`
	}
	ciliumRules struct {
		DNS []ciliumName `json:"dns"`
	}
)

// ciliumNamespace is the label by which Cilium knows the namespace of a pod.
const ciliumNamespace = "k8s:io.kubernetes.pod.namespace"

// byName limits the gateway's way out to the listed names, each on its ports, and its
// DNS to questions for them: Cilium learns a name's addresses from the answers that pass
// through its DNS proxy, so without the rule for DNS it knows none. It adds to
// what the namespace's NetworkPolicies allow.
//
// The bench has no Cilium, so nothing has applied this: a test compares it with its
// golden file.
func byName(c config.Config) *ciliumNetworkPolicy {
	var names []ciliumName
	var ports []uint16
	byPort := map[uint16][]ciliumName{}
	for _, d := range c.Egress.Destinations() {
		name, port, wildcard := d.Split()
		one := ciliumName{MatchName: name}
		if wildcard {
			// One star is one label. Two at the beginning are one or more, as for the
			// gateway, since Cilium 1.19; before that they are one label, too.
			one = ciliumName{MatchPattern: "**." + name}
		}
		if !slices.Contains(names, one) {
			names = append(names, one)
		}
		if byPort[port] == nil {
			ports = append(ports, port)
		}
		byPort[port] = append(byPort[port], one)
	}
	slices.Sort(ports)
	p := &ciliumNetworkPolicy{
		TypeMeta: zone.Type("cilium.io/v2", "CiliumNetworkPolicy"), ObjectMeta: zone.Meta(zone.Egress, "gateway-names"),
		Spec: ciliumSpec{EndpointSelector: labelled(egress.Labels()), Egress: []ciliumEgress{}},
	}
	if len(names) > 0 { // else a rule for DNS without names would let every question through
		for _, server := range dnsServers(c.Cluster.Network) {
			rule := ciliumEgress{ToPorts: ciliumTo(server.Port, "ANY", &ciliumRules{DNS: names})}
			if server.Namespace != "" {
				selector := map[string]string{ciliumNamespace: server.Namespace}
				for key, value := range server.Labels {
					selector["k8s:"+key] = value
				}
				rule.ToEndpoints = []*metav1.LabelSelector{labelled(selector)}
			}
			for _, address := range server.Addresses {
				a := netip.MustParseAddr(address)
				rule.ToCIDR = append(rule.ToCIDR, netip.PrefixFrom(a, a.BitLen()).String())
			}
			p.Spec.Egress = append(p.Spec.Egress, rule)
		}
	}
	for _, port := range ports {
		p.Spec.Egress = append(p.Spec.Egress, ciliumEgress{ToFQDNs: byPort[port], ToPorts: ciliumTo(int32(port), "TCP", nil)})
	}
	return p
}

func ciliumTo(port int32, protocol string, rules *ciliumRules) []ciliumPorts {
	return []ciliumPorts{{Ports: []ciliumPort{{Port: strconv.Itoa(int(port)), Protocol: protocol}}, Rules: rules}}
}
