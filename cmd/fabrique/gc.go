package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"fabrique/manifests/kubeconfig"
	"fabrique/steps/chain"
	"fabrique/steps/config"
	"fabrique/steps/gc"
	"fabrique/steps/step"
)

func (c *cli) gcCommand() *cobra.Command {
	var file string
	var o gc.Options
	asJSON := false
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove images from the registry that no record has named for a while",
		Long: `Says which images would be removed, and with --delete removes them. Only what Fabrique made is ever removed:
tags of twelve hex digits, on images that a record names or once named, that carry the label of that revision.

Kept is what any commit of the apps repository names that was its branch's head within --keep, so what is
deployed, held or rolled back however old; what was built from a commit that was the head of the source branch
within --keep; what was built within --grace; what is the same image as another tag; every tag of an image that
a broken record names. With --kubeconfig also what any pod of that cluster runs, for apps that Argo CD does not
sync and for "kubectl rollout undo".

When anything cannot be read, nothing is removed (exit code 1, or 2 for configuration). The registry must
allow deletion (storage.delete.enabled), and frees the space when its own garbage collection runs:
registry garbage-collect. Do not run that, nor "fabrique rollback" to a revision outside --keep, at the same time.

It needs the reader's token alone.`,
		Example: `  fabrique gc                                # what would be removed, and why the rest stays
  fabrique gc --delete --keep 2160h
  fabrique gc --delete --kubeconfig ~/.kube/config --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Keep < 0 || o.Grace < 0 {
				return step.Invalidf("reading --keep and --grace: a negative time keeps nothing; want a duration, as in 720h")
			}
			conf, err := c.config()
			if err != nil {
				return err
			}
			if o.Protected, err = inUse(cmd.Context(), conf, file); err != nil {
				return err
			}
			if !asJSON {
				o.Decided = func(t gc.Tag) { writeTag(c.stdout, t) }
			}
			report, err := chain.Collect(cmd.Context(), c.log(), conf, o)
			if asJSON {
				return errors.Join(c.printJSON(report), err)
			}
			writeCollected(c.stdout, report, o.Delete, err)
			return err
		},
	}
	f := cmd.Flags()
	f.DurationVar(&o.Keep, "keep", 30*24*time.Hour, "how far back records and source commits keep their images")
	f.DurationVar(&o.Grace, "grace", 24*time.Hour, "how long an image is kept after it was built, whatever names it")
	f.BoolVar(&o.Delete, "delete", false, "remove; without it nothing changes")
	f.StringVar(&file, "kubeconfig", "", "a cluster whose pods keep the images that they run (default: none)")
	f.BoolVar(&asJSON, "json", false, "print the report as JSON; \"changed\" says whether anything was removed, or would be")
	return cmd
}

// inUse gives texts with the digests of the factory's own images and of what the
// cluster's pods run.
func inUse(ctx context.Context, conf config.Config, file string) ([]string, error) {
	texts := []string{fmt.Sprint(conf.Cluster.Images, conf.Builder.Frontends)}
	if file == "" {
		return texts, nil
	}
	reach, err := kubeconfig.Load(file)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(reach)
	if err != nil {
		return nil, step.Invalidf("reading the kubeconfig: %w", err)
	}
	limited, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("no answer within a minute"))
	defer cancel()
	pods, err := gc.Pods(limited, client)
	return append(texts, pods...), step.WithCause(limited, err)
}

func writeTag(w io.Writer, t gc.Tag) {
	fmt.Fprintln(w, step.Printable(fmt.Sprintf("%-12s %s:%s: %s", t.Result, t.Image, t.Tag, t.Reason)))
}

func writeCollected(w io.Writer, r gc.Report, deleted bool, err error) {
	word := "would remove"
	if deleted {
		word = "removed"
	}
	fmt.Fprintf(w, "\n%s: %d tags, at most %.1f MB; kept: %d, of %d images\n", word, r.Removed, float64(r.Bytes)/1e6, r.Kept, r.Images)
	switch {
	case err != nil:
	case !r.Changed:
		fmt.Fprintln(w, "unchanged")
	case deleted:
		fmt.Fprintln(w, "changed; the registry frees the space when its own garbage collection runs")
	default:
		fmt.Fprintln(w, "would change; --delete does it")
	}
}
