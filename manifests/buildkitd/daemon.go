package buildkitd

import (
	"crypto/sha256"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fabrique/manifests/zone"
	"fabrique/steps/config"
)

const name = "buildkitd"

// Port is where the daemon listens.
const Port = 1234

// Labels select the daemons' pods.
func Labels() map[string]string {
	return map[string]string{"app.kubernetes.io/name": name, zone.PartOf: zone.Fabrique}
}

// Addresses are where the daemons answer inside the cluster, each by its own name:
// a client chooses, so that an app's builds find their cache again.
func Addresses(c config.Config) []string {
	var all []string
	for i := range c.Cluster.Builders {
		all = append(all, fmt.Sprintf("tcp://%s-%d.%s.%s.svc:%d", name, i, name, zone.Builder, Port))
	}
	return all
}

// Objects gives the daemons on workers (adr-0095 §1.b): pods with a cache each that
// outlives them. Their deviations from the Pod Security level restricted, each with
// its reason:
//
//   - privileged: it makes mounts, cgroups and namespaces for RUN steps. hostUsers
//     is false, so that this is a privilege inside a user namespace only: root in
//     the pod is an unprivileged id on the node.
//   - runAsUser 0: the same, it is root of that namespace.
//   - a writable root: runc's and BuildKit's run-time folders.
func Objects(c config.Config) ([]any, error) {
	size := resource.MustParse(c.Cluster.BuildCache.Storage)
	if c.Builder.MaxCacheBytes == 0 {
		// A builder that fills its volume builds nothing more: a fifth is for the build at hand.
		c.Builder.MaxCacheBytes = size.Value() / 5 * 4
	}
	text, err := Generate(c)
	if err != nil {
		return nil, err
	}
	no, yes, replicas, root := false, true, int32(c.Cluster.Builders), int64(0)
	labels := Labels()
	probe := func(period, failures int32, args ...string) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{
				Command: append([]string{"/usr/bin/buildctl", "--addr", fmt.Sprintf("tcp://127.0.0.1:%d", Port)}, args...),
			}},
			PeriodSeconds: period, FailureThreshold: failures, TimeoutSeconds: 10,
		}
	}
	// It is ready once it has built something: that needs its mounts and its volume.
	// From then on it is asked for its workers only. A volume that fills up later must
	// not take it away: the build's message says more than a builder that is gone.
	build := []string{"build", "--no-cache", "--frontend", "dockerfile.v0", "--local", "context=/etc/buildkit", "--local", "dockerfile=/etc/buildkit"}
	pod := corev1.PodSpec{
		HostUsers: &no, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
		SecurityContext: &corev1.PodSecurityContext{RunAsUser: &root, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}},
		// Never on a control plane, whatever its taints are.
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: "node-role.kubernetes.io/control-plane", Operator: corev1.NodeSelectorOpDoesNotExist,
			}}}},
		}}},
		TerminationGracePeriodSeconds: ptr(int64(30)),
		Containers: []corev1.Container{{
			Name: name, Image: c.Cluster.Images.Buildkitd,
			Command:         []string{"/usr/bin/buildkitd"},
			Args:            []string{"--addr", fmt.Sprintf("tcp://0.0.0.0:%d", Port), "--config", "/etc/buildkit/buildkitd.toml", "--root", "/var/lib/buildkit"},
			Ports:           []corev1.ContainerPort{{Name: "grpc", ContainerPort: Port}},
			StartupProbe:    probe(2, 300, build...),
			ReadinessProbe:  probe(5, 2, "debug", "workers"),
			LivenessProbe:   probe(30, 5, "debug", "workers"),
			SecurityContext: &corev1.SecurityContext{Privileged: &yes, RunAsUser: &root},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("256Mi"),
			}},
			VolumeMounts: []corev1.VolumeMount{
				{Name: "config", MountPath: "/etc/buildkit", ReadOnly: true},
				{Name: "cache", MountPath: "/var/lib/buildkit"},
				{Name: "run", MountPath: "/run"},
				{Name: "tmp", MountPath: "/tmp"},
			},
		}},
		Volumes: []corev1.Volume{
			{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}},
			{Name: "run", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		},
	}
	claim := corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "cache"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: size}},
		},
	}
	if c.Cluster.StorageClass != "" {
		claim.Spec.StorageClassName = &c.Cluster.StorageClass
	}
	return []any{
		&corev1.ConfigMap{TypeMeta: zone.Type("v1", "ConfigMap"), ObjectMeta: zone.Meta(zone.Builder, name), Data: map[string]string{"buildkitd.toml": string(text), "Dockerfile": "FROM scratch\nCOPY buildkitd.toml /\n"}},
		&corev1.Service{
			TypeMeta: zone.Type("v1", "Service"), ObjectMeta: zone.Meta(zone.Builder, name),
			Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: labels, Ports: []corev1.ServicePort{{Name: "grpc", Port: Port, TargetPort: intstr.FromString("grpc")}}},
		},
		&appsv1.StatefulSet{
			TypeMeta: zone.Type("apps/v1", "StatefulSet"), ObjectMeta: zone.Meta(zone.Builder, name),
			Spec: appsv1.StatefulSetSpec{
				Replicas: &replicas, ServiceName: name, PodManagementPolicy: appsv1.ParallelPodManagement, Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{"fabrique/config": hash(text)}},
					Spec:       pod,
				},
				VolumeClaimTemplates: []corev1.PersistentVolumeClaim{claim},
			},
		},
	}, nil
}

func ptr[T any](v T) *T { return &v }

// hash makes a changed configuration a changed pod: the daemon reads it once.
func hash(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }
