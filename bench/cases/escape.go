package cases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fabrique/bench/action"
	"fabrique/bench/demo"
	"fabrique/bench/sink"
	"fabrique/bench/tools"
	"fabrique/manifests/buildkitd"
	"fabrique/manifests/zone"
	"fabrique/steps/egress"
)

// escapeCases are the ways out of a RUN instruction.
var escapeCases = []Case{
	{Name: "escape", Title: "no way leads out of a RUN instruction but to what is listed, and each does without its lock", Limit: 25 * time.Minute, Run: escape},
}

const (
	escapeNamespace = "fabrique-escape"
	escapeDomain    = "escape.example" // its names the cluster's DNS gets from the sink
	attacker        = "attacker"       // the app that builds
	favoured        = "victim"         // one with a list of its own
)

// Names that the gateway's lists know, or not, and where they lead: addresses of the
// sink's public network.
const (
	listedAt, unlistedAt, victimAt = 200, 201, 202
)

// gatewayWays are probes by way of the gateway. ${SECRET} is a label that nobody else
// asks DNS for.
var gatewayWays = []struct {
	name, probe string
	listed      bool // it is let through, to the listed name's own address
}{
	{"listed name", "connect env listed.${DOMAIN}:443 listed.${DOMAIN} listed.${DOMAIN}", true},
	{"listed name by HTTP", "proxy-get env http://listed.${DOMAIN}/", true},
	// What is encrypted the gateway cannot see; it goes to the listed name's server.
	{"another Host inside TLS", "connect env listed.${DOMAIN}:443 listed.${DOMAIN} unlisted.${DOMAIN}", true},
	{"unlisted name", "connect env unlisted.${DOMAIN}:443 unlisted.${DOMAIN} unlisted.${DOMAIN}", false},
	{"unlisted name by HTTP", "proxy-get env http://unlisted.${DOMAIN}/", false},
	{"unlisted name in other letters", "connect env UNLISTED.${DOMAIN}.:443 unlisted.${DOMAIN} unlisted.${DOMAIN}", false},
	{"name below the listed one", "connect env below.listed.${DOMAIN}:443 below.listed.${DOMAIN} below.listed.${DOMAIN}", false},
	{"another port of the listed name", "connect env listed.${DOMAIN}:8443 - -", false},
	{"IPv4 address", "connect env ${UNLISTED}:443 unlisted.${DOMAIN} unlisted.${DOMAIN}", false},
	{"listed name's IPv4 address", "connect env ${LISTED_SINK}:443 listed.${DOMAIN} listed.${DOMAIN}", false},
	{"IPv6 form of an IPv4 address", "connect env [::ffff:${UNLISTED}]:443 unlisted.${DOMAIN} unlisted.${DOMAIN}", false},
	{"another TLS server name", "connect env listed.${DOMAIN}:443 unlisted.${DOMAIN} unlisted.${DOMAIN}", false},
	{"no TLS server name", "connect env listed.${DOMAIN}:443 192.0.2.1 unlisted.${DOMAIN}", false},
	{"another Host in a tunnel without TLS", "connect env listed.${DOMAIN}:80 http unlisted.${DOMAIN}", false},
	{"redirect from the listed name", "follow env http://listed.${DOMAIN}/redirect?to=http://unlisted.${DOMAIN}/", false},
	{"listed name that leads to a node", "connect env node.${DOMAIN}:10250 - -", false},
	{"listed name that leads to the metadata address", "proxy-get env http://metadata.${DOMAIN}/", false},
	{"listed name that leads to the gateway itself", "proxy-get env http://loop.${DOMAIN}:9090/", false},
	{"listed name that leads to the API server", "connect env service.${DOMAIN}:443 - -", false},
	{"API server by its name", "connect env kubernetes.default.svc.cluster.local:443 - -", false},
	{"Gitea by its name", "proxy-get env http://gitea.gitea.svc.cluster.local:3000/", false},
	{"registry by its name", "proxy-get env http://registry:80/v2/", false},
	{"another app's list", "connect env victim.${DOMAIN}:443 victim.${DOMAIN} victim.${DOMAIN}", false},
	{"another app's list with a forged credential", "connect http://victim:forged@127.0.0.1:3128 victim.${DOMAIN}:443 victim.${DOMAIN} victim.${DOMAIN}", false},
	{"data in the labels of an unlisted name", "connect env ${SECRET}.data.${DOMAIN}:443 - -", false},
}

