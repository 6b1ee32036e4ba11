package speed

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
)

// Row is one line of the table. Where there were several runs the value is
// their median.
type Row struct {
	What  string    `json:"what"`
	Unit  string    `json:"unit"`
	Ours  float64   `json:"ours"`
	Runs  []float64 `json:"runs,omitempty"`
	Peer  string    `json:"peer,omitempty"`
	Their float64   `json:"theirs,omitempty"`
	TRuns []float64 `json:"theirRuns,omitempty"`
	Ratio float64   `json:"ratio,omitempty"`
	Aim   string    `json:"aim,omitempty"`
	Met   string    `json:"met,omitempty"` // "yes" or "no", empty without an aim
}

// measured makes a row without a peer and without an aim.
func measured(what, unit string, ours []float64) Row {
	return Row{What: what, Unit: unit, Ours: median(ours), Runs: ours}
}

// against adds the peer.
func (r Row) against(peer string, theirs []float64) Row {
	r.Peer, r.Their, r.TRuns = peer, median(theirs), theirs
	r.Ratio = r.Ours / r.Their
	return r
}

// atMost sets an aim for the value itself.
func (r Row) atMost(limit float64) Row {
	r.Aim = fmt.Sprintf("≤ %g %s", limit, r.Unit)
	return r.met(r.Ours <= limit)
}

// timesAtMost sets an aim for the ratio to the peer.
func (r Row) timesAtMost(limit float64) Row {
	r.Aim = fmt.Sprintf("≤ %g×", limit)
	return r.met(r.Ratio <= limit)
}

// equal sets the aim to be the same as the peer.
func (r Row) equal() Row {
	r.Aim = "equal"
	return r.met(r.Ours == r.Their)
}

func (r Row) met(ok bool) Row {
	r.Met = "no"
	if ok {
		r.Met = "yes"
	}
	return r
}

// Fact is a finding that is no figure.
type Fact struct {
	What   string `json:"what"`
	Answer string `json:"answer"`
}

// Report is what a run found.
type Report struct {
	Machine string   `json:"machine"`
	Rows    []Row    `json:"rows"`
	Facts   []Fact   `json:"facts"`
	Notes   []string `json:"notes"`
}

func machine() string {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	load, _, _ := strings.Cut(readLine("/proc/loadavg"), " ")
	return fmt.Sprintf("%s/%s, %d CPUs, Linux %s, %s, load %s at the start", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), strings.TrimSpace(string(kernel)), runtime.Version(), load)
}

func readLine(path string) string {
	raw, _ := os.ReadFile(path)
	line, _, _ := strings.Cut(string(raw), "\n")
	return line
}

// WriteText writes the report for people.
func (r Report) WriteText(w io.Writer) error {
	fmt.Fprintln(w, r.Machine)
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WHAT\tOURS\tPEER\tPEER'S\tRATIO\tAIM\tMET")
	for _, row := range r.Rows {
		theirs, ratio := "–", "–"
		if row.Peer != "" {
			theirs, ratio = figure(row.Their, row.Unit), fmt.Sprintf("%.2f", row.Ratio)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", row.What, figure(row.Ours, row.Unit), dash(row.Peer), theirs, ratio, dash(row.Aim), dash(row.Met))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, f := range r.Facts {
		fmt.Fprintf(w, "%s: %s\n", f.What, f.Answer)
	}
	fmt.Fprintln(w)
	for _, n := range r.Notes {
		fmt.Fprintf(w, "- %s\n", n)
	}
	return nil
}

func dash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

func figure(value float64, unit string) string {
	switch unit {
	case "s":
		return fmt.Sprintf("%.3f s", value)
	case "requests":
		return fmt.Sprintf("%.0f requests", value)
	}
	return fmt.Sprintf("%.1f %s", value, unit)
}

// WriteJSON writes the report, with every single run, to a file.
func (r Report) WriteJSON(path string) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append(raw, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}
