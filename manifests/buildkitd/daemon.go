package buildkitd

import (
	"crypto/sha256"
	"fmt"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"fabrique/manifests/egress"
	"fabrique/manifests/zone"
	"fabrique/steps/config"
	"fabrique/steps/runnetwork"
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

// Where the daemon finds the network of RUN instructions.
const (
	networkFile = "run-network.json"
	pluginDir   = "/opt/cni/bin"
	configDir   = "/etc/buildkit"
)

// Objects gives the daemons on workers (adr-0095 §1.b): pods with a cache each that
// outlives them, and with [Deviations] from the Pod Security level restricted. RUN
// instructions have a network of their own, which leads to the egress gateway and
// nowhere else (package runnetwork): the daemon's network is not theirs.
func Objects(c config.Config) ([]any, error) {
	size := resource.MustParse(c.Cluster.BuildCache.Storage)
	if c.Builder.MaxCacheBytes == 0 {
		// A builder that fills its volume builds nothing more: a fifth is for the build at hand.
		c.Builder.MaxCacheBytes = size.Value() / 5 * 4
	}
	text, err := generate(c, network{Mode: "cni", Config: configDir + "/" + networkFile, Bin: pluginDir}, &otel{SocketPath: runnetwork.TraceSocket})
	if err != nil {
		return nil, err
	}
	conf, err := runnetwork.Conf(runnetwork.Socket, runnetwork.TraceSocket)
	if err != nil {
		return nil, fmt.Errorf("generating the network of RUN instructions: %w", err)
	}
	no, replicas := false, int32(c.Cluster.Builders)
	labels := Labels()
	probe := func(period, failures int32, command ...string) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: command}},
			PeriodSeconds: period, FailureThreshold: failures, TimeoutSeconds: 10,
		}
	}
	ask := []string{"/usr/bin/buildctl", "--addr", fmt.Sprintf("tcp://127.0.0.1:%d", Port)}
	workers := append(slices.Clone(ask), "debug", "workers")
	// It is ready once it has built something: that needs its mounts and its volume.
	// From then on it is asked for its workers only. A volume that fills up later must
	// not take it away: the build's message says more than a builder that is gone.
	build := append(slices.Clone(ask), "build", "--no-cache", "--frontend", "dockerfile.v0", "--local", "context="+configDir, "--local", "dockerfile="+configDir)
	pod := corev1.PodSpec{
		HostUsers: &no, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
		SecurityContext: podSecurity(),
		// Never on a control plane, whatever its taints are.
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: "node-role.kubernetes.io/control-plane", Operator: corev1.NodeSelectorOpDoesNotExist,
			}}}},
		}}},
		TerminationGracePeriodSeconds: ptr(int64(30)),
		InitContainers: []corev1.Container{
			helper("install-network", c.Cluster.Images.RunNetwork, nil, corev1.VolumeMount{Name: "plugins", MountPath: pluginDir}, "install", pluginDir),
			// It runs beside the daemon, from before it to after it.
			helper("run-network", c.Cluster.Images.RunNetwork, ptr(corev1.ContainerRestartPolicyAlways),
				corev1.VolumeMount{Name: "run-network", MountPath: path.Dir(runnetwork.Socket)}, "relay", "--gateway", egress.Address),
		},
		Containers: []corev1.Container{{
			Name: name, Image: c.Cluster.Images.Buildkitd,
			Command:         []string{"/usr/bin/buildkitd"},
			Args:            []string{"--addr", fmt.Sprintf("tcp://0.0.0.0:%d", Port), "--config", configDir + "/buildkitd.toml", "--root", "/var/lib/buildkit"},
			Ports:           []corev1.ContainerPort{{Name: "grpc", ContainerPort: Port}},
			StartupProbe:    probe(2, 300, build...),
			ReadinessProbe:  probe(5, 2, workers...),
			LivenessProbe:   probe(30, 5, workers...),
			SecurityContext: security(c),
			// What the daemon itself gets from outside, by ADD, comes through the gateway too.
			Env: []corev1.EnvVar{
				{Name: "HTTP_PROXY", Value: egress.ProxyURL}, {Name: "HTTPS_PROXY", Value: egress.ProxyURL},
				{Name: "NO_PROXY", Value: registryHost(c)},
				// git, which ADD runs, reads these.
				{Name: "http_proxy", Value: egress.ProxyURL}, {Name: "https_proxy", Value: egress.ProxyURL}, {Name: "no_proxy", Value: registryHost(c)},
			},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("256Mi")},
				// Instructions count too: one that takes all there is must not take the node's.
				Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(c.Cluster.BuilderMemory)},
			},
			VolumeMounts: []corev1.VolumeMount{
				{Name: "config", MountPath: configDir, ReadOnly: true},
				{Name: "plugins", MountPath: pluginDir, ReadOnly: true},
				{Name: "run-network", MountPath: path.Dir(runnetwork.Socket)},
				{Name: "cache", MountPath: "/var/lib/buildkit"},
				{Name: "networks", MountPath: "/var/lib/cni"},
				{Name: "run", MountPath: "/run"},
				{Name: "tmp", MountPath: "/tmp"},
			},
		}},
		Volumes: []corev1.Volume{
			{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}},
			empty("plugins"), empty("run-network"), empty("networks"), empty("run"), empty("tmp"),
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
	deviations, err := yaml.Marshal(Deviations(c))
	if err != nil {
		return nil, fmt.Errorf("listing the deviations from Pod Security: %w", err)
	}
	return []any{
		&corev1.ConfigMap{TypeMeta: zone.Type("v1", "ConfigMap"), ObjectMeta: zone.Meta(zone.Builder, DeviationsName), Data: map[string]string{DeviationsKey: string(deviations)}},
		&corev1.ConfigMap{TypeMeta: zone.Type("v1", "ConfigMap"), ObjectMeta: zone.Meta(zone.Builder, name), Data: map[string]string{
			"buildkitd.toml": string(text), networkFile: string(conf), "Dockerfile": "FROM scratch\nCOPY buildkitd.toml /\n",
		}},
		&corev1.Service{
			TypeMeta: zone.Type("v1", "Service"), ObjectMeta: zone.Meta(zone.Builder, name),
			Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: labels, Ports: []corev1.ServicePort{{Name: "grpc", Port: Port, TargetPort: intstr.FromString("grpc")}}},
		},
		&appsv1.StatefulSet{
			TypeMeta: zone.Type("apps/v1", "StatefulSet"), ObjectMeta: zone.Meta(zone.Builder, name),
			Spec: appsv1.StatefulSetSpec{
				Replicas: &replicas, ServiceName: name, PodManagementPolicy: appsv1.ParallelPodManagement, Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{"fabrique/config": hash(append(text, conf...))}},
					Spec:       pod,
				},
				VolumeClaimTemplates: []corev1.PersistentVolumeClaim{claim},
			},
		},
	}, nil
}

// helper gives a container beside the daemon, which meets the level restricted.
func helper(name, image string, restart *corev1.ContainerRestartPolicy, mount corev1.VolumeMount, args ...string) corev1.Container {
	return corev1.Container{
		Name: name, Image: image, Command: []string{"/run-network"}, Args: args, RestartPolicy: restart,
		SecurityContext:          zone.ContainerSecurity(),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi"),
		}, Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")}},
		VolumeMounts: []corev1.VolumeMount{mount},
	}
}

// podSecurity is that of every other pod, without the group of volumes: Kubernetes would
// give all files of the cache to it at each start, and so change layers.
func podSecurity() *corev1.PodSecurityContext {
	s := zone.PodSecurity()
	s.FSGroup = nil
	return s
}

func empty(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
}

// registryHost is reached without the gateway.
func registryHost(c config.Config) string {
	host, _, found := strings.Cut(string(c.Registry.Address), ":")
	if !found {
		return string(c.Registry.Address)
	}
	return host
}

func ptr[T any](v T) *T { return &v }

// hash makes a changed configuration a changed pod: the daemon reads it once.
func hash(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }
