// Package parts starts and stops the real parts that Fabrique runs against:
// Gitea, a registry on plain HTTP, buildkitd with runc, and the Kubernetes API alone.
//
// A test package hands its TestMain to [Main] and then asks for what it needs:
//
//	func TestMain(m *testing.M) { parts.Main(m) }
//
//	func TestPush(t *testing.T) {
//		registry := parts.Registry(t)   // started by the first test that asks
//		buildkit := parts.BuildKit(t)
//		…
//	}
//
// The process runs itself again in mount and PID namespaces of its own, where
// /etc/hosts maps the names "registry" and "gitea" to a loopback address that
// no other instance uses. "registry:80" and "http://gitea:3000" so mean the
// same everywhere inside, any number of instances run at once, and the rest of
// the network is the machine's. Guarantees:
//
//   - When the outer process ends, however it ends (kill -9 included), the
//     kernel ends everything inside, and the mounts go with it.
//   - Temporary files and control groups are removed at a normal end. Those of
//     a killed run are removed by the next start on the same machine.
//   - SIGINT, SIGTERM, SIGHUP and SIGQUIT reach the inner process; its exit code is
//     handed on.
//
// It needs root.
package parts

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Main runs the tests inside and ends the process. It is the whole body of a
// TestMain. A process that the tests start from their own binary is inside
// already and runs its tests at once.
func Main(m *testing.M) { Run(m.Run) }

// Run runs inside in the namespaces, stops every part that it started, and ends
// the process with the code that it gives, or 1 if a token of Gitea's stands in a
// part's log. Call it before starting goroutines or
// opening files: what ran before it runs again inside.
func Run(inside func() int) {
	Intercept()
	if os.Getenv(envStage) == "" {
		os.Exit(outer())
	}
	owner := os.Getenv(envStage) == stageInside
	os.Setenv(envStage, stageNested)
	code := inside()
	if owner {
		for _, err := range stopAll() {
			fmt.Fprintln(os.Stderr, "stopping the parts:", err)
			code = max(code, 1)
		}
		for _, err := range leaks(LogDir()) {
			fmt.Fprintln(os.Stderr, "after the parts have stopped:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// Intercept ends the process here if it is one that this package started from
// the program's own binary for a purpose of its own, whose arguments are not the
// program's. A program that reads its arguments before it calls [Run] calls
// Intercept first.
func Intercept() {
	switch os.Getenv(envStage) {
	case stageInit:
		os.Exit(initProcess())
	case stageExec:
		os.Exit(execProcess())
	}
}

// Dir gives the instance's folder for temporary files, removed at the end.
// Everyone may enter it, so that a part may run as another user.
func Dir() string { return os.Getenv(envDir) }

// Address gives the instance's own loopback address, on which the parts listen
// and any other server may, on other ports than 80 and 3000.
func Address() string { return os.Getenv(envAddr) }

// LogDir gives the folder of the parts' logs.
func LogDir() string { return filepath.Join(Dir(), "log") }
