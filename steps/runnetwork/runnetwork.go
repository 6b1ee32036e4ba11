// Package runnetwork is the network that RUN instructions of a build have: a loopback
// interface, on which one port leads to the egress gateway (adr-0095 §0 and §1.b,
// reserves on egress). There is no other interface, so there is nothing to route
// around: no DNS, no address of the cluster or a node, not the daemon's own port, and
// a raw packet goes nowhere.
//
// It has two parts. The plugin is what BuildKit calls when it makes and removes the
// network namespace of an instruction (Container Network Interface 1.0,
// containernetworking/cni SPEC.md); it opens the port inside that namespace and hands
// it to the relay. The relay, a container beside the daemon, takes connections from
// those ports and makes one to the gateway for each.
package runnetwork

import (
	"encoding/json"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// Where RUN instructions find the gateway.
var Proxy = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 3128)

// ProxyURL is [Proxy] for buildkit-build.
var ProxyURL = "http://" + Proxy.String()

// The names of the plugins: what BuildKit's configuration calls this network, and the
// loopback that it asks for by itself.
const (
	Plugin   = "run-network"
	loopback = "loopback"
)

// Socket is where the plugin finds the relay, in a folder that the two containers
// share.
const Socket = "/run/run-network/relay.sock"

// TraceSocket is where the daemon listens for traces (buildkitd.toml, otel.socketPath).
// BuildKit mounts it into every RUN instruction, where anybody may send it as many as the
// daemon's memory takes, and has no setting against that. It does without when the socket
// is not there as an instruction starts: the plugin, which comes first, removes it.
const TraceSocket = "/run/buildkit/otel-grpc.sock"

// conf is the network's configuration as the plugin reads it.
type conf struct {
	types.PluginConf
	Socket      string `json:"socket"`      // of the relay
	TraceSocket string `json:"traceSocket"` // to remove; empty for none
}

// Conf gives the network's configuration, for buildkitd.toml's cniConfigPath; socket is
// where the relay listens, as [Socket], and traces where the daemon does for traces, as
// [TraceSocket].
func Conf(socket, traces string) ([]byte, error) {
	text, err := json.MarshalIndent(struct {
		Version     string `json:"cniVersion"`
		Name        string `json:"name"`
		Type        string `json:"type"`
		Socket      string `json:"socket"`
		TraceSocket string `json:"traceSocket"`
	}{current.ImplementedSpecVersion, Plugin, Plugin, socket, traces}, "", "  ")
	return append(text, '\n'), err
}

// file gives the descriptor of a listener, to pass on.
func file(l *net.TCPListener) (fd int, done func(), err error) {
	f, err := l.File()
	if err != nil {
		return 0, nil, err
	}
	return int(f.Fd()), func() { f.Close() }, nil
}
