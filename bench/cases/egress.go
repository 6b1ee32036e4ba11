package cases

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"fabrique/bench/platform"
	"fabrique/manifests/zone"
)

// egressCases are what a build reaches outside.
var egressCases = []Case{
	{Name: "egress-listed", Title: "unchanged apt-get and pip get their packages through the gateway, and by no other way", Run: egressListed},
	{Name: "egress-refused", Title: "a host that is not listed is refused, and the commit says which line allows it", Run: egressRefused},
}

// withPackages is the sample's app that installs some.
const withPackages = "citation"

// egressListed builds the sample's app with packages anew: its instructions are as a
// stranger writes them, and know of no proxy.
func egressListed(ctx context.Context, w *World) (saw string, err error) {
	file := filepath.Join(w.Work.Dir(platform.SourceRepo), "dataops", "citation-dagster", "Dockerfile")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	from := regexp.MustCompile(`(?m)^FROM .*$`).Find(text)
	if from == nil {
		return "", fmt.Errorf("the Dockerfile of %s has no FROM", withPackages)
	}
	// Another first layer: nothing that follows is cached.
	fresh := regexp.MustCompile(`(?m)^RUN : fresh .*\n`).ReplaceAll(text, nil)
	fresh = []byte(strings.Replace(string(fresh), string(from)+"\n", string(from)+"\nRUN : fresh "+nonce()+"\n", 1))
	if err := os.WriteFile(file, fresh, 0o644); err != nil {
		return "", err
	}
	revision, err := w.Work.Commit(ctx, platform.SourceRepo, "Packages anew")
	if err != nil {
		return "", err
	}
	if err := w.Work.Push(ctx, platform.SourceRepo, "HEAD:refs/heads/main"); err != nil {
		return "", err
	}
	workflow, err := w.succeeded(ctx, pushName(revision), 8*time.Minute)
	if err != nil {
		return "", err
	}
	if err := w.says(ctx, revision, "success", "is deployed", whole+"/"+withPackages); err != nil {
		return "", err
	}
	out, err := w.fabrique(ctx, "egress", "report", withPackages, "--kubeconfig", w.Kubectl.Kubeconfig)
	if err != nil {
		return "", err
	}
	if !strings.Contains(out, "allowed") {
		return "", fmt.Errorf("fabrique egress report should list what was allowed; it says\n%s", out)
	}
	addresses, err := w.gatewayAddresses(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("built anew by %s, %d lines in the egress report; the gateway itself may reach %s", workflow.Metadata.Name, strings.Count(out, "\n"), strings.Join(addresses, ", ")), nil
}

// gatewayAddresses gives where the gateway's NetworkPolicy lets it out, and wants single
// addresses there.
func (w *World) gatewayAddresses(ctx context.Context) ([]string, error) {
	var policy struct {
		Spec struct {
			Egress []struct {
				To    []struct{ IPBlock struct{ CIDR string } }
				Ports []struct{ Port int }
			}
		}
	}
	if err := w.Kubectl.Get(ctx, &policy, "networkpolicy", "-n", zone.Egress, zone.AddressesPolicy); err != nil {
		return nil, err
	}
	var all []string
	for _, rule := range policy.Spec.Egress {
		if len(rule.To) == 0 || len(rule.Ports) != 1 {
			return nil, fmt.Errorf("the NetworkPolicy %s has a rule for everybody: %+v", zone.AddressesPolicy, rule)
		}
		for _, to := range rule.To {
			p, err := netip.ParsePrefix(to.IPBlock.CIDR)
			if err != nil || !p.IsSingleIP() {
				return nil, fmt.Errorf("the NetworkPolicy %s names %q; want one address", zone.AddressesPolicy, to.IPBlock.CIDR)
			}
			all = append(all, netip.AddrPortFrom(p.Addr(), uint16(rule.Ports[0].Port)).String())
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the NetworkPolicy %s names no address, and packages came through the gateway", zone.AddressesPolicy)
	}
	return all, nil
}

// egressRefused asks the gateway for what is not listed, and goes around it.
func egressRefused(ctx context.Context, w *World) (saw string, err error) {
	defer finally(ctx, &err, w.anew(func(ctx context.Context, w *World) error { return w.restore(ctx) }))
	listed, err := w.listedAddress(ctx)
	if err != nil {
		return "", err
	}
	// BusyBox has no client that speaks CONNECT; curl, apt-get and pip do the same.
	script := `u=${HTTPS_PROXY#*://}; u=${u%/}; c=${u%@*}; h=${u##*@}
printf 'CONNECT unlisted.example.org:443 HTTP/1.1\r\nHost: unlisted.example.org:443\r\nProxy-Authorization: Basic %s\r\n\r\n' "$(printf %s "$c" | base64 | tr -d '\n')" | nc -w 5 ${h%:*} ${h##*:}
printf 'HEAD / HTTP/1.0\r\n\r\n' | nc -w 5 ` + strings.Replace(listed, ":", " ", 1) + ` && echo went-around
exit 9
`
	text, err := with("RUN echo " + base64.StdEncoding.EncodeToString([]byte(script)) + " | base64 -d > /ask && sh /ask # " + nonce())
	if err != nil {
		return "", err
	}
	if err := w.dockerfile(text); err != nil {
		return "", err
	}
	const reason = `egress to unlisted\.example\.org:443 refused; allow it under egress\.allow`
	workflow, err := w.refusedBuild(ctx, "Asks for too much", reason)
	if err != nil {
		return "", err
	}
	for _, n := range workflow.Status.Nodes {
		if strings.Contains(n.Message, "went-around") {
			return "", errors.New("a RUN step reached " + listed + " without the gateway: " + n.Message)
		}
	}
	out, err := w.fabrique(ctx, "egress", "suggest", first, "--kubeconfig", w.Kubectl.Kubeconfig)
	if err != nil {
		return "", err
	}
	if !strings.Contains(out, "unlisted.example.org:443") {
		return "", fmt.Errorf("fabrique egress suggest %s should name what was refused; it says\n%s", first, out)
	}
	return "refused, and " + listed + " was not reached past the gateway; suggested: " + oneLine(out), w.heal(ctx)
}

// listedAddress gives an address that the gateway itself reaches, from its report.
func (w *World) listedAddress(ctx context.Context) (string, error) {
	var config struct{ Data map[string]string }
	if err := w.Kubectl.Get(ctx, &config, "configmap", "-n", zone.Egress, "egress-gateway"); err != nil {
		return "", err
	}
	for _, text := range config.Data {
		found := regexp.MustCompile(`"allowPrivate":\s*\[\s*"([0-9.]+)/32"`).FindStringSubmatch(text)
		if found != nil {
			return found[1] + ":443", nil
		}
	}
	return "", errors.New("no address of a package source is known; is there a private one under egress.allowPrivate?")
}
