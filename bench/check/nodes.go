package check

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"fabrique/bench/action"
	"fabrique/bench/kubectl"
)

const (
	onControlPlane = `{node-role.kubernetes.io/control-plane: ""}`
	tolerated      = `[{key: node-role.kubernetes.io/control-plane, effect: NoSchedule}]`
)

// pod starts a web server on port 8080 and does not wait for it. Values override
// that it goes anywhere, and no further.
func (c cluster) pod(ctx context.Context, name string, values map[string]string) error {
	all := map[string]string{"NAME": name, "SELECTOR": "{}", "TOLERATIONS": "[]", "HOST_USERS": "true"}
	for k, v := range values {
		all[k] = v
	}
	return c.apply(ctx, "pod.yaml", all)
}

func (c cluster) address(ctx context.Context, pod string) (string, error) {
	return c.run(ctx, "get", "pod", pod, "-o", "jsonpath={.status.podIP}")
}

func reach(ctx context.Context, c cluster) (string, error) {
	controlPlane, worker, err := c.nodes(ctx)
	if err != nil {
		return "", err
	}
	pods := map[string]string{"on-control-plane": controlPlane, "on-worker": worker}
	for name, node := range pods {
		if err := c.pod(ctx, name, map[string]string{"SELECTOR": "{kubernetes.io/hostname: " + node + "}", "TOLERATIONS": tolerated}); err != nil {
			return "", err
		}
	}
	if err := c.ready(ctx, "pod/on-control-plane", "pod/on-worker"); err != nil {
		return "", err
	}
	var saw []string
	for from, to := range map[string]string{"on-control-plane": "on-worker", "on-worker": "on-control-plane"} {
		address, err := c.address(ctx, to)
		if err != nil {
			return "", err
		}
		out, err := c.probe(ctx, from, "get", "http://"+address+":8080")
		if err != nil {
			return "", fmt.Errorf("%s does not reach %s: %w", from, to, err)
		}
		if out != "200\n"+to {
			return "", fmt.Errorf("%s asks %s (%s) and gets %q", from, to, address, out)
		}
		for _, name := range []string{"kubernetes.default.svc.cluster.local", "registry"} {
			if _, err := c.probe(ctx, from, "lookup", name); err != nil {
				return "", fmt.Errorf("%s does not resolve %s: %w", from, name, err)
			}
		}
		out, err = c.probe(ctx, from, "get", "http://registry:80/v2/")
		if err != nil {
			return "", fmt.Errorf("%s does not reach http://registry:80: %w", from, err)
		}
		if !strings.HasPrefix(out, "200\n") {
			return "", fmt.Errorf("%s asks http://registry:80/v2/ and gets %q", from, out)
		}
		saw = append(saw, from+" → "+address)
	}
	return strings.Join(saw, ", "), nil
}

// policy closes a server to a client on another node; a second server that no
// policy names shows that the client's network works all the while.
func policy(ctx context.Context, c cluster) (string, error) {
	controlPlane, worker, err := c.nodes(ctx)
	if err != nil {
		return "", err
	}
	on := func(node string) map[string]string {
		return map[string]string{"SELECTOR": "{kubernetes.io/hostname: " + node + "}", "TOLERATIONS": tolerated}
	}
	for name, node := range map[string]string{"server": worker, "control": worker, "client": controlPlane} {
		if err := c.pod(ctx, name, on(node)); err != nil {
			return "", err
		}
	}
	if err := c.ready(ctx, "pod/server", "pod/control", "pod/client"); err != nil {
		return "", err
	}
	answers := func(ctx context.Context, server string) error {
		address, err := c.address(ctx, server)
		if err == nil {
			_, err = c.probe(ctx, "client", "get", "http://"+address+":8080")
		}
		return err
	}
	open := func(ctx context.Context) error { return answers(ctx, "server") }
	closed := func(ctx context.Context) error {
		err := open(ctx)
		if err == nil {
			return errors.New("the server still answers")
		}
		// The probe itself must say so: a policy either drops or rejects.
		if said := err.Error(); !strings.Contains(said, "context deadline exceeded") && !strings.Contains(said, "connection refused") {
			return err
		}
		return answers(ctx, "control")
	}
	if err := action.Poll(ctx, 30*time.Second, open); err != nil {
		return "", fmt.Errorf("without a policy: %w", err)
	}
	if err := c.apply(ctx, "policy.yaml", nil); err != nil {
		return "", err
	}
	start := time.Now()
	if err := action.Poll(ctx, time.Minute, closed); err != nil {
		return "", fmt.Errorf("with a policy: %w", err)
	}
	took := time.Since(start)
	if _, err := c.run(ctx, "delete", "networkpolicy", "nobody"); err != nil {
		return "", err
	}
	if err := action.Poll(ctx, time.Minute, open); err != nil {
		return "", fmt.Errorf("after its removal: %w", err)
	}
	return fmt.Sprintf("across nodes: closed within %s, its neighbour open, then open again", took.Round(time.Second)), nil
}

