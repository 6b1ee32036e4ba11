package sink

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
)

// plainPort takes what is for none of the other servers.
const plainPort = "8443"

// ruleset counts before anything else sees a packet, and gives every port a server.
var ruleset = fmt.Sprintf(`table ip sink {
	set ports {
		typeof ip daddr . ip protocol . th dport
		size 65535
		flags dynamic
		counter
	}
	set protocols {
		typeof ip daddr . ip protocol
		size 65535
		flags dynamic
		counter
	}
	chain count {
		type filter hook prerouting priority raw;
		ip daddr %[1]s update @protocols { ip daddr . ip protocol }
		ip daddr %[1]s meta l4proto { tcp, udp } update @ports { ip daddr . ip protocol . th dport }
	}
	chain serve {
		type nat hook prerouting priority dstnat;
		ip daddr %[1]s tcp dport != { 53, 80, 443 } redirect to :%[2]s
		ip daddr %[1]s udp dport != 53 redirect to :%[2]s
	}
}
`, set(networks), plainPort)

// set writes networks as nft does.
func set(networks []netip.Prefix) string {
	var names []string
	for _, n := range networks {
		names = append(names, n.String())
	}
	return "{ " + strings.Join(names, ", ") + " }"
}

// counts reads what nft lists of the table, in JSON (libnftables-json(5)).
func counts(listing []byte) (map[Flow]int64, error) {
	var list struct {
		Nftables []struct {
			Set struct {
				Name string
				Elem []struct {
					Elem struct {
						Val     struct{ Concat []any }
						Counter struct{ Packets int64 }
					}
				}
			}
		}
	}
	if err := json.Unmarshal(listing, &list); err != nil {
		return nil, fmt.Errorf("reading the counters of nftables: %w", err)
	}
	all := map[Flow]int64{}
	for _, entry := range list.Nftables {
		for _, e := range entry.Set.Elem {
			flow, err := flow(e.Elem.Val.Concat)
			if err != nil {
				return nil, err
			}
			all[flow] += e.Elem.Counter.Packets
			if flow.Port == 0 { // protocols: each packet once
				all[Flow{Address: flow.Address}] += e.Elem.Counter.Packets
			}
		}
	}
	return all, nil
}

// flow reads an element of a set: address, protocol, and in one of the sets port.
func flow(element []any) (Flow, error) {
	if len(element) < 2 || len(element) > 3 {
		return Flow{}, fmt.Errorf("reading the counters of nftables: %v is no flow", element)
	}
	address, err := netip.ParseAddr(fmt.Sprint(element[0]))
	if err != nil {
		return Flow{}, fmt.Errorf("reading the counters of nftables: %w", err)
	}
	f := Flow{Address: address, Protocol: fmt.Sprint(element[1])}
	if len(element) == 3 {
		port, ok := element[2].(float64)
		if !ok {
			return Flow{}, fmt.Errorf("reading the counters of nftables: %v is no port", element[2])
		}
		f.Port = uint16(port)
	}
	return f, nil
}
