package story

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Write writes the story as a table, times as in the local zone.
func (s Story) Write(w io.Writer) error {
	fmt.Fprintf(w, "%s %s\n\n", s.Repository, s.Revision)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "TIME\tAFTER\tAPP\tWHAT\tDETAIL")
	for _, l := range s.Lines {
		at, after, app := "-", "-", "-"
		if !l.Time.IsZero() {
			at = l.Time.Local().Format(time.RFC3339)
		}
		if l.After != nil {
			after = time.Duration(*l.After * float64(time.Second)).Round(time.Second).String()
		}
		if l.App != "" {
			app = l.App
		}
		// A message may have many lines.
		first, rest, _ := strings.Cut(strings.ReplaceAll(strings.TrimSpace(l.Text), "\t", "    "), "\n")
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", at, after, app, l.What, first)
		if rest != "" {
			for line := range strings.SplitSeq(rest, "\n") {
				fmt.Fprintf(table, "\t\t\t\t%s\n", line)
			}
		}
	}
	return table.Flush()
}
