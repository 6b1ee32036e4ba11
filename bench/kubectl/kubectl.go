// Package kubectl runs the kubectl that the bench builds, against one cluster.
package kubectl

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"fabrique/bench/cache"
	"fabrique/bench/tools"
)

// Kubectl talks to the cluster of a kubeconfig.
type Kubectl struct {
	Kubeconfig string
	CacheDir   string // for what kubectl learns of the API; empty for its own choice, in the home folder
}

// Program gives the path of kubectl, building it if the cache has none.
func Program(ctx context.Context, progress io.Writer) (string, error) {
	dir, err := tools.Kubernetes.Ensure(ctx, progress, false)
	return filepath.Join(dir, "kubectl"), err
}

// Run runs kubectl with stdin and gives its output. The error holds what
// kubectl said.
func (k Kubectl) Run(ctx context.Context, stdin []byte, args ...string) (string, error) {
	cmd, err := k.Command(ctx, args...)
	if err != nil {
		return "", err
	}
	var out, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &said
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return out.String(), fmt.Errorf("%s: %w: %s", k.Shell(args...), err, bytes.TrimSpace(said.Bytes()))
	}
	return out.String(), nil
}

// Command prepares a run of kubectl.
func (k Kubectl) Command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	program, err := Program(ctx, os.Stderr)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, append([]string{"--kubeconfig", k.Kubeconfig}, args...)...)
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if k.CacheDir != "" {
		cmd.Env = append(os.Environ(), "KUBECACHEDIR="+k.CacheDir)
	}
	return cmd, nil
}

// Shell gives a command line to paste.
func (k Kubectl) Shell(args ...string) string {
	return cache.Shell(append([]string{"kubectl", "--kubeconfig", k.Kubeconfig}, args...)...)
}

// Apply brings the objects, a slice of anything that encodes to JSON, to the
// cluster by server-side apply, in their order. It tells whether that changed
// anything.
func (k Kubectl) Apply(ctx context.Context, log io.Writer, objects any) (changed bool, err error) {
	list, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
	if err != nil {
		return false, err
	}
	before, err := k.specs(ctx, list)
	if err != nil {
		return false, err
	}
	out, err := k.Run(ctx, list, "apply", "--server-side", "--force-conflicts", "--field-manager", "fabrique-bench", "-f", "-")
	io.WriteString(log, out)
	if err != nil {
		return true, err
	}
	after, err := k.specs(ctx, list)
	return before != after, err
}

// specs gives all of the objects that a person writes: server-side apply does not
// say whether it changed something, and controllers write the rest at any time.
func (k Kubectl) specs(ctx context.Context, list []byte) (string, error) {
	out, err := k.Run(ctx, list, "get", "--ignore-not-found", "-f", "-", "-o", "json")
	if err != nil && strings.Contains(err.Error(), "no matches for kind") {
		return "", nil // its definition is among the objects
	}
	if err != nil || out == "" {
		return "", err
	}
	var answer map[string]any
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		return "", err
	}
	items, ok := answer["items"].([]any)
	if !ok {
		items = []any{answer} // it gives a single one bare
	}
	for _, item := range items {
		object := item.(map[string]any)
		delete(object, "status")
		meta := object["metadata"].(map[string]any)
		delete(meta, "managedFields")
		delete(meta, "resourceVersion")
		annotations, _ := meta["annotations"].(map[string]any)
		for key := range annotations {
			// Controllers count revisions there, and note how a volume was made.
			if strings.Contains(key, "kubernetes.io/") && key != "storageclass.kubernetes.io/is-default-class" {
				delete(annotations, key)
			}
		}
	}
	text, err := json.Marshal(items)
	return string(text), err
}

// Get gives the answer of `kubectl get ARGS -o json` in into.
func (k Kubectl) Get(ctx context.Context, into any, args ...string) error {
	out, err := k.Run(ctx, nil, append(append([]string{"get"}, args...), "-o", "json")...)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(out), into)
}

// Forward gives an address on this machine, "127.0.0.1:PORT", that leads to a
// port of a pod of target ("service/gitea") until stop is called.
func (k Kubectl) Forward(ctx context.Context, namespace, target string, port int) (address string, stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd, err := k.Command(ctx, "port-forward", "-n", namespace, target, fmt.Sprintf(":%d", port))
	if err != nil {
		cancel()
		return "", nil, err
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return "", nil, err
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		// "Forwarding from 127.0.0.1:41234 -> 3000"
		if rest, ok := strings.CutPrefix(lines.Text(), "Forwarding from 127.0.0.1:"); ok {
			local, _, _ := strings.Cut(rest, " ")
			go io.Copy(io.Discard, out) // it writes a line for each connection
			return "127.0.0.1:" + local, func() { cancel(); cmd.Wait() }, nil
		}
	}
	cancel()
	cmd.Wait()
	return "", nil, fmt.Errorf("reaching port %d of %s in %s: %s", port, target, namespace, bytes.TrimSpace(said.Bytes()))
}
