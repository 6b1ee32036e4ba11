package cases

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/moby/buildkit/client"
	corev1 "k8s.io/api/core/v1"

	"fabrique/manifests/buildkitd"
	"fabrique/manifests/zone"
	"fabrique/steps/runnetwork"
)

// attackCases are what one app's build does to another's.
var attackCases = []Case{
	{Name: "victim", Title: "fifty hostile builds beside an app's leave its image as it is, find none of its secrets, and the daemon lives", Limit: 30 * time.Minute, Run: victim},
}

// attackRounds is how often the victim is built beside an attacker.
const attackRounds = 50

// The images, below registry:80.
const (
	attackedImage = "bench-attack/b"
	hostileImage  = "bench-attack/a"
	parentImage   = "bench-attack"
)

// What the victim's Dockerfile names, so that everybody may know it.
const (
	attackedCache  = "shared"
	attackedSecret = "b"
)

// attackedRecipe is the victim's Dockerfile. Its last stage is the same image every time,
// and holds of what is secret the sums alone. The stage shown has it all. The folders of
// root are those that the base lacks: else runc makes them, at the time of the build.
const attackedRecipe = `FROM registry:80/base/busybox:latest AS image
COPY root /
RUN --mount=type=bind,target=/ctx --mount=type=cache,id=` + attackedCache + `,target=/c --mount=type=secret,id=` + attackedSecret + ` set -e; cp /ctx/cache.txt /c/nonce; export SECRET=$(cat /run/secrets/b); sh -c 'sleep 1.5' "$SECRET"; echo ran-$((6*7)); cat /ctx/source.txt /c/nonce; mkdir /b; cat /ctx/source.txt /run/secrets/b /c/* | sha256sum >/b/sums; touch -d @0 /b/sums /b
RUN --mount=type=cache,id=` + attackedCache + `,target=/c set -e; cp /c/nonce /tmp/n; sleep 1; ls /c >/b/cached; cat /c/* /tmp/n | sha256sum >>/b/sums; rm /tmp/n; touch -d @0 /b/sums /b/cached /b /tmp
FROM image AS shown
RUN --mount=type=bind,target=/ctx --mount=type=cache,id=` + attackedCache + `,target=/c --mount=type=secret,id=` + attackedSecret + ` mkdir /shown; cp /ctx/source.txt /c/nonce /run/secrets/b /shown
FROM image
`

// arena is where the builds of the scenario run: the real step program, on this machine,
// against the daemon in the cluster.
type arena struct {
	program  string   // buildkit-build
	registry string   // where registry:80 answers on this machine
	dir      string   // for contexts and secrets
	outside  []string // flags for the way out of RUN instructions
	// reach leads to the daemon until stop is called.
	reach func(ctx context.Context) (address string, stop func(), err error)
}

// built is what came of one build.
type built struct {
	code   int
	digest string
	log    []byte // all that the program said
	took   time.Duration
}

// build runs buildkit-build as the Workflow does. The error is that it could not be run.
func (a arena) build(ctx context.Context, image, revision, dir string, more ...string) (built, error) {
	address, stop, err := a.reach(ctx)
	if err != nil {
		return built{}, err
	}
	defer stop()
	args := append([]string{
		"--address", address, "--dir", dir, "--context", "app", "--image", "registry:80/" + image, "--revision", revision, "--plain-http",
		"--platform", "linux/amd64", "--cache", "off", "--frontends", "docker/dockerfile=builtin", "--timeout", "5m",
	}, slices.Concat(a.outside, more)...)
	cmd := exec.CommandContext(ctx, a.program, args...)
	// It looks into the registry before it builds, by a name that this machine does not know.
	cmd.Env = append(os.Environ(), "HTTP_PROXY=http://"+a.registry, "HTTPS_PROXY=http://"+a.registry, "NO_PROXY=127.0.0.1")
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	cmd.WaitDelay = 10 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	start := time.Now()
	err = cmd.Run()
	b := built{log: append(said.Bytes(), out.Bytes()...), took: time.Since(start), code: cmd.ProcessState.ExitCode()}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		return b, fmt.Errorf("running buildkit-build: %w", errors.Join(err, context.Cause(ctx)))
	}
	if err == nil {
		var result struct {
			Digest string
			Reused bool
		}
		lines := bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n"))
		if err := json.Unmarshal(lines[len(lines)-1], &result); err != nil {
			return b, fmt.Errorf("reading what buildkit-build says: %w", err)
		}
		if result.Reused {
			return b, fmt.Errorf("%s was there and is not built", image)
		}
		b.digest = result.Digest
	}
	return b, nil
}

