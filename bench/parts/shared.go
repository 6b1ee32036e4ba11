package parts

import (
	"context"
	"os"
	"sync"
	"testing"
)

// shared is a part that the first test starts and all tests of the process use.
type shared[P any] struct {
	once sync.Once
	part P
	err  error
}

func (s *shared[P]) get(t testing.TB, start func(context.Context) (P, error)) P {
	t.Helper()
	if !Inside() {
		t.Fatal("the parts run inside only: add func TestMain(m *testing.M) { parts.Main(m) } to this package")
	}
	s.once.Do(func() { s.part, s.err = start(context.Background()) })
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.part
}

var (
	sharedGitea    shared[*GiteaServer]
	sharedRegistry shared[*RegistryServer]
	sharedBuildKit shared[*BuildKitDaemon]
	sharedKubeAPI  shared[*KubeAPIServer]
)

// Gitea gives the test process's Gitea.
func Gitea(t testing.TB) *GiteaServer {
	t.Helper()
	return sharedGitea.get(t, StartGitea)
}

// Registry gives the test process's registry.
func Registry(t testing.TB) *RegistryServer {
	t.Helper()
	return sharedRegistry.get(t, StartRegistry)
}

// BuildKit gives the test process's buildkitd, which has
// [MinimalBuildKitConfig]. It does not start the registry.
func BuildKit(t testing.TB) *BuildKitDaemon {
	t.Helper()
	return sharedBuildKit.get(t, func(ctx context.Context) (*BuildKitDaemon, error) { return StartBuildKit(ctx, "") })
}

// KubeAPI gives the test process's Kubernetes API server.
func KubeAPI(t testing.TB) *KubeAPIServer {
	t.Helper()
	return sharedKubeAPI.get(t, StartKubeAPI)
}

// Inside reports whether this process runs in the namespaces.
func Inside() bool {
	stage := os.Getenv(envStage)
	return stage == stageInside || stage == stageNested
}
