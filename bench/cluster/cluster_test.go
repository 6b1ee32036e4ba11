package cluster

import (
	enc "encoding/base64"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"
)

func decoded(t *testing.T, text string) []byte {
	t.Helper()
	raw, err := enc.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// every is what a generated file holds when it is read as its program reads it.
type every = map[string]any

// at gives what stands at these keys.
func at(t *testing.T, from any, keys ...string) any {
	t.Helper()
	for i, key := range keys {
		m, ok := from.(every)
		if !ok || m[key] == nil {
			t.Errorf("there is no %s", strings.Join(keys[:i+1], " "))
			return nil
		}
		from = m[key]
	}
	return from
}

func parsed(t *testing.T, text string, read func([]byte, any) error) every {
	t.Helper()
	var all every
	if err := read([]byte(text), &all); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return all
}

var (
	bench   = Cluster{"/bench"}
	binDirs = programs{kubernetesDir: "/k8s", containerdDir: "/cd", runcDir: "/rc", etcd: "/e/etcd", kubeRouter: "/r/kube-router"}
)

func TestKubeletConfig(t *testing.T) {
	for _, m := range machines {
		s := bench.kubelet(binDirs, m)
		config := parsed(t, s.files["kubelet.yaml"], json.Unmarshal)
		for _, test := range []struct {
			keys []string
			want any
		}{
			{[]string{"kind"}, "KubeletConfiguration"},
			{[]string{"address"}, m.ip},
			{[]string{"authentication", "anonymous", "enabled"}, false},
			{[]string{"authentication", "webhook", "enabled"}, true},
			{[]string{"authentication", "x509", "clientCAFile"}, "/bench/pki/ca.crt"},
			{[]string{"authorization", "mode"}, "Webhook"},
			{[]string{"tlsCertFile"}, "/bench/pki/kubelet-" + m.name + ".crt"},
			{[]string{"clusterDNS"}, []any{DNSIP}},
			{[]string{"containerRuntimeEndpoint"}, "unix:///run/containerd/containerd.sock"},
			{[]string{"failCgroupV1"}, false},
		} {
			if diff := cmp.Diff(test.want, at(t, config, test.keys...)); diff != "" {
				t.Errorf("%s: %s: -want +got\n%s", m.name, strings.Join(test.keys, "."), diff)
			}
		}
		want := []string{"/k8s/kubelet", "--config=/var/lib/bench/kubelet.yaml", "--kubeconfig=/bench/kubeconfig/kubelet-" + m.name + ".yaml",
			"--hostname-override=" + m.name, "--node-ip=" + m.ip, "--root-dir=/var/lib/kubelet"}
		if diff := cmp.Diff(want, s.Args); diff != "" {
			t.Errorf("%s: -want +got\n%s", m.name, diff)
		}
	}
}

func TestKubeProxyConfig(t *testing.T) {
	for _, m := range machines {
		config := parsed(t, bench.kubeProxy(binDirs, m).files["kube-proxy.yaml"], json.Unmarshal)
		for key, want := range map[string]any{
			"kind": "KubeProxyConfiguration", "mode": "nftables", "clusterCIDR": podCIDR, "hostnameOverride": m.name,
			"clientConnection": every{"kubeconfig": "/bench/kubeconfig/kube-proxy.yaml"},
		} {
			if diff := cmp.Diff(want, at(t, config, key)); diff != "" {
				t.Errorf("%s: %s: -want +got\n%s", m.name, key, diff)
			}
		}
	}
}

func TestContainerdConfig(t *testing.T) {
	const sandbox = "registry:80/bench/pause@sha256:00"
	for _, m := range machines {
		s := bench.containerd(binDirs, m, sandbox)
		config := parsed(t, s.files["containerd.toml"], toml.Unmarshal)
		images, runtime := "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"
		for _, test := range []struct {
			keys []string
			want any
		}{
			{[]string{"version"}, int64(3)},
			{[]string{"grpc", "address"}, containerdSocket},
			{[]string{"plugins", images, "pinned_images", "sandbox"}, sandbox},
			{[]string{"plugins", images, "registry", "config_path"}, "/var/lib/bench/certs.d"},
			{[]string{"plugins", runtime, "restrict_oom_score_adj"}, true},
			{[]string{"plugins", runtime, "cni", "conf_dir"}, "/var/lib/bench/cni"},
			{[]string{"plugins", runtime, "containerd", "runtimes", "runc", "options", "BinaryName"}, "/rc/runc"},
		} {
			if diff := cmp.Diff(test.want, at(t, config, test.keys...)); diff != "" {
				t.Errorf("%s: %s: -want +got\n%s", m.name, strings.Join(test.keys, "."), diff)
			}
		}
		hosts := parsed(t, s.files["certs.d/registry:80/hosts.toml"], toml.Unmarshal)
		if diff := cmp.Diff(every{"server": "http://registry:80", "host": every{"http://registry:80": every{"capabilities": []any{"pull", "resolve"}}}}, hosts); diff != "" {
			t.Errorf("%s: hosts.toml: -want +got\n%s", m.name, diff)
		}
		network := parsed(t, s.files["cni/10-bench.conflist"], json.Unmarshal)
		plugins, _ := at(t, network, "plugins").([]any)
		if len(plugins) != 2 {
			t.Fatalf("%s: the pods' network has the plugins %v", m.name, plugins)
		}
		if diff := cmp.Diff([]any{[]any{every{"subnet": m.podCIDR}}}, at(t, plugins[0], "ipam", "ranges")); diff != "" {
			t.Errorf("%s: -want +got\n%s", m.name, diff)
		}
		if diff := cmp.Diff([]string{"PATH=/cd:/rc:/usr/sbin:/usr/bin:/sbin:/bin"}, s.Env); diff != "" {
			t.Errorf("%s: -want +got\n%s", m.name, diff)
		}
	}
}

// The configuration is the node's to read alone, at the path that it is told.
func TestWriteConfig(t *testing.T) {
	c := Cluster{t.TempDir()}
	for range 2 {
		if err := c.writeConfig(machines[1], "certs.d/registry:80/hosts.toml", "text"); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(c.Dir, "nodes/worker/var/lib/bench/certs.d/registry:80/hosts.toml")
	text, err := os.ReadFile(file)
	if err != nil || string(text) != "text" {
		t.Errorf("it holds %q, %v", text, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("it is %v, %v", info, err)
	}
}

// Nobody without a certificate or a token is let in, and nothing is given away.
func TestControlPlaneArguments(t *testing.T) {
	for _, test := range []struct {
		service service
		want    []string
	}{
		{bench.etcd(binDirs), []string{"/e/etcd", "--client-cert-auth=true", "--trusted-ca-file=/bench/pki/etcd-ca.crt", "--listen-client-urls=https://127.0.0.1:2379"}},
		{bench.apiserver(binDirs), []string{"/k8s/kube-apiserver", "--anonymous-auth=false", "--authorization-mode=Node,RBAC",
			"--kubelet-certificate-authority=/bench/pki/ca.crt", "--advertise-address=10.196.0.2"}},
		{bench.controllerManager(binDirs), []string{"/k8s/kube-controller-manager", "--bind-address=127.0.0.1", "--use-service-account-credentials=true"}},
		{bench.scheduler(binDirs), []string{"/k8s/kube-scheduler", "--bind-address=127.0.0.1"}},
		{bench.kubeRouter(binDirs, machines[1]), []string{"/r/kube-router", "--run-firewall=true", "--run-router=false", "--run-service-proxy=false", "--hostname-override=worker"}},
	} {
		args := map[string]bool{}
		for _, a := range test.service.Args {
			args[a] = true
		}
		for _, want := range test.want {
			if !args[want] {
				t.Errorf("%s lacks %s: %q", test.service.Name, want, test.service.Args)
			}
		}
	}
}

func TestFlags(t *testing.T) {
	want := []string{"/bin/p", "--b=1", "--a=x y", "--b=", "--c=k=v"}
	if diff := cmp.Diff(want, flags("/bin/p", "b", "1", "a", "x y", "b", "", "c", "k=v")); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if diff := cmp.Diff([]string{"/bin/p"}, flags("/bin/p")); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// The loopback network stands for one that is taken.
func TestFree(t *testing.T) {
	for _, test := range []struct {
		cidr string
		want string // in the error
	}{
		{"198.51.100.0/24", ""}, // RFC 5737, on no machine
		{"127.0.0.0/16", "127.0.0.1/8"},
		{"127.64.0.0/16", "127.0.0.1/8"}, // inside of it
		{"126.0.0.0/7", "127.0.0.1/8"},   // around it
		{"no network", "invalid CIDR address"},
	} {
		err := free(test.cidr)
		if (err == nil) != (test.want == "") || (err != nil && !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v; want %q", test.cidr, err, test.want)
		}
	}
}

// All addresses are of the one range that is looked at, and no two overlap.
func TestAddresses(t *testing.T) {
	contains := func(cidr, address string) bool {
		_, network, err := net.ParseCIDR(cidr)
		if err != nil {
			t.Fatal(err)
		}
		ip := net.ParseIP(address)
		if ip == nil {
			if ip, _, err = net.ParseCIDR(address); err != nil {
				t.Fatal(err)
			}
		}
		return network.Contains(ip)
	}
	addresses := []string{hostIP, podCIDR, serviceCIDR}
	for _, m := range machines {
		addresses = append(addresses, m.ip, m.podCIDR)
		if !contains(hostIP+nodePrefix, m.ip) || !contains(podCIDR, m.podCIDR) {
			t.Errorf("%s is at %s, its pods at %s", m.name, m.ip, m.podCIDR)
		}
	}
	for _, a := range addresses {
		if !contains(benchCIDR, a) {
			t.Errorf("%s is not in %s", a, benchCIDR)
		}
	}
	for _, a := range []string{firstServiceIP, DNSIP, RegistryIP} {
		if !contains(serviceCIDR, a) {
			t.Errorf("%s is no service's address", a)
		}
	}
	for _, pair := range [][2]string{{hostIP + nodePrefix, podCIDR}, {hostIP + nodePrefix, serviceCIDR}, {podCIDR, serviceCIDR}, {machines[0].podCIDR, machines[1].podCIDR}} {
		if contains(pair[0], pair[1]) || contains(pair[1], pair[0]) {
			t.Errorf("%s and %s overlap", pair[0], pair[1])
		}
	}
}

func TestDescribe(t *testing.T) {
	for _, test := range []struct {
		name string
		left map[string][]string
		any  bool
		want []string
	}{
		{"nothing", map[string][]string{"processes": nil, "mounts": nil}, false, []string{
			"processes            0",
			"mounts               0",
			"network namespaces   0",
			"links                0",
			"rules                0",
			"control groups       0",
			"files                0",
		}},
		{"something, at most five of a kind shown", map[string][]string{"processes": {"1 a", "2 b", "3 c", "4 d", "5 e", "6 f"}, "files": {"/bench"}}, true, []string{
			"processes            6  1 a, 2 b, 3 c, 4 d, 5 e",
			"mounts               0",
			"network namespaces   0",
			"links                0",
			"rules                0",
			"control groups       0",
			"files                1  /bench",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			lines, any := Describe(test.left)
			if diff := cmp.Diff(test.want, lines); diff != "" || any != test.any {
				t.Errorf("any: %v; -want +got\n%s", any, diff)
			}
		})
	}
	// Whatever is counted is shown.
	left, err := Cluster{t.TempDir()}.Leftovers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lines, _ := Describe(left)
	if len(lines) != len(left) {
		t.Errorf("%d kinds are counted, %d shown", len(left), len(lines))
	}
}

// A folder that is not the bench's is neither used nor removed.
func TestFolder(t *testing.T) {
	for _, test := range []struct {
		name   string
		files  []string
		exists bool
		err    string
	}{
		{"missing", nil, false, ""},
		{"empty", []string{"."}, false, ""},
		{"a cluster's", []string{"pki", marker, "nodes/worker"}, true, ""},
		{"somebody's", []string{"letters"}, false, "is no folder of a bench cluster: it holds something else; name another by FABRIQUE_BENCH_STATE"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := Cluster{filepath.Join(t.TempDir(), "state")}
			for _, f := range test.files {
				if err := os.MkdirAll(filepath.Join(c.Dir, f), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			exists, err := c.Exists()
			if exists != test.exists || (err == nil) != (test.err == "") || (err != nil && !strings.Contains(err.Error(), test.err)) {
				t.Errorf("it exists: %v, %v", exists, err)
			}
			if test.exists {
				return
			}
			if err := c.Create(); (err == nil) != (test.err == "") {
				t.Errorf("making it: %v", err)
			}
			if exists, _ := c.Exists(); exists != (test.err == "") {
				t.Errorf("after it was made it exists: %v", exists)
			}
		})
	}
	c := Cluster{filepath.Join(t.TempDir(), "state")}
	for _, err := range []error{c.Create(), c.Create(), c.writeConfig(machines[0], "a/b", "text"), c.remove()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(c.Dir); !os.IsNotExist(err) {
		t.Errorf("after its removal: %v", err)
	}
}

func TestDefault(t *testing.T) {
	t.Setenv(EnvDir, "")
	if c, err := Default(); err != nil || c.Dir != DefaultDir {
		t.Errorf("without %s: %v, %v", EnvDir, c, err)
	}
	t.Setenv(EnvDir, "/run/x/../bench")
	if c, err := Default(); err == nil || !strings.Contains(err.Error(), EnvDir+" is /run/bench") {
		t.Errorf("below /run: %v, %v", c, err)
	}
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(EnvDir, "state")
	c, err := Default()
	if err != nil || c.Dir != filepath.Join(here, "state") {
		t.Errorf("with a relative %s: %v, %v", EnvDir, c, err)
	}
	if want := filepath.Join(here, "state/kubeconfig/admin.yaml"); c.Kubeconfig() != want {
		t.Errorf("its kubeconfig is %s, want %s", c.Kubeconfig(), want)
	}
}

// A node of a test that runs at the same time is not the cluster's.
func TestOnlyItsOwnNodesAreLeftovers(t *testing.T) {
	for path, want := range map[string]bool{
		"/sys/fs/cgroup/memory/fabrique-bench-node-worker/kubepods":   true,
		"4:memory:/fabrique-bench-node-control-plane\n3:cpu:/other\n": true,
		"/sys/fs/cgroup/memory/fabrique-bench-node-test-123":          false,
		"/sys/fs/cgroup/memory/worker":                                false,
	} {
		if got := ours(path); got != want {
			t.Errorf("%q: %v", path, got)
		}
	}
}
