package speed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const startRounds = 15

// start measures the time from the start of each step to the first byte that it
// sends over the network, by itself or by the git program, and the size of its
// binary.
func (b *bench) start(ctx context.Context, report *Report) error {
	token, err := b.tokenFile("start", "0123456789abcdef0123456789abcdef01234567")
	if err != nil {
		return err
	}
	revision, key := b.history.revisions[0], strings.Repeat("a", 64)
	image := "--image={server}/sample"
	steps := [][]string{
		{"reconcile-head", "--source-url=http://{server}/atlas/atlas.git", "--apps-url=http://{server}/cluster/apps.git", "--token-file=" + token},
		{"clone-at-sha", "--url=http://{server}/atlas/atlas.git", "--revision=" + revision, "--dir={dir}", "--token-file=" + token},
		{"buildkit-build", "--address=tcp://{server}", "--dir={dir}", "--context=.", image, "--plain-http", "--revision=" + revision},
		{"digest-inspect", image, "--plain-http", "--revision=" + revision},
		{"gitea-writeback", "--gitea-url=http://{server}", "--apps-repository=cluster/apps", "--record=sample.yaml", "--app=sample",
			"--source-repository=atlas/atlas", "--revision=" + revision, "--source-key=" + key, image, "--digest=sha256:" + key, "--token-file=" + token},
	}
	for _, args := range steps {
		var times []float64
		for range startRounds {
			took, err := b.firstByte(ctx, args)
			if err != nil {
				return fmt.Errorf("starting %s: %w", args[0], err)
			}
			times = append(times, float64(took.Microseconds())/1000)
		}
		report.Rows = append(report.Rows, measured(args[0]+", start to first byte sent", "ms", times).atMost(50))
	}
	entries, err := os.ReadDir(b.programs)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return err
		}
		report.Rows = append(report.Rows, measured(e.Name()+", stripped binary", "MB", []float64{float64(info.Size()) / 1e6}).atMost(30))
	}
	report.Notes = append(report.Notes,
		"Start to first byte: from just before the process is started to the first byte that arrives at the server; for reconcile-head and clone-at-sha it is sent by the git program, whose start is in the figure.",
		"Binaries are built with CGO_ENABLED=0 go build -trimpath -ldflags '-s -w'.",
	)
	return nil
}

// firstByte starts a step against a server that never answers, and ends it when
// its first byte has arrived.
func (b *bench) firstByte(ctx context.Context, args []string) (time.Duration, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	dir, err := os.MkdirTemp(b.dir, "start-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	arrived := make(chan time.Time, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			arrived <- time.Now()
		}
	}()
	fill := strings.NewReplacer("{server}", listener.Addr().String(), "{dir}", dir)
	cmd := exec.CommandContext(ctx, filepath.Join(b.programs, args[0]))
	for _, a := range args[1:] {
		cmd.Args = append(cmd.Args, fill.Replace(a))
	}
	var said strings.Builder
	cmd.Stderr = &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	started := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	defer func() {
		cmd.Cancel()
		<-ended
	}()
	select {
	case at := <-arrived:
		return at.Sub(started), nil
	case <-ended:
		return 0, fmt.Errorf("it ended before it sent anything: %s", said.String())
	case <-time.After(20 * time.Second):
		return 0, errors.New("it sent nothing in 20 s")
	}
}
