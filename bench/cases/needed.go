package cases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"code.gitea.io/sdk/gitea"
	rbacv1 "k8s.io/api/rbac/v1"

	"fabrique/bench/action"
	"fabrique/bench/parts"
	"fabrique/bench/platform"
	"fabrique/manifests/zone"
	"fabrique/sensors"
	"fabrique/steps/secret"
)

// loss does what needs a right that is taken away, and checks how that fails. What it
// gives checks, once the right is given back, that it works again.
type loss func(ctx context.Context, w *World, forbidden string) (again func(context.Context) error, err error)

// losses tells of each right of each account what cannot be done without it.
var losses = map[string]map[right]loss{
	zone.ExecutorAccount: {
		{zone.Workflows, argoGroup, "workflowtaskresults", "create"}: noResult,
		{zone.Workflows, argoGroup, "workflowtaskresults", "patch"}:  noResult,
	},
	zone.ReporterAccount: {
		{zone.Workflows, argoGroup, "workflows", "get"}: noReport,
	},
	zone.AddressesAccount: {
		{zone.Egress, "networking.k8s.io", addressesPolicy, "get"}:   noAddresses,
		{zone.Egress, "networking.k8s.io", addressesPolicy, "patch"}: noAddresses,
	},
	zone.SensorAccount: {
		{zone.Workflows, argoGroup, "workflows", "get"}:    noWorkflow,
		{zone.Workflows, argoGroup, "workflows", "create"}: noWorkflow,
		{zone.Workflows, argoGroup, "workflows", "patch"}:  noRepetition,
	},
}

// neededTried takes away each right, of the accounts and of Gitea's bots.
func neededTried(ctx context.Context, w *World) (string, error) {
	count := 0
	for _, a := range accounts {
		for _, r := range a.rights {
			start := time.Now()
			if err := w.without(ctx, a, r, losses[a.name][r]); err != nil {
				return "", fmt.Errorf("without %s's right to %s: %w", a.name, r, err)
			}
			w.note("%s needs to %s (%s)", a.name, r, time.Since(start).Round(time.Second))
			count++
		}
	}
	bots, err := w.botsNeed(ctx)
	return fmt.Sprintf("each of %d verbs of the accounts and of %d rights of the bots: without it what it is for fails and says so, with it again it works", count, bots), err
}

// without takes one right from an account, by its Role, and gives it back.
func (w *World) without(ctx context.Context, a account, r right, lost loss) error {
	var role rbacv1.Role
	if err := w.Kubectl.Get(ctx, &role, "role", a.name, "-n", r.namespace); err != nil {
		return err
	}
	var fewer []rbacv1.PolicyRule
	for _, rule := range role.Rules {
		rule.Verbs = slices.DeleteFunc(slices.Clone(rule.Verbs), func(verb string) bool { return verb == r.verb })
		if len(rule.Verbs) > 0 {
			fewer = append(fewer, rule)
		}
	}
	again, err := func() (again func(context.Context) error, err error) {
		defer finally(ctx, &err, func(ctx context.Context) error { return w.rules(ctx, a, r, role.Rules, "yes") })
		if err := w.rules(ctx, a, r, fewer, "no"); err != nil {
			return nil, err
		}
		return lost(ctx, w, "cannot "+r.verb+" resource")
	}()
	if err != nil {
		return err
	}
	if err := again(ctx); err != nil {
		return fmt.Errorf("given back: %w", err)
	}
	return nil
}

// rules sets those of an account's Role and waits until the API server goes by them.
func (w *World) rules(ctx context.Context, a account, r right, rules []rbacv1.PolicyRule, may string) error {
	patch, err := json.Marshal([]map[string]any{{"op": "add", "path": "/rules", "value": append([]rbacv1.PolicyRule{}, rules...)}})
	if err != nil {
		return err
	}
	if _, err := w.Kubectl.Run(ctx, nil, "patch", "role", a.name, "-n", r.namespace, "--type=json", "-p", string(patch)); err != nil {
		return err
	}
	return action.Poll(ctx, 30*time.Second, func(ctx context.Context) error {
		// It exits with 1 when the answer is no.
		out, err := w.Kubectl.Run(ctx, nil, "auth", "can-i", r.verb, r.what("/"), "-n", r.namespace, "--as", a.user())
		if got := strings.TrimSpace(out); got != may {
			return errors.Join(fmt.Errorf("may %s %s? It should be %s; it is %q", a.name, r, may, got), err)
		}
		return nil
	})
}

// runsAgain checks that a run by hand succeeds.
func (w *World) runsAgain(ctx context.Context) error {
	name, err := w.byHand(ctx, nil)
	if err != nil {
		return err
	}
	_, err = w.succeeded(ctx, name, 3*time.Minute)
	return err
}

