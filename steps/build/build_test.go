package build

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"fabrique/bench/fault"
	"fabrique/bench/parts"
	"fabrique/steps/buildarg"
	"fabrique/steps/frontend"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/step"
)

// deadline is how long anything may take that should take seconds.
func deadline() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 2*time.Minute)
}

// One build, then none for the same revision and source, then one for another.
func TestBuildAndReuse(t *testing.T) {
	o := prepare(t, map[string]string{"app/Dockerfile": base + "RUN echo built > /built\nCOPY hello /hello\n", "app/hello": "hello"})
	o.SourceKey = key
	result, img := mustBuild(t, o)
	want := Result{Digest: result.Digest, Image: "registry:80/testbuildandreuse:7222512345e2", Total: 3, Cached: result.Cached, Builder: o.Addresses[0]}
	if diff := cmp.Diff(want, result); diff != "" {
		t.Error(diff)
	}
	if media, err := img.MediaType(); err != nil || media != types.OCIManifestSchema1 {
		t.Errorf("the tag is a %s (%v), want one OCI manifest", media, err)
	}
	config := labels(t, img)
	if diff := cmp.Diff(map[string]string{image.LabelRevision: string(revision), image.LabelSourceKey: string(key)}, config.Labels); diff != "" {
		t.Error(diff)
	}
	if files := content(t, img); files["built"] != "built\n" || files["hello"] != "hello" {
		t.Errorf("files: built %q, hello %q", files["built"], files["hello"])
	}

	// The builder that does not answer is passed over, whichever comes first.
	live := o.Addresses[0]
	for _, dead := range []string{"tcp://127.0.0.1:1", "unix:///no/such/socket", "tcp://nothing.invalid:1"} {
		moved := o
		moved.Addresses, moved.Revision = []string{dead, live}, "9"+revision[1:]
		if moved, _ := mustBuild(t, moved); moved.Builder != live && !moved.Reused {
			t.Errorf("built by %q", moved.Builder)
		}
	}

	before := builds(t, o.Addresses[0], false)
	again, _ := mustBuild(t, o)
	if diff := cmp.Diff(Result{Digest: result.Digest, Image: result.Image, Reused: true}, again); diff != "" {
		t.Error(diff)
	}
	if n := builds(t, o.Addresses[0], false) - before; n != 0 {
		t.Errorf("the daemon did %d more builds", n)
	}

	// The same first 12 digits, another revision.
	o.Revision = revision[:12] + gitref.Revision(strings.Repeat("f", 28))
	other, img := mustBuild(t, o)
	if other.Reused || labels(t, img).Labels[image.LabelRevision] != string(o.Revision) {
		t.Errorf("another revision's image was taken: %+v", other)
	}
	if other.Cached < 2 { // the base image counts only when it had to be looked at
		t.Errorf("%d of %d build steps came from the cache", other.Cached, other.Total)
	}
	// The same revision, other inputs.
	o.SourceKey = key[:62] + "bb"
	if other, img = mustBuild(t, o); other.Reused || labels(t, img).Labels[image.LabelSourceKey] != string(o.SourceKey) {
		t.Errorf("an image of other inputs was taken: %+v", other)
	}
}

func TestArgumentsAndTarget(t *testing.T) {
	o := prepare(t, map[string]string{"app/docker/my.Dockerfile": "FROM scratch AS one\nARG VERSION\nARG EMPTY=x\nLABEL version=$VERSION empty=-$EMPTY-\nFROM scratch AS two\nLABEL two=2\n"})
	o.Dockerfile, o.Target = "docker/my.Dockerfile", "one"
	o.BuildArgs = buildarg.Args{"VERSION": "1 $(id) '\"", "EMPTY": ""}
	_, img := mustBuild(t, o)
	want := map[string]string{"version": "1 $(id) '\"", "empty": "--", image.LabelRevision: string(revision)}
	if diff := cmp.Diff(want, labels(t, img).Labels); diff != "" {
		t.Error(diff)
	}
}