// networkWays are probes past the gateway, beside those of [targets].
var networkWays = []target{
	{name: "raw frame", probe: "raw ${OUTSIDE}"},
	{name: "listed name without the proxy", probe: "tls listed.${DOMAIN} listed.${DOMAIN} listed.${DOMAIN}"},
	{name: "data in labels, by the cluster's DNS", probe: "udp-dns ${DNS} ${SECRET}.label.${DOMAIN}"},
	{name: "daemon's port on the loopback", probe: "tcp 127.0.0.1:1234"},
}

// escape tries all ways in RUN instructions of the real builder; then those past the
// gateway on a builder whose instructions have its network, and those through the
// gateway on one whose relay leads to a proxy without a policy. Both stand where no
// NetworkPolicy holds.
func escape(ctx context.Context, w *World) (saw string, err error) {
	undo := func(ctx context.Context) error {
		return errors.Join(w.removeZones(ctx), w.removeNamespace(escapeNamespace)(ctx), w.names(ctx, ""), w.Reconfigure(ctx, io.Discard, demo.Settings{}))
	}
	defer finally(ctx, &err, undo)
	if err := errors.Join(w.removeZones(ctx), w.removeNamespace(escapeNamespace)(ctx)); err != nil { // what a killed run left
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
	secret := "s" + nonce()
	for key, value := range map[string]string{
		"DOMAIN": escapeDomain, "SECRET": secret, "UNLISTED": outside.Public(unlistedAt).String(), "LISTED_SINK": outside.Public(listedAt).String(),
	} {
		places[key] = value
	}
	if err := w.names(ctx, w.zoneFile(outside, places)); err != nil {
		return "", err
	}
	name := func(label string) egress.Destination { return egress.Destination(label + "." + escapeDomain + ":443") }
	plain := func(label, port string) egress.Destination {
		return egress.Destination(label + "." + escapeDomain + ":" + port)
	}
	if err := w.Reconfigure(ctx, io.Discard, demo.Settings{
		Allow: []egress.Destination{name("listed"), plain("listed", "80"), plain("node", "10250"), plain("metadata", "80"), plain("loop", "9090"), name("service")},
		Apps:  map[string][]egress.Destination{favoured: {name("victim")}},
	}); err != nil {
		return "", err
	}

	open := unlocked{name: "open-network", namespace: escapeNamespace, toml: func(text string) string {
		text = "insecure-entitlements = [\"network.host\", \"security.insecure\"]\n" + text
		text = strings.Replace(text, "networkMode = 'cni'", "networkMode = 'host'", 1)
		return strings.Replace(text, "[worker.oci]\n", "[worker.oci]\n    noProcessSandbox = true\n", 1)
	}, pod: func(p *corev1.PodSpec) {
		yes, root := true, int64(0)
		p.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes, RunAsUser: &root, RunAsNonRoot: new(bool)}
	}}
	openProxy := unlocked{name: "open-gateway", namespace: escapeNamespace, pod: func(p *corev1.PodSpec) {
		for i := range p.InitContainers {
			for j, arg := range p.InitContainers[i].Args {
				if j > 0 && p.InitContainers[i].Args[j-1] == "--gateway" && arg != "" {
					p.InitContainers[i].Args[j] = "127.0.0.1:3129"
				}
			}
		}
		for name, args := range map[string][]string{"proxy": {"proxy", "127.0.0.1:3129"}, "admin": {"serve", "127.0.0.1:9090"}} {
			p.Containers = append(p.Containers, corev1.Container{Name: name, Image: w.Refs["bench/probe"], Args: args, SecurityContext: zone.ContainerSecurity()})
		}
	}}
	for _, u := range []unlocked{open, openProxy} {
		if err := u.start(ctx, w); err != nil {
			return "", err
		}
	}
	if err := w.gatewayKnows(ctx, places); err != nil {
		return "", err
	}

	var differences []string
	past := slices.Concat(targets, networkWays)
	through := ""
	for _, g := range gatewayWays {
		through += g.name + "\t" + g.probe + "\n"
	}

	// The real one, by all ways at once.
	if err := outside.Reset(ctx); err != nil {
		return "", err
	}
	said, err := w.try(ctx, zone.Builder, builder+"-0", fill(listWays(past)+through, outside, 0, places))
	if err != nil {
		return "", err
	}
	var ways int
	for _, t := range past {
		ways++
		if answer := said[t.name]; answer[0] != "not" {
			differences = append(differences, fmt.Sprintf("%s: %s: %s", t.name, mustNot, answer))
		}
	}
	for _, g := range gatewayWays {
		ways++
		switch answer := said[g.name]; {
		case g.listed && answer[0] != "reached":
			differences = append(differences, fmt.Sprintf("%s: %s: %s", g.name, mustReach, answer))
		case !g.listed && answer[0] != "not":
			differences = append(differences, fmt.Sprintf("%s: %s: %s", g.name, mustNot, answer))
		}
	}
	found, err := strays(ctx, outside, secret)
	if err != nil {
		return "", err
	}
	differences = append(differences, found...)

	// Without the network of their own.
	if err := outside.Reset(ctx); err != nil {
		return "", err
	}
	if said, err = w.try(ctx, escapeNamespace, open.name, fill(listWays(past), outside, 1, places)); err != nil {
		return "", err
	}
	for _, t := range past {
		// These let nobody in but those that they know, or nobody at all.
		if answer := said[t.name]; !t.closed && !t.guarded && answer[0] != "reached" {
			differences = append(differences, fmt.Sprintf("%s: without its lock it %s: %s", t.name, mustReach, answer))
		}
	}
	counted, err := outside.Counts(ctx)
	if err != nil {
		return "", err
	}
	control := kind{name: "without the network", may: []string{"outside tcp 443"}}
	differences = append(differences, control.packets(outside, 1, counted)...)
	if !resolvedBy(ctx, outside, secret+".label.") {
		differences = append(differences, "data in labels, by the cluster's DNS: without its lock it does not arrive")
	}

	// Without the gateway's policy.
	if err := outside.Reset(ctx); err != nil {
		return "", err
	}
	if said, err = w.try(ctx, escapeNamespace, openProxy.name, fill(through, outside, 2, places)); err != nil {
		return "", err
	}
	for _, g := range gatewayWays {
		if answer := said[g.name]; answer[0] != "reached" {
			differences = append(differences, fmt.Sprintf("%s: without its lock it %s: %s", g.name, mustReach, answer))
		}
	}
	if !resolvedBy(ctx, outside, secret+".data.") {
		differences = append(differences, "data in the labels of an unlisted name: without its lock it does not arrive")
	}

	// What an instruction may ask the daemon for.
	for _, d := range daemonWays {
		ways++
		out, err := w.demand(ctx, zone.Builder, builder+"-0", d)
		if err == nil && strings.Contains(out, d.shows) {
			differences = append(differences, fmt.Sprintf("%s: %s: %s", d.name, mustNot, ending([]byte(out))))
		}
		if err != nil && !strings.Contains(out, d.refusal) {
			differences = append(differences, fmt.Sprintf("%s: it should fail with %q: %s", d.name, d.refusal, ending([]byte(out))))
		}
		if out, err := w.demand(ctx, escapeNamespace, open.name, d); err != nil || !strings.Contains(out, d.shows) {
			differences = append(differences, fmt.Sprintf("%s: without its lock it %s: %v: %s", d.name, mustReach, err, ending([]byte(out))))
		}
	}
	if len(differences) > 0 {
		return "", fmt.Errorf("%d differences:\n%s", len(differences), strings.Join(differences, "\n"))
	}
	return fmt.Sprintf("%d ways: none leads further than listed, not one packet came outside, and each works without its lock", ways), nil
}

