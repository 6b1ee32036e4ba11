// Package runimage runs an image as a node would, to prove that what the factory
// built really works: pulled by its digest, unpacked, started by runc as the user
// that the image names, without capabilities and on a read-only root. It works
// inside the namespaces of package parts.
package runimage

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"fabrique/bench/parts"
	"fabrique/bench/tools"
)

// Options say what to run.
type Options struct {
	Image string   // by digest: "registry:80/citation@sha256:…"
	Args  []string // instead of the image's CMD, if set
	Env   []string // added to the image's
}

// Container is a running image in the machine's network.
type Container struct {
	runc string
	dir  string
	id   string
	done chan struct{}
	end  error
}

// Start pulls and starts the image. [Container.Stop] must be called.
func Start(ctx context.Context, o Options) (_ *Container, err error) {
	t, err := tools.Ensure(ctx, os.Stderr, false)
	if err != nil {
		return nil, err
	}
	ref, err := name.NewDigest(o.Image, name.Insecure, name.StrictValidation)
	if err != nil {
		return nil, fmt.Errorf("running %q: %w", o.Image, err)
	}
	image, err := remote.Image(ref, remote.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("pulling %s: %w", ref, err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("pulling %s: %w", ref, err)
	}
	dir, err := os.MkdirTemp(parts.Dir(), "run-")
	if err != nil {
		return nil, err
	}
	c := &Container{runc: t.Runc, dir: dir, id: strings.ToLower(rand.Text()), done: make(chan struct{})}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	// The container's user passes through it.
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	root := filepath.Join(dir, "rootfs")
	if err := Unpack(image, root); err != nil {
		return nil, fmt.Errorf("unpacking %s: %w", ref, err)
	}
	spec, err := runtimeSpec(config.Config, o)
	if err != nil {
		return nil, fmt.Errorf("running %s: %w", ref, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), spec, 0o644); err != nil {
		return nil, err
	}
	log, err := os.Create(c.logFile())
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(c.runc, "--root", c.state(), "run", "--bundle", dir, c.id)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("running %s: %w", ref, err)
	}
	go func() {
		c.end = cmd.Wait()
		close(c.done)
	}()
	return c, nil
}

func (c *Container) logFile() string { return filepath.Join(c.dir, "log") }
func (c *Container) state() string   { return filepath.Join(c.dir, "state") }

// Log gives what the container wrote so far.
func (c *Container) Log() string {
	log, err := os.ReadFile(c.logFile())
	if err != nil {
		return err.Error()
	}
	return string(log)
}

// Stop ends the container with SIGTERM, after five seconds with SIGKILL, and
// removes all that it left.
func (c *Container) Stop() error {
	term := exec.Command(c.runc, "--root", c.state(), "kill", c.id, "TERM")
	if term.Run() == nil {
		select {
		case <-c.done:
		case <-time.After(5 * time.Second):
		}
	}
	out, err := exec.Command(c.runc, "--root", c.state(), "delete", "--force", c.id).CombinedOutput()
	if err != nil {
		return fmt.Errorf("deleting the container: %w: %s", err, bytes.TrimSpace(out))
	}
	<-c.done
	return os.RemoveAll(c.dir)
}

// WaitServing waits until the gRPC health service at addr says that service
// ("" for the whole server) is serving (grpc.health.v1).
func (c *Container) WaitServing(ctx context.Context, addr, service string) error {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := grpc_health_v1.NewHealthClient(conn)
	return c.wait(ctx, func() error {
		conn.ResetConnectBackoff()
		answer, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
		if err == nil && answer.Status != grpc_health_v1.HealthCheckResponse_SERVING {
			err = fmt.Errorf("the health service says %s", answer.Status)
		}
		return err
	})
}

// WaitHTTP waits until url answers 200, and gives the body.
func (c *Container) WaitHTTP(ctx context.Context, url string) (body []byte, err error) {
	err = c.wait(ctx, func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s", url, answer.Status)
		}
		body, err = io.ReadAll(answer.Body)
		return err
	})
	return body, err
}

