package digest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
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
	"github.com/google/go-containerregistry/pkg/v1/types"

	"fabrique/bench/fault"
	"fabrique/bench/parts"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/step"
)

func TestMain(m *testing.M) { parts.Main(m) }

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

const (
	revision = gitref.Revision("7222512345e2aa0b8d4f6c1e9037b5d8a6c4f210")
	key      = gitref.SourceKey("00000000000000000000000000000000000000000000000000000000000000aa")
)

// options asks for revision of the image in the registry.
func options(registry, name string) Options {
	return Options{
		Repository: image.Repository{Registry: image.Registry(registry), Name: image.Name(name)},
		Revision:   revision, Platform: "linux/amd64", PlainHTTP: true,
	}
}

// build makes an image with one layer.
func build(t *testing.T, platform v1.Platform, labels map[string]string) v1.Image {
	t.Helper()
	layer, err := random.Layer(1000, types.OCILayer)
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1), layer)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = platform.OS, platform.Architecture, platform.Variant
	config.Config.Labels = labels
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}

func ours() map[string]string {
	return map[string]string{image.LabelRevision: string(revision), image.LabelSourceKey: string(key)}
}

var amd64 = v1.Platform{OS: "linux", Architecture: "amd64"}

// push puts an image or index under the revision's tag.
func push(t *testing.T, to string, what remote.Taggable) {
	t.Helper()
	tag, err := name.NewTag(to+":"+revision.Short(), name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	switch what := what.(type) {
	case v1.ImageIndex:
		err = remote.WriteIndex(tag, what)
	case v1.Image:
		err = remote.Write(tag, what)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func digestOf(t *testing.T, what interface{ Digest() (v1.Hash, error) }) image.Digest {
	t.Helper()
	hash, err := what.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return image.Digest(hash.String())
}

func sizeOf(t *testing.T, img v1.Image) int64 {
	t.Helper()
	manifest, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	return manifest.Config.Size + manifest.Layers[0].Size
}

// fails checks an error's exit code and text.
func fails(t *testing.T, err error, code int, want string) {
	t.Helper()
	got := fmt.Sprint(err)
	if step.ExitCode(err) != code {
		t.Errorf("exit code %d, want %d", step.ExitCode(err), code)
	}
	got = regexp.MustCompile(`127\.0\.0\.1:[0-9]+`).ReplaceAllString(got, "HOST")
	got = regexp.MustCompile(`sha256:[0-9a-f]{64}`).ReplaceAllString(got, "DIGEST")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestInspect(t *testing.T) {
	registry := parts.Registry(t).Address
	img := build(t, amd64, ours())
	push(t, registry+"/team/app", img)
	want := Result{
		Digest: digestOf(t, img), MediaType: string(types.OCIManifestSchema1),
		Platforms: []image.Platform{"linux/amd64"}, Size: sizeOf(t, img),
		Image: registry + "/team/app@" + string(digestOf(t, img)),
	}
	o := options(registry, "team/app")
	o.SourceKey, o.Expect = key, want.Digest
	got, err := Inspect(t.Context(), quiet, o)
	if err != nil || cmp.Diff(want, got) != "" {
		t.Error(err, cmp.Diff(want, got))
	}
	// A Docker manifest, with no source key to compare.
	docker := mutate.MediaType(mutate.ConfigMediaType(build(t, amd64, map[string]string{image.LabelRevision: string(revision)}), types.DockerConfigJSON), types.DockerManifestSchema2)
	push(t, registry+"/docker", docker)
	o = options(registry, "docker")
	o.SourceKey = key
	if got, err = Inspect(t.Context(), quiet, o); err != nil || got.MediaType != string(types.DockerManifestSchema2) || got.Digest != digestOf(t, docker) {
		t.Error(got, err)
	}
}

// G2: an index with an attestation gives its own digest and the real platforms.
func TestIndex(t *testing.T) {
	registry := parts.Registry(t).Address
	img := build(t, amd64, ours())
	arm := v1.Platform{OS: "linux", Architecture: "arm64", Variant: "v8"}
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex),
		mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &amd64}},
		mutate.IndexAddendum{Add: build(t, arm, ours()), Descriptor: v1.Descriptor{Platform: &arm}},
		mutate.IndexAddendum{
			Add: build(t, v1.Platform{OS: "unknown", Architecture: "unknown"}, nil),
			Descriptor: v1.Descriptor{
				Platform:    &v1.Platform{OS: "unknown", Architecture: "unknown"},
				Annotations: map[string]string{"vnd.docker.reference.type": "attestation-manifest"},
			},
		})
	push(t, registry+"/index", index)
	want := Result{
		Digest: digestOf(t, index), MediaType: string(types.OCIImageIndex),
		Platforms: []image.Platform{"linux/amd64", "linux/arm64"}, Size: sizeOf(t, img),
		Image: registry + "/index@" + string(digestOf(t, index)),
	}
	o := options(registry, "index")
	got, err := Inspect(t.Context(), quiet, o)
	if err != nil || cmp.Diff(want, got) != "" {
		t.Error(err, cmp.Diff(want, got))
	}
	o.Platform = "linux/arm64"
	if _, err := Inspect(t.Context(), quiet, o); err != nil {
		t.Error(err)
	}
	o.Platform = "unknown/unknown"
	_, err = Inspect(t.Context(), quiet, o)
	fails(t, err, step.ExitInvalid, "inspecting registry:80/index:7222512345e2: it is not the wanted image: it is for linux/amd64, linux/arm64, wanted is unknown/unknown; build it for that platform")

	push(t, registry+"/hollow", mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	_, err = Inspect(t.Context(), quiet, options(registry, "hollow"))
	fails(t, err, step.ExitInvalid, "inspecting registry:80/hollow:7222512345e2: it is not the wanted image: it is for no platform, wanted is linux/amd64; build it for that platform")
}

func TestNotTheWantedImage(t *testing.T) {
	registry := parts.Registry(t).Address
	push(t, registry+"/arm", build(t, v1.Platform{OS: "linux", Architecture: "arm", Variant: "v7"}, ours()))
	push(t, registry+"/unlabelled", build(t, amd64, nil))
	push(t, registry+"/other-revision", build(t, amd64, map[string]string{image.LabelRevision: string(revision[:12]) + "ffffffffffffffffffffffffffff"}))
	push(t, registry+"/other-key", build(t, amd64, map[string]string{image.LabelRevision: string(revision), image.LabelSourceKey: "bb"}))
	push(t, registry+"/pushed-over", build(t, amd64, ours()))
	expect := image.Digest("sha256:" + strings.Repeat("0", 64))
	for name, test := range map[string]struct {
		expect image.Digest
		cause  error
		want   string
	}{
		"never-built":    {"", ErrNotFound, "the registry has no such tag; build this revision first"},
		"arm":            {"", ErrOther, "it is not the wanted image: it is for linux/arm/v7, wanted is linux/amd64; build it for that platform"},
		"unlabelled":     {"", ErrOther, `it is not the wanted image: its label org.opencontainers.image.revision is "", wanted is "` + string(revision) + `": it was not built from this revision`},
		"other-revision": {"", ErrOther, `it is not the wanted image: its label org.opencontainers.image.revision is "7222512345e2ffffffffffffffffffffffffffff", wanted is "` + string(revision) + `": it was not built from this revision`},
		"other-key":      {"", ErrOther, `it is not the wanted image: its label fabrique.source-key is "bb", wanted is "` + string(key) + `": it was built from this revision with other inputs`},
		// G4
		"pushed-over": {expect, nil, "the build reported DIGEST, but the registry has DIGEST: something else pushed this tag, or the push went wrong; nothing is deployed, run the build again"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(registry, name)
			o.SourceKey, o.Expect = key, test.expect
			got, err := Inspect(t.Context(), quiet, o)
			code := step.ExitInvalid
			if test.expect != "" {
				code = step.ExitRetry // a run beside this one may have pushed: the next finds its image
			}
			fails(t, err, code, "inspecting registry:80/"+name+":7222512345e2: "+test.want)
			if test.cause != nil && !errors.Is(err, test.cause) {
				t.Errorf("the error is not %q", test.cause)
			}
			if diff := cmp.Diff(Result{}, got); diff != "" {
				t.Errorf("a result beside the error: %s", diff)
			}
		})
	}
}

