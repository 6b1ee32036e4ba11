package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fabrique/bench/platform"
	"fabrique/bench/sample"
	"fabrique/manifests/zone"
)

// Result is what the gates measured: seconds after git push, by stage.
type Result struct {
	Pushes []Push             `json:"pushes"`
	Median map[string]float64 `json:"medianSeconds"`
	P95    map[string]float64 `json:"p95Seconds"`
	// Alone is how long a push took without the event path.
	Alone float64 `json:"withoutEventsSeconds"`
}

// MarshalJSON gives the time in seconds.
func (s Stage) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]any{"stage": s.Name, "seconds": s.After.Seconds()})
}

// second is an app that the gates add to the sample's.
const second = "news"

// Gates proves the ADR's gates on the cluster: a record is all that a new app
// needs; ten pushes in a row, over two apps, each end in pods that run that commit
// by digest while the other app stays as it is; and without the event path the
// CronWorkflow brings a push to life alone.
func (d Demo) Gates(ctx context.Context, out io.Writer) (Result, error) {
	var r Result
	admin, stop, err := d.Admin(ctx)
	if err != nil {
		return r, err
	}
	defer stop()
	work := clones{ctx, admin, d.Dir}
	if err := work.fill(platform.SourceRepo, sample.Atlas(), nil); err != nil {
		return r, err
	}
	if err := work.fill(platform.AppsRepo, sample.Apps(), strings.NewReplacer("http://gitea:3000", platform.GiteaURL)); err != nil {
		return r, err
	}
	if err := d.newApp(ctx, out, work); err != nil {
		return r, fmt.Errorf("adding an app by its record alone: %w", err)
	}
	for i := range 10 {
		app, other := "hello", second
		if i%2 == 1 {
			app, other = other, app
		}
		before, err := d.deployed(ctx, other)
		if err != nil {
			return r, err
		}
		p, err := d.push(ctx, out, work, app, fmt.Sprintf("Gate %d at %s", i+1, time.Now().Format("15:04:05")))
		if err != nil {
			return r, err
		}
		if after, err := d.deployed(ctx, other); err != nil || after != before {
			return r, fmt.Errorf("the push to %s changed %s from %s to %s: %w", app, other, before, after, err)
		}
		r.Pushes = append(r.Pushes, p)
	}
	r.Median, r.P95 = map[string]float64{}, map[string]float64{}
	for _, s := range r.Pushes[0].Stages {
		var all []float64
		for _, p := range r.Pushes {
			for _, other := range p.Stages {
				if other.Name == s.Name {
					all = append(all, other.After.Seconds())
				}
			}
		}
		slices.Sort(all)
		r.Median[s.Name], r.P95[s.Name] = quantile(all, 0.5), quantile(all, 0.95)
	}
	if err := table(out, r.Pushes); err != nil {
		return r, err
	}
	r.Alone, err = d.withoutEvents(ctx, out, work)
	return r, err
}

// quantile gives the smallest of the sorted values that a part of them does not
// exceed.
func quantile(sorted []float64, part float64) float64 {
	return sorted[max(0, int(math.Ceil(part*float64(len(sorted))))-1)]
}

// deployed gives the revision of an app's record as Argo CD knows it.
func (d Demo) deployed(ctx context.Context, app string) (string, error) {
	return d.Kubectl.Run(ctx, nil, "get", "application", app, "-n", "argocd", "--ignore-not-found", "-o", `jsonpath={.metadata.annotations.fabrique/revision} {.spec.source.kustomize.images}`)
}

// newApp pushes the folder of another app and its record. The record's push
// starts nothing: the source's does.
func (d Demo) newApp(ctx context.Context, out io.Writer, work clones) error {
	rename := strings.NewReplacer("hello", second)
	apps, source := work.dir(platform.AppsRepo), work.dir(platform.SourceRepo)
	target := filepath.Join(apps, second+".yaml")
	if _, err := os.Stat(target); err == nil {
		return nil // an earlier run added it
	}
	original, err := fs.ReadFile(sample.Apps(), "hello.yaml")
	if err != nil {
		return err
	}
	text := strings.NewReplacer("http://gitea:3000", platform.GiteaURL).Replace(rename.Replace(string(original)))
	if err := os.WriteFile(target, []byte(text), 0o644); err != nil {
		return err
	}
	if err := work.commit(apps, "Declare "+second); err != nil {
		return err
	}
	if _, err := work.git(apps, "push", "--quiet", work.url(platform.AppsRepo), "HEAD:refs/heads/main"); err != nil {
		return err
	}
	if err := fs.WalkDir(sample.Atlas(), "web/hello", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := fs.ReadFile(sample.Atlas(), name)
		if err != nil {
			return err
		}
		target := filepath.Join(source, rename.Replace(name))
		if err := os.MkdirAll(path.Dir(target), 0o755); err != nil {
			return err
		}
		return os.WriteFile(target, []byte(rename.Replace(string(content))), 0o644)
	}); err != nil {
		return err
	}
	_, err = d.push(ctx, out, work, second, "The first page of "+second)
	return err
}

// withoutEvents scales the event path away and pushes once.
func (d Demo) withoutEvents(ctx context.Context, out io.Writer, work clones) (seconds float64, err error) {
	fmt.Fprintln(out, "\nWithout EventSource, Sensor and EventBus:")
	for _, kind := range []string{"deployments", "statefulsets"} {
		if _, err := d.Kubectl.Run(ctx, nil, "scale", kind, "--all", "--replicas=0", "-n", zone.Events); err != nil {
			return 0, err
		}
	}
	defer func() {
		end := context.WithoutCancel(ctx)
		for _, kind := range []string{"statefulsets", "deployments"} {
			if _, undo := d.Kubectl.Run(end, nil, "scale", kind, "--all", "--replicas=1", "-n", zone.Events); undo != nil && err == nil {
				err = undo
			}
		}
	}()
	if _, err := d.Kubectl.Run(ctx, nil, "wait", "--for=delete", "pods", "--all", "--timeout=120s", "-n", zone.Events); err != nil {
		return 0, err
	}
	p, err := d.push(ctx, out, work, "hello", "Without events at "+time.Now().Format("15:04:05"))
	if err != nil {
		return 0, err
	}
	return p.Stages[len(p.Stages)-1].After.Seconds(), nil
}
