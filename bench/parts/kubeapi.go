package parts

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"fabrique/bench/tools"
)

const (
	kubePort     = "6443"
	etcdPort     = "2379"
	etcdPeerPort = "2380"
)

// KubeAPIServer is a kube-apiserver with an etcd of its own, and nothing else of
// Kubernetes: objects are checked and kept, and no controller or node acts on them.
type KubeAPIServer struct {
	*Process
	Client     *kubernetes.Clientset
	Kubeconfig string // file; its user may do everything
}

// StartKubeAPI starts one on the instance's own address, with the namespaces that
// Kubernetes itself makes. Only one can run in a process.
func StartKubeAPI(ctx context.Context) (*KubeAPIServer, error) {
	etcd, err := tools.Etcd.Ensure(ctx, os.Stderr, false)
	if err != nil {
		return nil, err
	}
	kube, err := tools.Kubernetes.Ensure(ctx, os.Stderr, false)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(Dir(), "kube")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of the Kubernetes API: %w", err)
	}
	address := func(scheme, port string) string { return scheme + "://" + net.JoinHostPort(Address(), port) }
	plain := func() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
	store := &Process{
		name: "etcd",
		args: []string{
			filepath.Join(etcd, "etcd"), "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync",
			"--listen-client-urls", address("http", etcdPort), "--advertise-client-urls", address("http", etcdPort),
			"--listen-peer-urls", address("http", etcdPeerPort), "--initial-advertise-peer-urls", address("http", etcdPeerPort),
			"--initial-cluster", "default=" + address("http", etcdPeerPort),
		},
		attr:  plain,
		probe: func(ctx context.Context) error { return probeHTTP(ctx, address("http", etcdPort)+"/health") },
	}
	if err := store.start(ctx); err != nil {
		return nil, err
	}
	token := keep(rand.Text())
	for name, text := range map[string]string{
		"tokens.csv": token.Reveal() + ",bench,bench,system:masters\n",
		"sa.key":     "",
	} {
		content := []byte(text)
		if text == "" {
			if content, err = signingKey(); err != nil {
				return nil, err
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return nil, err
		}
	}
	k := &KubeAPIServer{Kubeconfig: filepath.Join(dir, "kubeconfig")}
	// Its certificate is its own authority.
	config := clientcmdapi.NewConfig()
	config.Clusters["bench"] = &clientcmdapi.Cluster{Server: address("https", kubePort), CertificateAuthority: filepath.Join(dir, "apiserver.crt")}
	config.AuthInfos["bench"] = &clientcmdapi.AuthInfo{Token: token.Reveal()}
	config.Contexts["bench"] = &clientcmdapi.Context{Cluster: "bench", AuthInfo: "bench"}
	config.CurrentContext = "bench"
	if err := clientcmd.WriteToFile(*config, k.Kubeconfig); err != nil {
		return nil, err
	}
	k.Process = &Process{
		name: "kube-apiserver",
		args: []string{
			filepath.Join(kube, "kube-apiserver"), "--etcd-servers", address("http", etcdPort),
			"--bind-address", Address(), "--advertise-address", Address(), "--secure-port", kubePort, "--cert-dir", dir,
			"--endpoint-reconciler-type", "none", "--service-cluster-ip-range", "10.0.0.0/24",
			"--authorization-mode", "RBAC", "--token-auth-file", filepath.Join(dir, "tokens.csv"),
			"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", filepath.Join(dir, "sa.key"),
			"--service-account-signing-key-file", filepath.Join(dir, "sa.key"),
			"--disable-admission-plugins", "ServiceAccount", // no controller makes the accounts
		},
		attr: plain,
		probe: func(ctx context.Context) error {
			client, err := k.connect()
			if err != nil {
				return err
			}
			return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		},
	}
	if err := k.start(ctx); err != nil {
		return nil, err
	}
	k.Client, err = k.connect()
	return k, err
}

func (k *KubeAPIServer) connect() (*kubernetes.Clientset, error) {
	config, err := clientcmd.BuildConfigFromFlags("", k.Kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst, config.Timeout = 200, 400, time.Minute
	return kubernetes.NewForConfig(config)
}

// signingKey makes the key for the tokens of service accounts, which the server wants.
func signingKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
