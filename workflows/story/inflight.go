package story

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"k8s.io/client-go/rest"

	"fabrique/manifests/zone"
	"fabrique/steps/record"
	"fabrique/steps/step"
	"fabrique/workflows"
	"fabrique/workflows/run"
)

// InFlight is a run that is not over.
type InFlight struct {
	Name     string    `json:"name"`
	Cause    string    `json:"cause"`
	Revision string    `json:"revision"` // empty when it is for the head and does not know that yet
	Created  time.Time `json:"created"`
	Doing    string    `json:"doing"`
	Apps     []Doing   `json:"apps"` // what is due; empty when that is not known yet
}

// Doing is what an app is doing.
type Doing struct {
	App     string      `json:"app"`
	Outcome run.Outcome `json:"outcome"`
	Doing   string      `json:"doing"`
}

// RunsInFlight gives the runs of the chain that are not over, the oldest first; with
// apps only those that have one of them due, or may.
func RunsInFlight(ctx context.Context, config *rest.Config, apps []string) ([]InFlight, error) {
	client, err := run.NewClient(config)
	if err != nil {
		return nil, err
	}
	all, err := client.InFlight(ctx, zone.Workflows)
	if err != nil {
		return nil, step.WithCause(ctx, err)
	}
	return inFlight(all, apps), nil
}

func inFlight(all []run.Run, apps []string) []InFlight {
	flying := []InFlight{}
	for _, r := range slices.Backward(all) {
		if r.Template != workflows.TemplateName {
			continue
		}
		f := InFlight{
			Name: r.Name, Cause: r.Cause, Revision: step.Printable(step.Clip(r.Revision)), Created: r.Created,
			Doing: step.Printable(r.Verdict(false).Text), Apps: []Doing{},
		}
		for _, a := range r.Apps {
			if len(apps) == 0 || slices.Contains(apps, a.App) {
				v := a.Verdict(false)
				f.Apps = append(f.Apps, Doing{a.App, v.Outcome, step.Printable(v.Text)})
			}
		}
		may := r.Plan.State != run.Succeeded && (r.Only == "" || slices.Contains(apps, r.Only))
		if len(apps) == 0 || len(f.Apps) > 0 || may {
			flying = append(flying, f)
		}
	}
	return flying
}

// WriteInFlight writes a table with a line for each app of each run. Without runs it
// writes nothing when runs is nil, as nobody was asked.
func WriteInFlight(w io.Writer, runs []InFlight, now time.Time) error {
	if runs == nil {
		return nil
	}
	if len(runs) == 0 {
		_, err := fmt.Fprintln(w, "\nno run is in flight")
		return err
	}
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "RUN\tCAUSE\tREVISION\tAGE\tAPP\tDOING")
	for _, r := range runs {
		revision := record.OneLine(r.Revision)
		if revision == "" {
			revision = "-"
		}
		doing := r.Apps
		if len(doing) == 0 {
			doing = []Doing{{App: "-", Doing: r.Doing}}
		}
		for _, d := range doing {
			fmt.Fprintf(table, "%s\t%s\t%.12s\t%s\t%s\t%s\n", r.Name, r.Cause, revision, now.Sub(r.Created).Round(time.Second), d.App, record.OneLine(d.Doing))
		}
	}
	return table.Flush()
}
