package cluster

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// certified gives a cluster with all its certificates.
func certified(t *testing.T) Cluster {
	t.Helper()
	c := Cluster{t.TempDir()}
	if changed, err := c.certificates(); err != nil || !changed {
		t.Fatalf("changed %v, %v", changed, err)
	}
	return c
}

func certificate(t *testing.T, text []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("%q is not PEM", text)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestCertificates(t *testing.T) {
	c := certified(t)
	read := func(name string) *x509.Certificate {
		text, err := os.ReadFile(c.pki().path(name + ".crt"))
		if err != nil {
			t.Fatal(err)
		}
		return certificate(t, text)
	}
	for _, test := range []struct {
		name, ca, user string
		groups         []string
		hosts          []string // empty for one that serves nothing
	}{
		{"etcd", "etcd-ca", "etcd", nil, []string{"127.0.0.1", "localhost"}},
		{"apiserver-etcd", "etcd-ca", "kube-apiserver", nil, nil},
		{"front-proxy", "front-proxy-ca", "front-proxy-client", nil, nil},
		{"apiserver", "ca", "kube-apiserver", nil, []string{
			"10.196.0.2", "10.196.128.1", "127.0.0.1", "localhost",
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		}},
		{"apiserver-kubelet", "ca", "kube-apiserver-kubelet-client", nil, nil},
		{"admin", "ca", "bench-admin", []string{"system:masters"}, nil},
		{"controller-manager", "ca", "system:kube-controller-manager", nil, []string{"127.0.0.1", "localhost"}},
		{"scheduler", "ca", "system:kube-scheduler", nil, []string{"127.0.0.1", "localhost"}},
		{"kube-proxy", "ca", "system:kube-proxy", nil, nil},
		{"kube-router", "ca", "bench:kube-router", nil, nil},
		{"kubelet-control-plane", "ca", "system:node:control-plane", []string{"system:nodes"}, []string{"control-plane", "10.196.0.2"}},
		{"kubelet-worker", "ca", "system:node:worker", []string{"system:nodes"}, []string{"worker", "10.196.0.3"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			cert := read(test.name)
			if cert.Subject.CommonName != test.user || !slices.Equal(cert.Subject.Organization, test.groups) {
				t.Errorf("it is for %s, want the user %s in %v", cert.Subject, test.user, test.groups)
			}
			for _, ca := range []string{"ca", "etcd-ca", "front-proxy-ca"} {
				roots := x509.NewCertPool()
				roots.AddCert(read(ca))
				client := x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
				if _, err := cert.Verify(client); (err == nil) != (ca == test.ca) {
					t.Errorf("as a client's, against %s: %v", ca, err)
				}
				for _, host := range test.hosts {
					server := x509.VerifyOptions{Roots: roots, DNSName: host}
					if _, err := cert.Verify(server); (err == nil) != (ca == test.ca) {
						t.Errorf("as the server %s, against %s: %v", host, ca, err)
					}
				}
				for _, other := range []string{"10.196.0.9", "evil.example"} {
					if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: other}); err == nil {
						t.Errorf("it passes as the server %s", other)
					}
				}
			}
			if serves := slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageServerAuth); serves != (len(test.hosts) > 0) {
				t.Errorf("it may serve: %v, for %v", serves, test.hosts)
			}
			if cert.IsCA {
				t.Error("it may sign others")
			}
		})
	}
}

// Each kubeconfig holds all that it needs, for the user that it is for.
func TestKubeconfigs(t *testing.T) {
	c := certified(t)
	for user, want := range map[string]string{
		"admin": "bench-admin", "controller-manager": "system:kube-controller-manager", "scheduler": "system:kube-scheduler",
		"kube-proxy": "system:kube-proxy", "kube-router": "bench:kube-router",
		"kubelet-control-plane": "system:node:control-plane", "kubelet-worker": "system:node:worker",
	} {
		text, err := os.ReadFile(c.kubeconfig(user))
		if err != nil {
			t.Fatal(err)
		}
		var config struct {
			Context  string `yaml:"current-context"`
			Clusters []struct {
				Cluster struct {
					Server string
					CA     string `yaml:"certificate-authority-data"`
				}
			}
			Users []struct {
				User struct {
					Certificate string `yaml:"client-certificate-data"`
					Key         string `yaml:"client-key-data"`
				}
			}
		}
		if err := yaml.Unmarshal(text, &config); err != nil {
			t.Fatal(err)
		}
		if config.Context != "bench" || len(config.Clusters) != 1 || len(config.Users) != 1 || config.Clusters[0].Cluster.Server != "https://10.196.0.2:6443" {
			t.Errorf("the kubeconfig of %s is\n%s", user, text)
			continue
		}
		if got := certificate(t, decoded(t, config.Users[0].User.Certificate)).Subject.CommonName; got != want {
			t.Errorf("the kubeconfig of %s is for %s, want %s", user, got, want)
		}
		if !certificate(t, decoded(t, config.Clusters[0].Cluster.CA)).IsCA || !strings.Contains(string(decoded(t, config.Users[0].User.Key)), "PRIVATE KEY") {
			t.Errorf("the kubeconfig of %s lacks its authority or key", user)
		}
	}
	if err := (Cluster{t.TempDir()}).writeKubeconfig("admin"); err == nil || !strings.Contains(err.Error(), "a certificate is missing") {
		t.Errorf("without certificates: %v", err)
	}
}

// What a run leaves is what the next one finds, and only root reads the keys.
func TestSecondRunChangesNoFile(t *testing.T) {
	c := certified(t)
	files := func() map[string]string {
		found := map[string]string{}
		err := filepath.WalkDir(c.Dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			found[path] = string(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	before := files()
	if changed, err := c.certificates(); err != nil || changed {
		t.Fatalf("changed %v, %v", changed, err)
	}
	if diff := cmp.Diff(before, files()); diff != "" {
		t.Errorf("-before +after\n%s", diff)
	}
	if len(before) < 30 {
		t.Errorf("it makes %d files only", len(before))
	}
	for path := range before {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		secret := strings.HasSuffix(path, ".key") || strings.HasSuffix(path, ".yaml")
		if secret && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		if strings.HasSuffix(path, ".partial") {
			t.Errorf("%s is left", path)
		}
	}
}

// A run that was killed between a key and its certificate is mended by the next.
func TestKeyWithoutItsCertificate(t *testing.T) {
	c := Cluster{t.TempDir()}
	if err := os.Mkdir(c.pki().dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ca.key", "admin.key", "sa.key"} {
		if err := os.WriteFile(c.pki().path(name), []byte("of a killed run"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.certificates(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ca", "admin"} {
		a, err := c.pki().load(name)
		if err != nil {
			t.Fatal(err)
		}
		if !a.cert.PublicKey.(*ecdsa.PublicKey).Equal(a.key.Public()) {
			t.Errorf("the certificate and the key of %s are no pair", name)
		}
	}
	if err := os.WriteFile(c.pki().path("ca.crt"), []byte("no PEM"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := c.certificates(); err == nil || !strings.Contains(err.Error(), "ca.crt is not PEM") {
		t.Errorf("with a broken authority: %v", err)
	}
}
