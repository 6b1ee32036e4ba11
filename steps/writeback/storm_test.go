package writeback

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fabrique/bench/parts"
	"fabrique/steps/gitea"
	"fabrique/steps/gitref"
)

// TestStorm lets two hundred write-backs loose on ten records at once, in an
// order of chance and some of them twice, while every seventh request gets a
// server error (half of them after Gitea did what was asked) and people edit the
// same files. Afterwards every record is at the newest revision, every person's
// line is there, and no revision of an app was committed twice.
func TestStorm(t *testing.T) {
	const (
		seed      = 95
		apps      = 10
		revisions = 16
		writers   = 200 // the first 160 are all pairs, the others repeat some
		people    = 20
	)
	w := newWorld(t)
	chance := rand.New(rand.NewPCG(seed, seed))
	var names []string
	for i := range apps {
		names = append(names, fmt.Sprintf("app-%d", i))
	}
	w.declare(names...)
	r := w.commits(revisions, "")

	type job struct {
		app      string
		revision gitref.Revision
	}
	var jobs []job
	for _, app := range names {
		for _, revision := range r {
			jobs = append(jobs, job{app, revision})
		}
	}
	for len(jobs) < writers {
		jobs = append(jobs, jobs[chance.IntN(apps*revisions)])
	}
	chance.Shuffle(len(jobs), func(i, j int) { jobs[i], jobs[j] = jobs[j], jobs[i] })

	var chanceMu sync.Mutex
	var injected atomic.Int32
	requests := w.proxy(func(req *http.Request) *fault {
		chanceMu.Lock()
		defer chanceMu.Unlock()
		if chance.Float64() >= 0.15 {
			return nil
		}
		injected.Add(1)
		statuses := []int{409, 422, 500, 502}
		return &fault{status: statuses[chance.IntN(len(statuses))], passed: chance.IntN(2) == 0, body: `{"message": "injected"}`}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	started := time.Now()

	var group sync.WaitGroup
	var outcomes sync.Map
	var attempts, unclear atomic.Int32
	for _, j := range jobs {
		o := w.options(j.app)
		o.MaxWait = 10 * time.Minute
		group.Go(func() {
			result, err := Deploy(ctx, w.logger(), o, deployment(j.app, j.revision))
			if err != nil {
				unclear.Add(1)
				t.Errorf("%s at %s: %v", j.app, j.revision.Short(), err)
				return
			}
			attempts.Add(int32(result.Attempts))
			count, _ := outcomes.LoadOrStore(result.Result, new(atomic.Int32))
			count.(*atomic.Int32).Add(1)
		})
	}
	for i := range people {
		app := names[chanceInt(&chanceMu, chance, apps)]
		group.Go(func() { w.edit(ctx, app, fmt.Sprintf("# a person's line %d\n", i)) })
	}
	group.Wait()
	summary := ""
	outcomes.Range(func(name, count any) bool {
		summary += fmt.Sprintf(" %s %d", name, count.(*atomic.Int32).Load())
		return true
	})
	t.Logf("%d write-backs and %d edits in %s: %d requests, %d of them with injected errors, %d attempts;%s",
		writers, people, time.Since(started).Round(time.Second), requests.Load(), injected.Load(), attempts.Load(), summary)

	text := ""
	for _, app := range names {
		got, content := w.record(app)
		text += content
		want := deployment(app, r[revisions-1])
		if got.Revision != want.Revision || got.Digest != want.Digest || got.SourceKey != want.SourceKey {
			t.Errorf("%s is at %q, want %q", app, got.Revision, want.Revision)
		}
	}
	for i := range people {
		if n := strings.Count(text, fmt.Sprintf("# a person's line %d\n", i)); n != 1 {
			t.Errorf("the line of person %d is there %d times", i, n)
		}
	}
	committed := map[state]int{}
	for _, message := range w.history() {
		if s, ok := parseTrailers(message); ok {
			committed[s]++
			if committed[s] > 1 {
				t.Errorf("%s at %s is committed twice", s.app, s.revision.Short())
			}
		}
	}
	if len(committed) < apps || len(committed) > apps*revisions {
		t.Errorf("%d commits", len(committed))
	}
}

func chanceInt(mu *sync.Mutex, chance *rand.Rand, n int) int {
	mu.Lock()
	defer mu.Unlock()
	return chance.IntN(n)
}

// edit appends a line to an app's record as a person would with Gitea's editor,
// trying again until it is in.
func (w *world) edit(ctx context.Context, app, line string) {
	c, err := gitea.New(parts.GiteaURL, w.project.Writer)
	if err != nil {
		w.t.Error(err)
		return
	}
	repo, path := gitea.Repository(w.project.Apps), gitref.Path(app+".yaml")
	for pause := newBackoff(10 * time.Minute); ; {
		started := time.Now()
		file, err := c.File(ctx, repo, "main", path)
		if err == nil {
			if strings.Contains(string(file.Content), line) {
				return
			}
			_, err = c.WriteFile(ctx, repo, "main", gitea.Write{
				Path: path, Content: append(file.Content, line...), SHA: file.SHA,
				Message: "a person's edit", Author: gitea.Author{Name: "Ada", Email: "ada@example.org"},
			})
			if err == nil {
				return
			}
		}
		if ctx.Err() != nil || errors.Is(err, gitea.ErrNotFound) {
			w.t.Errorf("editing %s: %v", app, err)
			return
		}
		time.Sleep(pause.next(time.Since(started)))
	}
}
