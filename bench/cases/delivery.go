package cases

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"fabrique/bench/platform"
	"fabrique/eventsources"
	"fabrique/manifests/zone"
	"fabrique/steps/secret"
)

// mainRef is the ref of the branch that is built.
const mainRef = "refs/heads/main"

// noCommit is the id that stands for a branch that is not there.
const noCommit = "0000000000000000000000000000000000000000"

// payload is the body of a delivery, as Gitea writes it for a push
// (code.gitea.io/gitea modules/structs, PushPayload), without what nobody reads.
type payload struct {
	Ref          string            `json:"ref"`
	Before       string            `json:"before"`
	After        string            `json:"after"`
	CompareURL   string            `json:"compare_url"`
	Commits      []payloadCommit   `json:"commits"`
	TotalCommits int               `json:"total_commits"`
	HeadCommit   *payloadCommit    `json:"head_commit"`
	Repository   payloadRepository `json:"repository"`
	Pusher       payloadUser       `json:"pusher"`
	Sender       payloadUser       `json:"sender"`
}

type payloadCommit struct {
	ID        string        `json:"id"`
	Message   string        `json:"message"`
	URL       string        `json:"url"`
	Author    payloadAuthor `json:"author"`
	Committer payloadAuthor `json:"committer"`
	Timestamp time.Time     `json:"timestamp"`
	Added     []string      `json:"added"`
	Removed   []string      `json:"removed"`
	Modified  []string      `json:"modified"`
}

type payloadAuthor struct {
	Name     string `json:"name"`
	Email    string `json:"email"`
	Username string `json:"username"`
}

type payloadUser struct {
	ID    int64  `json:"id"`
	Login string `json:"login"`
	Email string `json:"email"`
}

type payloadRepository struct {
	ID            int64       `json:"id"`
	Owner         payloadUser `json:"owner"`
	Name          string      `json:"name"`
	FullName      string      `json:"full_name"`
	Private       bool        `json:"private"`
	CloneURL      string      `json:"clone_url"`
	DefaultBranch string      `json:"default_branch"`
}

// pushOf is the payload of a push that moved ref from before to after, with the
// messages of its commits, of which the last is after's.
func pushOf(ref, before, after string, messages ...string) payload {
	owner, name, _ := strings.Cut(platform.SourceRepo, "/")
	base := platform.GiteaURL + "/" + platform.SourceRepo
	ada := payloadAuthor{"Ada", "ada@bench.invalid", ""}
	root := payloadUser{1, "root", "root@bench.invalid"}
	p := payload{
		Ref: ref, Before: before, After: after, CompareURL: base + "/compare/" + before + "..." + after,
		Commits: []payloadCommit{}, TotalCommits: len(messages),
		Repository: payloadRepository{1, payloadUser{2, owner, ""}, name, platform.SourceRepo, true, base + ".git", "main"},
		Pusher:     root, Sender: root,
	}
	for _, message := range messages {
		p.Commits = append(p.Commits, payloadCommit{
			ID: after, Message: message + "\n", URL: base + "/commit/" + after, Author: ada, Committer: ada, Timestamp: time.Now().UTC().Truncate(time.Second),
			Added: []string{}, Removed: []string{}, Modified: []string{"web/" + first + "/index.html"},
		})
	}
	if len(p.Commits) > 0 {
		p.HeadCommit = &p.Commits[len(p.Commits)-1]
	}
	return p
}

// body encodes the payload.
func (p payload) body() ([]byte, error) { return json.MarshalIndent(p, "", "  ") }

// bodyOf encodes the payload of a push to main in exactly size bytes: its one
// commit has a message of that length.
func bodyOf(size int, before, after string) ([]byte, error) {
	short, err := pushOf(mainRef, before, after, "").body()
	if err != nil {
		return nil, err
	}
	if size < len(short) {
		return nil, fmt.Errorf("making a payload of %d bytes: it has at least %d", size, len(short))
	}
	// The message stands there twice.
	padding := size - len(short)
	p := pushOf(mainRef, before, after, strings.Repeat("x", padding/2))
	p.Pusher.Login += strings.Repeat("x", padding%2)
	return p.body()
}

