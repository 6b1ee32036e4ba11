// Package config reads fabrique.yaml, the one configuration file.
//
// Reading is strict: an unknown or doubled field, a value of the wrong type and
// a value that means nothing are errors, all reported at once as
//
//	fabrique.yaml:3:8: gitea.url: what is wrong; what to do
//
// with exit code 2. No secret stands in the file, only the names of files that
// hold one. Nothing about one cluster is compiled in: [Template] shows example
// values, and what names a place has no default.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"fabrique/steps/frontend"
	"fabrique/steps/gitea"
	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/record"
	"fabrique/steps/secret"
	"fabrique/steps/step"
)

// FileName is the file's usual name.
const FileName = "fabrique.yaml"

// Config is a checked configuration: every value has its parser's form, and
// relative file names are resolved against the folder of the file.
type Config struct {
	Gitea    Gitea    `yaml:"gitea"`
	Source   Source   `yaml:"source"`
	Apps     Apps     `yaml:"apps"`
	Registry Registry `yaml:"registry"`
	Builder  Builder  `yaml:"builder"`
	Author   Author   `yaml:"author"`
	Timeouts Timeouts `yaml:"timeouts"`
	Egress   Egress   `yaml:"egress"`
	Cluster  Cluster  `yaml:"cluster"`
	Seed     Seed     `yaml:"seed"`
}

// Cluster is how the factory runs inside a cluster. Only fabrique render and apply
// need it; see [Config.CheckCluster].
type Cluster struct {
	Images       Images `yaml:"images"`
	Builders     int    `yaml:"builders"`     // how many buildkitds; an app always goes to the same one
	WorkflowsURL string `yaml:"workflowsURL"` // of an Argo server, for the links on commits; empty for none
	Schedule     string `yaml:"schedule"`     // of the run without an event, five fields of cron(5)
	StorageClass string `yaml:"storageClass"` // empty for the cluster's default
	// WorkflowController is the user that Argo's controller is to the API server.
	WorkflowController string `yaml:"workflowController"`
	// BuilderMemory is the most that a buildkitd and the instructions that it runs use
	// together, a Kubernetes quantity.
	BuilderMemory string `yaml:"builderMemory"`
	// BuilderSeccomp is a seccomp profile for buildkitd on the nodes, below the kubelet's
	// folder for them; empty for none.
	BuilderSeccomp string     `yaml:"builderSeccomp"`
	Webhook        Webhook    `yaml:"webhook"`
	EventBus       EventBus   `yaml:"eventBus"`
	BuildCache     BuildCache `yaml:"buildCache"`
	Network        Network    `yaml:"network"`
}

// Images are what the factory's pods run, each by digest.
type Images struct {
	ReconcileHead  string `yaml:"reconcileHead"`
	CloneAtSHA     string `yaml:"cloneAtSHA"`
	BuildkitBuild  string `yaml:"buildkitBuild"`
	DigestInspect  string `yaml:"digestInspect"`
	GiteaWriteback string `yaml:"giteaWriteback"`
	CommitStatus   string `yaml:"commitStatus"`
	EgressGateway  string `yaml:"egressGateway"`
	// EgressAddresses is not needed where Cilium knows names.
	EgressAddresses string `yaml:"egressAddresses"`
	RunNetwork      string `yaml:"runNetwork"`
	Buildkitd       string `yaml:"buildkitd"`
}

// Webhook is webhook #2 of Gitea.
type Webhook struct {
	MaxPayloadBytes int64 `yaml:"maxPayloadBytes"`
}

// EventBus is the NATS JetStream bus.
type EventBus struct {
	Version string `yaml:"version"` // one that Argo Events' configuration knows
	Storage string `yaml:"storage"` // a Kubernetes quantity
}

// BuildCache is buildkitd's volume.
type BuildCache struct {
	Storage string `yaml:"storage"` // a Kubernetes quantity
}

// Gitea is the git server.
type Gitea struct {
	URL    string `yaml:"url"`
	Reader Token  `yaml:"reader"` // of the bot that reads both repositories
	Writer Token  `yaml:"writer"` // of the bot that writes the apps repository
}

// Token names the file with an access token.
type Token struct {
	TokenFile string `yaml:"tokenFile"`
}

// Source is the repository with the code.
type Source struct {
	Repository gitea.Repository `yaml:"repository"`
	Branch     gitref.Branch    `yaml:"branch"`
}

// Apps is the repository with the records.
type Apps struct {
	Repository gitea.Repository `yaml:"repository"`
	Branch     gitref.Branch    `yaml:"branch"`
	Path       gitref.Path      `yaml:"path"` // folder with the records
}

