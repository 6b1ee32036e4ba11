package egress

import (
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"fabrique/steps/config"
	policy "fabrique/steps/egress"
)

// The gateway reads what is generated, and decides as the configuration says.
func TestPolicyIsReadable(t *testing.T) {
	c, err := config.Parse("fabrique.yaml", append(config.Template(), []byte(`
egress:
  allow: [deb.example.net:80]
  apps: {citation: ["*.example.net:443"]}
`)...))
	if err != nil {
		t.Fatal(err)
	}
	rules, err := policy.ParseRules([]byte(Objects(c)[0].(*corev1.ConfigMap).Data[policyFile]))
	if err != nil {
		t.Fatal(err)
	}
	p := policy.NewPolicy(rules)
	for target, app := range map[policy.Target]string{{Host: "deb.example.net", Port: 80}: "", {Host: "files.example.net", Port: 443}: "citation"} {
		if err := p.Name(app, target); err != nil {
			t.Error(err)
		}
	}
	if err := p.Name("", policy.Target{Host: "files.example.net", Port: 443}); err == nil {
		t.Error("an app's name is for all")
	}
}

func TestAddresses(t *testing.T) {
	if !strings.HasSuffix(ProxyURL, ":"+strconv.Itoa(Port)) || !strings.HasSuffix(AdminURL, ":"+strconv.Itoa(AdminPort)) {
		t.Errorf("%s and %s are not at %d and %d", ProxyURL, AdminURL, Port, AdminPort)
	}
}
