package buildlog

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fabrique/manifests/zone"
	"fabrique/workflows/run"
)

// How Argo Workflows marks a step's pod.
const (
	workflowLabel  = "workflows.argoproj.io/workflow"
	nodeAnnotation = "workflows.argoproj.io/node-id"
)

// containers of the build's pod that are shown, in their order.
var containers = []string{"clone", "main"}

// pod shows the logs of a try; it waits for what is not there yet when it is to
// follow. found is false when there is no such pod, or not any more.
func (s *shower) pod(ctx context.Context, b build, try run.Step) (found bool, err error) {
	list, err := s.core.CoreV1().Pods(zone.Workflows).List(ctx, metav1.ListOptions{LabelSelector: workflowLabel + "=" + b.run.Name})
	if err != nil {
		return false, run.Refused("listing the pods of "+b.run.Name, err)
	}
	for i := range list.Items {
		if list.Items[i].Annotations[nodeAnnotation] == try.Pod {
			return s.containers(ctx, b.app, &list.Items[i])
		}
	}
	return false, nil
}

// containers shows the log of each container, in their order.
func (s *shower) containers(ctx context.Context, app string, pod *corev1.Pod) (found bool, err error) {
	for _, name := range containers {
		if !has(pod, name) {
			continue
		}
		var read reading
		for {
			done, err := s.attempt(ctx, app, pod, name, &read)
			found = found || read.begun
			if apierrors.IsNotFound(err) {
				return found, nil
			}
			if err != nil {
				return found, run.Refused("reading the log of the pod "+pod.Name, err)
			}
			if done {
				break
			}
			if err := s.pause(ctx); err != nil {
				return found, err
			}
			pod, err = s.core.CoreV1().Pods(zone.Workflows).Get(ctx, pod.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return found, nil
			}
			if err != nil {
				return found, run.Refused("reading the pod of the build", err)
			}
		}
	}
	return true, nil
}

// attempt shows what there is of a container's log beyond what was read, as long as
// the connection holds. done means that nothing more comes.
func (s *shower) attempt(ctx context.Context, app string, pod *corev1.Pod, name string, read *reading) (done bool, err error) {
	state := stateOf(pod, name)
	if state.Running == nil && state.Terminated == nil {
		over := pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
		if why := waits(pod); why != "" && !over && s.Follow {
			s.note(app, "its pod waits: %s", why)
		}
		return over || !s.Follow, nil
	}
	err = s.copy(ctx, app, pod, name, state.Terminated == nil, read)
	if err != nil && s.Follow && ctx.Err() == nil && broken(err) && read.breaks < mostBreaks {
		read.breaks++
		return false, nil
	}
	return state.Terminated != nil || !s.Follow, err
}

// mostBreaks is how often in a row a log may end before its time, or not begin.
const mostBreaks = 10

func has(pod *corev1.Pod, name string) bool {
	for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		if c.Name == name {
			return true
		}
	}
	return false
}

func stateOf(pod *corev1.Pod, name string) corev1.ContainerState {
	for _, c := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		if c.Name == name {
			return c.State
		}
	}
	return corev1.ContainerState{}
}

// waits says why a pod's containers have not begun, unless that is as it should be.
func waits(pod *corev1.Pod) string {
	for _, c := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		if w := c.State.Waiting; w != nil && w.Reason != "PodInitializing" && w.Reason != "ContainerCreating" {
			return strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Message
		}
	}
	return ""
}

// reading is how far a container's log was read.
type reading struct {
	begun  bool
	last   time.Time // of the last line
	breaks int       // since then
}

// longest is how many bytes of a line are kept together.
const longest = 12 << 10

// copy shows a log from where the reading stands.
func (s *shower) copy(ctx context.Context, app string, pod *corev1.Pod, container string, follow bool, read *reading) error {
	options := &corev1.PodLogOptions{Container: container, Follow: follow && s.Follow, Timestamps: true}
	if !read.last.IsZero() {
		options.SinceTime = &metav1.Time{Time: read.last} // in whole seconds
	}
	stream, err := s.core.CoreV1().Pods(zone.Workflows).GetLogs(pod.Name, options).Stream(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	from := read.last
	in := bufio.NewReaderSize(stream, longest)
	beginning, old := true, false
	for {
		piece, err := in.ReadSlice('\n')
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
			return broke{err} // what there is of a line comes again
		}
		text := strings.TrimRight(string(piece), "\n")
		if beginning {
			at, rest, stamped := stamp(text)
			if stamped {
				text, old = rest, !from.IsZero() && !at.After(from)
			}
			if stamped && at.After(read.last) { // two streams of a container may cross
				read.last, read.breaks = at, 0
			}
		}
		if len(piece) > 0 && !old {
			read.begun = true
			if err := s.lines(app, text); err != nil {
				return err
			}
		}
		switch {
		case err == nil:
			beginning = true
		case errors.Is(err, bufio.ErrBufferFull):
			beginning = false // the rest of the line comes as lines of its own
		default:
			return nil
		}
	}
}

// stamp takes the kubelet's time off a line.
func stamp(line string) (at time.Time, rest string, ok bool) {
	first, rest, _ := strings.Cut(line, " ")
	at, err := time.Parse(time.RFC3339Nano, first)
	return at, rest, err == nil
}

// argoLine is what Argo's executor says in a step's log when the step is over.
var argoLine = regexp.MustCompile(`^time="[^"]*" level=info msg=".*" argo=true(?: error="<nil>")?$`)

// lines shows one line. A carriage return, with which progress bars write over
// themselves, ends one too.
func (s *shower) lines(app, text string) error {
	if argoLine.MatchString(text) {
		return nil
	}
	for line := range strings.SplitSeq(strings.TrimRight(text, "\r"), "\r") {
		if err := s.print(app, line); err != nil {
			return fmt.Errorf("writing the log: %w", err)
		}
	}
	return nil
}

// broke is the end of a stream before its time.
type broke struct{ error }

func (b broke) Unwrap() error { return b.error }

// broken tells whether it is worth asking for the log again.
func broken(err error) bool {
	var b broke
	return errors.As(err, &b) || apierrors.IsBadRequest(err) || apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err)
}
