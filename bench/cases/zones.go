package cases

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"fabrique/bench/action"
	"fabrique/bench/sink"
	"fabrique/manifests/zone"
)

// zoneCases are about what keeps the factory's pods apart.
var zoneCases = []Case{
	{Name: "zones", Title: "each kind of pod reaches what it needs and nothing else, to the last packet", Limit: 6 * time.Minute, Run: zones},
}

// kind is a kind of pod of the factory, or one beside it.
type kind struct {
	name      string
	namespace string
	labels    map[string]string
	may       []string // the targets that it reaches; no other
}

// Names of groups of targets. They are said here once more, and not taken from
// the policies, which this holds against the design (design: zones).
var (
	resolves = []string{"DNS by UDP", "DNS by TCP"}
	kubeAPI  = []string{"API server by its service", "API server by its node"}
)

// kinds is the table. The labels are those that policies select pods by; without the
// rest of a real pod's no controller takes the pod for its own.
func kinds() []kind {
	step := func(name string, may ...[]string) kind {
		return kind{"step " + name, zone.Workflows, map[string]string{"fabrique/step": name},
			slices.Concat(append(may, resolves, kubeAPI, []string{"Gitea"})...)}
	}
	part := func(name string) map[string]string {
		return map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "fabrique"}
	}
	registry := []string{"registry"}
	return []kind{
		step("plan"), step("announce"), step("recheck"), step("report"),
		step("build", registry, []string{"buildkitd", "gateway's admin port"}),
		step("publish", registry),
		{"buildkitd", zone.Builder, part("buildkitd"), slices.Concat(resolves, registry, []string{"gateway"})},
		{"egress-gateway", zone.Egress, part("egress-gateway"), slices.Concat(resolves, []string{"listed package source"})},
		{"egress-addresses", zone.Egress, part("egress-addresses"), slices.Concat(resolves, kubeAPI)},
		{"eventsource", zone.Events, map[string]string{"eventsource-name": "gitea"}, slices.Concat(resolves, []string{"event bus"})},
		{"sensor", zone.Events, map[string]string{"sensor-name": "gitea-push"}, slices.Concat(resolves, kubeAPI, []string{"event bus"})},
		{"eventbus", zone.Events, map[string]string{"eventbus-name": "default"}, resolves},
		{"unknown in " + zone.Workflows, zone.Workflows, nil, resolves},
		{"unknown in " + zone.Events, zone.Events, nil, resolves},
		{"unknown in " + zone.Builder, zone.Builder, nil, resolves},
		{"unknown in " + zone.Egress, zone.Egress, nil, resolves},
	}
}

// controls are pods of namespaces without a policy. They reach everything that does
// not itself refuse them, by the very same probes: so a kind that does not reach
// something is kept from it.
func controls() []kind {
	var open []string
	for _, t := range targets {
		if !t.closed && !t.guarded {
			open = append(open, t.name)
		}
	}
	return []kind{
		{"control", zonesNamespace, nil, open},
		{"Gitea's label", "gitea", map[string]string{"app": "gitea"}, append([]string{"EventSource"}, open...)},
	}
}

// target is something to reach, and how.
type target struct {
	name    string
	probe   string // of bench/probe; ${…} is filled in by [World.places]
	guarded bool   // it refuses who is not named, also from a namespace without a policy
	closed  bool   // nobody reaches it on the bench: nothing listens, or its nodes drop it
}

