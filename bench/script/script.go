// Package script runs testscript files against the product's programs.
package script

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"fabrique/bench/binaries"
	"fabrique/steps/secret"
)

// Run runs the scripts in testdata/script, with the programs of cmd/ in PATH
// and the variables set. Beside testscript's own commands there is
//
//	exits N CMD ARG...   runs a program and wants exit code N
//
// which also fails when one of the secrets stands in what the program wrote.
func Run(t *testing.T, variables map[string]string, secrets ...secret.Secret) {
	t.Helper()
	programs := binaries.Dir(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", programs+string(os.PathListSeparator)+env.Getenv("PATH"))
			for name, value := range variables {
				env.Setenv(name, value)
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": func(ts *testscript.TestScript, _ bool, args []string) { Exits(ts, args, secrets...) },
		},
	})
}

// Exits is the command "exits": args are the exit code and the command line.
func Exits(ts *testscript.TestScript, args []string, secrets ...secret.Secret) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		failure, ok := err.(*exec.ExitError)
		if !ok {
			ts.Fatalf("running %v: %v", args[1:], err)
		}
		got = failure.ExitCode()
	}
	if got != want {
		ts.Fatalf("%v: exit code %d, want %d", args[1:], got, want)
	}
	Check(ts.Fatalf, ts.ReadFile("stdout")+ts.ReadFile("stderr"), secrets...)
}

// Check reports a secret that stands in text, plain or as it is sent.
func Check(report func(string, ...any), text string, secrets ...secret.Secret) {
	for _, s := range secrets {
		for _, form := range []string{s.Reveal(), strings.TrimPrefix(s.BasicAuth(), "Basic ")} {
			if strings.Contains(text, form) {
				report("a secret stands in the output")
			}
		}
	}
}