// prune empties the daemon's cache, so that the next build runs every instruction.
func (a arena) prune(ctx context.Context) error {
	address, stop, err := a.reach(ctx)
	if err != nil {
		return err
	}
	defer stop()
	c, err := client.New(ctx, address)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Prune(ctx, nil, client.PruneAll)
}

// repository names an image as this machine reaches it.
func (a arena) repository(image string) (name.Repository, error) {
	return name.NewRepository(a.registry+"/"+image, name.Insecure)
}

// holds tells which of the words an image has somewhere: in its layers, manifest or
// configuration.
func (a arena) holds(ctx context.Context, image, digest string, words ...string) ([]string, error) {
	repository, err := a.repository(image)
	if err != nil {
		return nil, err
	}
	img, err := remote.Image(repository.Digest(digest), remote.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	s := newSearch(words...)
	manifest, err := img.RawManifest()
	if err != nil {
		return nil, err
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return nil, err
	}
	s.Write(manifest)
	s.Write(config)
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	for _, layer := range layers {
		raw, err := layer.Uncompressed()
		if err != nil {
			return nil, err
		}
		_, err = io.Copy(s, raw)
		raw.Close()
		if err != nil {
			return nil, fmt.Errorf("reading a layer of %s: %w", image, err)
		}
	}
	return s.found(), nil
}

// remove takes what a build pushed out of the registry. What is not there is removed.
func (a arena) remove(ctx context.Context, image, digest string) error {
	repository, err := a.repository(image)
	if err != nil {
		return err
	}
	err = remote.Delete(repository.Digest(digest), remote.WithContext(ctx))
	var answer *transport.Error
	if errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound {
		return nil
	}
	return err
}

// search looks for words in what is written to it, also across two writes.
type search struct {
	words []string
	seen  map[string]bool
	tail  []byte
}

func newSearch(words ...string) *search { return &search{words: words, seen: map[string]bool{}} }

func (s *search) Write(b []byte) (int, error) {
	s.tail = append(s.tail, b...)
	keep := 0
	for _, w := range s.words {
		keep = max(keep, len(w)-1)
		s.seen[w] = s.seen[w] || bytes.Contains(s.tail, []byte(w))
	}
	s.tail = slices.Clone(s.tail[max(0, len(s.tail)-keep):])
	return len(b), nil
}

func (s *search) found() []string {
	return slices.DeleteFunc(slices.Clone(s.words), func(w string) bool { return !s.seen[w] })
}

// in tells which words a text has.
func in(text []byte, words ...string) []string {
	s := newSearch(words...)
	s.Write(text)
	return s.found()
}

// daemonState describes the daemon's pod as far as it changes when a process in it ends.
func (w *World) daemonState(ctx context.Context) (state, ip string, err error) {
	var pod corev1.Pod
	if err := w.Kubectl.Get(ctx, &pod, "pod", builder+"-0", "-n", zone.Builder); err != nil {
		return "", "", err
	}
	state = string(pod.UID)
	for _, s := range append(slices.Clone(pod.Status.InitContainerStatuses), pod.Status.ContainerStatuses...) {
		state += fmt.Sprintf("; %s %s restarted %d times, ready %v", s.Name, s.ContainerID, s.RestartCount, s.Ready)
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			state += "; ready " + string(c.Status)
		}
	}
	return state, pod.Status.PodIP, nil
}