var targets = []target{
	// Two kinds of addresses outside: rules may exclude the range for documentation.
	{name: "outside tcp 443", probe: "tcp ${OUTSIDE}:443"},
	{name: "outside tcp 80", probe: "tcp ${OUTSIDE}:80"},
	{name: "outside tcp 22", probe: "tcp ${OUTSIDE}:22"},
	{name: "outside DNS by UDP", probe: "udp-dns ${OUTSIDE} name.example"},
	{name: "outside DNS by TCP", probe: "tcp-dns ${OUTSIDE} name.example"},
	{name: "outside echo", probe: "icmp ${OUTSIDE}"},
	{name: "public tcp 443", probe: "tls ${PUBLIC} name.example name.example"},
	{name: "public tcp 80", probe: "tcp ${PUBLIC}:80"},
	{name: "public DNS by UDP", probe: "udp-dns ${PUBLIC} name.example"},
	{name: "public DNS by TCP", probe: "tcp-dns ${PUBLIC} name.example"},
	{name: "public DNS by HTTPS", probe: "doh https://${PUBLIC}/dns-query name.example"},
	{name: "public echo", probe: "icmp ${PUBLIC}"},
	{name: "metadata", probe: "tcp ${METADATA}:80"},
	{name: "listed package source", probe: "tcp ${LISTED}"},

	{name: "control plane echo", probe: "icmp ${CONTROL_PLANE}"},
	{name: "control plane's kubelet", probe: "tcp ${CONTROL_PLANE}:10250"},
	{name: "control plane's kube-router", probe: "tcp ${CONTROL_PLANE}:20244"},
	{name: "etcd", probe: "tcp ${CONTROL_PLANE}:2379", closed: true},
	{name: "own node echo", probe: "icmp ${WORKER}"},
	{name: "own node's kubelet", probe: "tcp ${WORKER}:10250"},
	{name: "own node's kube-router", probe: "tcp ${WORKER}:20244"},
	{name: "API server by its service", probe: "tcp ${API}:443"},
	{name: "API server by its node", probe: "tcp ${CONTROL_PLANE}:6443"},

	{name: "pod beside", probe: "tcp ${BESIDE}:8080"},
	{name: "pod beside echo", probe: "icmp ${BESIDE}"},
	{name: "pod on another node", probe: "tcp ${ELSEWHERE}:8080"},
	// The pods' only IPv6 addresses are those of their link, which the policy controller
	// does not know of.
	{name: "pod beside by IPv6", probe: "tcp [${BESIDE_LINK}%eth0]:8080", closed: true},
	{name: "pod beside echo by IPv6", probe: "icmp ${BESIDE_LINK}%eth0", closed: true},

	{name: "DNS by UDP", probe: "udp-dns ${DNS} registry"},
	{name: "DNS by TCP", probe: "tcp-dns ${DNS} registry"},
	{name: "Gitea", probe: "tcp ${GITEA}:3000"},
	{name: "Gitea by SSH", probe: "tcp ${GITEA_POD}:22", closed: true},
	{name: "registry", probe: "tcp ${REGISTRY}:80"},
	{name: "buildkitd", probe: "tcp ${BUILDKITD_POD}:1234", guarded: true},
	{name: "gateway", probe: "tcp ${GATEWAY}:3128", guarded: true},
	{name: "gateway's admin port", probe: "tcp ${GATEWAY}:9090", guarded: true},
	{name: "EventSource", probe: "tcp ${EVENTSOURCE}:12000", guarded: true},
	{name: "event bus", probe: "tcp ${BUS_POD}:4222", guarded: true},
}

const (
	zonesNamespace = "fabrique-zones" // of the controls and of the pods to reach
	zonesLabel     = "fabrique-bench/zones"
	controlPlane   = "node-role.kubernetes.io/control-plane"
)

// zones starts a pod of each kind, lets all try all targets at once, and compares what
// they reach with the table, and the packets that came to the outside with none.
func zones(ctx context.Context, w *World) (saw string, err error) {
	defer finally(ctx, &err, w.removeZones)
	if err := w.removeZones(ctx); err != nil { // what a killed run left
		return "", err
	}
	outside, err := sink.Open(ctx, io.Discard)
	if err != nil {
		return "", err
	}
	defer finally(ctx, &err, outside.Close)
	places, err := w.places(ctx, outside)
	if err != nil {
		return "", err
	}
	if err := w.startZones(ctx, append(controls(), kinds()...), places); err != nil {
		return "", err
	}
	var differences []string
	for _, rows := range [][]kind{controls(), kinds()} {
		found, err := w.compareZones(ctx, outside, rows, places)
		if err != nil {
			return "", err
		}
		differences = append(differences, found...)
	}
	if len(differences) > 0 {
		return "", fmt.Errorf("%d differences from the table:\n%s", len(differences), strings.Join(differences, "\n"))
	}
	return fmt.Sprintf("%d kinds of pods, %d targets each; not one packet of theirs came outside, and what pods without a policy sent did", len(kinds()), len(targets)), nil
}

// removeZones removes all pods of the scenario.
func (w *World) removeZones(ctx context.Context) error {
	_, err := w.Kubectl.Run(ctx, nil, "delete", "pods", "-A", "-l", zonesLabel, "--wait", "--grace-period=0", "--force")
	_, failed := w.Kubectl.Run(ctx, nil, "delete", "namespace", zonesNamespace, "--ignore-not-found", "--wait")
	return errors.Join(err, failed)
}