// noResult is a run whose first step cannot tell what came of it. Argo would try it
// four times.
func noResult(ctx context.Context, w *World, forbidden string) (again func(context.Context) error, err error) {
	name, err := w.byHand(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer finally(ctx, &err, func(ctx context.Context) error { return w.remove(ctx, name) })
	return w.runsAgain, action.Poll(ctx, 2*time.Minute, func(ctx context.Context) error {
		said, err := w.Kubectl.Run(ctx, nil, "get", "pods", "-n", zone.Workflows, "-l", "workflows.argoproj.io/workflow="+name,
			"-o", `jsonpath={.items[*].status.containerStatuses[?(@.name=="wait")].state.terminated.message}`)
		if err == nil && !strings.Contains(said, forbidden) {
			err = fmt.Errorf("the executor in a pod of %s should say %q; it says %q", name, forbidden, said)
		}
		return err
	})
}

// noAddresses takes the rules from the policy that egress-addresses keeps: it says why it
// cannot bring them back.
func noAddresses(ctx context.Context, w *World, forbidden string) (again func(context.Context) error, err error) {
	name := strings.TrimPrefix(addressesPolicy, "networkpolicies ")
	rules := func(ctx context.Context) (string, error) {
		return w.Kubectl.Run(ctx, nil, "get", "networkpolicy", name, "-n", zone.Egress, "-o", "jsonpath={.spec.egress}")
	}
	since := time.Now().UTC().Format(time.RFC3339)
	if _, err := w.Kubectl.Run(ctx, nil, "patch", "networkpolicy", name, "-n", zone.Egress, "--type=json", "-p", `[{"op":"remove","path":"/spec/egress"}]`); err != nil {
		return nil, err
	}
	err = action.Poll(ctx, 2*time.Minute, func(ctx context.Context) error {
		said, err := w.Kubectl.Run(ctx, nil, "logs", "deployment/"+zone.EgressAddresses, "-n", zone.Egress, "--since-time", since)
		if err == nil && !strings.Contains(said, forbidden) {
			err = fmt.Errorf("egress-addresses should say %q; it says %q", forbidden, ending([]byte(said)))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if there, err := rules(ctx); err != nil || there != "" {
		return nil, fmt.Errorf("the rules should not come back: %w %s", err, there)
	}
	return func(ctx context.Context) error {
		return action.Poll(ctx, 2*time.Minute, func(ctx context.Context) error {
			there, err := rules(ctx)
			if err == nil && there == "" {
				err = errors.New("the rules do not come back")
			}
			return err
		})
	}, nil
}

// noReport is a run whose verdict cannot be told.
func noReport(ctx context.Context, w *World, forbidden string) (again func(context.Context) error, err error) {
	name, err := w.byHand(ctx, nil)
	if err != nil {
		return nil, err
	}
	_, err = w.failed(ctx, name, forbidden, 3*time.Minute)
	return w.runsAgain, err
}

// noWorkflow is a delivery of which no Workflow comes. The Sensor tries again for two
// minutes, so that the same delivery is brought to a Workflow once it may.
func noWorkflow(ctx context.Context, w *World, forbidden string) (again func(context.Context) error, err error) {
	head, err := w.head(ctx)
	if err != nil {
		return nil, err
	}
	name := pushName(head)
	if err := w.remove(ctx, name); err != nil {
		return nil, err
	}
	if err := w.delivered(ctx, head, forbidden); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		_, err := w.succeeded(ctx, name, 4*time.Minute)
		return err
	}, w.absent(ctx, name)
}

// noRepetition is a delivery whose Workflow is there, which counts as a success.
func noRepetition(ctx context.Context, w *World, forbidden string) (again func(context.Context) error, err error) {
	head, err := w.head(ctx)
	if err != nil {
		return nil, err
	}
	if err := w.appears(ctx, pushName(head)); err != nil {
		return nil, err
	}
	if err := w.delivered(ctx, head, forbidden); err != nil {
		return nil, err
	}
	since := time.Now().Add(time.Second)
	return func(ctx context.Context) error {
		return w.sensorSays(ctx, since, "Successfully processed trigger")
	}, nil
}

// delivered delivers a push of head and waits until the Sensor says the words.
func (w *World) delivered(ctx context.Context, head, words string) error {
	since := time.Now()
	r, stop, err := w.receiver(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if err := r.deliverPush(ctx, pushOf(mainRef, noCommit, head)); err != nil {
		return err
	}
	return w.sensorSays(ctx, since, words)
}

// sensorSays waits until the words stand in the Sensor's log of a moment or later.
func (w *World) sensorSays(ctx context.Context, since time.Time, words string) error {
	return action.Poll(ctx, 3*time.Minute, func(ctx context.Context) error {
		out, err := w.Kubectl.Run(ctx, nil, "logs", "-n", zone.Events, "-l", "sensor-name="+sensors.Name, "--tail=-1", "--since-time="+since.UTC().Format(time.RFC3339))
		if err == nil && !strings.Contains(out, words) {
			err = fmt.Errorf("the Sensor should say %q; it says %s", words, oneLine(out))
		}
		return err
	})
}

// botsNeed takes from the bots each repository and the scope of each token, and gives
// how many these were. The writer and the status bot lose theirs in the same run: each
// is used in steps of its own, which say so.
func (w *World) botsNeed(ctx context.Context) (count int, err error) {
	const (
		unseen      = "%s.git: .* the token may not see it"
		unread      = "the token is missing, wrong or may not read this repository"
		unwritten   = "writing the file .* of %s: Gitea forbids it"
		notReported = "writing the status .* in %s: Gitea forbids it"
	)
	for _, l := range []botLoss{
		{parts.ReaderName, platform.SourceRepo, "", fmt.Sprintf(unseen, platform.SourceRepo)},
		{parts.ReaderName, platform.AppsRepo, "", fmt.Sprintf(unseen, platform.AppsRepo)},
		{parts.ReaderName, "", "read:misc", unread},
	} {
		if err := w.lost(ctx, "", l); err != nil {
			return 0, err
		}
		count++
	}
	if err := w.runsAgain(ctx); err != nil {
		return 0, fmt.Errorf("given back: %w", err)
	}

	c, err := w.commit(ctx, first, "Without rights")
	if err != nil {
		return 0, err
	}
	if err := w.send(ctx, &c); err != nil {
		return 0, err
	}
	for i, scope := range []gitea.AccessTokenScope{"", "read:repository"} {
		writer := botLoss{parts.WriterName, platform.AppsRepo, scope, fmt.Sprintf(unwritten, platform.AppsRepo)}
		status := botLoss{parts.StatusName, platform.SourceRepo, scope, fmt.Sprintf(notReported, platform.SourceRepo)}
		// What was not written is still due: another run finds the image in the registry.
		if err := w.lost(ctx, []string{pushName(c.revision), ""}[i], writer, status); err != nil {
			return 0, err
		}
		count += 2
	}
	if err := w.runsAgain(ctx); err != nil {
		return 0, fmt.Errorf("given back: %w", err)
	}
	return count, errors.Join(w.says(ctx, c.revision, "success", "is deployed", whole, whole+"/"+first), w.once(ctx, c))
}

// botLoss is what a bot may not any more: with a scope, more than that; without, write
// a repository, or see it if it only reads. The message is the regular expression for
// what a step then says.
type botLoss struct {
	user, repo string
	scope      gitea.AccessTokenScope
	message    string
}

// String tells what is left.
func (l botLoss) String() string {
	if l.scope != "" {
		return l.user + " has no scope but " + string(l.scope)
	}
	return l.user + " is let into " + l.repo + " less"
}

// lost takes rights from bots, checks that a run fails and says all of it, one by
// hand when there is no name, and gives them back.
func (w *World) lost(ctx context.Context, name string, all ...botLoss) (err error) {
	for _, l := range all {
		back, failed := w.take(ctx, l)
		defer finally(ctx, &err, w.anew(back))
		if failed != nil {
			return failed
		}
	}
	if name == "" {
		if name, err = w.byHand(ctx, nil); err != nil {
			return err
		}
	}
	workflow, err := w.failed(ctx, name, "", 5*time.Minute)
	if err != nil {
		return fmt.Errorf("%v: %w", all, err)
	}
	for _, l := range all {
		form, said := regexp.MustCompile(l.message), ""
		for _, n := range workflow.Status.Nodes {
			if n.Type == "Pod" && form.MatchString(n.Message) {
				said = n.Message
			}
		}
		if said == "" {
			return fmt.Errorf("%s: a step of %s should say %q; none does", l, name, l.message)
		}
		w.note("%s: %s", l, oneLine(said))
	}
	return nil
}

// take takes one right from a bot and gives what brings it back, also when it fails.
func (w *World) take(ctx context.Context, l botLoss) (back func(context.Context, *World) error, err error) {
	if l.scope != "" {
		return w.narrow(ctx, l)
	}
	i := slices.IndexFunc(platform.Bots, func(b platform.Bot) bool { return b.User == l.user })
	access := platform.Bots[i].Repos[l.repo]
	back = func(ctx context.Context, w *World) error { return w.Gitea.AddCollaborator(ctx, l.repo, l.user, access) }
	if access == gitea.AccessModeWrite {
		return back, w.Gitea.AddCollaborator(ctx, l.repo, l.user, gitea.AccessModeRead)
	}
	client, err := w.Gitea.Client(ctx, w.Gitea.Token)
	if err == nil {
		owner, repo, _ := strings.Cut(l.repo, "/")
		_, err = client.DeleteCollaborator(owner, repo, l.user)
	}
	return back, err
}

// narrow hands the factory a token of less scope in place of a bot's own.
func (w *World) narrow(ctx context.Context, l botLoss) (back func(context.Context, *World) error, err error) {
	nothing := func(context.Context, *World) error { return nil }
	own, err := w.Secret(ctx, zone.Workflows, tokenOf[l.user], "token")
	if err != nil {
		return nothing, err
	}
	narrower, id, err := w.Gitea.NewToken(ctx, l.user, l.scope)
	if err != nil {
		return nothing, err
	}
	set := func(ctx context.Context, w *World, token secret.Secret) error {
		_, err := w.SetSecret(ctx, zone.Workflows, tokenOf[l.user], nil, map[string]string{"token": token.Reveal()})
		return err
	}
	return func(ctx context.Context, w *World) error {
		return errors.Join(set(ctx, w, own), w.Gitea.RevokeToken(ctx, l.user, id))
	}, set(ctx, w, narrower)
}
