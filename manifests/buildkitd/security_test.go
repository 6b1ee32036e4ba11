package buildkitd

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"fabrique/manifests/zone"
	"fabrique/steps/config"
)

// Every deviation is listed, and every one that is listed is there.
func TestDeviations(t *testing.T) {
	no := false
	pod := corev1.PodSpec{HostUsers: &no}
	for _, profile := range []string{"", "profiles/buildkitd.json"} {
		var c config.Config
		c.Cluster.BuilderSeccomp = profile
		var listed []string
		for _, d := range Deviations(c) {
			listed = append(listed, d.Setting)
			if d.Reason == "" {
				t.Errorf("%s has no reason", d.Setting)
			}
		}
		slices.Sort(listed)
		if diff := cmp.Diff(listed, Differences(pod, security(c))); diff != "" {
			t.Errorf("with profile %q: listed (-) against the container (+): %s", profile, diff)
		}
	}
}

// TestDifferences shows that each setting is looked at.
func TestDifferences(t *testing.T) {
	yes, no, root := true, false, int64(0)
	user := zone.User
	for name, c := range map[string]struct {
		change func(*corev1.PodSpec, *corev1.SecurityContext)
		want   []string
	}{
		"strict":              {func(*corev1.PodSpec, *corev1.SecurityContext) {}, []string{}},
		"node's users":        {func(p *corev1.PodSpec, _ *corev1.SecurityContext) { p.HostUsers = nil }, []string{"hostUsers=true"}},
		"node's network":      {func(p *corev1.PodSpec, _ *corev1.SecurityContext) { p.HostNetwork = true }, []string{"hostNetwork, hostPID or hostIPC=true"}},
		"privileged":          {func(_ *corev1.PodSpec, s *corev1.SecurityContext) { s.Privileged = &yes }, []string{"privileged=true"}},
		"escalation":          {func(_ *corev1.PodSpec, s *corev1.SecurityContext) { s.AllowPrivilegeEscalation = nil }, []string{"allowPrivilegeEscalation=true"}},
		"writable":            {func(_ *corev1.PodSpec, s *corev1.SecurityContext) { s.ReadOnlyRootFilesystem = &no }, []string{"readOnlyRootFilesystem=false"}},
		"root":                {func(_ *corev1.PodSpec, s *corev1.SecurityContext) { s.RunAsUser = &root }, []string{"runAsUser=0"}},
		"any user":            {func(_ *corev1.PodSpec, s *corev1.SecurityContext) { s.RunAsNonRoot = nil }, []string{"runAsNonRoot=false"}},
		"no capability drops": {func(_ *corev1.PodSpec, s *corev1.SecurityContext) { s.Capabilities = nil }, []string{"capabilities.drop="}},
		"capability": {func(_ *corev1.PodSpec, s *corev1.SecurityContext) {
			s.Capabilities.Add = []corev1.Capability{"SYS_TIME"}
		}, []string{"capabilities.add=SYS_TIME"}},
		"seccomp": {func(_ *corev1.PodSpec, s *corev1.SecurityContext) { s.SeccompProfile = nil }, []string{"seccompProfile=none"}},
		"AppArmor": {func(_ *corev1.PodSpec, s *corev1.SecurityContext) {
			s.AppArmorProfile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
		}, []string{"appArmorProfile=Unconfined"}},
		"proc": {func(_ *corev1.PodSpec, s *corev1.SecurityContext) { s.ProcMount = ptr(corev1.UnmaskedProcMount) }, []string{"procMount=Unmasked"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod, s := corev1.PodSpec{HostUsers: &no}, zone.ContainerSecurity()
			s.RunAsUser, s.RunAsGroup = &user, &user
			c.change(&pod, s)
			if diff := cmp.Diff(c.want, Differences(pod, s)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