// demanded is what an instruction asks the daemon for.
type demanded struct {
	name, instruction string
	allow             string // the entitlement that the client asks for
	shows             string // in the output of one that works
	refusal           string // in the output of one that fails
}

// daemonWays are what a Dockerfile asks the daemon for, along with the client's consent.
var daemonWays = []demanded{
	{"the daemon's network", `RUN --network=host ["/probe", "read", "/proc/net/dev"]`, "network.host", "eth0:", "network.host is not allowed"},
	{"no confinement", `RUN --security=insecure ["/probe", "read", "/proc/self/status"]`, "security.insecure", "Seccomp:\t0", "security.insecure is not allowed"},
	{"the daemon's processes", `RUN ["/probe", "read", "/proc/1/cmdline"]`, "", "buildkitd", ""},
}

// demand builds one instruction as the client that the Workflow's program is not: it
// consents to what the instruction asks for.
func (w *World) demand(ctx context.Context, namespace, pod string, d demanded) (string, error) {
	address, stop, err := w.Kubectl.Forward(ctx, namespace, "pod/"+pod, buildkitd.Port)
	if err != nil {
		return "", err
	}
	defer stop()
	dir, err := os.MkdirTemp("", "fabrique-escape-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	text := "FROM " + w.Refs["bench/probe"] + "\nUSER 0\n" + d.instruction + "\n"
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(text), 0o644); err != nil {
		return "", err
	}
	program, err := tools.BuildKit.Ensure(ctx, w.Out, false)
	if err != nil {
		return "", err
	}
	args := []string{"--addr", "tcp://" + address, "build", "--progress=plain", "--no-cache", "--frontend=dockerfile.v0", "--local", "context=" + dir, "--local", "dockerfile=" + dir}
	if d.allow != "" {
		args = append(args, "--allow", d.allow)
	}
	out, err := exec.CommandContext(ctx, filepath.Join(program, "buildctl"), args...).CombinedOutput()
	return string(out), err
}