// What the registry does wrong, or the way to it.
func TestRegistryFaults(t *testing.T) {
	registry := parts.Registry(t).Address
	img := build(t, amd64, ours())
	push(t, registry+"/app", img)
	manifests := func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/manifests/") }
	blobs := func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/blobs/") }
	const access = "the registry refuses access: GET http://HOST/v2/app/manifests/7222512345e2: unexpected status code "
	for name, test := range map[string]struct {
		handler fault.Handler
		code    int
		want    string // empty for success
	}{
		// G3
		"no Docker-Content-Digest": {func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(withHeader{w, "Docker-Content-Digest", ""}, r)
		}, step.ExitOK, ""},
		"wrong Docker-Content-Digest": {func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(withHeader{w, "Docker-Content-Digest", "sha256:" + strings.Repeat("0", 64)}, r)
		}, step.ExitOK, ""},
		"500 once": {once(fault.Status(500, manifests)), step.ExitOK, ""},
		"cut once": {once(func(w http.ResponseWriter, r *http.Request, _ http.Handler) { hangUp(w) }), step.ExitOK, ""},
		"500": {fault.Status(500, manifests), step.ExitRetry,
			"the registry answers 500: GET http://HOST/v2/app/manifests/7222512345e2: unexpected status code 500 Internal Server Error: injected by the test\n"},
		"503 at first": {fault.Status(503, fault.All), step.ExitRetry,
			"the registry answers 503: GET http://HOST/v2/: unexpected status code 503 Service Unavailable: injected by the test\n"},
		"401":             {fault.Status(401, manifests), step.ExitInvalid, access + "401 Unauthorized: injected by the test\n"},
		"403":             {fault.Status(403, manifests), step.ExitInvalid, access + "403 Forbidden: injected by the test\n"},
		"not a registry":  {fault.Status(404, fault.All), step.ExitInvalid, "what answers at this address is not a registry; correct the address: GET http://HOST/v2/: unexpected status code 404 Not Found: injected by the test\n"},
		"lost its config": {fault.Status(404, blobs), step.ExitInvalid, "it is not the wanted image: the registry lost a part of it; build this revision again: GET http://HOST/v2/app/blobs/DIGEST: unexpected status code 404 Not Found: injected by the test\n"},
		"not a manifest": {func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if manifests(r) {
				w.Header().Set("Content-Type", "text/html")
				io.WriteString(w, "<html>")
				return
			}
			next.ServeHTTP(w, r)
		}, step.ExitRetry, "the registry cannot be reached or does not answer as one: invalid character '<' looking for beginning of value"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the client waits between its tries
			proxy := fault.New(t, "http://"+registry)
			proxy.Handle(test.handler)
			got, err := Inspect(t.Context(), quiet, options(proxy.Address, "app"))
			if test.want == "" {
				if err != nil || got.Digest != digestOf(t, img) {
					t.Error(got, err)
				}
				return
			}
			fails(t, err, test.code, "inspecting HOST/app:7222512345e2: "+test.want)
		})
	}
}