// A secret reaches its instruction, and neither the image nor any output, not
// even in pieces.
func TestSecrets(t *testing.T) {
	const password, line = "corr3ct-h0rse-b4ttery", "https://ada:pa55w0rd@example.invalid/"
	file := filepath.Join(t.TempDir(), "netrc")
	if err := os.WriteFile(file, []byte("{\nmachine x login ada password "+password+"\n"+line+"\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	mount := "RUN --mount=type=secret,id=netrc "
	files := map[string]string{"app/Dockerfile": base +
		mount + "test $(wc -c < /run/secrets/netrc) -gt 60\n" +
		mount + "cat /run/secrets/netrc; base64 /run/secrets/netrc >/dev/null; echo visible {}\n" +
		mount + "head -c 40 /run/secrets/netrc; sleep 0.5; tail -c +41 /run/secrets/netrc | cut -c 1-100; printf " + password + "; sleep 0.3\n" +
		mount + "printf %s " + password + " | base64\n"}
	// The last lines stand in for what a program prints.
	files["app/Dockerfile"] = strings.ReplaceAll(files["app/Dockerfile"], "printf "+password, "grep -o 'corr[^ ]*' /run/secrets/netrc | tr -d '\\n'")
	files["app/Dockerfile"] = strings.ReplaceAll(files["app/Dockerfile"], "printf %s "+password, "grep -o 'corr[^ ]*' /run/secrets/netrc | tr -d '\\n'")
	o := prepare(t, files)
	o.Secrets = Secrets{"netrc": file}
	for what, fail := range map[string]bool{"success": false, "failure": true} {
		t.Run(what, func(t *testing.T) {
			o := o
			o.Repository.Name = image.Name(imageName(t.Name()))
			if fail {
				o.Dir = t.TempDir()
				write(t, o.Dir, "app/Dockerfile", files["app/Dockerfile"]+mount+"cat /run/secrets/netrc; false\n")
			}
			var shown progress
			var log bytes.Buffer
			o.Progress = &shown
			_, err := Run(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), o)
			if (err != nil) != fail {
				t.Fatal(err)
			}
			all := shown.String() + log.String() + fmt.Sprint(err)
			for _, text := range []string{password, "pa55w0rd", base64.StdEncoding.EncodeToString([]byte(password)), line} {
				if strings.Contains(all, text) {
					t.Errorf("%q is in the output:\n%s", text, all)
				}
			}
			if !strings.Contains(all, "visible {}") || !strings.Contains(all, "***") {
				t.Errorf("more than the secret is hidden:\n%s", all)
			}
			if fail {
				fails(t, err, step.ExitSource, "; its last output:\n    {\n    ***\n    https://***@example.invalid/\n    }")
				return
			}
			tag, _ := name.NewTag(o.Repository.Tag(revision), name.Insecure)
			img, err := remote.Image(tag)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := img.RawConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			inside := string(raw)
			for file, text := range content(t, img) {
				inside += file + text
			}
			if strings.Contains(inside, password) {
				t.Error("the secret is in the image")
			}
		})
	}
	o.Secrets = Secrets{"netrc": "/no/such/file"}
	_, err := Run(t.Context(), quiet, o)
	fails(t, err, step.ExitInvalid, `reading the build secret "netrc": open /no/such/file: no such file or directory`)
}

// A cache mount is its repository's own, also against the ids that would lead from one
// namespace into another. It is no part of the image, and changes nothing about the
// cache of layers.
func TestCacheMounts(t *testing.T) {
	const mount = "RUN --mount=type=cache,target=/c"
	o := prepare(t, map[string]string{"app/Dockerfile": base + mount + ",id=shared echo mine > /c/file\n"})
	owner := o.Repository.Name + "/app"
	o.Repository.Name = owner
	_, img := mustBuild(t, o)
	raw, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if text := string(raw); strings.Contains(text, "CACHE_MOUNT_NS") || strings.Contains(text, o.Repository.String()) {
		t.Errorf("the namespace is in the image: %s", text)
	}
	o.Revision = "8" + revision[1:]
	if again, _ := mustBuild(t, o); again.Cached < 1 {
		t.Errorf("the same instructions are not cached: %+v", again)
	}

	look := func(repository image.Name, id, revision string) string {
		t.Helper()
		o := o
		o.Dir, o.Repository.Name, o.Revision = t.TempDir(), repository, gitref.Revision(revision)
		write(t, o.Dir, "app/Dockerfile", base+mount+",id="+id+" cat /c/file > /seen || echo nothing > /seen # "+revision+"\n")
		_, img := mustBuild(t, o)
		return content(t, img)["seen"]
	}
	if got := look(owner, "shared", "9"+string(revision[1:])); got != "mine\n" {
		t.Errorf("the repository finds %q in its own cache mount", got)
	}
	parent, _, _ := strings.Cut(string(owner), "/")
	for i, attempt := range []struct {
		repository image.Name
		id         string
	}{
		{owner + "2", "shared"},
		{owner + "/sub", "shared"},
		{image.Name(parent), "shared"},
		{image.Name(parent), "app/shared"},
		{image.Name(parent), "app:/shared"},
		{image.Name(parent), "../app:/shared"},
		{owner + "2", cacheMounts(o.Repository) + "/shared"},
		{owner + "2", "/shared"},
		{owner + "2", "../" + cacheMounts(o.Repository) + "/shared"},
	} {
		if got := look(attempt.repository, attempt.id, fmt.Sprintf("a%d", i)+string(revision[2:])); got != "nothing\n" {
			t.Errorf("%s finds %q by the id %s", attempt.repository, got, attempt.id)
		}
	}
}

// An app that runs another's instruction first, over what it has put into the cache mount
// and secret of the same name, does not have its result taken for the other's.
func TestResultsAreNotShared(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(secret, []byte("poison-secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	const instruction = base + "RUN --mount=type=cache,id=shared,target=/c --mount=type=secret,id=s ls /c > /result; cat /run/secrets/s >> /result\n"
	o := prepare(t, map[string]string{"app/Dockerfile": strings.Replace(base, "\n", " AS first\n", 1) +
		"RUN --mount=type=cache,id=shared,target=/c touch /c/poison-file; echo done > /done\n" + strings.Replace(instruction, "\n", "\nCOPY --from=first /done /done\n", 1)})
	o.Secrets = Secrets{"s": secret}
	// COPY comes first, so that the folder is filled; the other copies the same file.
	if _, img := mustBuild(t, o); content(t, img)["result"] != "poison-file\npoison-secret" {
		t.Fatalf("the attacker's own result is %q", content(t, img)["result"])
	}
	victim := o
	victim.Dir, victim.Repository.Name = t.TempDir(), o.Repository.Name+"/victim"
	victim.Secrets = Secrets{"s": filepath.Join(t.TempDir(), "s")}
	if err := os.WriteFile(victim.Secrets["s"], []byte("victims-own"), 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, victim.Dir, "app/Dockerfile", strings.Replace(instruction, "\n", "\nCOPY done /done\n", 1))
	write(t, victim.Dir, "app/done", "done\n")
	if _, img := mustBuild(t, victim); content(t, img)["result"] != "victims-own" {
		t.Errorf("the victim's result is %q", content(t, img)["result"])
	}
}

// The cache in the registry serves a daemon that has none.
func TestRegistryCache(t *testing.T) {
	for _, mode := range []Cache{CacheMin, CacheMax} {
		t.Run(string(mode), func(t *testing.T) {
			o := prepare(t, map[string]string{"app/Dockerfile": strings.Replace(base, "\n", " AS early\n", 1) + "RUN echo early" + string(mode) + " > /x\n" + base + "COPY --from=early /x /x\nRUN echo late" + string(mode) + "\n"})
			o.Cache = mode
			first, _ := mustBuild(t, o)
			fresh, err := parts.StartBuildKit(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer fresh.Stop()
			o.Addresses, o.Revision = []string{fresh.Address}, "8"+revision[1:]
			second, _ := mustBuild(t, o)
			t.Logf("cached %d of %d", second.Cached, second.Total)
			// The base image's own steps count as cached only when they are there.
			if second.Cached == 0 || first.Total != second.Total {
				t.Errorf("first %+v, second %+v", first, second)
			}
		})
	}
}

// B3: without its cache a build goes on, and says so.
func TestBrokenCache(t *testing.T) {
	o := prepare(t, map[string]string{"app/Dockerfile": "FROM scratch\nCOPY x /x\n", "app/x": "x"})
	o.Cache = CacheMax
	noCache, err := random.Image(100, 1)
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(o.Repository.String()+":buildcache", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, noCache); err != nil {
		t.Fatal(err)
	}
	mustBuild(t, o)

	proxy := fault.New(t, "http://"+parts.RegistryAddress)
	for name, handler := range map[string]fault.Handler{
		"export refused": fault.Status(403, func(r *http.Request) bool {
			return r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/buildcache")
		}),
		"export broken": fault.Status(500, func(r *http.Request) bool {
			return r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/buildcache")
		}),
		"import broken": fault.Status(500, func(r *http.Request) bool {
			return r.Method != http.MethodPut && strings.HasSuffix(r.URL.Path, "/buildcache")
		}),
	} {
		t.Run(name, func(t *testing.T) {
			proxy.Handle(handler)
			o := o
			o.Repository = image.Repository{Registry: image.Registry(proxy.Address), Name: image.Name(imageName(t.Name()))}
			var log bytes.Buffer
			var shown progress
			o.Progress = &shown
			if _, err := Run(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), o); err != nil {
				t.Fatalf("%v\n%s", err, shown.String())
			}
			if !strings.Contains(log.String(), "going on without the registry cache") {
				t.Errorf("the log says nothing of it:\n%s\n%s", &log, shown.String())
			}
		})
	}
	// A first build has no cache to import, and a failing one shows its own
	// output all the same.
	o = prepare(t, map[string]string{"app/Dockerfile": base + "RUN echo the reason; false\n"})
	o.Repository.Name, o.Cache = "no-cache-yet", CacheMin
	_, err = Run(t.Context(), quiet, o)
	fails(t, err, step.ExitSource, "; its last output:\n    the reason")
}

// What is wrong, whose fault it is, and what the error says.
func TestFailures(t *testing.T) {
	for name, test := range map[string]struct {
		dockerfile string
		change     func(*Options)
		code       int
		parts      []string
	}{
		"no Dockerfile":     {"", nil, step.ExitSource, []string{`building registry:80/testfailures-no-dockerfile:7222512345e2: opening the Dockerfile of "app": "Dockerfile": file does not exist in this revision`}},
		"empty Dockerfile":  {"\n", nil, step.ExitSource, []string{"file with no instructions"}},
		"broken Dockerfile": {"FROM scratch\nRUNN x\n", nil, step.ExitSource, []string{"unknown instruction: RUNN"}},
		"failing RUN":       {base + "RUN for i in $(seq 30); do echo line $i; done; exit 7\n", nil, step.ExitSource, []string{"exit code: 7", "; its last output:\n    line 19\n", "\n    line 30"}},
		"no space":          {base + "RUN echo 'dd: error writing: No space left on device' >&2; exit 1\n", nil, step.ExitRetry, []string{"the builder has no space left"}},
		"killed RUN":        {base + "RUN sh -c 'kill -9 $$'; exit $?\n", nil, step.ExitRetry, []string{"exit code: 137", "want of memory"}},
		"missing program":   {base + "RUN no-such-program\n", nil, step.ExitSource, []string{"exit code: 127", "no-such-program: not found"}},
		"missing COPY":      {"FROM scratch\nCOPY nothing /\n", nil, step.ExitSource, []string{`"/nothing": not found`}},
		"COPY from outside": {"FROM scratch\nCOPY ../secret /\n", nil, step.ExitSource, []string{`"/secret": not found`}},
		"unknown base":      {"FROM registry:80/base/nothing:1\n", nil, step.ExitSource, []string{"registry:80/base/nothing:1", "not found"}},
		"unknown stage":     {"FROM scratch\nCOPY x /\n", func(o *Options) { o.Target = "nothing" }, step.ExitSource, []string{`target stage "nothing" could not be found`}},
		"insecure RUN":      {"FROM registry:80/base/busybox:latest\nRUN --security=insecure id\n", nil, step.ExitSource, []string{"security.insecure"}},
		"missing secret":    {base + "RUN --mount=type=secret,id=nothing,required=true id\n", nil, step.ExitSource, []string{"secret nothing: not found"}},
		"bad ARG":           {base + "ARG A=${B?missing}\nRUN echo $A\n", nil, step.ExitSource, []string{"missing"}},
		"no context":        {"FROM scratch\n", func(o *Options) { o.Context = "nothing" }, step.ExitSource, []string{`opening the context: "nothing": file does not exist in this revision`}},
		"no clone":          {"FROM scratch\n", func(o *Options) { o.Dir = "/no/such/folder" }, step.ExitInvalid, []string{"opening the clone: lstat /no: no such file or directory"}},
		"base from nowhere": {"FROM 127.0.0.1:1/base:1\n", nil, step.ExitRetry, []string{"connection refused"}},
		"ADD from nowhere":  {"FROM scratch\nADD http://127.0.0.1:1/x /x\n", nil, step.ExitRetry, []string{"connection refused"}},
		"registry down":     {"FROM scratch\n", func(o *Options) { o.Repository.Registry = "127.0.0.1:1" }, step.ExitRetry, []string{"the registry cannot be reached"}},
		"daemon down":       {"FROM scratch\nCOPY x /\n", func(o *Options) { o.Addresses = []string{"unix:///no/such/socket"} }, step.ExitRetry, []string{"the builder at unix:///no/such/socket cannot be reached", "; is buildkitd running there?"}},
		"daemon down, TCP":  {"FROM scratch\nCOPY x /\n", func(o *Options) { o.Addresses = []string{"tcp://127.0.0.1:1"} }, step.ExitRetry, []string{"the builder at tcp://127.0.0.1:1 cannot be reached", "connection refused"}},
		"all daemons down":  {"FROM scratch\nCOPY x /\n", func(o *Options) { o.Addresses = []string{"tcp://127.0.0.1:1", "unix:///no/such/socket"} }, step.ExitRetry, []string{"no builder can be reached", "tcp://127.0.0.1:1", "unix:///no/such/socket"}},
		"not a daemon":      {"FROM scratch\nCOPY x /\n", func(o *Options) { o.Addresses = []string{"tcp://registry:80"} }, step.ExitRetry, []string{"the builder at tcp://registry:80 cannot be reached"}},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{"app/x": "x", "secret": "s"}
			if test.dockerfile != "" {
				files["app/Dockerfile"] = test.dockerfile
			}
			o := prepare(t, files)
			if test.change != nil {
				test.change(&o)
			}
			ctx, cancel := deadline()
			defer cancel()
			result, err := Run(ctx, quiet, o)
			fails(t, err, test.code, test.parts...)
			if result.Digest != "" {
				t.Errorf("a digest beside the error: %+v", result)
			}
		})
	}
}

// What the registry does to a push.
func TestPushFaults(t *testing.T) {
	manifest := func(r *http.Request) bool {
		return r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/")
	}
	for name, test := range map[string]struct {
		handler fault.Handler
		code    int
		parts   []string
	}{
		"500": {fault.Status(500, manifest), step.ExitRetry, []string{"500 Internal Server Error"}},
		"403": {fault.Status(403, manifest), step.ExitInvalid, []string{"403 Forbidden", "the registry refuses"}},
		"401": {fault.Status(401, manifest), step.ExitInvalid, []string{"401 Unauthorized", "the registry refuses"}},
		"hang up": {func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if manifest(r) {
				if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
					conn.Close()
				}
				return
			}
			next.ServeHTTP(w, r)
		}, step.ExitRetry, []string{"failed to push", "failed to do request"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the daemon waits between its tries
			o := prepare(t, map[string]string{"app/Dockerfile": "FROM scratch\nCOPY x /\n", "app/x": "x"})
			proxy := fault.New(t, "http://"+parts.RegistryAddress)
			proxy.Handle(test.handler)
			o.Repository.Registry = image.Registry(proxy.Address)
			ctx, cancel := deadline()
			defer cancel()
			_, err := Run(ctx, quiet, o)
			fails(t, err, test.code, test.parts...)
		})
	}
}