func podSecurity(ctx context.Context, c cluster) (string, error) {
	_, err := c.run(ctx, "run", "root", "--image", c.Refs["base/busybox"], "--privileged", "--restart=Never", "--", "true")
	if err == nil {
		return "", errors.New("a privileged pod was admitted")
	}
	if !strings.Contains(err.Error(), `violates PodSecurity "restricted:latest"`) {
		return "", fmt.Errorf("refused for another reason: %w", err)
	}
	return "privileged pod forbidden", nil
}

func volume(ctx context.Context, c cluster) (string, error) {
	word := strconv.FormatInt(time.Now().UnixNano(), 36)
	for _, round := range []string{"first", "second"} {
		if err := c.apply(ctx, "volume.yaml", nil); err != nil {
			return "", err
		}
		if err := c.ready(ctx, "pod/keeper"); err != nil {
			return "", err
		}
		if round == "first" {
			if _, err := c.probe(ctx, "keeper", "write", "/data/word", word); err != nil {
				return "", err
			}
			if _, err := c.run(ctx, "delete", "pod", "keeper", "--wait"); err != nil {
				return "", err
			}
		}
	}
	got, err := c.probe(ctx, "keeper", "read", "/data/word")
	if err != nil {
		return "", err
	}
	if got != word {
		return "", fmt.Errorf("the new pod reads %q; want %q", got, word)
	}
	claim, err := c.run(ctx, "get", "pvc", "data", "-o", "jsonpath={.status.phase} {.spec.storageClassName}")
	return "the new pod reads what the old one wrote; claim " + claim, err
}

func pull(ctx context.Context, c cluster) (string, error) {
	// With this policy the node asks the registry even for an image that it has.
	image := c.Refs["base/debian"]
	if _, err := c.run(ctx, "run", "puller", "--image", image, "--restart=Never", "--overrides",
		`{"spec":{"automountServiceAccountToken":false,"securityContext":{"runAsNonRoot":true,"runAsUser":65534,"seccompProfile":{"type":"RuntimeDefault"}},`+
			`"containers":[{"name":"puller","image":"`+image+`","imagePullPolicy":"Always","command":["cat","/etc/debian_version"],`+
			`"securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}}}]}}`); err != nil {
		return "", err
	}
	if _, err := c.run(ctx, "wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=180s", "pod/puller"); err != nil {
		out, _ := c.run(ctx, "describe", "pod", "puller")
		fmt.Fprintln(c.log, out)
		return "", err
	}
	id, err := c.run(ctx, "get", "pod", "puller", "-o", "jsonpath={.status.containerStatuses[0].imageID}")
	if err != nil {
		return "", err
	}
	events, err := c.run(ctx, "get", "events", "--field-selector", "involvedObject.name=puller,reason=Pulled", "-o", "jsonpath={.items[*].message}")
	if err != nil {
		return "", err
	}
	if _, digest, _ := strings.Cut(image, "@"); !strings.HasSuffix(id, digest) || !strings.Contains(events, "Successfully pulled image \""+image) {
		return "", fmt.Errorf("it runs %s; events: %s", id, events)
	}
	return id, nil
}

func hostUsers(ctx context.Context, c cluster) (string, error) {
	if err := c.pod(ctx, "mapped", map[string]string{"HOST_USERS": "false"}); err != nil {
		return "", err
	}
	if err := c.ready(ctx, "pod/mapped"); err != nil {
		return "", err
	}
	out, err := c.probe(ctx, "mapped", "read", "/proc/self/uid_map")
	if err != nil {
		return "", err
	}
	// "inside outside length", user_namespaces(7)
	f := strings.Fields(out)
	if len(f) < 3 {
		return "", fmt.Errorf("uid_map reads %q", out)
	}
	if outside, err := strconv.Atoi(f[1]); err != nil || f[0] != "0" || outside < 65536 {
		return "", fmt.Errorf("root inside is %s outside", f[1])
	}
	return "root inside is uid " + f[1] + " outside", nil
}

