package parts_test

import (
	"os/exec"
	"testing"
	"time"

	"fabrique/bench/parts"
)

func TestMain(m *testing.M) { parts.Main(m) }

func TestStartAll(t *testing.T) {
	start := time.Now()
	parts.Registry(t)
	t.Log("registry", time.Since(start))
	start = time.Now()
	d := parts.BuildKit(t)
	t.Log("buildkit", time.Since(start))
	out, err := exec.Command(d.Buildctl, "--addr", d.Address, "debug", "workers", "-v").CombinedOutput()
	t.Logf("%s %v", out, err)
	start = time.Now()
	parts.Gitea(t)
	t.Log("gitea", time.Since(start))
}
