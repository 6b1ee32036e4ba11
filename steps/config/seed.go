package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"time"

	"fabrique/steps/gitea"
	"fabrique/steps/record"
	"fabrique/steps/secret"
	"fabrique/steps/step"
)

// Seed is what Gitea and the cluster must have before the factory can work. Only
// fabrique seed needs it; see [Config.CheckSeed].
type Seed struct {
	AdminTokenFile string `yaml:"adminTokenFile"` // of an administrator of Gitea
	Bots           Bots   `yaml:"bots"`
	// Who may push to the two branches, besides the writer to the records.
	AppsPushers   []string `yaml:"appsPushers"`
	SourcePushers []string `yaml:"sourcePushers"`
	// Repositories are further ones, and the upstreams of those that are mirrors.
	Repositories []SeedRepository `yaml:"repositories"`
	Derive       []Derivation     `yaml:"derive"`
}

// Bots are the names of the factory's users in Gitea.
type Bots struct {
	Reader string `yaml:"reader"`
	Writer string `yaml:"writer"`
	Status string `yaml:"status"`
}

// SeedRepository is a repository, a pull mirror if it has an upstream.
type SeedRepository struct {
	Repository gitea.Repository `yaml:"repository"`
	Upstream   string           `yaml:"upstream"`
	Interval   time.Duration    `yaml:"interval"` // how often Gitea pulls
	User       string           `yaml:"user"`     // for the upstream, with the token as its password
	TokenFile  string           `yaml:"tokenFile"`
	TokenEnv   string           `yaml:"tokenEnv"` // environment variable, without a file
}

// Token loads the credential for the upstream; the zero Secret is none.
func (r SeedRepository) Token() (secret.Secret, error) {
	if r.TokenFile == "" && r.TokenEnv == "" {
		return secret.Secret{}, nil
	}
	token, err := secret.Load(r.TokenFile, r.TokenEnv)
	if err == nil && token.IsZero() {
		err = step.Invalidf("reading the credential for the upstream of %s: the environment variable %s is empty", r.Repository, r.TokenEnv)
	}
	return token, err
}

// SecretName is a Secret of the cluster.
type SecretName struct {
	Namespace string `yaml:"namespace"`
	Name      string `yaml:"name"`
}

func (n SecretName) String() string { return n.Namespace + "/" + n.Name }

// Derivation makes one Secret out of another.
type Derivation struct {
	From   SecretName        `yaml:"from"`
	To     SecretName        `yaml:"to"`
	Labels map[string]string `yaml:"labels"` // that the derived Secret must have
	Data   map[string]Value  `yaml:"data"`   // by its key
}

// Value is one of the three.
type Value struct {
	Text string `yaml:"text"` // as it stands
	Key  string `yaml:"key"`  // of the source
	URI  URI    `yaml:"uri"`
}

// URI is composed of fixed parts and of the source's user and password, which are
// percent-encoded (RFC 3986, section 2).
type URI struct {
	Scheme      string            `yaml:"scheme"`
	UserKey     string            `yaml:"userKey"`
	PasswordKey string            `yaml:"passwordKey"`
	Host        string            `yaml:"host"`
	Port        int32             `yaml:"port"` // 0 for none
	Database    string            `yaml:"database"`
	Parameters  map[string]string `yaml:"parameters"`
}

// Given reports whether any part is.
func (u URI) Given() bool {
	return u.Scheme != "" || u.UserKey != "" || u.PasswordKey != "" || u.Host != "" || u.Port != 0 || u.Database != "" || len(u.Parameters) > 0
}

func defaultSeed() Seed {
	return Seed{Bots: Bots{Reader: "fabrique-reader", Writer: "fabrique-writer", Status: "fabrique-status"}}
}

// The bounds of a mirror's interval; Gitea refuses less than ten minutes unless told
// otherwise.
const (
	minInterval     = 10 * time.Minute
	defaultInterval = time.Hour
	maxInterval     = 30 * 24 * time.Hour
)

