package cases

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"fabrique/bench/action"
	"fabrique/manifests/zone"
)

const deviationsNamespace = "fabrique-deviations"

// strict gives, for a deviation's setting, what makes the daemon's container as strict
// as any other in it. Nil is for what this bench cannot show.
func strict(setting string) func(*corev1.SecurityContext) {
	if name, ok := strings.CutPrefix(setting, "capabilities.add="); ok {
		return func(s *corev1.SecurityContext) {
			s.Capabilities.Add = slices.DeleteFunc(s.Capabilities.Add, func(c corev1.Capability) bool { return string(c) == name })
		}
	}
	no, user := false, zone.User
	return map[string]func(*corev1.SecurityContext){
		"allowPrivilegeEscalation=true": func(s *corev1.SecurityContext) { s.AllowPrivilegeEscalation = &no },
		"runAsGroup=0":                  func(s *corev1.SecurityContext) { s.RunAsGroup = &user },
		"runAsNonRoot=false":            func(s *corev1.SecurityContext) { s.RunAsNonRoot = nil }, // the pod's holds, which is true
		"runAsUser=0":                   func(s *corev1.SecurityContext) { s.RunAsUser, s.RunAsNonRoot = &user, nil },
		"seccompProfile=Unconfined":     func(s *corev1.SecurityContext) { s.SeccompProfile = nil }, // the pod's holds
	}[setting]
}

// notShown are the deviations whose need depends on what the bench's nodes lack.
var notShown = []string{
	"appArmorProfile=Unconfined", // the kernel has no AppArmor
}

// deviationsNeeded takes each deviation away from a builder of its own, which then
// either does not come up or cannot run an instruction; and shows that one from which
// nothing was taken does.
func deviationsNeeded(ctx context.Context, w *World) (saw string, err error) {
	remove := w.removeNamespace(deviationsNamespace)
	defer finally(ctx, &err, remove)
	if err := remove(ctx); err != nil { // what a killed run left
		return "", err
	}
	builds := func(name string, change func(*corev1.SecurityContext)) (err error) {
		u := unlocked{name: name, namespace: deviationsNamespace, patience: time.Minute, pod: func(p *corev1.PodSpec) {
			if change != nil {
				change(p.Containers[0].SecurityContext)
			}
		}}
		if err := u.start(ctx, w); err != nil {
			return fmt.Errorf("it does not come up: %w", err)
		}
		defer finally(ctx, &err, func(ctx context.Context) error {
			_, err := w.Kubectl.Run(ctx, nil, "delete", "pod", name, "-n", deviationsNamespace, "--wait=false")
			return err
		})
		return w.instructions(ctx, name)
	}
	if err := builds("with-all", nil); err != nil {
		return "", fmt.Errorf("a builder with all deviations should build: %w", err)
	}
	listed, err := w.deviations(ctx)
	if err != nil {
		return "", err
	}
	var group errgroup.Group
	group.SetLimit(4)
	needless := make([]string, len(listed))
	shown := 0
	for i, setting := range listed {
		change := strict(setting)
		if slices.Contains(notShown, setting) {
			continue
		}
		if change == nil {
			return "", fmt.Errorf("nobody knows how to take away %s", setting)
		}
		shown++
		group.Go(func() error {
			if err := builds("without-"+other.ReplaceAllString(strings.ToLower(setting), "-"), change); err == nil {
				needless[i] = setting
			} else {
				w.note("without %s: %s", setting, oneLine(err.Error()))
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return "", err
	}
	if needless = slices.DeleteFunc(needless, func(s string) bool { return s == "" }); len(needless) > 0 {
		return "", fmt.Errorf("the builder builds without %q", needless)
	}
	return fmt.Sprintf("each of %d deviations is needed; not shown here: %q", shown, notShown), nil
}

// instructions has a builder run what Dockerfiles run: as root, as another user, with
// files of others, with a cache.
func (w *World) instructions(ctx context.Context, pod string) error {
	text := "FROM " + w.Refs["base/busybox"] + `
WORKDIR /a/b
COPY Dockerfile /y/
COPY --chown=1000:1000 Dockerfile /x/
# Setuid programs work, and what nobody says the group of is root's.
RUN grep -q 'NoNewPrivs:.0' /proc/self/status && test "$(stat -c %u:%g / /a /a/b /y /y/Dockerfile | sort -u)" = 0:0
RUN chown 1000:1000 /x && su -s /bin/sh nobody -c id && chroot / true # ` + nonce() + `
RUN --mount=type=cache,target=/c --mount=type=tmpfs,target=/t touch /c/a /t/b
USER 1000
RUN id
`
	// The daemon may be ready and its port not yet forwarded.
	return action.Poll(ctx, 20*time.Second, func(ctx context.Context) error {
		log, err := w.buildAt(ctx, deviationsNamespace, pod, map[string]string{"Dockerfile": text})
		if err != nil && strings.Contains(log, "ERROR") {
			return &action.Final{Err: err}
		}
		return err
	})
}
