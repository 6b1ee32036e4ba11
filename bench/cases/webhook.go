package cases

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"code.gitea.io/sdk/gitea"
	"golang.org/x/sync/errgroup"

	"fabrique/bench/demo"
	"fabrique/bench/platform"
	"fabrique/eventsources"
	"fabrique/manifests/zone"
	"fabrique/sensors"
	"fabrique/steps/secret"
	"fabrique/workflows/run"
)

// webhookCases are W1 to W10.
var webhookCases = []Case{
	{Name: "W1-W2-W5-W6", Title: "tags, deleted and other branches, and hostile names start nothing; a hostile message becomes no parameter", Run: otherRefs},
	{Name: "W3", Title: "a delivery without commits is a push like any other", Run: withoutCommits},
	{Name: "W4", Title: "of 30 commits the oldest alone touches the app: it is built", Run: thirtyCommits},
	{Name: "W7", Title: "the same delivery three times at once and once more later: one Workflow, one build, one commit", Run: repeated},
	{Name: "W8", Title: "a delivery of 1.2 MB is refused, one of 900 kB is not, and the CronWorkflow builds the head", Limit: 15 * time.Minute, Run: large},
	{Name: "W9", Title: "a wrong signature, none, and one of another body are refused", Run: unsigned},
	{Name: "W10", Title: "64 hex digits are understood, 64 zeros are no commit", Run: longIDs},
}

// quiet is how long nothing must come of what is to be ignored. A Workflow takes 5
// seconds to appear.
const quiet = 15 * time.Second

// otherRefs pushes what must start nothing, at once: tags, one of them named as the
// branch that is built (W1); a branch that is then deleted (W2); a branch whose
// name contains the branch's (W5); branches whose names would do harm in a shell, a
// pod's variable or a template (W6). Then a commit on main whose message would:
// nothing of it stands in the Workflow.
//
// Gitea tells of a deleted branch by another event than push, so that the delivery
// of W2 is made here.
func otherRefs(ctx context.Context, w *World) (saw string, err error) {
	since := time.Now().Truncate(time.Second)
	mark := nonce()
	side := "refs/heads/side-" + mark
	type pushed struct {
		id, revision string
		refs         []string
	}
	groups := []pushed{
		{id: "W1", refs: []string{"refs/tags/v" + mark, "refs/tags/main"}},
		{id: "W2", refs: []string{side}},
		{id: "W5", refs: []string{"refs/heads/maintenance"}},
		{id: "W6", refs: []string{"refs/heads/a';id;'", "refs/heads/fix-$(HOME)$$", "refs/heads/{{workflow.name}}"}},
	}
	var refspecs, refs, names []string
	for i, g := range groups {
		g.revision, err = w.Work.Git(ctx, platform.SourceRepo, "commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", g.id+" "+mark)
		if err != nil {
			return "", err
		}
		for _, ref := range g.refs {
			// An earlier run that was killed may have left it.
			refspecs = append(refspecs, "+"+g.revision+":"+ref)
		}
		groups[i] = g
		refs, names = append(refs, g.refs...), append(names, pushName(g.revision))
	}
	defer finally(ctx, &err, w.anew(func(ctx context.Context, w *World) error { return w.removeRefs(ctx, refs...) }))
	if err := w.Work.Push(ctx, platform.SourceRepo, refspecs...); err != nil {
		return "", err
	}
	if err := w.removeRefs(ctx, side); err != nil {
		return "", err
	}
	r, stop, err := w.receiver(ctx)
	if err != nil {
		return "", err
	}
	defer stop()
	for _, ref := range []string{side, mainRef} {
		if err := r.deliverPush(ctx, pushOf(ref, groups[1].revision, noCommit)); err != nil {
			return "", fmt.Errorf("W2: %w", err)
		}
	}
	last := time.Now()

	c, err := w.commitAs(ctx, first, "W6", "W6 \"quoted\" 'single' `id` "+mark+"\n\n{{workflow.name}} {{=sprig.env(\"HOME\")}} $(id) $$ "+flag+"\n\nFabrique-Revision: "+mark+"\n")
	if err != nil {
		return "", err
	}
	if err := w.send(ctx, &c); err != nil {
		return "", err
	}
	if _, err := w.follow(ctx, c); err != nil {
		return "", fmt.Errorf("W6: %w", err)
	}
	if err := pause(ctx, time.Until(last.Add(quiet))); err != nil {
		return "", err
	}
	for i, g := range groups {
		if err := w.absent(ctx, names[i]); err != nil {
			return "", fmt.Errorf("%s: %s: %w", g.id, strings.Join(g.refs, ", "), err)
		}
	}
	// Nothing else that a push has made, whatever its name.
	all, err := w.all(ctx)
	if err != nil {
		return "", err
	}
	for _, workflow := range all {
		m := workflow.Metadata
		if m.Labels[run.CauseLabel] == run.Push && !m.CreationTimestamp.Before(since) && m.Name != pushName(c.revision) {
			return "", fmt.Errorf("only the push to main should make a Workflow; there is %s too", m.Name)
		}
	}
	text, err := w.Kubectl.Run(ctx, nil, "get", "workflow", pushName(c.revision), "-n", zone.Workflows, "-o", "json")
	if err != nil {
		return "", err
	}
	for _, part := range []string{mark, "$(id)", "`id`", flag} {
		if strings.Contains(text, part) {
			return "", fmt.Errorf("W6: nothing of the message should stand in the Workflow; %q does", part)
		}
	}
	// Gitea has told of all of them: 7 refs and main, and the two deliveries made here.
	received, err := w.received(ctx, since)
	if err == nil && received < 10 {
		err = fmt.Errorf("the EventSource should have taken 10 deliveries; it took %d, so this shows nothing", received)
	}
	return fmt.Sprintf("none of W1 (tags v… and main), W2 (branch deleted), W5 (maintenance), W6 (%d hostile names) made a Workflow, of %d deliveries; W6's message was deployed and is not in its Workflow", len(groups[3].refs), received), err
}