// Registry is where images go.
type Registry struct {
	Address   image.Registry `yaml:"address"`
	PlainHTTP bool           `yaml:"plainHTTP"`
}

// Builder is the BuildKit daemon and what builds may use.
type Builder struct {
	Address  string         `yaml:"address"`
	Platform image.Platform `yaml:"platform"`
	Timeout  time.Duration  `yaml:"timeout"`
	// Cache is "off", "min" or "max": the mode in which the build cache is kept
	// in the registry too, as <image>:buildcache.
	Cache string `yaml:"cache"`
	// MaxCacheBytes bounds the daemon's own cache; 0 is four fifths of its volume in a
	// cluster, and elsewhere leaves it to the daemon.
	MaxCacheBytes int64 `yaml:"maxCacheBytes"`
	// Frontends is what "# syntax=" may name, all of it: what the file lists
	// replaces the default.
	Frontends frontend.Allowed `yaml:"frontends"`
	Secrets   []Secret         `yaml:"secrets"`
}

// Secret is a file that the builds of some apps may mount by its id.
type Secret struct {
	ID   string   `yaml:"id"`
	File string   `yaml:"file"`
	Apps []string `yaml:"apps"`
}

// Author signs the commits in the apps repository.
type Author struct {
	Name  string `yaml:"name"`
	Email string `yaml:"email"`
}

// Timeouts bound the steps; the build's is Builder.Timeout.
type Timeouts struct {
	Reconcile time.Duration `yaml:"reconcile"`
	Clone     time.Duration `yaml:"clone"`
	Inspect   time.Duration `yaml:"inspect"`
	WriteBack time.Duration `yaml:"writeBack"`
}

// defaults are the values of fields that the file leaves out.
func defaults() Config {
	return Config{
		Source: Source{Branch: "main"},
		Apps:   Apps{Branch: "main", Path: "."},
		Builder: Builder{
			Address:   "unix:///run/buildkit/buildkitd.sock",
			Platform:  "linux/amd64",
			Timeout:   time.Hour,
			Cache:     "off",
			Frontends: frontend.Default(),
		},
		Author: Author{Name: "Fabrique", Email: "fabrique@localhost"},
		Timeouts: Timeouts{
			Reconcile: 2 * time.Minute,
			Clone:     10 * time.Minute,
			Inspect:   time.Minute,
			WriteBack: 2 * time.Minute,
		},
		Egress: defaultEgress(),
		Cluster: Cluster{
			Builders:           1,
			WorkflowController: "system:serviceaccount:argo:argo", BuilderMemory: "4Gi",
			Schedule:   "*/10 * * * *",
			Webhook:    Webhook{MaxPayloadBytes: 1 << 20},
			EventBus:   EventBus{Version: "latest", Storage: "1Gi"},
			BuildCache: BuildCache{Storage: "50Gi"},
			Network:    Network{FQDNPolicies: NoFQDNPolicies},
		},
		Seed: defaultSeed(),
	}
}

// Load reads and checks the file. Exit code 2.
func Load(file string) (Config, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return Config{}, step.Invalidf("reading the configuration %q: it does not exist; write one with: fabrique init", file)
	}
	if err != nil {
		return Config{}, step.Invalidf("reading the configuration: %w", err)
	}
	return Parse(file, data)
}

// Parse checks the text of a configuration file. The name is for errors and for
// relative file names; the file itself is not read. Exit code 2.
func Parse(file string, data []byte) (Config, error) {
	config := defaults()
	d := &decoder{file: file, at: map[string]place{"": {1, 1}}}
	d.decode(data, &config)
	if len(d.problems) == 0 {
		config.check(d)
	}
	if err := d.err(); err != nil {
		return Config{}, err
	}
	folder := filepath.Dir(file)
	for _, name := range append([]*string{&config.Gitea.Reader.TokenFile, &config.Gitea.Writer.TokenFile}, config.secretFiles()...) {
		if *name != "" && !filepath.IsAbs(*name) {
			*name = filepath.Join(folder, *name)
		}
	}
	return config, nil
}

func (c *Config) secretFiles() []*string {
	files := []*string{&c.Seed.AdminTokenFile}
	for i := range c.Seed.Repositories {
		files = append(files, &c.Seed.Repositories[i].TokenFile)
	}
	for i := range c.Builder.Secrets {
		files = append(files, &c.Builder.Secrets[i].File)
	}
	return files
}

var (
	emailForm = regexp.MustCompile(`^[^@\s<>]+@[^@\s<>]+$`)
)