// arena gives that of the factory's own daemon; builds go out as the app.
func (w *World) arena(ctx context.Context, app string) (a arena, leave func(), err error) {
	key, err := w.Secret(ctx, zone.Workflows, zone.EgressSecret, zone.EgressKey)
	if err != nil {
		return arena{}, nil, err
	}
	dir, err := os.MkdirTemp("", "fabrique-cases-")
	if err != nil {
		return arena{}, nil, err
	}
	file := filepath.Join(dir, "key")
	if err := os.WriteFile(file, []byte(key.Reveal()), 0o600); err != nil {
		os.RemoveAll(dir)
		return arena{}, nil, err
	}
	return arena{
		program: filepath.Join(filepath.Dir(w.Fabrique), "buildkit-build"), registry: w.Registry, dir: dir,
		outside: []string{"--proxy", runnetwork.ProxyURL, "--egress-key-file", file, "--app", app, "--workflow", "bench"},
		reach:   w.daemonAt(zone.Builder, builder+"-0"),
	}, func() { os.RemoveAll(dir) }, nil
}

// daemonAt leads to the daemon in a pod.
func (w *World) daemonAt(namespace, pod string) func(context.Context) (string, func(), error) {
	return func(ctx context.Context) (string, func(), error) {
		address, stop, err := w.Kubectl.Forward(ctx, namespace, "pod/"+pod, buildkitd.Port)
		return "tcp://" + address, stop, err
	}
}

// victim builds an app alone, and then beside one attack after the other.
func victim(ctx context.Context, w *World) (saw string, err error) {
	a, leave, err := w.arena(ctx, "bench-attack")
	if err != nil {
		return "", err
	}
	defer leave()
	before, ip, err := w.daemonState(ctx)
	if err != nil {
		return "", err
	}
	saw, err = a.fight(ctx, w.note, ip, attackRounds)
	after, _, failed := w.daemonState(context.WithoutCancel(ctx))
	switch {
	case failed != nil:
		err = errors.Join(err, failed)
	case after != before:
		err = errors.Join(err, fmt.Errorf("the daemon's pod should be as it was: %s; it is %s", before, after))
	}
	return saw, err
}

