package bundle

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"fabrique/bench/parts"
	"fabrique/steps/image"
	"fabrique/steps/step"
)

func request(t *testing.T, method, url string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode >= 300 {
		t.Fatalf("%s %s: %s", method, url, answer.Status)
	}
}

// upstream is a registry of another make, in the place of all of upstream's.
func upstream(t *testing.T, handler func(http.Handler) http.Handler) (Origin, string) {
	t.Helper()
	listener, err := net.Listen("tcp", parts.Address()+":0")
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler(ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0))))}}
	server.Start()
	t.Cleanup(server.Close)
	from, err := ParseOrigin(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return from, listener.Addr().String()
}

func same(h http.Handler) http.Handler { return h }

func TestMirror(t *testing.T) {
	parts.Registry(t)
	p := planned(t, "copied")
	from, address := upstream(t, same)
	ctx, c := t.Context(), configured(t, "")
	copyOf := func(i Image, locked *Image) (bool, error) { return Mirror(ctx, c, from, i, locked, io.Discard) }

	_, err := copyOf(p.Images[0], nil)
	wants(t, err, step.ExitInvalid, "the registry does not have it")

	digests := map[string]string{}
	for n, i := range p.Images {
		ref, err := parseSource(i.Source)
		if err != nil {
			t.Fatal(err)
		}
		digests[i.Source] = push(t, address+"/"+ref.Context().RepositoryStr()+":"+ref.Identifier(), index(t, int64(n)))
	}
	for _, wantCopied := range []bool{true, false} {
		for _, i := range p.Images {
			copied, err := copyOf(i, nil)
			if err != nil || copied != wantCopied {
				t.Errorf("%s: copied %v, %v; want %v", i.Source, copied, err, wantCopied)
			}
		}
	}
	// The registry has the indexes whole, by upstream's digest.
	dir, lock := bundled(t, p)
	for _, i := range lock.Images {
		if string(i.Digest) != digests[i.Source] {
			t.Errorf("%s became %s, upstream has %s", i.Source, i.Digest, digests[i.Source])
		}
	}
	if got, err := checkAll(ctx, dir, c); err != nil || len(got) > 0 {
		t.Errorf("after copying: %q, %v", got, err)
	}

	// Upstream's tag moves: what the lock has is copied, or the new one when asked for.
	first := p.Images[0]
	moved := push(t, address+"/library/nats:2.10.29", index(t, 900))
	if copied, err := copyOf(first, lock.Image(first.Source)); err != nil || copied {
		t.Errorf("with the lock: copied %v, %v", copied, err)
	}
	remove(t, lock.Images[0].Pinned())
	if copied, err := copyOf(first, lock.Image(first.Source)); err != nil || !copied || head(t, first.Mirror) != digests[first.Source] {
		t.Errorf("with the lock, to a registry that lost it: copied %v, %v", copied, err)
	}
	if copied, err := copyOf(first, nil); err != nil || !copied || head(t, first.Mirror) != moved {
		t.Errorf("without the lock: copied %v, %v", copied, err)
	}

	// A single manifest is copied as one.
	alone := push(t, address+"/library/nats:2.10.29", single(t, 901, platforms[0]))
	if copied, err := copyOf(first, nil); err != nil || !copied || head(t, first.Mirror) != alone {
		t.Errorf("a single manifest: copied %v, %v", copied, err)
	}
}

func head(t *testing.T, ref string) string {
	t.Helper()
	parsed, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	descriptor, err := remote.Head(parsed)
	if err != nil {
		t.Fatal(err)
	}
	return descriptor.Digest.String()
}