func listWays(ways []target) string {
	var list strings.Builder
	for _, t := range ways {
		fmt.Fprintf(&list, "%s\t%s\n", t.name, t.probe)
	}
	return list.String()
}

// fill puts places and the row's own addresses outside into probes.
func fill(list string, outside *sink.Sink, row int, places map[string]string) string {
	replace := []string{"${OUTSIDE}", outside.Address(row).String(), "${PUBLIC}", outside.Public(row).String()}
	for place, value := range places {
		replace = append(replace, "${"+place+"}", value)
	}
	return strings.NewReplacer(replace...).Replace(list)
}

// answerForm is a line of the probe in a build's output.
var answerForm = regexp.MustCompile(`(?m)([A-Za-z][^\t\n]*)\t(reached|not)\t(.*)$`)

// try runs probes in a RUN instruction and gives for each "reached" or "not", and why.
func (w *World) try(ctx context.Context, namespace, pod, list string) (map[string][2]string, error) {
	log, err := w.buildAt(ctx, namespace, pod, map[string]string{
		"ways":       list + "# " + nonce() + "\ttcp 127.0.0.1:9\n", // never cached
		"Dockerfile": "FROM " + w.Refs["bench/probe"] + "\nUSER 0\nCOPY ways /ways\nRUN [\"/probe\", \"many\", \"/ways\"]\n",
	})
	if err != nil {
		return nil, err
	}
	answers := map[string][2]string{}
	for _, f := range answerForm.FindAllStringSubmatch(log, -1) {
		answers[f[1]] = [2]string{f[2], f[3]}
	}
	if len(answers) == 0 {
		return nil, fmt.Errorf("the build shows no answers:\n%s", ending([]byte(log)))
	}
	return answers, nil
}

// strays gives what came to the sink beside the listed name on its ports, or bears what
// it must not.
func strays(ctx context.Context, outside *sink.Sink, secret string) (differences []string, err error) {
	counted, err := outside.Counts(ctx)
	if err != nil {
		return nil, err
	}
	for f, n := range counted {
		if n > 0 && f.Protocol != "" && !(f.Address == outside.Public(listedAt) && f.Protocol == "tcp" && (f.Port == 0 || f.Port == 443 || f.Port == 80)) {
			differences = append(differences, fmt.Sprintf("%d packets came to %s", n, f))
		}
	}
	requests, err := outside.Seen(ctx)
	if err != nil {
		return nil, err
	}
	listed := false
	for _, r := range requests {
		listed = listed || r.Kind == "tls" && r.Name == "listed."+escapeDomain
		// Inside TLS the listed name's server may be told anything.
		if strings.Contains(r.Name, secret) || r.Kind == "tls" && r.Name != "listed."+escapeDomain {
			differences = append(differences, fmt.Sprintf("the sink was asked by %s for %s", r.Kind, r.Name))
		}
	}
	if !listed {
		differences = append(differences, "what is listed did not come to the sink")
	}
	return differences, nil
}