// flag is the flag of England: a black flag and letters that are tags.
const flag = "\U0001F3F4\U000E0067\U000E0062\U000E0065\U000E006E\U000E0067\U000E007F"

// removeRefs removes refs of the source repository that are there.
func (w *World) removeRefs(ctx context.Context, refs ...string) error {
	out, err := w.Work.Git(ctx, platform.SourceRepo, "ls-remote", "--quiet", w.Work.URL(platform.SourceRepo))
	if err != nil {
		return err
	}
	var remove []string
	for line := range strings.Lines(out) {
		if _, ref, _ := strings.Cut(strings.TrimSpace(line), "\t"); slices.Contains(refs, ref) {
			remove = append(remove, ":"+ref)
		}
	}
	if len(remove) == 0 {
		return nil
	}
	return w.Work.Push(ctx, platform.SourceRepo, remove...)
}

// withoutCommits delivers, as for a new branch, the head that is deployed already
// (W3). Its first Workflow is gone, so that this one comes of the delivery.
func withoutCommits(ctx context.Context, w *World) (string, error) {
	head, err := w.head(ctx)
	if err != nil {
		return "", err
	}
	name := pushName(head)
	if err := w.remove(ctx, name); err != nil {
		return "", err
	}
	r, stop, err := w.receiver(ctx)
	if err != nil {
		return "", err
	}
	defer stop()
	if err := r.deliverPush(ctx, pushOf(mainRef, noCommit, head)); err != nil {
		return "", err
	}
	workflow, err := w.succeeded(ctx, name, 3*time.Minute)
	if err != nil {
		return "", err
	}
	due, err := planned(workflow, "due")
	if err == nil && due != "[]" {
		err = fmt.Errorf("at the head that is deployed nothing should be due; the plan says %s", due)
	}
	return "the Workflow came again and succeeded, nothing was due", errors.Join(err, idle(workflow))
}

// thirtyCommits is W4: paths never come from the payload, which lists five commits.
func thirtyCommits(ctx context.Context, w *World) (string, error) {
	c, err := w.commit(ctx, first, "W4, the oldest of 30")
	if err != nil {
		return "", err
	}
	for i := range 29 {
		notes := fmt.Sprintf("Note %d %s\n", i+2, nonce())
		if err := os.WriteFile(filepath.Join(w.Work.Dir(platform.SourceRepo), "notes.txt"), []byte(notes), 0o644); err != nil {
			return "", err
		}
		if c.revision, err = w.Work.Commit(ctx, platform.SourceRepo, strings.TrimSpace(notes)); err != nil {
			return "", err
		}
	}
	if err := w.send(ctx, &c); err != nil {
		return "", err
	}
	if _, err := w.follow(ctx, c); err != nil {
		return "", err
	}
	return "built at the newest of 30, its pod answers", w.once(ctx, c)
}

