package cases

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fabrique/bench/sample"
	"fabrique/manifests/zone"
)

// costCases are measurements: they fail when something is not measured, not when it is
// slow.
var costCases = []Case{
	{Name: "egress-cost", Title: "what the way through the egress gateway costs a build that downloads, against the direct way", Limit: 40 * time.Minute, Run: egressCost},
}

// costRounds is how often each side builds; costAim is how much longer the way through
// the gateway is to take at most.
const (
	costRounds = 5
	costAim    = 1.05
)

// Cost is what two ways of the same build took, in seconds.
type Cost struct {
	What          string    `json:"what"`
	Gateway       []float64 `json:"gatewaySeconds"`
	Direct        []float64 `json:"directSeconds"`
	GatewayMedian float64   `json:"gatewayMedian"`
	DirectMedian  float64   `json:"directMedian"`
	Ratio         float64   `json:"ratio"`
	Aim           float64   `json:"aim"`
	Within        bool      `json:"within"`
}

// settle computes what follows from the runs.
func (c *Cost) settle() {
	c.GatewayMedian, c.DirectMedian = middle(c.Gateway), middle(c.Direct)
	c.Ratio, c.Aim = c.GatewayMedian/c.DirectMedian, costAim
	c.Within = c.Ratio <= c.Aim
}

func (c Cost) String() string {
	word := "within"
	if !c.Within {
		word = "NOT within"
	}
	return fmt.Sprintf("%s: %.1f s through the gateway, %.1f s direct (medians of %d), ratio %.3f, %s %g", c.What, c.GatewayMedian, c.DirectMedian, len(c.Gateway), c.Ratio, word, c.Aim)
}

// directZone is where the daemon runs whose builds go out by themselves.
const directZone = "bench-direct"

// egressCost builds in turn on the factory's daemon, through the gateway, and on one
// beside it whose RUN instructions have the network of their pod, without a NetworkPolicy.
// What the gateway needs for 200 downloads at once a test beside it shows
// (steps/egress/gateway, TestMemory).
func egressCost(ctx context.Context, w *World) (saw string, err error) {
	defer finally(ctx, &err, func(ctx context.Context) error {
		_, err := w.Kubectl.Run(ctx, nil, "delete", "namespace", directZone, "--ignore-not-found", "--timeout=120s")
		return err
	})
	if err := w.directBuilder(ctx); err != nil {
		return "", err
	}
	through, leave, err := w.arena(ctx, withPackages)
	if err != nil {
		return "", err
	}
	defer leave()
	direct := through
	direct.outside, direct.reach = nil, w.daemonAt(directZone, builder+"-0")

	app := filepath.Join(through.dir, "citation", "app")
	files, err := fs.Sub(sample.Atlas(), "dataops/citation-dagster")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(app), 0o755)
	}
	if err == nil {
		err = os.CopyFS(app, files)
	}
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(app, "Dockerfile"))
	if err != nil {
		return "", err
	}
	from := regexp.MustCompile(`(?m)^FROM .*$`).FindString(string(text))
	if from == "" {
		return "", fmt.Errorf("the Dockerfile of %s has no FROM", withPackages)
	}
	whole := strings.Replace(string(text), from+"\n", from+"\nRUN : %s\n", 1)
	// Little else than downloads: apt-get has many connections' worth of packages to get.
	const downloads = "RUN apt-get update && apt-get install -y --download-only --no-install-recommends g++ && du -ch /var/cache/apt/archives/*.deb | tail -n 1 && rm -rf /var/cache/apt /var/lib/apt/lists\n"
	for _, c := range []struct{ what, recipe string }{
		{"the packages of a compiler, downloaded only", from + "\nRUN : %s\n" + downloads},
		{"the sample's app with packages by apt-get and pip", whole},
	} {
		cost := Cost{What: c.what}
		for round := range costRounds + 1 {
			if round == 0 && len(w.costs) > 0 {
				continue
			}
			sides := []struct {
				name  string
				arena arena
				into  *[]float64
			}{{"gateway", through, &cost.Gateway}, {"direct", direct, &cost.Direct}}
			if round%2 == 1 {
				slices.Reverse(sides)
			}
			for _, side := range sides {
				fresh := nonce()
				if err := os.WriteFile(filepath.Join(app, "Dockerfile"), fmt.Appendf(nil, c.recipe, fresh), 0o644); err != nil {
					return "", err
				}
				image := "bench-cost/" + side.name
				b, err := side.arena.build(ctx, image, fmt.Sprintf("%016x%024x", time.Now().UnixNano(), 0), filepath.Dir(app))
				if err == nil && b.code != 0 {
					err = fmt.Errorf("it ended with %d:\n%s", b.code, ending(b.log))
				}
				if err != nil {
					return "", fmt.Errorf("building %s, %s: %w", c.what, side.name, err)
				}
				if err := side.arena.remove(ctx, image, b.digest); err != nil {
					return "", err
				}
				w.note("%s, round %d, %s: %.1f s", c.what, round, side.name, b.took.Seconds())
				// The very first has the base image to fetch, and does not count.
				if round > 0 {
					*side.into = append(*side.into, b.took.Seconds())
				}
			}
		}
		cost.settle()
		w.note("%s", cost)
		w.costs = append(w.costs, cost)
		saw += "; " + cost.String()
	}
	return strings.TrimPrefix(saw, "; "), nil
}

// directBuilder starts a daemon like the factory's, on the same node, but for the network
// of RUN instructions, the gateway and the volume.
func (w *World) directBuilder(ctx context.Context) error {
	node, err := w.Kubectl.Run(ctx, nil, "get", "pod", builder+"-0", "-n", zone.Builder, "-o", "jsonpath={.spec.nodeName}")
	if err != nil {
		return err
	}
	return unlocked{name: builder + "-0", namespace: directZone, toml: func(text string) string {
		text = regexp.MustCompile(`(?m)^\s*cni(Config|Binary)Path = .*\n`).ReplaceAllString(text, "")
		return regexp.MustCompile(`networkMode = .*`).ReplaceAllString(text, "networkMode = 'host'")
	}, pod: func(p *corev1.PodSpec) {
		p.NodeName, p.InitContainers = node, nil
		gone := []string{"plugins", "run-network", "networks"}
		p.Volumes = slices.DeleteFunc(p.Volumes, func(v corev1.Volume) bool { return slices.Contains(gone, v.Name) })
		for i := range p.Containers {
			p.Containers[i].Env = nil
			p.Containers[i].VolumeMounts = slices.DeleteFunc(p.Containers[i].VolumeMounts, func(m corev1.VolumeMount) bool { return slices.Contains(gone, m.Name) })
		}
	}}.start(ctx, w)
}
