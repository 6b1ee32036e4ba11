package parts

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"

	"fabrique/bench/tools"
)

// RegistryAddress is where the registry listens, inside.
const RegistryAddress = "registry:80"

const registryPort = "80"

// RegistryServer is a CNCF distribution registry on plain HTTP.
type RegistryServer struct {
	*Process
	Address string // [RegistryAddress]
}

// StartRegistry starts an empty registry on registry:80 that allows deletes.
// Only one can run in a process.
func StartRegistry(ctx context.Context) (*RegistryServer, error) {
	t, err := tools.Ensure(ctx, os.Stderr, false)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(Dir(), "registry")
	config := fmt.Sprintf(`version: 0.1
log:
  level: info
  accesslog:
    disabled: false
storage:
  filesystem:
    rootdirectory: %s
  delete:
    enabled: true
http:
  addr: %s:%s
`, dir, os.Getenv(envAddr), registryPort)
	file := filepath.Join(Dir(), "registry.yml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return nil, fmt.Errorf("configuring the registry: %w", err)
	}
	p := &Process{
		name:  "registry",
		args:  []string{t.Registry, "serve", file},
		env:   []string{"OTEL_TRACES_EXPORTER=none"}, // its default sends traces to a port of this machine
		attr:  func() *syscall.SysProcAttr { return &syscall.SysProcAttr{} },
		probe: func(ctx context.Context) error { return probeHTTP(ctx, "http://"+RegistryAddress+"/v2/") },
	}
	if err := p.start(ctx); err != nil {
		return nil, err
	}
	return &RegistryServer{p, RegistryAddress}, nil
}

func probeHTTP(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, answer.Status)
	}
	return nil
}
