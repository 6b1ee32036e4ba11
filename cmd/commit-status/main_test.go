package main

import (
	"testing"

	"fabrique/bench/parts"
	"fabrique/bench/script"
	"fabrique/steps/secret"
)

func TestMain(m *testing.M) { parts.Main(m) }

// TestScripts runs the program outside a cluster; what it writes to Gitea is tested
// in steps/commitstatus, and that a Workflow runs it by the bench's cases.
func TestScripts(t *testing.T) {
	script.Run(t, nil, secret.New("hunter2hunter2hunter2"))
}
