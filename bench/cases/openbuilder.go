package cases

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fabrique/manifests/zone"
)

// unlocked is a builder like the factory's, from the specification of the one that runs,
// from which something was taken that holds RUN instructions back. It stands in a
// namespace without policies.
type unlocked struct {
	name, namespace string
	// toml changes the daemon's configuration.
	toml func(string) string
	// pod changes its pod, of which the first container is the daemon.
	pod      func(*corev1.PodSpec)
	patience time.Duration // until it is ready; 0 for three minutes
}

// start starts the builder, beside the factory's own, and waits until it is ready.
func (u unlocked) start(ctx context.Context, w *World) error {
	var own appsv1.StatefulSet
	if err := w.Kubectl.Get(ctx, &own, "statefulset", builder, "-n", zone.Builder); err != nil {
		return err
	}
	var conf corev1.ConfigMap
	if err := w.Kubectl.Get(ctx, &conf, "configmap", builder, "-n", zone.Builder); err != nil {
		return err
	}
	data := maps.Clone(conf.Data)
	if u.toml != nil {
		changed := u.toml(data["buildkitd.toml"])
		if changed == data["buildkitd.toml"] {
			return fmt.Errorf("nothing was taken from buildkitd.toml for %s", u.name)
		}
		data["buildkitd.toml"] = changed
	}
	spec := own.Spec.Template.Spec
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	for i, v := range spec.Volumes {
		if v.ConfigMap != nil {
			spec.Volumes[i].ConfigMap.Name = u.name
		}
	}
	if u.pod != nil {
		u.pod(&spec)
	}
	objects := []any{
		map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": u.namespace, "labels": map[string]string{"pod-security.kubernetes.io/enforce": "privileged"}}},
		&corev1.ConfigMap{TypeMeta: zone.Type("v1", "ConfigMap"), ObjectMeta: metav1.ObjectMeta{Name: u.name, Namespace: u.namespace}, Data: data},
		&corev1.Pod{TypeMeta: zone.Type("v1", "Pod"), ObjectMeta: metav1.ObjectMeta{Name: u.name, Namespace: u.namespace}, Spec: spec},
	}
	for _, o := range objects {
		text, err := json.Marshal(o)
		if err != nil {
			return err
		}
		var last error
		for range 20 { // a new namespace has no service account for a moment
			if _, last = w.Kubectl.Run(ctx, text, "apply", "--server-side", "--force-conflicts", "-f", "-"); last == nil {
				break
			}
			if err := pause(ctx, time.Second); err != nil {
				return err
			}
		}
		if last != nil {
			return last
		}
	}
	_, err := w.Kubectl.Run(ctx, nil, "wait", "pod/"+u.name, "-n", u.namespace, "--for=condition=Ready", "--timeout="+cmp.Or(u.patience, 3*time.Minute).String())
	return err
}

// removeNamespace removes a scenario's namespace and waits for it to be gone.
func (w *World) removeNamespace(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := w.Kubectl.Run(ctx, nil, "delete", "namespace", name, "--ignore-not-found", "--wait")
		return err
	}
}

// buildAt builds one Dockerfile on the daemon in a pod, by the step program as the
// Workflow runs it, and gives the log. An error is also that the build fails.
func (w *World) buildAt(ctx context.Context, namespace, pod string, files map[string]string) (log string, err error) {
	a, leave, err := w.arena(ctx, attacker)
	if err != nil {
		return "", err
	}
	defer leave()
	a.reach = w.daemonAt(namespace, pod)
	for file, text := range files {
		if err := writeAt(filepath.Join(a.dir, "app", file), text); err != nil {
			return "", err
		}
	}
	image := "bench-escape/" + nonce()
	b, err := a.build(ctx, image, anyRevision, a.dir)
	if err != nil {
		return string(b.log), err
	}
	if b.code != 0 {
		return string(b.log), fmt.Errorf("buildkit-build ended with %d: %s", b.code, because(b.log))
	}
	return string(b.log), a.remove(ctx, image, b.digest)
}

// anyRevision is for builds of which nothing comes from a repository.
const anyRevision = "7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210"

// because gives the message of the last line of a step's log, which says why it ended.
func because(log []byte) string {
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	var last struct{ Msg string }
	if json.Unmarshal([]byte(lines[len(lines)-1]), &last) != nil || last.Msg == "" {
		return ending(log)
	}
	return last.Msg
}