func (c *Container) wait(ctx context.Context, check func() error) error {
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-c.done:
			return fmt.Errorf("the container ended (%v) and wrote:\n%s", c.end, c.Log())
		case <-ctx.Done():
			return fmt.Errorf("waiting for the container: %w; it wrote:\n%s", errors.Join(err, context.Cause(ctx)), c.Log())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Unpack writes the image's files, its layers applied in order, to the new folder root.
func Unpack(image v1.Image, root string) error {
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	// Names cannot lead out of it, nor can links that the image holds.
	in, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer in.Close()
	files := mutate.Extract(image)
	defer files.Close()
	for r := tar.NewReader(files); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := unpackOne(in, h, r); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}

func unpackOne(root *os.Root, h *tar.Header, content io.Reader) error {
	path := filepath.Clean(strings.TrimPrefix(h.Name, "/"))
	if path == "." {
		return nil
	}
	// A layer need not list a file's folders, nor list them first.
	if err := root.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	mode := h.FileInfo().Mode()
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.MkdirAll(path, 0o755); err != nil {
			return err
		}
	case tar.TypeReg:
		f, err := root.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	case tar.TypeLink:
		return root.Link(filepath.Clean(strings.TrimPrefix(h.Linkname, "/")), path)
	case tar.TypeSymlink:
		if err := root.Symlink(h.Linkname, path); err != nil {
			return err
		}
		return root.Lchown(path, h.Uid, h.Gid)
	default:
		return nil // device nodes: the container gets its own /dev
	}
	// The owner first: changing it clears the set-uid bit.
	if err := root.Lchown(path, h.Uid, h.Gid); err != nil {
		return err
	}
	return root.Chmod(path, mode)
}

// runtimeSpec gives the OCI runtime configuration (runtime-spec, config.md).
func runtimeSpec(image v1.Config, o Options) ([]byte, error) {
	uid, gid, err := numericUser(image.User)
	if err != nil {
		return nil, err
	}
	args := append([]string{}, image.Entrypoint...)
	if o.Args != nil {
		args = append(args, o.Args...)
	} else {
		args = append(args, image.Cmd...)
	}
	cwd := image.WorkingDir
	if cwd == "" {
		cwd = "/"
	}
	type object = map[string]any
	mount := func(to, kind string, options ...string) object {
		return object{"destination": to, "type": kind, "source": kind, "options": options}
	}
	return json.Marshal(object{
		"ociVersion": "1.0.2",
		"root":       object{"path": "rootfs", "readonly": true},
		"hostname":   "bench",
		"process": object{
			"user":            object{"uid": uid, "gid": gid},
			"args":            args,
			"env":             append(append([]string{}, image.Env...), o.Env...),
			"cwd":             cwd,
			"noNewPrivileges": true,
		},
		"mounts": []object{
			mount("/proc", "proc", "nosuid", "noexec", "nodev"),
			mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
			mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", "size=65536k"),
		},
		"linux": object{
			// No network namespace: it shares the machine's network.
			"namespaces":  []object{{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}},
			"maskedPaths": []string{"/proc/kcore", "/proc/keys", "/proc/timer_list"},
		},
	})
}

// numericUser reads the image's user. Kubernetes too can only tell of a number
// that it is not root.
func numericUser(user string) (uid, gid int, err error) {
	if user == "" {
		return 0, 0, errors.New("the image names no user: it would run as root")
	}
	u, g, hasGroup := strings.Cut(user, ":")
	uid, err = strconv.Atoi(u)
	if err == nil && hasGroup {
		gid, err = strconv.Atoi(g)
	}
	if err != nil || uid <= 0 {
		return 0, 0, fmt.Errorf("the image's user is %q, want numbers other than 0", user)
	}
	return uid, gid, nil
}