// withHeader changes a header of the answer, or takes it out.
type withHeader struct {
	http.ResponseWriter
	name, value string
}

func (w withHeader) WriteHeader(code int) {
	w.Header().Del(w.name)
	if w.value != "" {
		w.Header().Set(w.name, w.value)
	}
	w.ResponseWriter.WriteHeader(code)
}

// once lets only the first matching request meet the handler.
func once(h fault.Handler) fault.Handler {
	turn := make(chan struct{}, 1)
	turn <- struct{}{}
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !strings.Contains(r.URL.Path, "/manifests/") {
			next.ServeHTTP(w, r)
			return
		}
		select {
		case <-turn:
			h(w, r, next)
		default:
			next.ServeHTTP(w, r)
		}
	}
}

func hangUp(w http.ResponseWriter) {
	if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
		conn.Close()
	}
}

// G1: the scheme is what the configuration says, never a guess.
func TestScheme(t *testing.T) {
	registry := parts.Registry(t).Address
	push(t, registry+"/scheme", build(t, amd64, ours()))
	proxy := fault.New(t, "http://"+registry)
	to, err := url.Parse("http://" + registry)
	if err != nil {
		t.Fatal(err)
	}
	secure := httptest.NewUnstartedServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }})
	secure.Config.ErrorLog = slog.NewLogLogger(quiet.Handler(), slog.LevelInfo)
	secure.StartTLS()
	t.Cleanup(secure.Close)

	for name, test := range map[string]struct {
		address string
		plain   bool
		code    int
		want    string
	}{
		"HTTPS to HTTP":          {proxy.Address, false, step.ExitInvalid, "inspecting HOST/scheme:7222512345e2: the registry speaks HTTP, and HTTPS is configured; configure plain HTTP (--plain-http), or the registry's HTTPS address"},
		"HTTPS to HTTP, by name": {registry, false, step.ExitInvalid, "inspecting registry:80/scheme:7222512345e2: the registry speaks HTTP, and HTTPS is configured; configure plain HTTP (--plain-http), or the registry's HTTPS address"},
		"HTTP to HTTPS":          {strings.TrimPrefix(secure.URL, "https://"), true, step.ExitInvalid, "inspecting HOST/scheme:7222512345e2: the registry speaks HTTPS, and plain HTTP is configured; drop --plain-http, or name the registry's HTTP address"},
		"unknown issuer":         {strings.TrimPrefix(secure.URL, "https://"), false, step.ExitInvalid, "inspecting HOST/scheme:7222512345e2: the registry's certificate is not trusted: x509: certificate signed by unknown authority"},
		"nobody listens":         {"127.0.0.1:1", true, step.ExitRetry, "inspecting HOST/scheme:7222512345e2: the registry cannot be reached or does not answer as one: dial tcp HOST: connect: connection refused"},
		"nobody, HTTPS":          {"127.0.0.1:1", false, step.ExitRetry, "inspecting HOST/scheme:7222512345e2: the registry cannot be reached or does not answer as one: dial tcp HOST: connect: connection refused"},
		"without its port":       {"registry", true, step.ExitInvalid, `inspecting registry/scheme:7222512345e2: parsing the reference: strict validation requires the registry to be explicitly defined`},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(test.address, "scheme")
			o.PlainHTTP = test.plain
			_, err := Inspect(t.Context(), quiet, o)
			fails(t, err, test.code, test.want)
		})
	}
	_, err = Inspect(t.Context(), quiet, options("no-such-host.invalid:80", "scheme"))
	if step.ExitCode(err) != step.ExitRetry || !strings.HasPrefix(err.Error(), "inspecting no-such-host.invalid:80/scheme:7222512345e2: the registry cannot be reached or does not answer as one: dial tcp") {
		t.Error(err)
	}
}

// A registry that does not go on answering does not hold a cancelled call.
func TestCancel(t *testing.T) {
	registry := parts.Registry(t).Address
	push(t, registry+"/cancel", build(t, amd64, ours()))
	proxy := fault.New(t, "http://"+registry)
	handler, stalled := fault.Stall("/manifests/", 10)
	proxy.Handle(handler)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error)
	go func() {
		_, err := Inspect(ctx, quiet, options(proxy.Address, "cancel"))
		done <- err
	}()
	<-stalled
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) || step.ExitCode(err) != step.ExitRetry {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the call does not end")
	}
}

// The log says what was found.
func TestLog(t *testing.T) {
	registry := parts.Registry(t).Address
	img := build(t, amd64, ours())
	push(t, registry+"/logged", img)
	var log bytes.Buffer
	if _, err := Inspect(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), options(registry, "logged")); err != nil {
		t.Fatal(err)
	}
	if want := "msg=inspected image=registry:80/logged:7222512345e2 digest=" + string(digestOf(t, img)) + "\n"; !strings.HasSuffix(log.String(), want) {
		t.Errorf("the log is %q, want %q at its end", log.String(), want)
	}
}