// repeated is W7: Gitea's delivery, the same three times at once, and again when
// all is done.
func repeated(ctx context.Context, w *World) (string, error) {
	const sensor = "sensor-name=" + sensors.Name
	before, err := w.head(ctx)
	if err != nil {
		return "", err
	}
	restarts, err := w.restarts(ctx, zone.Events, sensor)
	if err != nil {
		return "", err
	}
	r, stop, err := w.receiver(ctx)
	if err != nil {
		return "", err
	}
	defer stop()
	c, err := w.commit(ctx, first, "W7")
	if err != nil {
		return "", err
	}
	p := pushOf(mainRef, before, c.revision, c.greeting)
	if err := w.send(ctx, &c); err != nil {
		return "", err
	}
	var group errgroup.Group
	for range 3 {
		group.Go(func() error { return r.deliverPush(ctx, p) })
	}
	if err := group.Wait(); err != nil {
		return "", err
	}
	if _, err := w.follow(ctx, c); err != nil {
		return "", err
	}
	if _, err := w.succeeded(ctx, pushName(c.revision), 3*time.Minute); err != nil {
		return "", err
	}
	if err := r.deliverPush(ctx, p); err != nil {
		return "", err
	}
	if err := pause(ctx, quiet); err != nil {
		return "", err
	}
	all, err := w.all(ctx)
	if err != nil {
		return "", err
	}
	if made := asked(all, c.revision); len(made) != 1 {
		return "", fmt.Errorf("five deliveries of one push should make one Workflow; there are %d", len(made))
	}
	if pods := builds(all, first, c.revision); len(pods) != 1 {
		return "", fmt.Errorf("five deliveries of one push should be built by one pod; there are %d", len(pods))
	}
	if err := w.once(ctx, c); err != nil {
		return "", err
	}
	if now, err := w.restarts(ctx, zone.Events, sensor); err != nil || now != restarts {
		return "", errors.Join(err, fmt.Errorf("the Sensor should run on; it was %s and is %s", restarts, now))
	}
	return "5 deliveries (Gitea's, 3 at once, 1 later): one Workflow, one build, one commit; " + strings.TrimSuffix(restarts, ";"), nil
}

// large is W8. Gitea's own webhook is off for the push, so that the delivery that
// is too large is the only one that tells of it.
func large(ctx context.Context, w *World) (saw string, err error) {
	defer finally(ctx, &err, w.anew(func(ctx context.Context, w *World) error {
		return errors.Join(w.webhook(ctx, true), w.Reconfigure(ctx, io.Discard, demo.Settings{}))
	}))
	if err := w.Reconfigure(ctx, io.Discard, demo.Settings{Schedule: everyMinute}); err != nil {
		return "", err
	}
	if err := w.webhook(ctx, false); err != nil {
		return "", err
	}
	r, stop, err := w.receiver(ctx)
	if err != nil {
		return "", err
	}
	defer stop()
	before, err := w.head(ctx)
	if err != nil {
		return "", err
	}
	c, err := w.commit(ctx, first, "W8")
	if err != nil {
		return "", err
	}
	if err := w.send(ctx, &c); err != nil {
		return "", err
	}
	tooLarge, err := bodyOf(1_200_000, before, c.revision)
	if err != nil {
		return "", err
	}
	refused, err := r.refuse(ctx, tooLarge, sign(r.key, tooLarge))
	if err != nil {
		return "", err
	}
	w.note("1.2 MB: %s", refused)
	p, err := w.follow(ctx, c)
	if err != nil {
		return "", err
	}
	if err := w.absent(ctx, pushName(c.revision)); err != nil {
		return "", fmt.Errorf("of the delivery that was refused: %w", err)
	}
	fits, err := bodyOf(900_000, before, c.revision)
	if err != nil {
		return "", err
	}
	if err := r.deliver(ctx, fits); err != nil {
		return "", err
	}
	workflow, err := w.succeeded(ctx, pushName(c.revision), 3*time.Minute)
	if err != nil {
		return "", fmt.Errorf("of the delivery of 900 kB: %w", err)
	}
	return fmt.Sprintf("1.2 MB: %s; scheduled every minute, its pod answers after %s; 900 kB: accepted and brought to a Workflow", refused, p.Stages[len(p.Stages)-1].After), idle(workflow)
}

