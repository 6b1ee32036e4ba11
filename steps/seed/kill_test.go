package seed_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"fabrique/bench/binaries"
	"fabrique/steps/seed"
)

// fabrique prepares "fabrique seed".
func (w *world) fabrique(args ...string) *exec.Cmd {
	w.Helper()
	cmd := exec.Command(filepath.Join(binaries.Dir(w), "fabrique"), append([]string{"seed", "-c", w.file, "--kubeconfig", w.kube.Kubeconfig}, args...)...)
	cmd.Env = append(os.Environ(), "FABRIQUE_ADMIN_TOKEN=")
	return cmd
}

// killed runs it, kills it after a while, and reports whether that was in time.
func (w *world) killed(after time.Duration, args ...string) bool {
	w.Helper()
	cmd := w.fabrique(args...)
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	var failure *exec.ExitError
	err := cmd.Wait()
	if errors.As(err, &failure) && failure.ExitCode() == -1 {
		return true
	}
	if err != nil {
		w.Fatalf("killed after %s: %v", after, err)
	}
	return false
}

// TestKilled kills "fabrique seed" at twenty moments spread over the length of a run,
// each with an empty Gitea of its own, and runs it again; then the same with --rotate:
// each time the end state, with one webhook and one token for each bot.
func TestKilled(t *testing.T) {
	whole := newWorld(t, "kill", true)
	length := func(args ...string) time.Duration {
		cmd := whole.fabrique(args...) // builds the program the first time
		started := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return time.Since(started)
	}
	first := length()
	rotation := length("--rotate")

	const rounds = 20
	random := rand.New(rand.NewPCG(95, 2))
	killed := 0
	for round := range rounds {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			w := newWorld(t, fmt.Sprintf("kill%d", round), true)
			part := (float64(round) + random.Float64()) / rounds
			if w.killed(time.Duration(part * float64(first))) {
				killed++
			}
			w.seed(seed.Options{})
			w.ready()
			if w.killed(time.Duration(part*float64(rotation)), "--rotate") {
				killed++
			}
			w.seed(seed.Options{})
			w.ready()
		})
	}
	if killed < rounds {
		t.Errorf("only %d of %d runs were killed in time: the moments do not fit the length of a run (%s, %s)", killed, 2*rounds, first, rotation)
	}
	t.Logf("%d of %d runs were killed in time", killed, 2*rounds)
}