// G1: a daemon that was not told of the registry's plain HTTP.
func TestDaemonWithoutPlainHTTP(t *testing.T) {
	o := prepare(t, map[string]string{"app/Dockerfile": "FROM scratch\nCOPY x /\n", "app/x": "x"})
	daemon, err := parts.StartBuildKit(t.Context(), "# nothing\n")
	if err != nil {
		t.Fatal(err)
	}
	defer daemon.Stop()
	o.Addresses = []string{daemon.Address}
	const hint = `declare "registry:80" with http = true in its buildkitd.toml`
	_, err = Run(t.Context(), quiet, o) // push
	fails(t, err, step.ExitInvalid, hint)
	write(t, o.Dir, "app/Dockerfile", base)
	_, err = Run(t.Context(), quiet, o) // pull
	fails(t, err, step.ExitInvalid, hint)
}

// B2: the daemon dies in mid-build.
func TestDaemonKilled(t *testing.T) {
	o := prepare(t, map[string]string{"app/Dockerfile": base + "RUN echo be''gun; sleep 3541\n"})
	daemon, err := parts.StartBuildKit(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer daemon.Stop()
	o.Addresses = []string{daemon.Address}
	err, took := interrupt(t, o, "begun", func(context.CancelFunc) {
		if err := daemon.Kill(); err != nil {
			t.Error(err)
		}
	})
	fails(t, err, step.ExitRetry, "the builder at "+daemon.Address+" went away: ")
	t.Logf("ended %v after the kill", took)
	if err := daemon.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	write(t, o.Dir, "app/Dockerfile", base+"RUN echo again\n")
	mustBuild(t, o)
}

// B2: the build is cancelled; the daemon stops it.
func TestCancel(t *testing.T) {
	o := prepare(t, map[string]string{"app/Dockerfile": base + "RUN echo be''gun; sleep 3542\n"})
	err, took := interrupt(t, o, "begun", func(cancel context.CancelFunc) { cancel() })
	fails(t, err, step.ExitRetry, "building registry:80/testcancel:7222512345e2: cut off: context canceled")
	t.Logf("ended %v after the cancellation", took)
	waitFor(t, "the build is over", func() bool { return builds(t, o.Addresses[0], true) == 0 && !runs("sleep 3542") })
}

// A daemon that does not answer any more does not hold a cancelled build.
func TestCancelWithFrozenDaemon(t *testing.T) {
	o := prepare(t, map[string]string{"app/Dockerfile": base + "RUN echo be''gun; sleep 3543\n"})
	daemon, err := parts.StartBuildKit(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer daemon.Kill()
	o.Addresses = []string{daemon.Address}
	err, took := interrupt(t, o, "begun", func(cancel context.CancelFunc) {
		if err := exec.Command("kill", "-STOP", fmt.Sprint(daemon.PID())).Run(); err != nil {
			t.Error(err)
		}
		cancel()
	})
	fails(t, err, step.ExitRetry, "cut off: context canceled")
	t.Logf("ended %v after the cancellation", took)
}

// interrupt builds until the output holds the text, then calls act, and gives
// the build's error and how long it took to end.
func interrupt(t *testing.T, o Options, text string, act func(context.CancelFunc)) (error, time.Duration) {
	t.Helper()
	var shown progress
	o.Progress = &shown
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := Run(ctx, quiet, o)
		done <- err
	}()
	waitFor(t, "the output holds "+text, func() bool {
		select {
		case err := <-done:
			t.Fatalf("it ended: %v\n%s", err, shown.String())
		default:
		}
		return strings.Contains(shown.String(), text)
	})
	start := time.Now()
	act(cancel)
	select {
	case err := <-done:
		return err, time.Since(start).Round(time.Millisecond)
	case <-time.After(time.Minute):
		t.Fatal("the build does not end")
		return nil, 0
	}
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited for a minute: %s", what)
		}
	}
}

