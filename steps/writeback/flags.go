package writeback

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/pflag"

	"fabrique/steps/config"
	"fabrique/steps/gitea"
	"fabrique/steps/image"
	"fabrique/steps/secret"
	"fabrique/steps/step"
)

// Help is the binary's description.
const Help = `Brings the app's record to the revision and digest that were built, in one commit, and changes
nothing else in the file. It never replaces something newer, never overwrites what a person changed at
the same time, and makes no second commit when it is run again.

The result is created, updated, unchanged, stale (the record has a newer revision) or held (the record
has fabrique/hold, or a person took this source back). All of them end with exit code 0.`

// Flags are the binary's, as parsed.
type Flags struct {
	Options
	Deployment
	URL                        string
	tokenFile, readerTokenFile string
	createFrom, digestFile     string
}

// Rest declares the flags that are not about the deployment.
func (f *Flags) Rest(flags *pflag.FlagSet) {
	flags.StringVar(&f.tokenFile, "token-file", "", "file with the token of the user that writes the apps repository (or "+secret.EnvWriterToken+")")
	flags.StringVar(&f.readerTokenFile, "reader-token-file", "", "file with a token that reads the source repository (or "+secret.EnvReaderToken+"; default: the writer's)")
	flags.StringVar(&f.createFrom, "create-from", "", "file with the Application to create when the record does not exist")
	f.Author = gitea.Author{Name: "Fabrique", Email: "fabrique@localhost"}
	step.Var(flags, &f.Author.Name, "author-name", "who signs the commit (default Fabrique)", config.ParseAuthorName)
	step.Var(flags, &f.Author.Email, "author-email", "and their address (default fabrique@localhost)", config.ParseAuthorEmail)
	step.Var(flags, &f.Digest, "digest", "digest that the registry answers", image.ParseDigest)
	flags.StringVar(&f.digestFile, "digest-file", "", "file with the digest, as digest-inspect --outputs writes it, in place of --digest")
	flags.DurationVar(&f.MaxWait, "max-wait", 2*time.Minute, "how long to try again on conflicts and server errors")
}

// Run loads the secrets and files and deploys.
func (f *Flags) Run(ctx context.Context, log *slog.Logger) (Result, error) {
	result := Result{App: f.App}
	if err := f.readDigest(); err != nil {
		return result, err
	}
	writer, err := secret.Load(f.tokenFile, secret.EnvWriterToken)
	if err != nil {
		return result, err
	}
	reader, err := secret.Load(f.readerTokenFile, secret.EnvReaderToken)
	if err != nil {
		return result, err
	}
	if writer.IsZero() {
		return result, step.Invalidf("loading the writer's token: there is none; name its file with --token-file or set %s", secret.EnvWriterToken)
	}
	if reader.IsZero() {
		reader = writer
	}
	if f.Writer, err = gitea.New(f.URL, writer); err != nil {
		return result, err
	}
	if f.Reader, err = gitea.New(f.URL, reader); err != nil {
		return result, err
	}
	if f.createFrom != "" {
		f.CreateFrom, err = os.ReadFile(f.createFrom)
		if errors.Is(err, fs.ErrNotExist) {
			return result, step.Invalidf("reading the file of --create-from: %q does not exist; name an Application manifest", f.createFrom)
		}
		if err != nil {
			return result, step.Invalidf("reading the file of --create-from: %w", err)
		}
	}
	return Deploy(ctx, log, f.Options, f.Deployment)
}

// readDigest takes the digest from its file, if one is named.
func (f *Flags) readDigest() error {
	switch {
	case f.Digest != "" && f.digestFile != "":
		return step.Invalidf("both --digest and --digest-file are given; keep one")
	case f.Digest != "":
		return nil
	case f.digestFile == "":
		return step.Invalidf("the digest is missing; give --digest or --digest-file")
	}
	text, err := os.ReadFile(f.digestFile)
	if err != nil {
		return step.Invalidf("reading the file of --digest-file: %w", err)
	}
	f.Digest, err = image.ParseDigest(string(text))
	return err
}
