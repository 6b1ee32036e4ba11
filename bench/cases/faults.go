package cases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"time"

	"fabrique/bench/demo"
	"fabrique/manifests/zone"
)

// faultCases are F4, its kin, and parts of the cluster that are full or refuse.
var faultCases = []Case{
	{Name: "F4", Title: "a failing Dockerfile is not tried again, and its last words are on the commit", Run: faulty(failing, "the-reason-why", 1)},
	{Name: "no-dockerfile", Title: "a Dockerfile that is missing is named on the commit", Run: faulty(missing, "web/"+first+"/Dockerfile", 0)},
	{Name: "broken-dockerfile", Title: "a Dockerfile's syntax error is on the commit", Run: faulty(broken, "FORM", 1)},
	{Name: "disk-full", Title: "a builder without space says so on the commit, and nothing is written", Limit: 15 * time.Minute, Run: diskFull},
	{Name: "registry-refuses", Title: "a registry that takes nothing is named with its answer, and nothing is written", Limit: 15 * time.Minute, Run: registryRefuses},
}

func failing(w *World) error {
	text, err := with("RUN echo the-reason-why >&2; exit 7")
	if err != nil {
		return err
	}
	return w.dockerfile(text)
}

func missing(w *World) error { return os.Remove(w.path(first, "Dockerfile")) }

func broken(w *World) error { return w.dockerfile("FROM registry:80/base/busybox\nFORM x\n") }

// faulty pushes a source that cannot be built, and checks that the reason stands in
// the Workflow's message and on the commit, with exit code 3 and without a second
// try (F4). Then it heals. A fault that is known before anything is built has no
// build pod: builds is how many there are.
func faulty(spoil func(*World) error, reason string, builds int) func(context.Context, *World) (string, error) {
	return func(ctx context.Context, w *World) (saw string, err error) {
		defer finally(ctx, &err, w.anew(func(ctx context.Context, w *World) error { return w.restore(ctx) }))
		head, err := w.recordsHead(ctx)
		if err != nil {
			return "", err
		}
		if err := spoil(w); err != nil {
			return "", err
		}
		c, err := w.commit(ctx, first, "A fault")
		if err != nil {
			return "", err
		}
		if err := w.send(ctx, &c); err != nil {
			return "", err
		}
		workflow, err := w.failed(ctx, pushName(c.revision), regexp.QuoteMeta(reason), 5*time.Minute)
		if err != nil {
			return "", err
		}
		pods := workflow.Pods("build")
		if len(pods) != builds {
			return "", fmt.Errorf("there should be %d build pods; there are %d", builds, len(pods))
		}
		// The report ends as the run does.
		reports := workflow.Pods("report")
		if len(reports) == 0 {
			return "", fmt.Errorf("the Workflow %s should end with a report; there is none", pushName(c.revision))
		}
		for _, n := range append(pods, reports...) {
			if code := exitCode(n); code != "3" {
				return "", fmt.Errorf("%s should end with exit code 3, the source's fault; it ended with %q: %s", n.DisplayName, code, n.Message)
			}
		}
		if err := w.says(ctx, c.revision, "failure", regexp.QuoteMeta(reason), whole, whole+"/"+first); err != nil {
			return "", err
		}
		if err := w.unwritten(ctx, head); err != nil {
			return "", err
		}
		if err := w.heal(ctx); err != nil {
			return "", err
		}
		return fmt.Sprintf("%d build pods, exit code 3, in Workflow and status: %s; then healed", builds, oneLine(workflow.Status.Message)), nil
	}
}

// refusedBuild pushes what cannot be built or pushed, for a reason that no push
// mends, and checks that the reason stands in the Workflow and on the commit, and
// that nothing is written.
func (w *World) refusedBuild(ctx context.Context, what, reason string) (demo.Workflow, error) {
	head, err := w.recordsHead(ctx)
	if err != nil {
		return demo.Workflow{}, err
	}
	c, err := w.commit(ctx, first, what)
	if err != nil {
		return demo.Workflow{}, err
	}
	if err := w.send(ctx, &c); err != nil {
		return demo.Workflow{}, err
	}
	// A failure that a retry may mend is tried again four times, after 10, 20, 40 and 80 s.
	workflow, err := w.failed(ctx, pushName(c.revision), reason, 7*time.Minute)
	if err != nil {
		return workflow, err
	}
	if err := w.says(ctx, c.revision, "failure", reason, whole, whole+"/"+first); err != nil {
		return workflow, err
	}
	return workflow, w.unwritten(ctx, head)
}