// resolvedBy tells whether the sink's DNS was asked for a name that begins so.
func resolvedBy(ctx context.Context, outside *sink.Sink, prefix string) bool {
	requests, err := outside.Seen(ctx)
	return err == nil && slices.ContainsFunc(requests, func(r sink.Request) bool {
		return r.Kind == "dns" && strings.HasPrefix(strings.ToLower(r.Name), prefix)
	})
}

// zoneFile gives the DNS zone of the scenario's names, as CoreDNS reads it. What it does
// not know it asks the sink for, which sees the name.
func (w *World) zoneFile(outside *sink.Sink, places map[string]string) string {
	names := ""
	for label, address := range map[string]string{
		"listed": outside.Public(listedAt).String(), "unlisted": outside.Public(unlistedAt).String(), "below.listed": outside.Public(unlistedAt).String(),
		"victim": outside.Public(victimAt).String(), "node": places["WORKER"], "metadata": sink.Metadata.String(), "loop": "127.0.0.1", "service": places["API"],
	} {
		names += "        " + address + " " + label + "." + escapeDomain + "\n"
	}
	return escapeDomain + ":5353 {\n    hosts {\n" + names + "        ttl 1\n        fallthrough\n    }\n    forward . " + outside.Address(listedAt).String() + "\n}\n"
}

const zoneMark = "# " + escapeDomain + "\n"

// names gives the cluster's DNS one more zone, or takes it away.
func (w *World) names(ctx context.Context, more string) error {
	var conf corev1.ConfigMap
	if err := w.Kubectl.Get(ctx, &conf, "configmap", "coredns", "-n", "kube-system"); err != nil {
		return err
	}
	was := conf.Data["Corefile"]
	own, _, _ := strings.Cut(was, zoneMark)
	text := own
	if more != "" {
		text += zoneMark + more
	}
	if text == was {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"data": map[string]string{"Corefile": text}})
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		{"patch", "configmap", "coredns", "-n", "kube-system", "--type=merge", "-p", string(patch)},
		{"rollout", "restart", "deployment/coredns", "-n", "kube-system"},
		{"rollout", "status", "deployment/coredns", "-n", "kube-system", "--timeout=120s"},
	} {
		if _, err := w.Kubectl.Run(ctx, nil, args...); err != nil {
			return err
		}
	}
	return nil
}

// gatewayKnows waits until the gateway has the scenario's lists and may dial what is on
// them: a changed file comes to a pod after a minute or so.
func (w *World) gatewayKnows(ctx context.Context, places map[string]string) error {
	host, err := w.Kubectl.Run(ctx, nil, "get", "pod", besidePod, "-n", zonesNamespace, "-o", "jsonpath={.spec.nodeName}")
	if err != nil {
		return err
	}
	i := slices.IndexFunc(kinds(), func(k kind) bool { return k.name == "buildkitd" })
	row := kinds()[i]
	if _, err := w.Kubectl.Apply(ctx, io.Discard, []map[string]any{w.probePod(row.namespace, row.podName(), row.labels, map[string]string{"kubernetes.io/hostname": host})}); err != nil {
		return err
	}
	if err := w.containersReady(ctx, row.namespace); err != nil {
		return err
	}
	n := "listed." + escapeDomain
	return action.Poll(ctx, 4*time.Minute, func(ctx context.Context) error {
		out, err := w.askFrom(ctx, row, fmt.Sprintf("https\tconnect http://%s:3128 %s:443 %s %s\nhttp\tproxy-get http://%s:3128 http://%s/\n", places["GATEWAY"], n, n, n, places["GATEWAY"], n))
		if err == nil && (!strings.Contains(out, "https\treached\t") || !strings.Contains(out, "http\treached\t")) {
			err = errors.New("the gateway does not reach what is listed: " + out)
		}
		return err
	})
}