// other is what a pod's name has no room for.
var other = regexp.MustCompile(`[^a-z0-9]+`)

// podName gives the name of a row's pod. None ends in a number, which a
// StatefulSet would take for its own.
func (k kind) podName() string {
	return "zones-" + other.ReplaceAllString(strings.ToLower(k.name), "-")
}

// probePod gives a pod that serves on port 8080 and is never ready, so that no
// Service sends it what is another's.
func (w *World) probePod(namespace, name string, labels, on map[string]string) map[string]any {
	all := map[string]string{zonesLabel: "yes"}
	maps.Copy(all, labels)
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name, "namespace": namespace, "labels": all},
		"spec": map[string]any{
			"automountServiceAccountToken": false, "enableServiceLinks": false, "terminationGracePeriodSeconds": 0,
			"nodeSelector":    on,
			"tolerations":     []map[string]string{{"key": controlPlane, "effect": "NoSchedule"}},
			"readinessGates":  []map[string]string{{"conditionType": "fabrique-bench/never"}},
			"securityContext": zone.PodSecurity(),
			"containers": []map[string]any{{
				"name": "main", "image": w.Refs["bench/probe"], "args": []string{"serve", ":8080"}, "securityContext": zone.ContainerSecurity(),
			}},
		},
	}
}

// The pods to reach.
const (
	besidePod    = "zones-beside"
	elsewherePod = "zones-elsewhere"
)

