package buildkitd

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"fabrique/manifests/zone"
	"fabrique/steps/config"
)

// DeviationsName is the name of the ConfigMap beside the daemon that lists [Deviations],
// under [DeviationsKey].
const (
	DeviationsName = "pod-security"
	DeviationsKey  = "deviations.yaml"
)

// Deviation is one setting in which the daemon's container differs from what the Pod
// Security level restricted wants (kubernetes.io/docs/concepts/security/pod-security-standards).
type Deviation struct {
	Setting string `json:"setting"` // of the container's securityContext, "name=value"
	Reason  string `json:"reason"`
}

// capabilities are those of the daemon, with the reason for each. They are held in the
// pod's user namespace only, as hostUsers is false: over what the node itself owns they
// give no power.
var capabilities = []struct {
	name   corev1.Capability
	reason string
}{
	{"SYS_ADMIN", "it mounts layers, and makes the namespaces of RUN instructions"},
	{"NET_ADMIN", "it brings up the loopback interface of RUN instructions, the only one they have"},
	{"SYS_PTRACE", "runc opens the mount namespace of the process that it has started"},
	{"AUDIT_WRITE", ofRun}, {"CHOWN", ofRun}, {"DAC_OVERRIDE", ofRun}, {"FOWNER", ofRun}, {"FSETID", ofRun}, {"KILL", ofRun}, {"MKNOD", ofRun},
	{"NET_BIND_SERVICE", ofRun}, {"NET_RAW", ofRun}, {"SETFCAP", ofRun}, {"SETGID", ofRun}, {"SETPCAP", ofRun}, {"SETUID", ofRun}, {"SYS_CHROOT", ofRun},
}

const ofRun = "RUN instructions have it by BuildKit's default, and runc gives none that the daemon lacks"

// Deviations lists all, each with its reason. None is privileged: true.
func Deviations(c config.Config) []Deviation {
	all := []Deviation{
		{"allowPrivilegeEscalation=true", "without it no RUN instruction could use a setuid program, such as sudo"},
		{"appArmorProfile=Unconfined", "the container runtime's own profile forbids every mount"},
	}
	for _, one := range capabilities {
		all = append(all, Deviation{"capabilities.add=" + string(one.name), one.reason})
	}
	return append(all,
		Deviation{"runAsGroup=0", asRoot}, Deviation{"runAsNonRoot=false", asRoot}, Deviation{"runAsUser=0", asRoot},
		Deviation{"seccompProfile=" + string(seccomp(c).Type), "the container runtime's own profile forbids keyctl and pivot_root, with which runc starts RUN instructions; these have BuildKit's own profile"},
	)
}

// seccomp gives the daemon's profile: the one that the configuration says is on the
// nodes, or none.
func seccomp(c config.Config) *corev1.SeccompProfile {
	if file := c.Cluster.BuilderSeccomp; file != "" {
		return &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &file}
	}
	return &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
}

const asRoot = "layers hold files of any user, and what nobody says the owner of is root's; root of the pod's user namespace is no user of the node's"

// security is the daemon's container's.
func security(c config.Config) *corev1.SecurityContext {
	no, yes, root := false, true, int64(0)
	var add []corev1.Capability
	for _, one := range capabilities {
		add = append(add, one.name)
	}
	return &corev1.SecurityContext{
		RunAsUser: &root, RunAsGroup: &root, RunAsNonRoot: &no, AllowPrivilegeEscalation: &yes, ReadOnlyRootFilesystem: &yes,
		Capabilities:    &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: add},
		SeccompProfile:  seccomp(c),
		AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined},
	}
}

// Differences gives the settings in which a container's security context differs from
// that of every other container of the factory, as [Deviation] writes them, sorted.
// One that shares a namespace of the node differs as a whole.
func Differences(pod corev1.PodSpec, s *corev1.SecurityContext) []string {
	found := map[string]bool{}
	note := func(name string, value any) { found[fmt.Sprintf("%s=%v", name, value)] = true }
	if pod.HostUsers == nil || *pod.HostUsers {
		note("hostUsers", true)
	}
	if pod.HostNetwork || pod.HostPID || pod.HostIPC {
		note("hostNetwork, hostPID or hostIPC", true)
	}
	if s == nil {
		s = &corev1.SecurityContext{}
	}
	strict, user := zone.ContainerSecurity(), zone.User
	strict.RunAsUser, strict.RunAsGroup = &user, &user
	differ(note, "allowPrivilegeEscalation", strict.AllowPrivilegeEscalation, s.AllowPrivilegeEscalation, true)
	differ(note, "privileged", ptr(false), s.Privileged, false)
	differ(note, "readOnlyRootFilesystem", strict.ReadOnlyRootFilesystem, s.ReadOnlyRootFilesystem, false)
	differ(note, "runAsGroup", strict.RunAsGroup, s.RunAsGroup, 0)
	differ(note, "runAsNonRoot", strict.RunAsNonRoot, s.RunAsNonRoot, false)
	differ(note, "runAsUser", strict.RunAsUser, s.RunAsUser, 0)
	differ(note, "procMount", ptr(corev1.DefaultProcMount), s.ProcMount, corev1.DefaultProcMount)
	capabilities := s.Capabilities
	if capabilities == nil {
		capabilities = &corev1.Capabilities{}
	}
	if !slices.Contains(capabilities.Drop, "ALL") {
		note("capabilities.drop", strings.Trim(fmt.Sprint(capabilities.Drop), "[]"))
	}
	for _, c := range capabilities.Add {
		note("capabilities.add", c)
	}
	if p := s.SeccompProfile; p == nil || p.Type != corev1.SeccompProfileTypeRuntimeDefault {
		note("seccompProfile", kind(p))
	}
	if p := s.AppArmorProfile; p != nil && p.Type != corev1.AppArmorProfileTypeRuntimeDefault {
		note("appArmorProfile", p.Type)
	}
	all := make([]string, 0, len(found))
	for setting := range found {
		all = append(all, setting)
	}
	slices.Sort(all)
	return all
}

func kind(p *corev1.SeccompProfile) corev1.SeccompProfileType {
	if p == nil {
		return "none"
	}
	return p.Type
}

// differ notes a value that is not the strict one; unset is what Kubernetes takes for
// one that is not given.
func differ[T comparable](note func(string, any), name string, strict, is *T, unset T) {
	value := unset
	if is != nil {
		value = *is
	}
	if value != *strict {
		note(name, value)
	}
}