// fight does it all but for what Kubernetes tells of the daemon.
func (a arena) fight(ctx context.Context, note func(string, ...any), address string, rounds int) (saw string, err error) {
	var pushed [][2]string // image and digest
	defer finally(ctx, &err, func(ctx context.Context) error {
		var all []error
		for _, p := range pushed {
			all = append(all, a.remove(ctx, p[0], p[1]))
		}
		return errors.Join(append(all, a.prune(ctx))...)
	})
	// Each is a word that is found nowhere else.
	source, cached, secret, own := "source-"+nonce(), "cache-"+nonce(), "secret-"+nonce(), "own-"+nonce()
	secrets := []string{source, cached, secret}
	b, secretFile, ownSecret := filepath.Join(a.dir, "b"), filepath.Join(a.dir, "secret"), filepath.Join(a.dir, "own-secret")
	for file, text := range map[string]string{
		"b/app/Dockerfile": attackedRecipe, "b/app/source.txt": source + "\n", "b/app/cache.txt": cached + "\n",
		"secret": secret, "own-secret": "not the victim's\n",
	} {
		if err := writeAt(filepath.Join(a.dir, file), text); err != nil {
			return "", err
		}
	}
	if err := emptyRoot(filepath.Join(b, "app")); err != nil {
		return "", err
	}
	revision := fmt.Sprintf("%016x%024x", time.Now().UnixNano(), 0)
	buildVictim := func(ctx context.Context, image string, more ...string) (built, error) {
		r, err := a.build(ctx, image, revision, b, append([]string{"--build-args", "SOURCE_DATE_EPOCH=1000000000", "--secrets", attackedSecret + "=" + secretFile}, more...)...)
		if err != nil {
			return r, err
		}
		if r.code != 0 {
			return r, fmt.Errorf("the victim's build ended with %d:\n%s", r.code, ending(r.log))
		}
		pushed = append(pushed, [2]string{image, r.digest})
		if got := in(r.log, source, cached, secret, "ran-42"); !slices.Equal(got, []string{source, cached, "ran-42"}) {
			return r, fmt.Errorf("the victim's log should show that its instructions ran, and not its secret; of it has %q:\n%s", got, ending(r.log))
		}
		return r, nil
	}

	// Alone, twice.
	var reference built
	var alone, beside []float64
	for i := range 3 {
		if err := a.prune(ctx); err != nil {
			return "", err
		}
		r, err := buildVictim(ctx, attackedImage)
		if err != nil {
			return "", err
		}
		if i > 0 && r.digest != reference.digest {
			return "", fmt.Errorf("alone the victim became %s and then %s: it cannot be compared", reference.digest, r.digest)
		}
		reference, alone = r, append(alone, r.took.Seconds())
		if err := a.remove(ctx, attackedImage, r.digest); err != nil {
			return "", err
		}
	}
	note("alone the victim is %s three times, in %.1f s", reference.digest, middle(alone))

	// What is looked for can be found: the victim's, in an image that shows it, and in
	// what an attacker reads that is taken for the victim.
	shown, err := a.build(ctx, attackedImage, "a"+revision[1:], b, "--target", "shown", "--secrets", attackedSecret+"="+secretFile)
	if err != nil || shown.code != 0 {
		return "", fmt.Errorf("building what shows the secrets: %w\n%s", err, ending(shown.log))
	}
	got, err := a.holds(ctx, attackedImage, shown.digest, secrets...)
	if err = errors.Join(err, a.remove(ctx, attackedImage, shown.digest)); err != nil {
		return "", err
	}
	if !slices.Equal(got, secrets) {
		return "", fmt.Errorf("the search should find %q in an image that has them; it finds %q", secrets, got)
	}
	known := aim{image: "registry:80/" + attackedImage, address: address, cacheID: attackedCache, secretID: attackedSecret, recipe: attackedRecipe}
	known.tag = known.image + ":" + revision[:12]
	list := attacks(known)
	cmd := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(a.dir, "attacker"), "fabrique/bench/attacker")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the attackers' program: %w\n%s", err, out)
	}
	for i, attack := range list {
		if err := a.prepare(i, attack, own); err != nil {
			return "", err
		}
	}
	same := slices.IndexFunc(list, func(at attack) bool { return at.name == "the same cache mount" })
	inside, err := a.build(ctx, attackedImage, "b"+revision[1:], a.context(same))
	if err != nil || inside.code != 0 {
		return "", fmt.Errorf("building an attacker as the victim: %w\n%s", err, ending(inside.log))
	}
	got, err = a.holds(ctx, attackedImage, inside.digest, own, cached)
	if err = errors.Join(err, a.remove(ctx, attackedImage, inside.digest)); err != nil {
		return "", err
	}
	if logged := in(inside.log, own, cached); len(got) != 2 || len(logged) != 2 {
		return "", fmt.Errorf("an attacker that has the victim's repository should find its cache mount; there is %q in the image and %q in the log", got, logged)
	}

	ended := map[string]int{} // how the attackers' builds ended
	var problems []error
	for round := range rounds {
		at := round % len(list)
		attack, image := list[at], hostileImage
		if attack.parent {
			image = parentImage
		}
		if err := errors.Join(a.prune(ctx), a.remove(ctx, attackedImage, reference.digest)); err != nil {
			return "", err
		}
		var more []string
		if attack.secret {
			more = []string{"--secrets", attackedSecret + "=" + ownSecret}
		}
		var hostile, r built
		var hostileErr, victimErr error
		var both sync.WaitGroup
		both.Go(func() {
			hostile, hostileErr = a.build(ctx, image, fmt.Sprintf("%08x", round+1)+revision[8:], a.context(at), more...)
		})
		// Now the one comes first, now the other.
		time.Sleep(time.Duration(round%3) * time.Second / 2)
		both.Go(func() { r, victimErr = buildVictim(ctx, attackedImage) })
		both.Wait()
		if hostile.digest != "" {
			pushed = append(pushed, [2]string{image, hostile.digest})
		}
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		err := errors.Join(hostileErr, victimErr)
		if err == nil && r.digest != reference.digest {
			err = fmt.Errorf("the victim became %s, alone it is %s", r.digest, reference.digest)
		}
		if err == nil {
			err = a.judge(ctx, attack, image, hostile, own, secrets)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("round %d, %s: %w", round+1, attack.name, err))
			note("%v", problems[len(problems)-1])
		}
		beside = append(beside, r.took.Seconds())
		ended[fmt.Sprintf("exit code %d", hostile.code)]++
		for line := range strings.Lines(string(hostile.log)) {
			if _, could, found := strings.Cut(line, "attacker: "); found && strings.HasSuffix(could, ": yes\n") {
				note("    it may: %s", strings.TrimSuffix(could, ": yes\n"))
			}
		}
		note("%2d  %-60s exit code %d, %.1f s; the victim %.1f s", round+1, attack.name, hostile.code, hostile.took.Seconds(), r.took.Seconds())
	}
	if len(problems) > 0 {
		return "", errors.Join(problems...)
	}
	return fmt.Sprintf("%d rounds of %d attacks, %v; the victim is %s each time, none of its %d secrets is in a layer or log of the attackers'; it takes %.1f s alone and %.1f s beside them (medians, %.2f times)",
		rounds, len(list), ended, reference.digest, len(secrets), middle(alone), middle(beside), middle(beside)/middle(alone)), nil
}

