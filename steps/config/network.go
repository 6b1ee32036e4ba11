package config

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	"fabrique/steps/step"
)

// Network is where the factory's pods find what they talk to. NetworkPolicies know
// pods and addresses only, no names; ports are those of the containers, not of a
// Service.
type Network struct {
	Gitea Peer `yaml:"gitea"`
	// Webhook is where deliveries come from, by the EventSource's own port; without it,
	// from Gitea.
	Webhook   Peer `yaml:"webhook"`
	Registry  Peer `yaml:"registry"`
	APIServer Peer `yaml:"apiServer"`
	DNS       Peer `yaml:"dns"`
	// NodeLocalDNS is the address that pods ask on a node with NodeLocal DNSCache;
	// empty for none.
	NodeLocalDNS string `yaml:"nodeLocalDNS"`
	// FQDNPolicies is what limits the gateway's own way out to the listed names.
	FQDNPolicies FQDNPolicies `yaml:"fqdnPolicies"`
}

// FQDNPolicies are policies that know names.
type FQDNPolicies string

// The values of [FQDNPolicies].
const (
	NoFQDNPolicies FQDNPolicies = "none"   // the names' addresses are kept in a NetworkPolicy
	CiliumPolicies FQDNPolicies = "cilium" // a CiliumNetworkPolicy has the names
)

// Peer is one side of a connection: pods, by their namespace and labels, or
// addresses.
type Peer struct {
	Namespace string            `yaml:"namespace"`
	Labels    map[string]string `yaml:"labels"`
	Addresses []string          `yaml:"addresses"`
	Port      int32             `yaml:"port"`
}

func (p Peer) given() bool { return p.Namespace != "" || len(p.Addresses) > 0 }

var (
	labelKeyForm   = regexp.MustCompile(`^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	labelValueForm = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$`)
)

func (n *Network) peers() map[string]*Peer {
	return map[string]*Peer{"gitea": &n.Gitea, "registry": &n.Registry, "apiServer": &n.APIServer, "dns": &n.DNS}
}

// Deliveries gives the peer that webhooks come from.
func (n Network) Deliveries() Peer {
	if n.Webhook.given() {
		return n.Webhook
	}
	return n.Gitea
}

func (n *Network) check(d *decoder) {
	if n.DNS.Namespace == "" && len(n.DNS.Addresses) == 0 {
		n.DNS.Namespace = "kube-system"
		if len(n.DNS.Labels) == 0 {
			n.DNS.Labels = map[string]string{"k8s-app": "kube-dns"}
		}
	}
	if n.DNS.Port == 0 {
		n.DNS.Port = 53
	}
	for name, p := range n.peers() {
		if p.given() || p.Port != 0 || len(p.Labels) > 0 {
			p.check(d, "cluster.network."+name)
		}
	}
	if w := n.Webhook; w.given() || w.Port != 0 || len(w.Labels) > 0 {
		if w.Port != 0 {
			d.problem("cluster.network.webhook.port", "it has none of its own; leave it out")
		}
		w.Port = 1
		w.check(d, "cluster.network.webhook")
	}
	if n.FQDNPolicies != NoFQDNPolicies && n.FQDNPolicies != CiliumPolicies {
		d.problem("cluster.network.fqdnPolicies", "%q is unknown; want none or cilium", n.FQDNPolicies)
	}
	if n.NodeLocalDNS != "" {
		if err := checkAddress(n.NodeLocalDNS); err != nil {
			d.problem("cluster.network.nodeLocalDNS", "%w", err)
		}
	}
}

func (p Peer) check(d *decoder, field string) {
	switch {
	case (p.Namespace != "") == (len(p.Addresses) > 0):
		d.problem(field, "name pods by namespace and labels, or addresses, one of both")
	case p.Namespace != "" && (!nameForm.MatchString(p.Namespace) || len(p.Labels) == 0):
		d.problem(field, "want a namespace and at least one label of the pods in it, as in {namespace: gitea, labels: {app: gitea}, port: 3000}")
	case p.Port < 1 || p.Port > 65535:
		d.problem(field+".port", "%d is no port; want the container's, 1 to 65535", p.Port)
	}
	for key, value := range p.Labels {
		if !labelKeyForm.MatchString(key) || !labelValueForm.MatchString(value) {
			d.problem(field+".labels", "%q: %q is no label", key, value)
		}
	}
	for i, a := range p.Addresses {
		if err := checkAddress(a); err != nil {
			d.problem(fmt.Sprintf("%s.addresses[%d]", field, i), "%w", err)
		}
	}
}

func checkAddress(s string) error {
	if a, err := netip.ParseAddr(s); err != nil || a.Zone() != "" || a.IsUnspecified() {
		return step.Invalidf("parsing the address %q: want one IP address, as in 10.0.0.1", step.Clip(s))
	}
	return nil
}

// missing lists the peers that a cluster needs and the file does not name.
func (n *Network) missing() []string {
	var names []string
	for name, p := range n.peers() {
		if !p.given() {
			names = append(names, "cluster.network."+name)
		}
	}
	slices.Sort(names)
	return names
}
