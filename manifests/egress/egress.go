// Package egress generates the gateway that lets builds out (adr-0095 §0; design:
// zones), in a namespace of its own: nothing of the factory but it may leave the
// cluster.
package egress

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fabrique/manifests/zone"
	"fabrique/steps/config"
)

// Where the gateway answers: a Service, whose ports are those of the container.
const (
	Service   = zone.EgressGateway
	Port      = 3128    // proxy, for RUN steps
	AdminPort = 9090    // metrics and reports, for builds' clients and the command line
	AdminName = "admin" // of that port
)

// Address and ProxyURL are the proxy's, AdminURL is what buildkit-build is given.
const (
	Address  = Service + "." + zone.Egress + ".svc:3128"
	ProxyURL = "http://" + Address
	AdminURL = "http://" + Service + "." + zone.Egress + ".svc:9090"
)

// Where the files of the pod's volumes are.
const (
	policyDir, policyFile = "/etc/egress", "policy.json"
	keyDir                = "/run/secrets/egress"
)

// Labels are those of the gateway's pod.
func Labels() map[string]string {
	return zone.Labels(Service)
}

// Objects gives the gateway, which meets the Pod Security level restricted. There is
// one: what it remembers for reports is in its memory. A changed policy reaches it
// through the volume, within a minute or so, without a new pod, so no connection is
// dropped for it.
func Objects(c config.Config) []any {
	no, replicas, zero, one := false, int32(1), intstr.FromInt32(0), intstr.FromInt32(1)
	probe := func(period int32) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromString(AdminName)}},
			PeriodSeconds: period, FailureThreshold: 3,
		}
	}
	pod := corev1.PodSpec{
		ServiceAccountName: zone.EgressAccount, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
		SecurityContext: zone.PodSecurity(),
		Containers: []corev1.Container{{
			Name: Service, Image: c.Cluster.Images.EgressGateway,
			Command: []string{"/egress-gateway"},
			Args:    []string{"--policy", policyDir + "/" + policyFile, "--key-file", keyDir + "/" + zone.EgressKey},
			Env:     []corev1.EnvVar{{Name: "GOMEMLIMIT", Value: "200MiB"}},
			Ports: []corev1.ContainerPort{
				{Name: "proxy", ContainerPort: Port}, {Name: AdminName, ContainerPort: AdminPort},
			},
			ReadinessProbe: probe(5), LivenessProbe: probe(20),
			SecurityContext:          zone.ContainerSecurity(),
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("48Mi")},
				Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
			},
			VolumeMounts: []corev1.VolumeMount{
				{Name: "policy", MountPath: policyDir, ReadOnly: true}, {Name: "key", MountPath: keyDir, ReadOnly: true},
			},
		}},
		Volumes: []corev1.Volume{
			{Name: "policy", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: Service}}}},
			{Name: "key", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: zone.EgressSecret}}},
		},
	}
	objects := []any{
		&corev1.ConfigMap{
			TypeMeta: zone.Type("v1", "ConfigMap"), ObjectMeta: zone.Meta(zone.Egress, Service),
			Data: map[string]string{policyFile: string(c.Egress.JSON())},
		},
		&corev1.Service{
			TypeMeta: zone.Type("v1", "Service"), ObjectMeta: zone.Meta(zone.Egress, Service),
			Spec: corev1.ServiceSpec{Selector: Labels(), Ports: []corev1.ServicePort{
				{Name: "proxy", Port: Port, TargetPort: intstr.FromString("proxy")}, {Name: AdminName, Port: AdminPort, TargetPort: intstr.FromString(AdminName)},
			}},
		},
		&appsv1.Deployment{
			TypeMeta: zone.Type("apps/v1", "Deployment"), ObjectMeta: zone.Meta(zone.Egress, Service),
			Spec: appsv1.DeploymentSpec{
				Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: Labels()},
				// The next one answers before this one goes.
				Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: &zero, MaxSurge: &one}},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: Labels()}, Spec: pod},
			},
		},
	}
	if c.Cluster.Network.FQDNPolicies == config.NoFQDNPolicies {
		objects = append(objects, addresses(c))
	}
	return objects
}

// every is how long the gateway may be kept from an address that a name has anew.
const every = "30s"

// addresses gives what keeps the NetworkPolicy with the listed names' addresses, which
// meets the level restricted too. There is one, also during an update.
func addresses(c config.Config) *appsv1.Deployment {
	no, replicas, labels := false, int32(1), zone.Labels(zone.EgressAddresses)
	pod := corev1.PodSpec{
		ServiceAccountName: zone.AddressesAccount, EnableServiceLinks: &no,
		SecurityContext: zone.PodSecurity(),
		Containers: []corev1.Container{{
			Name: zone.EgressAddresses, Image: c.Cluster.Images.EgressAddresses,
			Command:                  []string{"/egress-addresses"},
			Args:                     []string{"--policy", policyDir + "/" + policyFile, "--namespace", zone.Egress, "--every", every},
			SecurityContext:          zone.ContainerSecurity(),
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
				Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
			},
			VolumeMounts: []corev1.VolumeMount{{Name: "policy", MountPath: policyDir, ReadOnly: true}},
		}},
		Volumes: []corev1.Volume{
			{Name: "policy", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: Service}}}},
		},
	}
	return &appsv1.Deployment{
		TypeMeta: zone.Type("apps/v1", "Deployment"), ObjectMeta: zone.Meta(zone.Egress, zone.EgressAddresses),
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod},
		},
	}
}