// judge looks for the victim's secrets in all that an attacker's build left, and for the
// attacker's own word, without which the attack would prove nothing.
func (a arena) judge(ctx context.Context, attack attack, image string, hostile built, own string, secrets []string) error {
	if leaked := in(hostile.log, append(slices.Clone(secrets), reachesTraces)...); len(leaked) > 0 {
		return fmt.Errorf("%q is in the attacker's log:\n%s", leaked, ending(hostile.log))
	}
	if !attack.either && attack.fails != (hostile.code != 0) {
		return fmt.Errorf("the attacker's build ended with %d, so that nothing is proven:\n%s", hostile.code, ending(hostile.log))
	}
	if !attack.silent && len(in(hostile.log, own)) == 0 {
		return fmt.Errorf("what the attacker finds should be in its log; its own word is not:\n%s", ending(hostile.log))
	}
	if hostile.digest == "" {
		return nil
	}
	got, err := a.holds(ctx, image, hostile.digest, append([]string{own}, secrets...)...)
	if err != nil {
		return err
	}
	if !slices.Equal(got, []string{own}) {
		return fmt.Errorf("in the attacker's image there should be its own word %q alone; there is %q", own, got)
	}
	return nil
}

// context gives the folder of an attack.
func (a arena) context(i int) string { return filepath.Join(a.dir, fmt.Sprintf("attack-%d", i)) }

// prepare writes the context of an attack.
func (a arena) prepare(i int, attack attack, own string) error {
	app := filepath.Join(a.context(i), "app")
	for file, text := range map[string]string{
		"Dockerfile": attack.dockerfile, "own.txt": own + "\n",
		// By the names that the victim's instructions use.
		"source.txt": own + "\n", "cache.txt": own + "\n",
	} {
		if err := writeAt(filepath.Join(app, file), text); err != nil {
			return err
		}
	}
	for link, to := range attack.links {
		if err := os.Symlink(to, filepath.Join(app, link)); err != nil {
			return err
		}
	}
	if err := emptyRoot(app); err != nil {
		return err
	}
	return os.Link(filepath.Join(a.dir, "attacker"), filepath.Join(app, "attacker"))
}

// emptyRoot makes the folder root of the victim's context.
func emptyRoot(app string) error {
	for _, dir := range []string{"dev", "proc", "sys"} {
		path := filepath.Join(app, "root", dir)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		if err := os.Chtimes(path, sameTime, sameTime); err != nil {
			return err
		}
	}
	return nil
}

// sameTime is the time of all files of the victim.
var sameTime = time.Unix(1000000000, 0)

// writeAt writes a file whose time is always the same.
func writeAt(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Chtimes(path, sameTime, sameTime)
}

// ending gives the last of a log that can be read.
func ending(log []byte) string {
	return strings.ToValidUTF8(string(log[max(0, len(log)-3000):]), "?")
}

// middle gives the median.
func middle(values []float64) float64 { return quantile(slices.Sorted(slices.Values(values)), 0.5) }