// The builder, and where it keeps its cache.
const (
	builder    = "buildkitd"
	cacheMount = "/var/lib/buildkit"
	cache      = "cache"
)

// diskFull gives the builder 64 MiB of memory in place of its volume.
func diskFull(ctx context.Context, w *World) (saw string, err error) {
	defer finally(ctx, &err, w.anew(func(ctx context.Context, w *World) error {
		return errors.Join(w.cacheOn(ctx, cache, map[string]any{"name": "small", "$patch": "delete"}),
			w.Reconfigure(ctx, io.Discard, demo.Settings{}), w.restore(ctx))
	}))
	if err := w.cacheOn(ctx, "small", map[string]any{"name": "small", "emptyDir": map[string]string{"medium": "Memory", "sizeLimit": "64Mi"}}); err != nil {
		return "", err
	}
	text, err := with("RUN dd if=/dev/zero of=/big bs=1M count=200 # " + nonce())
	if err != nil {
		return "", err
	}
	if err := w.dockerfile(text); err != nil {
		return "", err
	}
	workflow, err := w.refusedBuild(ctx, "Larger than the builder", `(?i)no space left`)
	if err != nil {
		return "", err
	}
	if err := errors.Join(w.cacheOn(ctx, cache, map[string]any{"name": "small", "$patch": "delete"}), w.Reconfigure(ctx, io.Discard, demo.Settings{})); err != nil {
		return "", err
	}
	if err := w.heal(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d build pods, nothing written; %s; then healed", len(workflow.Pods("build")), oneLine(workflow.Status.Message)), nil
}

// cacheOn mounts a volume as the builder's cache, changes the pod's volumes, and
// waits until the builder is ready again.
func (w *World) cacheOn(ctx context.Context, volume string, change map[string]any) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
		"containers": []any{map[string]any{
			"name": builder, "volumeMounts": []any{map[string]any{"mountPath": cacheMount, "name": volume}},
		}},
		"volumes": []any{change},
	}}}})
	if err != nil {
		return err
	}
	if _, err := w.Kubectl.Run(ctx, nil, "patch", "statefulset", builder, "-n", zone.Builder, "--type=strategic", "-p", string(patch)); err != nil {
		return err
	}
	_, err = w.Kubectl.Run(ctx, nil, "rollout", "status", "statefulset", builder, "-n", zone.Builder, "--timeout=180s")
	return err
}

// registryRefuses makes the registry one that can only be read.
func registryRefuses(ctx context.Context, w *World) (saw string, err error) {
	const variable = "REGISTRY_STORAGE_MAINTENANCE_READONLY"
	defer finally(ctx, &err, w.anew(func(ctx context.Context, w *World) error {
		return errors.Join(w.registry(ctx, variable+"-"), w.restore(ctx))
	}))
	if err := w.registry(ctx, variable+`={"enabled":true}`); err != nil {
		return "", err
	}
	workflow, err := w.refusedBuild(ctx, "To a registry that takes nothing", `(?is)registry:80.*(405|not allowed|unsupported|read-?only|denied|refused)`)
	if err != nil {
		return "", err
	}
	if err := w.registry(ctx, variable+"-"); err != nil {
		return "", err
	}
	if err := w.heal(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d build pods, nothing written; %s; then healed", len(workflow.Pods("build")), oneLine(workflow.Status.Message)), nil
}

// registry sets a variable of the registry, "NAME=value", or takes it away,
// "NAME-", and waits until it serves.
func (w *World) registry(ctx context.Context, variable string) error {
	if _, err := w.Kubectl.Run(ctx, nil, "set", "env", "deployment/registry", "-n", "registry", variable); err != nil {
		return err
	}
	_, err := w.Kubectl.Run(ctx, nil, "rollout", "status", "deployment/registry", "-n", "registry", "--timeout=180s")
	return err
}