// webhook switches webhook #2 of Gitea on or off.
func (w *World) webhook(ctx context.Context, active bool) error {
	client, err := w.Gitea.Client(ctx, w.Gitea.Token)
	if err != nil {
		return err
	}
	owner, name, _ := strings.Cut(platform.SourceRepo, "/")
	hooks, _, err := client.ListRepoHooks(owner, name, gitea.ListHooksOptions{})
	if err != nil {
		return fmt.Errorf("listing the webhooks of %s: %w", platform.SourceRepo, err)
	}
	for _, h := range hooks {
		if strings.Contains(h.Config["url"], eventsources.Service) {
			// Gitea takes the absence of these for their removal.
			_, err := client.EditRepoHook(owner, name, h.ID, gitea.EditHookOption{
				Events: h.Events, BranchFilter: h.BranchFilter, AuthorizationHeader: h.AuthorizationHeader, Active: &active,
			})
			return err
		}
	}
	return fmt.Errorf("%s has no webhook to %s", platform.SourceRepo, eventsources.Service)
}

// unsigned is W9.
func unsigned(ctx context.Context, w *World) (string, error) {
	r, stop, err := w.receiver(ctx)
	if err != nil {
		return "", err
	}
	defer stop()
	var names, saw []string
	for _, forged := range []struct {
		what      string
		signature func(body []byte) string
	}{
		{"wrong signature", func(body []byte) string { return sign(secret.New(rand.Text()), body) }},
		{"no signature", func([]byte) string { return "" }},
		{"another body's signature", func(body []byte) string { return sign(r.key, append([]byte(" "), body...)) }},
	} {
		after := randomID(40)
		body, err := pushOf(mainRef, noCommit, after, forged.what).body()
		if err != nil {
			return "", err
		}
		refused, err := r.refuse(ctx, body, forged.signature(body))
		if err != nil {
			return "", fmt.Errorf("%s: %w", forged.what, err)
		}
		names, saw = append(names, pushName(after)), append(saw, forged.what+": "+refused)
	}
	if err := pause(ctx, quiet); err != nil {
		return "", err
	}
	return strings.Join(saw, "; "), w.absent(ctx, names...)
}

// longIDs is W10, as a repository of SHA-256 would send it. This one has no such
// commit, which the Workflow says.
func longIDs(ctx context.Context, w *World) (saw string, err error) {
	r, stop, err := w.receiver(ctx)
	if err != nil {
		return "", err
	}
	defer stop()
	after, zeros := randomID(64), noCommit+noCommit[:24]
	name := pushName(after)
	defer finally(ctx, &err, func(ctx context.Context) error { return w.remove(ctx, name) })
	for _, id := range []string{zeros, after} {
		if err := r.deliverPush(ctx, pushOf(mainRef, noCommit, id, "W10")); err != nil {
			return "", err
		}
	}
	start := time.Now()
	// What git says depends on how it notices.
	workflow, err := w.failed(ctx, name, `does not exist|does not fit`, 3*time.Minute)
	if err != nil {
		return "", err
	}
	if asked := workflow.Spec.Arguments.Get("revision"); asked != after {
		return "", fmt.Errorf("the Workflow should be for %s; it is for %s", after, asked)
	}
	if err := pause(ctx, time.Until(start.Add(quiet))); err != nil {
		return "", err
	}
	return fmt.Sprintf("64 digits: a name of %d characters, %s; 64 zeros: no Workflow", len(name), oneLine(workflow.Status.Message)), w.absent(ctx, pushName(zeros))
}

// randomID gives an id of so many hex digits that no commit has.
func randomID(digits int) string {
	id := make([]byte, digits/2)
	rand.Read(id)
	return hex.EncodeToString(id)
}
