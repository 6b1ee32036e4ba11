package main

import (
	"testing"

	"fabrique/bench/parts"
	"fabrique/bench/script"
)

func TestMain(m *testing.M) { parts.Main(m) }

// TestScripts runs the program without a cluster; what it makes of one is tested in
// steps/egress/addresses.
func TestScripts(t *testing.T) { script.Run(t, nil) }