// B5: the ignore file, as the Dockerfile reference has it.
func TestDockerignore(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"none":              {nil, []string{"Dockerfile", "a.log", "keep.log", "sub/b.log", "sub/c.txt"}},
		"plain":             {map[string]string{"app/.dockerignore": "# a comment\n\n*.log\nDockerfile\n"}, []string{".dockerignore", "sub/b.log", "sub/c.txt"}},
		"CRLF":              {map[string]string{"app/.dockerignore": "**/*.log\r\n!keep.log\r\nDockerfile\r\n"}, []string{".dockerignore", "keep.log", "sub/c.txt"}},
		"negation":          {map[string]string{"app/.dockerignore": "*\n!sub\nsub/*.log\n"}, []string{"sub/c.txt"}},
		"byte order mark":   {map[string]string{"app/.dockerignore": "\xef\xbb\xbf*.log\n"}, []string{".dockerignore", "Dockerfile", "sub/b.log", "sub/c.txt"}},
		"link inside":       {map[string]string{"app/.dockerignore": "-> sub/ignore", "app/sub/ignore": "**/*.log\n"}, []string{".dockerignore", "Dockerfile", "sub/c.txt", "sub/ignore"}},
		"of the Dockerfile": {map[string]string{"app/.dockerignore": "sub\n", "app/Dockerfile.dockerignore": "*.log\n.dockerignore\nDockerfile*\n"}, []string{"sub/b.log", "sub/c.txt"}},
		"its link":          {map[string]string{"app/Dockerfile.dockerignore": "-> sub/ignore", "app/sub/ignore": "**/*.log\nDockerfile*\n"}, []string{"sub/c.txt", "sub/ignore"}},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{"app/Dockerfile": "FROM scratch\nCOPY . /\n", "app/a.log": "a", "app/keep.log": "k", "app/sub/b.log": "b", "app/sub/c.txt": "c"}
			for name, text := range test.files {
				files[name] = text
			}
			_, img := mustBuild(t, prepare(t, files))
			got := content(t, img)
			for _, name := range test.want {
				if _, ok := got[name]; !ok {
					t.Errorf("%q is missing", name)
				}
				delete(got, name)
			}
			for name := range got {
				t.Errorf("%q is there", name)
			}
		})
	}
}