// strangers asks, from a pod without a token, what only an identity may know.
func strangers(ctx context.Context, c cluster) (string, error) {
	if err := c.pod(ctx, "stranger", nil); err != nil {
		return "", err
	}
	if err := c.ready(ctx, "pod/stranger"); err != nil {
		return "", err
	}
	addresses, err := c.run(ctx, "get", "nodes", "-o", `jsonpath={.items[*].status.addresses[?(@.type=="InternalIP")].address}`)
	if err != nil {
		return "", err
	}
	urls := []string{"https://kubernetes.default.svc.cluster.local/api/v1/namespaces"}
	for _, address := range strings.Fields(addresses) {
		urls = append(urls, "https://"+address+":10250/pods")
	}
	for _, url := range urls {
		out, err := c.probe(ctx, "stranger", "get", url)
		if err != nil {
			return "", err
		}
		if !strings.HasPrefix(out, "401\n") {
			return "", fmt.Errorf("%s answers one without an identity %.80q; want 401", url, out)
		}
	}
	return fmt.Sprintf("401 from all %d", len(urls)), nil
}

// cordoned marks the nodes that a check has cordoned: one that was killed leaves
// them so, and those that somebody else cordoned stay as they are.
const cordoned = "fabrique-bench/cordoned"

// uncordon undoes what a check did to nodes.
func uncordon(ctx context.Context, k kubectl.Kubectl) error {
	marked, err := k.Run(ctx, nil, "get", "nodes", "-l", cordoned, "-o", "jsonpath={.items[*].metadata.name}")
	for _, node := range strings.Fields(marked) {
		_, undone := k.Run(ctx, nil, "uncordon", node)
		if undone == nil {
			_, undone = k.Run(ctx, nil, "label", "node", node, cordoned+"-")
		}
		err = errors.Join(err, undone)
	}
	return err
}

// controlPlane cordons all workers for a while.
func controlPlane(ctx context.Context, c cluster) (saw string, err error) {
	workers, err := c.run(ctx, "get", "nodes", "-l", "!node-role.kubernetes.io/control-plane", "-o", `jsonpath={range .items[*]}{.metadata.name} {.spec.unschedulable}{"\n"}{end}`)
	if err != nil {
		return "", err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, uncordon(end, c.Kubectl))
	}()
	for line := range strings.Lines(workers) {
		node, unschedulable, _ := strings.Cut(strings.TrimSpace(line), " ")
		if unschedulable == "true" {
			continue
		}
		if _, err := c.run(ctx, "label", "node", node, cordoned+"=yes"); err != nil {
			return "", err
		}
		if _, err := c.run(ctx, "cordon", node); err != nil {
			return "", err
		}
	}
	for name, values := range map[string]map[string]string{
		"anywhere": nil,
		"wants-it": {"SELECTOR": onControlPlane},
		"tolerant": {"SELECTOR": onControlPlane, "TOLERATIONS": tolerated},
	} {
		if err := c.pod(ctx, name, values); err != nil {
			return "", err
		}
	}
	// The one that may shows that the scheduler has looked at all of them.
	if err := c.ready(ctx, "pod/tolerant"); err != nil {
		return "", err
	}
	for _, name := range []string{"anywhere", "wants-it"} {
		if _, err := c.run(ctx, "wait", "--for=condition=PodScheduled=False", "--timeout=30s", "pod/"+name); err != nil {
			return "", err
		}
		out, err := c.run(ctx, "get", "pod", name, "-o", "jsonpath={.status.phase} {.spec.nodeName} {.status.conditions[0].message}")
		if err != nil {
			return "", err
		}
		if !strings.HasPrefix(out, "Pending  ") || !strings.Contains(out, "untolerated taint") {
			return "", fmt.Errorf("the pod %s: %s", name, out)
		}
	}
	return "Pending with the workers cordoned; a tolerant pod runs there", nil
}