// check reports every value without meaning, and puts parsed values into their
// canonical form.
func (c *Config) check(d *decoder) {
	if c.Gitea.URL == "" {
		d.missing("gitea.url", "name the server, as in http://gitea:3000")
	} else {
		parsed(d, "gitea.url", &c.Gitea.URL, gitea.ParseURL)
	}
	repository := func(field string, value *gitea.Repository, example string) {
		if *value == "" {
			d.missing(field, "name the repository, as in "+example)
			return
		}
		parsed(d, field, value, gitea.ParseRepository)
	}
	repository("source.repository", &c.Source.Repository, "atlas/atlas")
	repository("apps.repository", &c.Apps.Repository, "cluster/apps")
	if c.Source.Repository != "" && c.Source.Repository == c.Apps.Repository {
		d.problem("apps.repository", "it is the source repository; records need a repository of their own, which the builds of strangers cannot reach")
	}
	parsed(d, "source.branch", &c.Source.Branch, gitref.ParseBranch)
	parsed(d, "apps.branch", &c.Apps.Branch, gitref.ParseBranch)
	parsed(d, "apps.path", &c.Apps.Path, gitref.ParsePath)
	if c.Registry.Address == "" {
		d.missing("registry.address", "name it with its port, as in registry:80")
	} else {
		parsed(d, "registry.address", &c.Registry.Address, image.ParseRegistry)
	}
	parsed(d, "builder.address", &c.Builder.Address, ParseBuilderAddress)
	parsed(d, "builder.platform", &c.Builder.Platform, image.ParsePlatform)
	if !slices.Contains([]string{"off", "min", "max"}, c.Builder.Cache) {
		d.problem("builder.cache", "%q is not a mode; want off, min or max", c.Builder.Cache)
	}
	if c.Builder.MaxCacheBytes < 0 {
		d.problem("builder.maxCacheBytes", "%d is negative; want a number of bytes, or 0 for the daemon's own limit", c.Builder.MaxCacheBytes)
	}
	c.checkFrontends(d)
	c.checkSecrets(d)
	c.checkCluster(d)
	c.checkEgress(d)
	c.checkSeed(d)
	parsed(d, "author.name", &c.Author.Name, ParseAuthorName)
	parsed(d, "author.email", &c.Author.Email, ParseAuthorEmail)
	for field, value := range map[string]time.Duration{
		"builder.timeout": c.Builder.Timeout, "timeouts.reconcile": c.Timeouts.Reconcile, "timeouts.clone": c.Timeouts.Clone,
		"timeouts.inspect": c.Timeouts.Inspect, "timeouts.writeBack": c.Timeouts.WriteBack,
	} {
		if value <= 0 || value > 24*time.Hour {
			d.problem(field, "%s is out of range; want more than 0 and at most 24h", value)
		}
	}
}

// checkCluster checks what is given; images may be missing where no cluster is
// configured.
func (c *Config) checkCluster(d *decoder) {
	for name, reference := range c.Cluster.Images.all() {
		if *reference == "" {
			continue
		}
		if err := image.CheckReference(*reference); err != nil {
			d.problem("cluster.images."+name, "%w", err)
		} else if !strings.Contains(*reference, "@") {
			d.problem("cluster.images."+name, "%q has no digest; name the image as in registry:80/fabrique/NAME@sha256:…", *reference)
		}
	}
	if _, err := cron.ParseStandard(c.Cluster.Schedule); err != nil || len(strings.Fields(c.Cluster.Schedule)) != 5 {
		d.problem("cluster.schedule", "%q is no schedule; want five fields of cron(5), as in */10 * * * *", c.Cluster.Schedule)
	}
	c.Cluster.Network.check(d)
	if n := c.Cluster.Builders; n < 1 || n > maxBuilders {
		d.problem("cluster.builders", "%d is out of range; want 1 to %d", n, maxBuilders)
	}
	if c.Cluster.WorkflowsURL != "" {
		parsed(d, "cluster.workflowsURL", &c.Cluster.WorkflowsURL, ParseWorkflowsURL)
	}
	if s := c.Cluster.WorkflowController; !accountForm.MatchString(s) {
		d.problem("cluster.workflowController", "%q is no user of the API server; want as in system:serviceaccount:argo:argo", step.Clip(s))
	}
	if s := c.Cluster.BuilderSeccomp; s != "" && !seccompForm.MatchString(s) {
		d.problem("cluster.builderSeccomp", "%q is no file below the kubelet's folder for profiles; want as in profiles/buildkitd.json", step.Clip(s))
	}
	if c.Cluster.StorageClass != "" && !nameForm.MatchString(c.Cluster.StorageClass) {
		d.problem("cluster.storageClass", "%q is no name of a StorageClass", c.Cluster.StorageClass)
	}
	if n := c.Cluster.Webhook.MaxPayloadBytes; n < 1<<10 || n > 32<<20 {
		d.problem("cluster.webhook.maxPayloadBytes", "%d is out of range; want 1024 to 33554432", n)
	}
	if !versionForm.MatchString(c.Cluster.EventBus.Version) {
		d.problem("cluster.eventBus.version", "%q is no version; want one that Argo Events' configuration lists", c.Cluster.EventBus.Version)
	}
	for field, quantity := range map[string]string{"cluster.eventBus.storage": c.Cluster.EventBus.Storage, "cluster.buildCache.storage": c.Cluster.BuildCache.Storage, "cluster.builderMemory": c.Cluster.BuilderMemory} {
		if !quantityForm.MatchString(quantity) {
			d.problem(field, "%q is no quantity; want a whole number and Mi, Gi or Ti, as in 50Gi", quantity)
		}
	}
}