// C2, B5: links that lead out are refused by name; links in the context are
// copied as links.
func TestLinks(t *testing.T) {
	const dockerfile = "FROM scratch\nCOPY . /\n"
	for name, test := range map[string]struct {
		files   map[string]string
		context gitref.Path
		want    string // empty for success
	}{
		"context out":                {map[string]string{"app": "-> ../.."}, "app", `opening the context: "app" is a symbolic link that leads out of the repository or context`},
		"context absolute":           {map[string]string{"app": "-> /etc"}, "app", `opening the context: "app" is a symbolic link that leads out of the repository or context`},
		"context through a link":     {map[string]string{"up": "-> ..", "x": "x"}, "up/app", `opening the context: "up/app": file does not exist in this revision`},
		"context nowhere":            {map[string]string{"app": "-> nothing"}, "app", `opening the context: "app" is a symbolic link that leads nowhere`},
		"context a file":             {map[string]string{"app": "x"}, "app", `opening the context "app": it is not a folder`},
		"Dockerfile absolute":        {map[string]string{"app/Dockerfile": "-> /etc/passwd"}, "app", `opening the Dockerfile of "app": "Dockerfile" is a symbolic link that leads out of the repository or context`},
		"Dockerfile above":           {map[string]string{"app/Dockerfile": "-> ../other", "other": dockerfile}, "app", `opening the Dockerfile of "app": "Dockerfile" is a symbolic link that leads out of the repository or context`},
		"Dockerfile nowhere":         {map[string]string{"app/Dockerfile": "-> nothing"}, "app", `opening the Dockerfile of "app": "Dockerfile" is a symbolic link that leads nowhere`},
		"Dockerfile in a circle":     {map[string]string{"app/Dockerfile": "-> Dockerfile"}, "app", `opening the Dockerfile of "app": "Dockerfile": EvalSymlinks: too many links`},
		"Dockerfile a folder":        {map[string]string{"app/Dockerfile/x": "x"}, "app", `reading the Dockerfile "app/Dockerfile": it is not a regular file`},
		"Dockerfile huge":            {map[string]string{"app/Dockerfile": dockerfile + strings.Repeat("# x\n", 1<<18)}, "app", `reading the Dockerfile "app/Dockerfile": it is larger than 1 MiB`},
		"ignore file absolute":       {map[string]string{"app/Dockerfile": dockerfile, "app/.dockerignore": "-> /etc/hosts"}, "app", `opening the ignore file: ".dockerignore" is a symbolic link that leads out of the repository or context`},
		"ignore file above":          {map[string]string{"app/Dockerfile": dockerfile, "app/.dockerignore": "-> ../other", "other": "x"}, "app", `opening the ignore file: ".dockerignore" is a symbolic link that leads out of the repository or context`},
		"ignore file nowhere":        {map[string]string{"app/Dockerfile": dockerfile, "app/.dockerignore": "-> nothing"}, "app", `opening the ignore file: ".dockerignore" is a symbolic link that leads nowhere`},
		"Dockerfile's ignore file":   {map[string]string{"app/Dockerfile": dockerfile, "app/Dockerfile.dockerignore": "-> /etc/hosts"}, "app", `opening the ignore file: "Dockerfile.dockerignore" is a symbolic link that leads out of the repository or context`},
		"Dockerfile inside":          {map[string]string{"app/Dockerfile": "-> docker/one", "app/docker/one": dockerfile, "app/passwd": "-> /etc/passwd", "app/up": "-> ../../.."}, "app", ""},
		"context by a link inside":   {map[string]string{"app": "-> real", "real/Dockerfile": dockerfile}, "app", ""},
		"context is the whole clone": {map[string]string{"Dockerfile": dockerfile}, ".", ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := prepare(t, nil)
			for name, text := range test.files {
				write(t, o.Dir, name, text)
			}
			o.Context = test.context
			if test.want == "" {
				_, img := mustBuild(t, o)
				for name, target := range map[string]string{"passwd": "-> /etc/passwd", "up": "-> ../../.."} {
					if got := content(t, img)[name]; test.files["app/"+name] != "" && got != target {
						t.Errorf("%q became %q", name, got)
					}
				}
				return
			}
			_, err := Run(t.Context(), quiet, o)
			fails(t, err, step.ExitSource, test.want)
		})
	}
}

