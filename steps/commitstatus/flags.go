package commitstatus

import (
	"context"
	"log/slog"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"fabrique/steps/config"
	"fabrique/steps/gitea"
	"fabrique/steps/secret"
	"fabrique/steps/step"
	"fabrique/workflows/run"
)

// Help is the binary's description.
const Help = `Reads a Workflow of the chain from the API server of the cluster that it runs in, and shows on the commit in
Gitea what became of it: the context "fabrique" for the whole, "fabrique/APP" for each app that was due.

With --end, as the Workflow's exit handler, nothing is pending any more, and a failed run ends this step with
its exit code and its reason, which Argo makes the Workflow's message.`

// Flags are the binary's, as parsed.
type Flags struct {
	Options
	URL                        string
	namespace, name, tokenFile string
}

// Declare declares the flags.
func (f *Flags) Declare(flags *pflag.FlagSet) {
	flags.StringVar(&f.namespace, "namespace", "", "namespace of the Workflow")
	flags.StringVar(&f.name, "workflow", "", "name of the Workflow")
	flags.BoolVar(&f.End, "end", false, "the Workflow's steps are over")
	step.Var(flags, &f.URL, "gitea-url", "Gitea, http(s)://host:port", gitea.ParseURL)
	step.Var(flags, &f.Source, "source-repository", "owner/name of the repository with the code", gitea.ParseRepository)
	step.Var(flags, &f.Link, "link", "address that shows Workflows, an Argo server's", config.ParseWorkflowsURL)
	flags.StringVar(&f.tokenFile, "token-file", "", "file with the token of the user that writes statuses (or "+secret.EnvStatusToken+")")
}

// Run reads the Workflow and reports.
func (f *Flags) Run(ctx context.Context, log *slog.Logger) (Result, error) {
	result := Result{Statuses: []Reported{}}
	token, err := secret.Load(f.tokenFile, secret.EnvStatusToken)
	if err != nil {
		return result, err
	}
	if token.IsZero() {
		return result, step.Invalidf("loading the token: there is none; name its file with --token-file or set %s", secret.EnvStatusToken)
	}
	if f.Client, err = gitea.New(f.URL, token); err != nil {
		return result, err
	}
	cluster, err := rest.InClusterConfig()
	if err != nil {
		return result, step.Invalidf("looking for the cluster: %w", err)
	}
	client, err := run.NewClient(cluster)
	if err != nil {
		return result, err
	}
	// The exit handler's pod is made before Argo has written down that the steps are over.
	patience := time.Now().Add(30 * time.Second)
	if err := again(ctx, log, func() (err error) {
		f.Options.Run, err = client.Get(ctx, f.namespace, f.name)
		if err == nil && f.End && !f.Options.Run.StepsOver && time.Now().Before(patience) {
			err = step.Retryf("the Workflow's steps are not over yet")
		}
		return err
	}); err != nil {
		return result, err
	}
	return Report(ctx, log, f.Options)
}
