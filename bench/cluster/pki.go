package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// pki makes certificates in one folder, NAME.crt and NAME.key each. What is
// there already stays.
type pki struct{ dir string }

// authority is a certificate authority whose key is in the folder too.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// apiserverUser is who the API server is for the kubelets.
const apiserverUser = "kube-apiserver-kubelet-client"

const validity = 10 * 365 * 24 * time.Hour // longer than any bench lives

func (p pki) path(file string) string { return filepath.Join(p.dir, file) }

func (p pki) authority(name string) (authority, error) {
	if a, err := p.load(name); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "fabrique-bench " + name},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	if err := p.issue(name, template, nil); err != nil {
		return authority{}, err
	}
	return p.load(name)
}

// certificate makes a certificate for a server at these names and addresses and
// for the client user, a member of groups.
func (p pki) certificate(ca authority, name, user string, groups []string, hosts ...string) error {
	if _, err := os.Stat(p.path(name + ".crt")); err == nil {
		return nil
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	if len(hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	return p.issue(name, template, &ca)
}

// issue signs the template with ca, nil for itself. The certificate is written
// after the key: where it is, both are.
func (p pki) issue(name string, template *x509.Certificate, ca *authority) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return err
	}
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = template.NotBefore.Add(validity)
	parent, signer := template, crypto.Signer(key)
	if ca != nil {
		parent, signer = ca.cert, ca.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return fmt.Errorf("making the certificate %s: %w", name, err)
	}
	if err := p.writeKey(name+".key", key); err != nil {
		return err
	}
	return p.write(name+".crt", "CERTIFICATE", der, 0o644)
}

func (p pki) writeKey(file string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return p.write(file, "PRIVATE KEY", der, 0o600)
}

func (p pki) write(file, kind string, der []byte, mode os.FileMode) error {
	partial := p.path(file + ".partial")
	if err := os.WriteFile(partial, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode); err != nil {
		return err
	}
	return os.Rename(partial, p.path(file))
}

func (p pki) load(name string) (authority, error) {
	read := func(file string) ([]byte, error) {
		text, err := os.ReadFile(p.path(file))
		if err != nil {
			return nil, err
		}
		block, _ := pem.Decode(text)
		if block == nil {
			return nil, fmt.Errorf("%s is not PEM", p.path(file))
		}
		return block.Bytes, nil
	}
	crt, err := read(name + ".crt")
	if err != nil {
		return authority{}, err
	}
	key, err := read(name + ".key")
	if err != nil {
		return authority{}, err
	}
	cert, err := x509.ParseCertificate(crt)
	if err != nil {
		return authority{}, err
	}
	private, err := x509.ParsePKCS8PrivateKey(key)
	if err != nil {
		return authority{}, err
	}
	signer, ok := private.(crypto.Signer)
	if !ok {
		return authority{}, fmt.Errorf("%s.key cannot sign", name)
	}
	return authority{cert, signer}, nil
}

// serviceAccountKey makes the key that signs the tokens of service accounts.
func (p pki) serviceAccountKey() error {
	if _, err := os.Stat(p.path("sa.pub")); err == nil {
		return nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if err := p.writeKey("sa.key", key); err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	return p.write("sa.pub", "PUBLIC KEY", public, 0o644)
}

// certificates makes everything that the cluster's parts prove themselves with.
func (c Cluster) certificates() (changed bool, err error) {
	files := func() int {
		made, _ := filepath.Glob(filepath.Join(c.Dir, "[pk]*", "*"))
		return len(made)
	}
	before := files()
	err = c.makeCertificates()
	return files() != before, err
}

func (c Cluster) makeCertificates() error {
	p := c.pki()
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return err
	}
	ca, err := p.authority("ca")
	if err != nil {
		return err
	}
	etcd, err := p.authority("etcd-ca")
	if err != nil {
		return err
	}
	front, err := p.authority("front-proxy-ca")
	if err != nil {
		return err
	}
	for _, cert := range []struct {
		ca         authority
		name, user string
		groups     []string
		hosts      []string
	}{
		{etcd, "etcd", "etcd", nil, []string{"127.0.0.1", "localhost"}},
		{etcd, "apiserver-etcd", "kube-apiserver", nil, nil},
		{front, "front-proxy", "front-proxy-client", nil, nil},
		{ca, "apiserver", "kube-apiserver", nil, []string{
			ControlPlaneIP, firstServiceIP, "127.0.0.1", "localhost",
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		}},
		{ca, "apiserver-kubelet", apiserverUser, nil, nil},
		{ca, "admin", "bench-admin", []string{"system:masters"}, nil},
		{ca, "controller-manager", "system:kube-controller-manager", nil, []string{"127.0.0.1", "localhost"}},
		{ca, "scheduler", "system:kube-scheduler", nil, []string{"127.0.0.1", "localhost"}},
		{ca, "kube-proxy", "system:kube-proxy", nil, nil},
		{ca, "kube-router", "bench:kube-router", nil, nil},
	} {
		if err := p.certificate(cert.ca, cert.name, cert.user, cert.groups, cert.hosts...); err != nil {
			return err
		}
	}
	for _, m := range machines {
		if err := p.certificate(ca, "kubelet-"+m.name, "system:node:"+m.name, []string{"system:nodes"}, m.name, m.ip); err != nil {
			return err
		}
	}
	if err := p.serviceAccountKey(); err != nil {
		return err
	}
	for _, user := range []string{"admin", "controller-manager", "scheduler", "kube-proxy", "kube-router", "kubelet-" + ControlPlane, "kubelet-" + Worker} {
		if err := c.writeKubeconfig(user); err != nil {
			return err
		}
	}
	return nil
}