// A copy that upstream cuts off leaves no tag, and the next one goes on.
func TestMirrorGoesOn(t *testing.T) {
	parts.Registry(t)
	p := planned(t, "goes-on")
	var broken atomic.Bool
	var blobs atomic.Int32
	broken.Store(true)
	from, address := upstream(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
				if blobs.Add(1) > 2 && broken.Load() {
					http.Error(w, "not so fast", http.StatusTooManyRequests)
					return
				}
			}
			h.ServeHTTP(w, r)
		})
	})
	want := push(t, address+"/library/nats:2.10.29", index(t, 3))
	_, err := Mirror(t.Context(), configured(t, ""), from, p.Images[0], nil, io.Discard)
	if step.ExitCode(err) != step.ExitRetry {
		t.Fatalf("upstream has enough: exit code %d, %v", step.ExitCode(err), err)
	}
	parsed, err := name.ParseReference(p.Images[0].Mirror, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := remote.Head(parsed); err == nil {
		t.Error("half a copy has its tag")
	}
	broken.Store(false)
	if copied, err := Mirror(t.Context(), configured(t, ""), from, p.Images[0], nil, io.Discard); err != nil || !copied || head(t, p.Images[0].Mirror) != want {
		t.Errorf("again: copied %v, %v", copied, err)
	}
}

func TestMirrorFailures(t *testing.T) {
	parts.Registry(t)
	c := configured(t, "")
	i := Image{Source: "nats:1", Mirror: "registry:80/failures/nats:1"}
	from, err := ParseOrigin("http://" + parts.Address() + ":9")
	if err != nil {
		t.Fatal(err)
	}
	_, err = Mirror(t.Context(), c, from, i, nil, io.Discard)
	wants(t, err, step.ExitRetry, "cannot be reached")
	from, address := upstream(t, same)
	push(t, address+"/library/nats:1", index(t, 1))
	i.Mirror = "registry:81/failures/nats:1"
	_, err = Mirror(t.Context(), c, from, i, nil, io.Discard)
	wants(t, err, step.ExitRetry, "cannot be reached")
	secure, err := ParseOrigin(strings.Replace("http://"+address, "http", "https", 1))
	if err != nil {
		t.Fatal(err)
	}
	_, err = Mirror(t.Context(), c, secure, i, nil, io.Discard)
	wants(t, err, step.ExitInvalid, "the registry speaks HTTP, and HTTPS is configured")
}

func TestParseOrigin(t *testing.T) {
	for good, want := range map[string]Origin{
		"https://proxy.example:443":  {"proxy.example:443", false},
		"http://proxy.example:5000/": {"proxy.example:5000", true},
	} {
		if got, err := ParseOrigin(good); err != nil || got != want {
			t.Errorf("%q: %v, %v", good, got, err)
		}
	}
	for _, bad := range []string{"", "proxy.example:443", "ftp://x:1", "https://proxy.example", "https://user:secret@proxy.example:443", "https://proxy.example:443/path", "https://proxy.example:443?x", "https://proxy.example:99999"} {
		_, err := ParseOrigin(bad)
		if step.ExitCode(err) != step.ExitInvalid || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// Sources are copied from where upstream has them, unless told otherwise; by digest
// where the lock or upstream has one.
func TestSource(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	other := Origin{"proxy.example:443", false}
	for _, test := range []struct {
		name, source string
		from         Origin
		locked       *Image
		want         string
	}{
		{"upstream's own", "upstream.example/a/b:1", Origin{}, nil, "upstream.example/a/b:1"},
		{"another place", "upstream.example/a/b:1", other, nil, "proxy.example:443/a/b:1"},
		{"a short name", "nats:1", other, nil, "proxy.example:443/library/nats:1"},
		{"locked", "upstream.example/a/b:1", Origin{}, &Image{Digest: image.Digest(digest)}, "upstream.example/a/b@" + digest},
		{"by digest", "upstream.example/a/b@" + digest, other, nil, "proxy.example:443/a/b@" + digest},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.from.source(Image{Source: test.source}, test.locked)
			if err != nil || got.String() != test.want {
				t.Errorf("%v, %v; want %s", got, err, test.want)
			}
		})
	}
}
