package cases

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"fabrique/steps/secret"
)

// The example of docs.github.com/webhooks, "Testing the webhook payload validation".
func TestSign(t *testing.T) {
	got := sign(secret.New("It's a Secret to Everybody"), []byte("Hello, World!"))
	if want := "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestPushOf(t *testing.T) {
	after := strings.Repeat("a", 40)
	for _, messages := range [][]string{nil, {"one", "two"}} {
		body, err := pushOf(mainRef, noCommit, after, messages...).body()
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Ref, Before, After string
			Commits            []struct{ ID, Message string }
			HeadCommit         *struct{ Message string } `json:"head_commit"`
			Repository         struct {
				FullName string `json:"full_name"`
			}
		}
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatal(err)
		}
		if got.Ref != "refs/heads/main" || got.Before != noCommit || got.After != after || got.Repository.FullName != "atlas/atlas" {
			t.Errorf("the payload is %s", body)
		}
		if got.Commits == nil || len(got.Commits) != len(messages) || (got.HeadCommit == nil) != (len(messages) == 0) {
			t.Errorf("with the messages %q the commits are %+v, the head %+v", messages, got.Commits, got.HeadCommit)
		}
	}
}

func TestBodyOf(t *testing.T) {
	for _, size := range []int{900_000, 1_200_000, 1_200_001} {
		body, err := bodyOf(size, noCommit, strings.Repeat("a", 40))
		if err != nil || len(body) != size || !json.Valid(body) {
			t.Errorf("of %d bytes it makes %d, %v", size, len(body), err)
		}
	}
	if _, err := bodyOf(10, noCommit, noCommit); err == nil {
		t.Error("a payload has 10 bytes")
	}
}

// A refusal is an answer of 4xx; the server's own failure is none.
func TestRefuse(t *testing.T) {
	for _, test := range []struct {
		status  int
		refused bool
	}{{http.StatusBadRequest, true}, {http.StatusRequestEntityTooLarge, true}, {http.StatusOK, false}, {http.StatusInternalServerError, false}} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if got := r.Header["X-Hub-Signature-256"]; len(got) != 1 || got[0] != "sha256=00" {
				t.Errorf("the signature is %q", got)
			}
			http.Error(w, "because", test.status)
		}))
		saw, err := receiver{url: server.URL}.refuse(context.Background(), []byte("{}"), "sha256=00")
		server.Close()
		if (err == nil) != test.refused || !strings.HasSuffix(saw, " because") {
			t.Errorf("%d: saw %q, %v", test.status, saw, err)
		}
	}
}

func TestRandomID(t *testing.T) {
	for _, digits := range []int{40, 64} {
		if a, b := randomID(digits), randomID(digits); len(a) != digits || a == b {
			t.Errorf("of %d digits it makes %q and %q", digits, a, b)
		}
	}
}