var (
	userForm   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,38}[A-Za-z0-9])?$`)
	envForm    = regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,63}$`)
	keyForm    = regexp.MustCompile(`^[A-Za-z0-9._-]{1,253}$`)
	schemeForm = regexp.MustCompile(`^[a-z][a-z0-9+.-]{0,31}$`)
)

func (c *Config) checkSeed(d *decoder) {
	s := &c.Seed
	user := func(field, name string) {
		if !userForm.MatchString(name) {
			d.problem(field, "%q is no name of a user; want letters, digits and ._-, at most 40", step.Clip(name))
		}
	}
	bots := map[string]string{}
	for _, b := range []struct{ field, name string }{{"reader", s.Bots.Reader}, {"writer", s.Bots.Writer}, {"status", s.Bots.Status}} {
		field := "seed.bots." + b.field
		user(field, b.name)
		if other, twice := bots[b.name]; twice {
			d.problem(field, "%q is the %s already; each needs rights of its own", b.name, other)
		}
		bots[b.name] = b.field
	}
	for field, names := range map[string][]string{"seed.appsPushers": s.AppsPushers, "seed.sourcePushers": s.SourcePushers} {
		for i, name := range names {
			place := fmt.Sprintf("%s[%d]", field, i)
			user(place, name)
			if bot, is := bots[name]; is {
				d.problem(place, "%q is the %s bot; name people", name, bot)
			}
		}
	}
	seen := map[gitea.Repository]bool{}
	for i := range s.Repositories {
		r := &s.Repositories[i]
		field := fmt.Sprintf("seed.repositories[%d]", i)
		if r.Repository == "" {
			d.missing(field+".repository", "name it, as in atlas/atlas")
		} else if parsed(d, field+".repository", &r.Repository, gitea.ParseRepository) && seen[r.Repository] {
			d.problem(field+".repository", "%q is given twice; keep one", r.Repository)
		}
		seen[r.Repository] = true
		r.check(d, field)
		if r.Repository == c.Apps.Repository && r.Upstream != "" {
			d.problem(field+".upstream", "records are written into %s, and a mirror takes no push; leave it out", r.Repository)
		}
	}
	targets := map[SecretName]bool{}
	for i := range s.Derive {
		field := fmt.Sprintf("seed.derive[%d]", i)
		s.Derive[i].check(d, field)
		if to := s.Derive[i].To; targets[to] {
			d.problem(field+".to", "%s is derived twice; keep one", to)
		}
		targets[s.Derive[i].To] = true
	}
}

func (r *SeedRepository) check(d *decoder, field string) {
	if r.Upstream == "" {
		if r.Interval != 0 || r.User != "" || r.TokenFile != "" || r.TokenEnv != "" {
			d.problem(field, "interval, user, tokenFile and tokenEnv are for a mirror; name its upstream")
		}
		return
	}
	parsed(d, field+".upstream", &r.Upstream, ParseUpstream)
	if r.Interval == 0 {
		r.Interval = defaultInterval
	}
	if r.Interval < minInterval || r.Interval > maxInterval {
		d.problem(field+".interval", "%s is out of range; want %s to %s", r.Interval, minInterval, maxInterval)
	}
	switch {
	case r.TokenFile != "" && r.TokenEnv != "":
		d.problem(field, "tokenFile and tokenEnv are both given; keep one")
	case r.User != "" && r.TokenFile == "" && r.TokenEnv == "":
		d.missing(field+".tokenFile", "it, or tokenEnv, has the user's token")
	}
	if r.TokenEnv != "" && !envForm.MatchString(r.TokenEnv) {
		d.problem(field+".tokenEnv", "%q is no name of an environment variable; want capitals, digits and _", step.Clip(r.TokenEnv))
	}
	if record.OneLine(r.User) != r.User {
		d.problem(field+".user", "want one line")
	}
}

// ParseUpstream accepts http(s)://host[:port]/path without a user: the credential has
// a file or an environment variable of its own. Exit code 2.
func ParseUpstream(s string) (string, error) {
	u, err := url.Parse(s)
	switch {
	case err == nil && u.User != nil:
		return "", step.Invalidf("parsing the upstream %q: it holds a user or password; put these into user and tokenFile", u.Redacted())
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || len(u.Path) < 2 || u.RawQuery != "" || u.Fragment != "" || u.ForceQuery || record.OneLine(s) != s:
		return "", step.Invalidf("parsing the upstream: want https://host[:port]/path.git")
	}
	return s, nil
}