// maxBuilders bounds what a slip of the pen can start, and fits the zones' quotas.
const maxBuilders = 8

var (
	nameForm     = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)
	versionForm  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	quantityForm = regexp.MustCompile(`^[1-9][0-9]{0,8}(Mi|Gi|Ti)$`)
)

// all gives the references by their field's name.
// accountForm is that of a service account, or of a certificate's name.
var accountForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9:._@-]{0,252}$`)

// seccompForm is a relative path without ".." in it.
var seccompForm = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*(/[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*)*$`)

func (i *Images) all() map[string]*string {
	return map[string]*string{
		"reconcileHead": &i.ReconcileHead, "cloneAtSHA": &i.CloneAtSHA, "buildkitBuild": &i.BuildkitBuild,
		"digestInspect": &i.DigestInspect, "giteaWriteback": &i.GiteaWriteback, "commitStatus": &i.CommitStatus,
		"egressGateway": &i.EgressGateway, "egressAddresses": &i.EgressAddresses, "runNetwork": &i.RunNetwork, "buildkitd": &i.Buildkitd,
	}
}

// ByField gives the references by their field's name in the file.
func (i Images) ByField() map[string]string {
	references := map[string]string{}
	for name, reference := range i.all() {
		references[name] = *reference
	}
	return references
}

// CheckCluster tells whether the file says all that a cluster needs, and nothing that
// it cannot have. Exit code 2.
func (c Config) CheckCluster() error {
	if len(c.Builder.Secrets) > 0 {
		return step.Invalidf("builder.secrets is for fabrique build alone: builds in the cluster have none; leave it out of this file")
	}
	var missing []string
	for name, reference := range c.Cluster.Images.all() {
		if *reference == "" && !(name == "egressAddresses" && c.Cluster.Network.FQDNPolicies == CiliumPolicies) {
			missing = append(missing, "cluster.images."+name)
		}
	}
	slices.Sort(missing)
	missing = append(missing, c.Cluster.Network.missing()...)
	if len(missing) == 0 {
		return nil
	}
	return step.Invalidf("the configuration lacks %s: name each image by digest (make images prints all but buildkitd's), and what the factory's pods talk to as in {namespace: gitea, labels: {app: gitea}, port: 3000}", strings.Join(missing, ", "))
}

// checkFrontends gives each frontend its canonical name. Two spellings of one
// name are an error, as either could be meant.
func (c *Config) checkFrontends(d *decoder) {
	const all = "builder.frontends"
	allowed, spelled := frontend.Allowed{}, map[string]string{}
	for _, given := range slices.SortedFunc(maps.Keys(c.Builder.Frontends), func(a, b string) int {
		return d.at[join(all, a)].compare(d.at[join(all, b)])
	}) {
		field, name, replacement := join(all, given), given, c.Builder.Frontends[given]
		if !parsed(d, field, &name, frontend.ParseName) {
			continue
		}
		if other, twice := spelled[name]; twice {
			d.problem(field, "%q and %q are the same frontend; keep one", other, given)
			continue
		}
		spelled[name] = given
		if parsed(d, field, &replacement, frontend.ParseReplacement) {
			allowed[name] = replacement
		}
	}
	c.Builder.Frontends = allowed
}