// B1: a syntax line leads to the built-in frontend, to the configured one, or
// to an error; never to a registry of its own choice.
func TestSyntaxLine(t *testing.T) {
	const rest = "\nFROM scratch\nCOPY x /x\n"
	for name, test := range map[string]struct {
		dockerfile string
		frontends  frontend.Allowed
		code       int
		want       string
	}{
		"Docker's":         {"# syntax=docker/dockerfile:1.7-labs" + rest, frontend.Default(), step.ExitOK, ""},
		"by its full name": {"#syntax = docker.io/docker/dockerfile@sha256:" + strings.Repeat("a", 64) + rest, frontend.Default(), step.ExitOK, ""},
		"shebang":          {"#!/usr/bin/x\n# syntax=docker/dockerfile:1" + rest, frontend.Default(), step.ExitOK, ""},
		"not a directive":  {"# a comment\n# syntax=evil.invalid/x" + rest, frontend.Default(), step.ExitOK, ""},
		"unknown":          {"# syntax=evil.invalid/frontend:1" + rest, frontend.Default(), step.ExitSource, `reading app/Dockerfile:1: it asks for the frontend "evil.invalid/frontend:1", which is not allowed here; remove the "# syntax=" line, or list the frontend under builder.frontends (allowed: docker/dockerfile)`},
		"second line":      {"# escape=`\n# Syntax=evil.invalid/x" + rest, frontend.Default(), step.ExitSource, `reading app/Dockerfile:2: it asks for the frontend "evil.invalid/x"`},
		"other comment":    {"// syntax=evil.invalid/x" + rest, frontend.Default(), step.ExitSource, `it asks for the frontend "evil.invalid/x"`},
		"JSON":             {`{"syntax": "evil.invalid/x"}`, frontend.Default(), step.ExitSource, `it asks for the frontend "evil.invalid/x"`},
		"byte order mark":  {"\xef\xbb\xbf# syntax=evil.invalid/x" + rest, frontend.Default(), step.ExitSource, `it asks for the frontend "evil.invalid/x"`},
		"similar":          {"# syntax=evil.invalid/docker/dockerfile" + rest, frontend.Default(), step.ExitSource, `it asks for the frontend "evil.invalid/docker/dockerfile"`},
		"nothing allowed":  {"# syntax=docker/dockerfile:1" + rest, nil, step.ExitSource, `(allowed: none)`},
		"replacement missing": {"# syntax=docker/dockerfile:1" + rest, frontend.Allowed{"docker/dockerfile": "registry:80/frontends/nothing:1"}, step.ExitInvalid,
			"the frontend that builder.frontends names is not there; push it, or correct its name: failed to solve: failed with build-arg:BUILDKIT_SYNTAX = registry:80/frontends/nothing:1: failed to resolve source metadata for registry:80/frontends/nothing:1: registry:80/frontends/nothing:1: not found"},
		"replacement unreachable": {"# syntax=docker/dockerfile:1" + rest, frontend.Allowed{"docker/dockerfile": "127.0.0.1:1/frontend:1"}, step.ExitRetry, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			o := prepare(t, map[string]string{"app/Dockerfile": test.dockerfile, "app/x": "x"})
			o.Frontends = test.frontends
			if test.code == step.ExitOK {
				mustBuild(t, o)
				return
			}
			ctx, cancel := deadline()
			defer cancel()
			_, err := Run(ctx, quiet, o)
			fails(t, err, test.code, test.want)
		})
	}
}

