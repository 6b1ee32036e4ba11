package build

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/spf13/pflag"

	"fabrique/steps/buildarg"
	"fabrique/steps/egress"
	"fabrique/steps/record"
	"fabrique/steps/secret"
	"fabrique/steps/step"
)

// Proxy is the way out of RUN instructions: the egress gateway. They are told of it by
// the standard variables, as BuildKit's predefined build arguments, which are neither
// recorded in the image nor part of the cache's key (Dockerfile reference, predefined
// ARGs), along with a credential that says for whom they run.
type Proxy struct {
	URL     string   // http://host:port; empty for no proxy
	Report  string   // where the gateway tells what it refused; empty for no such
	NoProxy []string // hosts that are reached directly
	KeyFile string   // with the key of the credentials; empty for [egress.EnvKey], or none
	Who     egress.Identity
}

// Declare declares the flags.
func (p *Proxy) Declare(f *pflag.FlagSet) {
	step.Var(f, &p.URL, "proxy", "the egress gateway, http://host:port, for RUN instructions (default: none)", parseProxy)
	step.Var(f, &p.Report, "proxy-report", "its admin port, http://host:port: what it refused is told when the build fails", parseProxy)
	step.ListVar(f, &p.NoProxy, "no-proxy", "host that RUN instructions reach without it (repeatable)", parseNoProxy)
	f.StringVar(&p.KeyFile, "egress-key-file", "", "file with the key that the gateway knows an app by (or "+egress.EnvKey+"; default: none)")
	step.Var(f, &p.Who.App, "app", "app that the image is for, to the gateway", record.ParseApp)
	step.Var(f, &p.Who.Workflow, "workflow", "Workflow that builds it, to the gateway", egress.ParseWorkflow)
}

func parseProxy(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" || u.Hostname() == "" || u.Port() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return "", step.Invalidf("parsing the proxy's address %q: want http://host:port", step.Clip(step.RedactURLs(s)))
	}
	if u.User != nil {
		return "", step.Invalidf("parsing the proxy's address: it holds a user; the credential is made from the key")
	}
	return "http://" + u.Host, nil
}

func parseNoProxy(s string) (string, error) {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == ',' }) {
		return "", step.Invalidf("parsing the host %q: want one without white space and commas", step.Clip(s))
	}
	return s, nil
}

// variables are those that BuildKit takes for a proxy's, in either case.
var variables = []string{"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"}

func isVariable(name string) bool {
	return slices.ContainsFunc(variables, func(v string) bool { return strings.EqualFold(v, name) })
}

// grace is how much longer than the build its credential lives.
const grace = 5 * time.Minute

// attrs adds the variables to the frontend's settings, and gives a function that takes
// the credential out of the build's output. Exit codes: 2 for a build argument or key
// that stands in the way, 3 for a Dockerfile that would record the credential.
func (p Proxy) attrs(ctx context.Context, args buildarg.Args, src source, attrs map[string]string) (redact func(string) string, err error) {
	redact = func(text string) string { return text }
	if p.URL == "" {
		return redact, nil
	}
	for name := range args {
		if isVariable(name) {
			return nil, step.Invalidf("parsing the build argument %q: builds get their proxy from the factory; remove it, and list what the build must reach under egress in the configuration", name)
		}
	}
	if err := declares(src); err != nil {
		return nil, err
	}
	key, err := egress.LoadKey(p.KeyFile)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(p.URL)
	if err != nil {
		return nil, step.Invalidf("parsing the proxy's address: %w", err)
	}
	if !key.IsZero() && p.Who.App != "" {
		until, ok := ctx.Deadline()
		if !ok {
			until = time.Now().Add(24 * time.Hour)
		}
		u.User = key.Credential(p.Who, until.Add(grace))
		password, _ := u.User.Password()
		// The second is what a tool sends, and may show (RFC 7617).
		plain, sent := secret.New(password), secret.New(base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password)))
		redact = func(text string) string { return sent.Redact(plain.Redact(text)) }
	}
	// BuildKit gives each in both cases.
	attrs["build-arg:HTTP_PROXY"], attrs["build-arg:HTTPS_PROXY"] = u.String(), u.String()
	attrs["build-arg:NO_PROXY"] = strings.Join(append([]string{"localhost", "127.0.0.1"}, p.NoProxy...), ",")
	return redact, nil
}

// declares refuses a Dockerfile with an ARG for a proxy's variable: declared, its value
// is recorded in the image and becomes part of the cache's key.
func declares(src source) error {
	parsed, err := parser.Parse(strings.NewReader(string(src.dockerfile)))
	if err != nil {
		return nil // the build says it better
	}
	for _, node := range parsed.AST.Children {
		if !strings.EqualFold(node.Value, "ARG") {
			continue
		}
		for word := node.Next; word != nil; word = word.Next {
			name, _, _ := strings.Cut(word.Value, "=")
			if isVariable(name) {
				return step.Sourcef("reading %s:%d: remove ARG %s: RUN instructions have the variable without it, and with it the build's credential would be recorded in the image",
					src.display, node.StartLine, name)
			}
		}
	}
	return nil
}

// shown bounds how many refusals a message tells.
const shown = 10

// refusals asks the gateway what it refused to this build since it began. That it
// cannot be asked is no failure of the build.
func (p Proxy) refusals(ctx context.Context, log *slog.Logger, since time.Time) []string {
	if p.URL == "" || p.Report == "" || p.Who.App == "" {
		return nil
	}
	// The build may have been cut off; this is still to be told.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	report, err := egress.Client{URL: p.Report}.Requests(ctx, egress.Filter{App: p.Who.App, Workflow: p.Who.Workflow, Verdict: egress.Refused, Since: since.Add(-clockSkew)})
	if err != nil {
		log.Warn("not knowing what the egress gateway refused", "because", err.Error())
		return nil
	}
	var lines []string
	for _, r := range report.Requests {
		lines = append(lines, r.Message)
	}
	slices.Sort(lines)
	lines = slices.Compact(lines)
	if more := len(lines) - shown; more > 0 {
		lines = append(lines[:shown], fmt.Sprintf("egress to %d more destinations refused", more))
	}
	return lines
}

// clockSkew is how far the gateway's clock may be behind.
const clockSkew = 5 * time.Second

// explain puts what was refused before a build's error, or into the log of a build that
// came through without it.
func (p Proxy) explain(ctx context.Context, log *slog.Logger, since time.Time, err error) error {
	lines := p.refusals(ctx, log, since)
	if len(lines) == 0 {
		return err
	}
	if err == nil {
		for _, line := range lines {
			log.Warn(line)
		}
		return nil
	}
	return fmt.Errorf("%s: %w", strings.Join(lines, "; "), err)
}