func (c *Config) checkSecrets(d *decoder) {
	seen := map[string]bool{}
	for i, s := range c.Builder.Secrets {
		field := fmt.Sprintf("builder.secrets[%d]", i)
		switch {
		case s.ID == "":
			d.missing(field+".id", "it is the id of RUN --mount=type=secret,id=…")
		case !parsed(d, field+".id", &s.ID, secret.ParseID):
		case seen[s.ID]:
			d.problem(field+".id", "%q is given twice; keep one", s.ID)
		}
		seen[s.ID] = true
		if s.File == "" {
			d.missing(field+".file", "name the file that holds the secret")
		}
		if len(s.Apps) == 0 {
			d.missing(field+".apps", "list the apps whose builds may read it")
		}
		for j := range s.Apps {
			parsed(d, fmt.Sprintf("%s.apps[%d]", field, j), &s.Apps[j], record.ParseApp)
		}
	}
}

// parsed puts the value in its canonical form, or reports why it has none and
// gives false.
func parsed[T ~string](d *decoder, field string, value *T, parse func(string) (T, error)) bool {
	got, err := parse(string(*value))
	if err != nil {
		d.problem(field, "%w", err)
		return false
	}
	*value = got
	return true
}

// ParseAuthorName accepts the name in a commit's signature. Exit code 2.
func ParseAuthorName(s string) (string, error) {
	if s == "" || record.OneLine(s) != s || strings.ContainsAny(s, "<>") {
		return "", step.Invalidf("parsing the author's name %q: want one line without < and >", s)
	}
	return s, nil
}

// ParseAuthorEmail accepts the address in a commit's signature. Exit code 2.
func ParseAuthorEmail(s string) (string, error) {
	if !emailForm.MatchString(s) || record.OneLine(s) != s {
		return "", step.Invalidf("parsing the author's address %q: want name@host", s)
	}
	return s, nil
}

// ParseWorkflowsURL accepts http(s)://host[:port][/path] without a user. Exit code 2.
func ParseWorkflowsURL(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || record.OneLine(s) != s || strings.Contains(s, "{{") {
		return "", step.Invalidf("parsing the address of Workflows %q: want https://host[:port][/path]", step.Clip(step.RedactURLs(s)))
	}
	return strings.TrimRight(s, "/"), nil
}

// ParseBuilderAddress accepts unix:///path and tcp://host:port. Exit code 2.
func ParseBuilderAddress(s string) (string, error) {
	if path, ok := strings.CutPrefix(s, "unix://"); ok && filepath.IsAbs(path) && record.OneLine(path) == path {
		return s, nil
	}
	if address, ok := strings.CutPrefix(s, "tcp://"); ok {
		if host, _, err := net.SplitHostPort(address); err == nil && host != "" {
			if _, err := image.ParseRegistry(address); err == nil {
				return s, nil
			}
		}
	}
	return "", step.Invalidf("parsing the builder's address %q: want unix:///run/buildkit/buildkitd.sock or tcp://host:port", s)
}

// SourceURL gives the clone URL of the source repository.
func (c Config) SourceURL() string { return c.Gitea.URL + "/" + string(c.Source.Repository) + ".git" }

// AppsURL gives the clone URL of the apps repository.
func (c Config) AppsURL() string { return c.Gitea.URL + "/" + string(c.Apps.Repository) + ".git" }

// ReaderToken loads the reader's token: from its file, else from its environment
// variable, else none.
func (c Config) ReaderToken() (secret.Secret, error) {
	return secret.Load(c.Gitea.Reader.TokenFile, secret.EnvReaderToken)
}

// WriterToken loads the writer's token: from its file, else from its environment
// variable, else none.
func (c Config) WriterToken() (secret.Secret, error) {
	return secret.Load(c.Gitea.Writer.TokenFile, secret.EnvWriterToken)
}

// SecretFiles gives the files that a build of app may mount, by secret id.
func (c Config) SecretFiles(app string) map[string]string {
	files := map[string]string{}
	for _, s := range c.Builder.Secrets {
		if slices.Contains(s.Apps, app) {
			files[s.ID] = s.File
		}
	}
	return files
}

// Repository gives the place of an image in the configured registry.
func (c Config) Repository(name image.Name) image.Repository {
	return image.Repository{Registry: c.Registry.Address, Name: name}
}

// place is a position in the file, from 1.
type place struct{ line, column int }

func (p place) compare(other place) int {
	return cmp.Or(cmp.Compare(p.line, other.line), cmp.Compare(p.column, other.column))
}

// problem is one complaint.
type problem struct {
	place
	err error
}

// err gives all complaints in the file's order.
func (d *decoder) err() error {
	slices.SortStableFunc(d.problems, func(a, b problem) int {
		return cmp.Or(a.compare(b.place), strings.Compare(a.err.Error(), b.err.Error()))
	})
	var errs []error
	for _, p := range d.problems {
		errs = append(errs, step.Invalidf("%s:%d:%d: %w", d.file, p.line, p.column, p.err))
	}
	return errors.Join(errs...)
}
