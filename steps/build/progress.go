package build

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/buildkit/client"
	"github.com/moby/buildkit/util/progress/progressui"
	digest "github.com/opencontainers/go-digest"

	"fabrique/steps/step"
)

// seen is what a build reported.
type seen struct {
	steps  map[digest.Digest]*client.Vertex
	output map[digest.Digest][]string // last lines, by build step
	failed []digest.Digest            // the build steps that failed, in order
	cache  []string                   // what went wrong with the registry cache
}

// An error shows at most so many lines of a build step's output, each at most so
// many bytes long.
const (
	tail     = 12
	tailLine = 400
)

// newWatch gives the channel for a Solve call, and a function that waits until
// all of it was read (the Solve call closes it). The channel is read until it
// is closed, whatever happens to the display, so that Solve never blocks on it.
func newWatch(w io.Writer, redact func(string) string) (chan *client.SolveStatus, func() seen) {
	in := make(chan *client.SolveStatus)
	show := make(chan *client.SolveStatus, 16)
	s := seen{steps: map[digest.Digest]*client.Vertex{}, output: map[digest.Digest][]string{}}
	var running sync.WaitGroup
	running.Go(func() {
		defer close(show)
		held := held{}
		for status := range in {
			held.complete(status)
			clean(status, redact)
			s.add(status)
			show <- status
		}
		rest := held.rest()
		clean(rest, redact)
		s.add(rest)
		show <- rest
	})
	running.Go(func() {
		display, err := newDisplay(w)
		if err == nil {
			_, err = display.UpdateFrom(context.Background(), show)
		}
		for range show { // a display that gave up
		}
	})
	return in, func() seen { running.Wait(); return s }
}

func newDisplay(w io.Writer) (progressui.Display, error) {
	switch {
	case w == nil:
		return progressui.NewDisplay(io.Discard, progressui.QuietMode)
	case step.IsTerminal(w):
		return progressui.NewDisplay(w, progressui.TtyMode)
	}
	return progressui.NewDisplay(w, progressui.PlainMode)
}

// held keeps the beginnings of lines, by build step and stream: the output comes
// in pieces, and a secret could lie across two of them.
type held map[stream][]byte

type stream struct {
	step   digest.Digest
	number int
}

// longestLine is when a line is shown before its end has come, in bytes.
const longestLine = 1 << 20

// complete makes the status's output end with the ends of lines, or of a build
// step.
func (h held) complete(status *client.SolveStatus) {
	for _, l := range status.Logs {
		key := stream{l.Vertex, l.Stream}
		data := append(h[key], l.Data...)
		end := bytes.LastIndexAny(data, "\r\n") + 1
		if len(data)-end > longestLine {
			end = len(data)
		}
		l.Data, h[key] = data[:end:end], data[end:]
	}
	status.Logs = slices.DeleteFunc(status.Logs, func(l *client.VertexLog) bool { return len(l.Data) == 0 })
	for _, v := range status.Vertexes {
		if v.Completed != nil {
			h.release(status, func(s stream) bool { return s.step == v.Digest })
		}
	}
}

// rest gives what is still held when the build is over.
func (h held) rest() *client.SolveStatus {
	status := &client.SolveStatus{}
	h.release(status, func(stream) bool { return true })
	return status
}

func (h held) release(status *client.SolveStatus, which func(stream) bool) {
	for key, data := range h {
		if which(key) && len(data) > 0 {
			status.Logs = append(status.Logs, &client.VertexLog{Vertex: key.step, Stream: key.number, Data: data, Timestamp: time.Now()})
			delete(h, key)
		}
	}
}

// clean takes secrets out of everything that will be shown.
func clean(status *client.SolveStatus, redact func(string) string) {
	for _, v := range status.Vertexes {
		v.Name, v.Error = redact(v.Name), redact(v.Error)
	}
	for _, l := range status.Logs {
		l.Data = []byte(redact(string(l.Data)))
	}
	for _, s := range status.Statuses {
		s.Name, s.ID = redact(s.Name), redact(s.ID)
	}
}

func (s *seen) add(status *client.SolveStatus) {
	for _, v := range status.Vertexes {
		s.steps[v.Digest] = v
		switch {
		case v.Error == "" || strings.Contains(v.Error, "context canceled"):
		case strings.HasPrefix(v.Name, "importing cache manifest"), strings.HasPrefix(v.Name, "exporting cache"):
			s.cache = append(s.cache, v.Name+": "+v.Error)
		default:
			s.failed = append(s.failed, v.Digest)
		}
	}
	for _, l := range status.Logs {
		lines := s.output[l.Vertex]
		for line := range strings.FieldsFuncSeq(string(l.Data), func(r rune) bool { return r == '\n' || r == '\r' }) {
			if len(line) > tailLine {
				line = line[:tailLine] + "…"
			}
			lines = append(lines, line)
		}
		s.output[l.Vertex] = slices.Clone(lines[max(0, len(lines)-tail):])
	}
}

// total counts the build steps of the Dockerfile, without BuildKit's own
// preparations and the export.
func (s seen) total() int { return s.count(func(*client.Vertex) bool { return true }) }

// cached counts those that were taken from the cache.
func (s seen) cached() int { return s.count(func(v *client.Vertex) bool { return v.Cached }) }

func (s seen) count(which func(*client.Vertex) bool) int {
	n := 0
	for _, v := range s.steps {
		if strings.HasPrefix(v.Name, "[") && !strings.HasPrefix(v.Name, "[internal]") && which(v) {
			n++
		}
	}
	return n
}