// sign gives the value of X-Hub-Signature-256 for a body
// (docs.github.com/webhooks, "Validating webhook deliveries").
func sign(key secret.Secret, body []byte) string {
	mac := hmac.New(sha256.New, []byte(key.Reveal()))
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

// receiver is the EventSource, as Gitea reaches it.
type receiver struct {
	url string
	key secret.Secret
}

// receiver reaches the EventSource until stop is called.
func (w *World) receiver(ctx context.Context) (r receiver, stop func(), err error) {
	key, err := w.Secret(ctx, zone.Events, zone.WebhookSecret, "secret")
	if err != nil {
		return r, nil, err
	}
	if key.IsZero() {
		return r, nil, fmt.Errorf("the Secret %s in %s is missing", zone.WebhookSecret, zone.Events)
	}
	address, stop, err := w.Kubectl.Forward(ctx, zone.Events, "service/"+eventsources.Service, eventsources.Port)
	return receiver{"http://" + address + eventsources.Endpoint, key}, stop, err
}

// post delivers a body with a signature, none when it is empty, and gives the HTTP
// status of the answer and its text.
func (r receiver) post(ctx context.Context, body []byte, signature string) (status int, answer string, err error) {
	// Each delivery is another one, as far as its sender says.
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	delivery := rand.Text()
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-GitHub-Event", "push")
	req.Header.Set("X-Gitea-Event", "push")
	req.Header.Set("X-GitHub-Delivery", delivery)
	req.Header.Set("X-Gitea-Delivery", delivery)
	if signature != "" {
		req.Header.Set("X-Hub-Signature-256", signature)
	}
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	got, err := client.Do(req)
	if err != nil {
		return 0, "", fmt.Errorf("delivering %d bytes: %w", len(body), err)
	}
	defer got.Body.Close()
	text, err := io.ReadAll(io.LimitReader(got.Body, 500))
	return got.StatusCode, strings.TrimSpace(string(text)), err
}

// deliver delivers a body, rightly signed, which must be accepted.
func (r receiver) deliver(ctx context.Context, body []byte) error {
	status, answer, err := r.post(ctx, body, sign(r.key, body))
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("a delivery of %d bytes should be accepted; the answer is %d: %s", len(body), status, answer)
	}
	return err
}

// deliverPush delivers the payload of a push, rightly signed.
func (r receiver) deliverPush(ctx context.Context, p payload) error {
	body, err := p.body()
	if err != nil {
		return err
	}
	return r.deliver(ctx, body)
}

// refuse delivers a body that must be refused, and gives the HTTP status and the
// words with which it is.
func (r receiver) refuse(ctx context.Context, body []byte, signature string) (saw string, err error) {
	var status int
	var answer string
	// A server that does not read a body to its end may cut the sender off before
	// that has read the answer.
	for range 5 {
		if status, answer, err = r.post(ctx, body, signature); err == nil {
			break
		}
	}
	if err == nil && (status < 400 || status > 499) {
		err = fmt.Errorf("a delivery of %d bytes should be refused with 4xx; the answer is %d: %s", len(body), status, answer)
	}
	return fmt.Sprintf("%d %s", status, answer), err
}

// received counts the deliveries that the EventSource has taken since a moment.
func (w *World) received(ctx context.Context, since time.Time) (int, error) {
	out, err := w.Kubectl.Run(ctx, nil, "logs", "-n", zone.Events, "-l", "eventsource-name="+eventsources.Name,
		"--tail=-1", "--since-time="+since.UTC().Format(time.RFC3339))
	return strings.Count(out, "successfully dispatched the request to the event bus"), err
}