// places gives what the targets' probes hold, but the addresses of the sink that are
// each row's own, and makes the pods to reach.
func (w *World) places(ctx context.Context, outside *sink.Sink) (map[string]string, error) {
	var nodes struct {
		Items []struct {
			Metadata struct {
				Name   string
				Labels map[string]string
			}
			Status struct {
				Addresses []struct{ Type, Address string }
			}
		}
	}
	if err := w.Kubectl.Get(ctx, &nodes, "nodes"); err != nil {
		return nil, err
	}
	places := map[string]string{"METADATA": sink.Metadata.String()}
	hosts := map[string]string{}
	for _, n := range nodes.Items {
		role := "WORKER"
		if _, is := n.Metadata.Labels[controlPlane]; is {
			role = "CONTROL_PLANE"
		}
		hosts[role] = n.Metadata.Name
		for _, a := range n.Status.Addresses {
			if a.Type == "InternalIP" {
				places[role] = a.Address
			}
		}
	}
	worker := map[string]string{"kubernetes.io/hostname": hosts["WORKER"]}
	if _, err := w.Kubectl.Apply(ctx, io.Discard, []map[string]any{
		{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": zonesNamespace, "labels": map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}},
	}); err != nil {
		return nil, err
	}
	// A new namespace has no service account for a moment.
	if err := action.Poll(ctx, time.Minute, func(ctx context.Context) error {
		_, err := w.Kubectl.Apply(ctx, io.Discard, []map[string]any{
			w.probePod(zonesNamespace, besidePod, nil, worker),
			w.probePod(zonesNamespace, elsewherePod, nil, map[string]string{"kubernetes.io/hostname": hosts["CONTROL_PLANE"]}),
		})
		return err
	}); err != nil {
		return nil, err
	}
	if err := w.containersReady(ctx, zonesNamespace); err != nil {
		return nil, err
	}
	for place, args := range map[string][]string{
		"API":           {"service/kubernetes", "-n", "default", "-o", "jsonpath={.spec.clusterIP}"},
		"DNS":           {"service/kube-dns", "-n", "kube-system", "-o", "jsonpath={.spec.clusterIP}"},
		"GITEA":         {"service/gitea", "-n", "gitea", "-o", "jsonpath={.spec.clusterIP}"},
		"REGISTRY":      {"service/registry", "-n", "registry", "-o", "jsonpath={.spec.clusterIP}"},
		"GATEWAY":       {"service/egress-gateway", "-n", zone.Egress, "-o", "jsonpath={.spec.clusterIP}"},
		"EVENTSOURCE":   {"service/gitea-eventsource-svc", "-n", zone.Events, "-o", "jsonpath={.spec.clusterIP}"},
		"GITEA_POD":     {"pods", "-n", "gitea", "-l", "app=gitea,pod-template-hash", "-o", "jsonpath={.items[0].status.podIP}"},
		"BUILDKITD_POD": {"pod/" + builder + "-0", "-n", zone.Builder, "-o", "jsonpath={.status.podIP}"},
		"BUS_POD":       {"pods", "-n", zone.Events, "-l", "controller=eventbus-controller", "-o", "jsonpath={.items[0].status.podIP}"},
		"BESIDE":        {"pod/" + besidePod, "-n", zonesNamespace, "-o", "jsonpath={.status.podIP}"},
		"ELSEWHERE":     {"pod/" + elsewherePod, "-n", zonesNamespace, "-o", "jsonpath={.status.podIP}"},
	} {
		address, err := w.Kubectl.Run(ctx, nil, append([]string{"get"}, args...)...)
		if err == nil && address == "" {
			err = fmt.Errorf("%s has no address", args[0])
		}
		if err != nil {
			return nil, err
		}
		places[place] = address
	}
	interfaces, err := w.Kubectl.Run(ctx, nil, "exec", besidePod, "-n", zonesNamespace, "--", "/probe", "read", "/proc/net/if_inet6")
	if err != nil {
		return nil, err
	}
	if places["BESIDE_LINK"], err = linkAddress(interfaces, "eth0"); err != nil {
		return nil, err
	}
	places["LISTED"], err = w.listedAddress(ctx)
	return places, err
}

// linkAddress gives the IPv6 address that an interface has by itself, from
// /proc/net/if_inet6: address, number, prefix length, scope, flags, name.
func linkAddress(interfaces, name string) (string, error) {
	for line := range strings.Lines(interfaces) {
		f := strings.Fields(line)
		if len(f) == 6 && f[5] == name && f[3] == "20" && len(f[0]) == 32 {
			var groups []string
			for i := 0; i < 32; i += 4 {
				groups = append(groups, f[0][i:i+4])
			}
			return strings.Join(groups, ":"), nil
		}
	}
	return "", fmt.Errorf("%s has no IPv6 address of its link", name)
}

// containersReady waits until the scenario's pods of a namespace run; none is ever
// ready.
func (w *World) containersReady(ctx context.Context, namespace string) error {
	_, err := w.Kubectl.Run(ctx, nil, "wait", "pods", "-n", namespace, "-l", zonesLabel, "--for=condition=ContainersReady", "--timeout=120s")
	return err
}

// startZones starts a pod for each row, on a worker, and waits until the policies
// hold for them: a policy controller hears of a pod when it already runs.
func (w *World) startZones(ctx context.Context, rows []kind, places map[string]string) error {
	host, err := w.Kubectl.Run(ctx, nil, "get", "pod", besidePod, "-n", zonesNamespace, "-o", "jsonpath={.spec.nodeName}")
	if err != nil {
		return err
	}
	var pods []map[string]any
	namespaces := map[string]bool{}
	for _, row := range rows {
		pods = append(pods, w.probePod(row.namespace, row.podName(), row.labels, map[string]string{"kubernetes.io/hostname": host}))
		namespaces[row.namespace] = true
	}
	if _, err := w.Kubectl.Apply(ctx, io.Discard, pods); err != nil {
		return err
	}
	for namespace := range namespaces {
		if err := w.containersReady(ctx, namespace); err != nil {
			return err
		}
	}
	start := time.Now()
	var group errgroup.Group
	for _, row := range rows {
		if slices.Contains(row.may, "pod beside") {
			continue
		}
		group.Go(func() error {
			return action.Poll(ctx, time.Minute, func(ctx context.Context) error {
				out, err := w.askFrom(ctx, row, "held\ttcp "+places["BESIDE"]+":8080\n")
				if err == nil && !strings.HasPrefix(out, "held\tnot\t") {
					err = fmt.Errorf("%s: no policy holds: %s", row.name, out)
				}
				return err
			})
		})
	}
	err = group.Wait()
	w.note("%d pods run; the policies hold for all after %s", len(rows), time.Since(start).Round(100*time.Millisecond))
	return err
}

// askFrom runs probes in a row's pod.
func (w *World) askFrom(ctx context.Context, row kind, list string) (string, error) {
	return w.Kubectl.Run(ctx, []byte(list), "exec", "-i", row.podName(), "-n", row.namespace, "--", "/probe", "many", "-")
}

// tries is how often those are asked again that do not reach what they must: the
// policy controller may not have told the other side of the new pods yet. Who reaches
// what it must not is not asked again.
const tries = 3

// compareZones asks in all rows' pods at once and gives what differs from the table,
// and from what came outside meanwhile.
func (w *World) compareZones(ctx context.Context, outside *sink.Sink, rows []kind, places map[string]string) (differences []string, err error) {
	if err := outside.Reset(ctx); err != nil {
		return nil, err
	}
	said := make([][]string, len(rows))
	var group errgroup.Group
	for i, row := range rows {
		list := row.list(outside, i, places)
		group.Go(func() error {
			for range tries {
				out, err := w.askFrom(ctx, row, list)
				if err != nil {
					return err
				}
				said[i] = row.compare(out)
				if !slices.ContainsFunc(said[i], func(d string) bool { return strings.Contains(d, mustReach) }) || slices.ContainsFunc(said[i], func(d string) bool { return strings.Contains(d, mustNot) }) {
					break
				}
				if err := pause(ctx, 5*time.Second); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	counted, err := outside.Counts(ctx)
	if err != nil {
		return nil, err
	}
	for i, row := range rows {
		differences = append(differences, said[i]...)
		differences = append(differences, row.packets(outside, i, counted)...)
	}
	return differences, nil
}

// list gives the row's probes, with addresses outside that are its own.
func (k kind) list(outside *sink.Sink, row int, places map[string]string) string {
	return fill(listWays(targets), outside, row, places)
}

const (
	mustNot   = "is reached, and must not be"
	mustReach = "is not reached, and must be"
)

// compare gives the differences of what the probe said from the row.
func (k kind) compare(said string) (differences []string) {
	answers := map[string][2]string{}
	for line := range strings.Lines(said) {
		if f := strings.SplitN(strings.TrimRight(line, "\n"), "\t", 3); len(f) == 3 {
			answers[f[0]] = [2]string{f[1], f[2]}
		}
	}
	for _, t := range targets {
		answer, may := answers[t.name], slices.Contains(k.may, t.name)
		switch {
		case answer[0] != "reached" && answer[0] != "not":
			differences = append(differences, fmt.Sprintf("%s: %s: the probe says nothing of it", k.name, t.name))
		case answer[0] == "reached" && !may:
			differences = append(differences, fmt.Sprintf("%s: %s %s: %s", k.name, t.name, mustNot, answer[1]))
		case answer[0] == "not" && may:
			differences = append(differences, fmt.Sprintf("%s: %s %s: %s", k.name, t.name, mustReach, answer[1]))
		}
	}
	return differences
}

// packets gives what the sink's counters say against the row: a kind's addresses get no
// packet, and a control's get some by each way. The metadata address is of all rows.
func (k kind) packets(outside *sink.Sink, row int, counted map[sink.Flow]int64) (differences []string) {
	address, public := outside.Address(row), outside.Public(row)
	if slices.Contains(k.may, "outside tcp 443") {
		for _, f := range []sink.Flow{
			{Address: sink.Metadata, Protocol: "tcp", Port: 80},
			{Address: address, Protocol: "tcp", Port: 443}, {Address: address, Protocol: "tcp", Port: 80}, {Address: address, Protocol: "tcp", Port: 22},
			{Address: address, Protocol: "udp", Port: 53}, {Address: address, Protocol: "tcp", Port: 53}, {Address: address, Protocol: "icmp"},
			{Address: public, Protocol: "tcp", Port: 443}, {Address: public, Protocol: "tcp", Port: 80},
			{Address: public, Protocol: "udp", Port: 53}, {Address: public, Protocol: "tcp", Port: 53}, {Address: public, Protocol: "icmp"},
		} {
			if counted[f] == 0 {
				differences = append(differences, fmt.Sprintf("%s: no packet of %s is counted, although it may send some", k.name, f))
			}
		}
		return differences
	}
	for f, n := range counted {
		if (f.Address == address || f.Address == public || f.Address == sink.Metadata) && n > 0 && (f.Port != 0 || f.Protocol == "icmp") {
			differences = append(differences, fmt.Sprintf("%s: %d packets came to %s", k.name, n, f))
		}
	}
	slices.Sort(differences)
	return differences
}
