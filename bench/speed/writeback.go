package speed

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"fabrique/steps/gitref"
)

const writebackRounds = 13

// writeback measures an update by gitea-writeback against curl, which makes the
// two calls that no writer can do without: GET and PUT of the file's contents.
// Both write to records of the same repository, one commit each round.
func (b *bench) writeback(ctx context.Context, report *Report) error {
	writer, err := b.tokenFile("writer", b.project.Writer.Reveal())
	if err != nil {
		return err
	}
	reader, err := b.tokenFile("reader", b.project.Reader.Reveal())
	if err != nil {
		return err
	}
	// Oldest first, as each update must be newer than the one before.
	revision := func(round int) gitref.Revision {
		return gitref.Revision(b.history.revisions[len(b.history.revisions)-1-round])
	}
	key := func(round int) gitref.SourceKey {
		return gitref.SourceKey(fmt.Sprintf("%x", sha256.Sum256(fmt.Append(nil, round))))
	}
	step := func(server string, round int) program {
		return program{args: []string{
			b.program("gitea-writeback"), "--gitea-url", server, "--apps-repository", b.project.Apps, "--record", appName(0) + ".yaml", "--app", appName(0),
			"--source-repository", b.project.Source, "--revision", string(revision(round)), "--source-key", string(key(round)),
			"--image", "registry:80/" + appName(0), "--digest", sampleDigest, "--token-file", writer, "--reader-token-file", reader,
		}}
	}
	updated := func(_ context.Context, _ int, r run) error {
		var result struct{ Result, Reason string }
		if err := json.Unmarshal(r.stdout, &result); err != nil {
			return fmt.Errorf("reading the step's result: %w", err)
		}
		if result.Result != "updated" {
			return fmt.Errorf("gitea-writeback says %q (%s), want an update", result.Result, result.Reason)
		}
		return nil
	}
	const peerApp = 1
	content := newRecord(peerApp)
	url := fmt.Sprintf("%s/api/v1/repos/%s/contents/%s.yaml", b.gitea.URL, b.project.Apps, appName(peerApp))
	body := filepath.Join(b.dir, "body.json")
	curl := func(_ context.Context, round int) (program, error) {
		next, err := deployed(content, appName(peerApp), revision(round), key(round))
		if err != nil {
			return program{}, err
		}
		raw, err := json.Marshal(map[string]string{
			"branch": "main", "message": "deploy", "content": base64.StdEncoding.EncodeToString(next),
			"sha": fmt.Sprintf("%x", sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(content), content))),
		})
		if err != nil {
			return program{}, err
		}
		content = next
		// The token is for standard input only: arguments can be read by others.
		config := fmt.Sprintf(`silent
show-error
fail
url = "%[1]s?ref=main"
header = "Authorization: token %[2]s"
output = "%[4]s"
next
silent
show-error
fail
url = "%[1]s"
request = "PUT"
header = "Authorization: token %[2]s"
header = "Content-Type: application/json"
data-binary = "@%[3]s"
output = "%[4]s"
`, url, b.project.Writer.Reveal(), body, os.DevNull)
		return program{args: []string{"curl", "--config", "-"}, stdin: config}, os.WriteFile(body, raw, 0o600)
	}
	if err := b.pushRecords(ctx, b.project.Apps, apps, decision{}); err != nil {
		return err
	}
	runs, err := compete(ctx, b.progress, "writeback", writebackRounds,
		contender{
			name:    "gitea-writeback",
			prepare: func(_ context.Context, round int) (program, error) { return step(b.gitea.URL, round), nil },
			check:   updated,
		},
		contender{name: "curl, GET and PUT", prepare: curl})
	if err != nil {
		return err
	}
	proxy, err := newCounter(b.gitea.URL)
	if err != nil {
		return err
	}
	defer proxy.close()
	requests, err := proxy.count(func() error {
		r, err := step(proxy.url, writebackRounds+1).run(ctx)
		if err != nil {
			return err
		}
		return updated(ctx, 0, r)
	})
	if err != nil {
		return err
	}
	report.Rows = append(report.Rows,
		measured("gitea-writeback, update", "s", seconds(runs[0])).against("curl, GET and PUT", seconds(runs[1])).timesAtMost(1.2),
		measured("gitea-writeback, update", "requests", []float64{requests}).atMost(4),
	)
	report.Notes = append(report.Notes,
		"curl makes its two requests in one process, over one connection, and decides nothing: the body of its PUT is ready beforehand.")
	return nil
}