// The configured replacement is really what reads the Dockerfile.
func TestReplacedFrontend(t *testing.T) {
	program := filepath.Join(t.TempDir(), "frontend")
	compile := exec.Command("go", "build", "-C", "../../bench/tools/buildkit", "-mod=readonly", "-ldflags=-s -w", "-o", program, "github.com/moby/buildkit/frontend/dockerfile/cmd/dockerfile-frontend")
	compile.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("building the frontend: %v\n%s", err, out)
	}
	o := prepare(t, map[string]string{"app/Dockerfile": "# syntax=docker/dockerfile:99\nFROM scratch\nCOPY x /x\n", "app/x": "x"})
	pushProgram(t, "registry:80/frontends/dockerfile:1", program)
	o.Frontends = frontend.Allowed{"docker/dockerfile": "registry:80/frontends/dockerfile:1"}
	var shown progress
	o.Progress = &shown
	_, img := mustBuild(t, o)
	if content(t, img)["x"] != "x" {
		t.Error("the image lacks its file")
	}
	if !strings.Contains(shown.String(), "docker-image://registry:80/frontends/dockerfile:1") {
		t.Errorf("the replacement was not used:\n%s", shown.String())
	}
}

// pushProgram pushes an image that holds and runs one static program.
func pushProgram(t *testing.T, ref, program string) {
	t.Helper()
	raw, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(tarOf("frontend", raw))
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{
		OS: "linux", Architecture: "amd64", RootFS: rootFS(t, img), Config: v1.Config{Entrypoint: []string{"/frontend"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, img); err != nil {
		t.Fatal(err)
	}
}