func (n SecretName) check(d *decoder, field string) {
	if !nameForm.MatchString(n.Namespace) {
		d.problem(field+".namespace", "%q is no name of a namespace", step.Clip(n.Namespace))
	}
	if !nameForm.MatchString(n.Name) {
		d.problem(field+".name", "%q is no name of a Secret", step.Clip(n.Name))
	}
}

func (v *Derivation) check(d *decoder, field string) {
	v.From.check(d, field+".from")
	v.To.check(d, field+".to")
	if v.From == v.To {
		d.problem(field+".to", "%s is the source; derive another", v.To)
	}
	for key, value := range v.Labels {
		if !labelKeyForm.MatchString(key) || !labelValueForm.MatchString(value) {
			d.problem(field+".labels", "%q: %q is no label", step.Clip(key), step.Clip(value))
		}
	}
	if len(v.Data) == 0 {
		d.missing(field+".data", "list the derived Secret's keys, as in {password: {key: password}}")
	}
	for key, value := range v.Data {
		place := field + ".data." + key
		if !keyForm.MatchString(key) {
			d.problem(place, "want a key of letters, digits and ._-")
		}
		value.check(d, place)
	}
}

func (v Value) check(d *decoder, field string) {
	given := 0
	for _, is := range []bool{v.Text != "", v.Key != "", v.URI.Given()} {
		if is {
			given++
		}
	}
	if given != 1 {
		d.problem(field, "want one of text, key and uri")
		return
	}
	key := func(name, value string) {
		if value != "" && !keyForm.MatchString(value) {
			d.problem(field+"."+name, "%q is no key of a Secret", step.Clip(value))
		}
	}
	key("key", v.Key)
	if !v.URI.Given() {
		return
	}
	key("uri.userKey", v.URI.UserKey)
	key("uri.passwordKey", v.URI.PasswordKey)
	if v.URI.PasswordKey != "" && v.URI.UserKey == "" {
		d.missing(field+".uri.userKey", "a password belongs to a user")
	}
	if !schemeForm.MatchString(v.URI.Scheme) {
		d.problem(field+".uri.scheme", "%q is no scheme; want one as in postgresql", step.Clip(v.URI.Scheme))
	}
	if _, err := netip.ParseAddr(v.URI.Host); err != nil && !nameForm.MatchString(v.URI.Host) {
		d.problem(field+".uri.host", "%q is neither a name nor an address; want one as in pg-rw.databases.svc", step.Clip(v.URI.Host))
	}
	if v.URI.Port < 0 || v.URI.Port > 65535 {
		d.problem(field+".uri.port", "%d is no port; want 1 to 65535, or none", v.URI.Port)
	}
}

// Upstream gives how the repository is mirrored, if it is.
func (s Seed) Upstream(repo gitea.Repository) (SeedRepository, bool) {
	i := slices.IndexFunc(s.Repositories, func(r SeedRepository) bool { return r.Repository == repo && r.Upstream != "" })
	if i < 0 {
		return SeedRepository{}, false
	}
	return s.Repositories[i], true
}

// AdminToken loads the token of Gitea's administrator: from its file, else from its
// environment variable, else none.
func (c Config) AdminToken() (secret.Secret, error) {
	return secret.Load(c.Seed.AdminTokenFile, secret.EnvAdminToken)
}

// CheckSeed tells whether the file says all that seeding needs. Exit code 2.
func (c Config) CheckSeed() error {
	if _, mirror := c.Seed.Upstream(c.Source.Repository); !mirror && len(c.Seed.SourcePushers) == 0 {
		return step.Invalidf("the configuration lacks seed.sourcePushers: name who may push to %s of %s (the status bot must not, and Gitea can only list who may), or give the repository an upstream under seed.repositories", c.Source.Branch, c.Source.Repository)
	}
	return nil
}
