package parts

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"code.gitea.io/sdk/gitea"

	"fabrique/bench/cache"
	"fabrique/bench/giteaadmin"
	"fabrique/bench/tools"
	"fabrique/steps/secret"
)

// GiteaURL is where Gitea answers, inside.
const GiteaURL = "http://gitea:" + giteaPort

const giteaPort = "3000"

// The factory's two users (design §6). Gitea has no tokens for one repository:
// what a bot may do is the list of repositories that it collaborates on.
const (
	ReaderName = "fabrique-reader"
	WriterName = "fabrique-writer"
	StatusName = "fabrique-status"
)

// GiteaServer is a Gitea on SQLite without mail, SSH, cron jobs and web assets.
type GiteaServer struct {
	*Process
	giteaadmin.Admin // its URL is [GiteaURL]

	botsMu sync.Mutex
	bots   map[string]secret.Secret
}

// StartGitea starts an empty Gitea on http://gitea:3000 with an administrator.
// Only one can run in a process.
func StartGitea(ctx context.Context) (*GiteaServer, error) {
	t, err := tools.Ensure(ctx, os.Stderr, false)
	if err != nil {
		return nil, err
	}
	// It refuses to run as root.
	owner, err := user.Lookup("nobody")
	if err != nil {
		return nil, fmt.Errorf("finding a user for Gitea: %w", err)
	}
	uid, err := strconv.Atoi(owner.Uid)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(Dir(), "gitea")
	program := filepath.Join(dir, "program")
	for _, d := range []string{dir, program, filepath.Join(dir, "data")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return nil, fmt.Errorf("making the folders of Gitea: %w", err)
		}
	}
	// That user may not be able to enter the cache.
	if err := syscall.Mount(t.GiteaStatic, program, "", syscall.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("mounting Gitea's program: %w", err)
	}
	config := filepath.Join(dir, "app.ini")
	if err := os.WriteFile(config, []byte(giteaConfig(dir, program)), 0o600); err != nil {
		return nil, fmt.Errorf("configuring Gitea: %w", err)
	}
	for _, path := range []string{dir, filepath.Join(dir, "data"), config} {
		if err := os.Chown(path, uid, -1); err != nil {
			return nil, fmt.Errorf("handing Gitea its files: %w", err)
		}
	}
	g := &GiteaServer{Admin: giteaadmin.Admin{URL: GiteaURL}, bots: map[string]secret.Secret{}}
	g.Process = &Process{
		name: "gitea",
		args: []string{filepath.Join(program, "gitea"), "web", "--config", config},
		env:  []string{"GITEA_WORK_DIR=" + dir, "HOME=" + dir, "USER=nobody"},
		attr: func() *syscall.SysProcAttr {
			return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
		},
		probe: func(ctx context.Context) error { return probeHTTP(ctx, GiteaURL+"/api/v1/version") },
	}
	if err := g.emptyDatabase(ctx, t.Gitea, filepath.Join(dir, "data", databaseName), uid); err != nil {
		return nil, err
	}
	if err := g.start(ctx); err != nil {
		return nil, err
	}
	out, err := g.command(ctx, "admin", "user", "create", "--admin",
		"--username", "root", "--email", "root@bench.invalid", "--random-password", "--must-change-password=false",
		"--access-token", "--access-token-scopes", "all")
	if err != nil {
		return nil, fmt.Errorf("creating Gitea's administrator: %w", err)
	}
	token := tokenForm.FindString(out)
	if token == "" {
		return nil, fmt.Errorf("creating Gitea's administrator: it printed no token")
	}
	g.Admin.Token = keep(token)
	return g, nil
}

const databaseName = "gitea.db"

// emptyDatabase lays a database that has all tables and no content. Gitea takes
// seconds to make one, so the cache keeps it. program is the cached program,
// whose path changes with it.
func (g *GiteaServer) emptyDatabase(ctx context.Context, program, path string, uid int) error {
	kept, _, err := cache.Get(ctx, cache.Entry{
		Name: "gitea-db",
		Key:  cache.Key("1", program),
		Make: func(ctx context.Context, dir string, _ io.Writer) error {
			if _, err := g.command(ctx, "migrate"); err != nil {
				return err
			}
			made, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, databaseName), made, 0o644)
		},
	}, os.Stderr)
	if err != nil {
		return err
	}
	database, err := os.ReadFile(filepath.Join(kept, databaseName))
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, database, 0o600); err != nil {
		return err
	}
	return os.Chown(path, uid, -1)
}

// command runs one of Gitea's own commands, as the server's user.
func (g *GiteaServer) command(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, g.args[0], append([]string{"--config", g.args[len(g.args)-1]}, args...)...)
	cmd.Env = append(os.Environ(), g.env...)
	cmd.SysProcAttr = g.attr()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("running gitea %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

var tokenForm = regexp.MustCompile(`\b[0-9a-f]{40}\b`)

func giteaConfig(dir, program string) string {
	random := rand.Text()
	return fmt.Sprintf(`APP_NAME = bench
RUN_USER = nobody
RUN_MODE = prod
WORK_PATH = %[1]s

[server]
PROTOCOL = http
HTTP_ADDR = %[3]s
HTTP_PORT = %[4]s
DOMAIN = gitea
ROOT_URL = %[5]s/
STATIC_ROOT_PATH = %[2]s
APP_DATA_PATH = %[1]s/data
DISABLE_SSH = true
OFFLINE_MODE = true
LFS_START_SERVER = true

[database]
DB_TYPE = sqlite3
PATH = %[1]s/data/%[7]s
SQLITE_JOURNAL_MODE = WAL
SQLITE_TIMEOUT = 20000

[repository]
ROOT = %[1]s/data/repositories
DEFAULT_BRANCH = main
DEFAULT_PRIVATE = private

[security]
INSTALL_LOCK = true
SECRET_KEY = %[6]s
; the default costs 100 ms for each request with a password
PASSWORD_HASH_ALGO = pbkdf2_v1

[service]
DISABLE_REGISTRATION = true
REQUIRE_SIGNIN_VIEW = false

[migrations]
; an upstream is another part here
ALLOW_LOCALNETWORKS = true

[webhook]
ALLOWED_HOST_LIST = *
DELIVER_TIMEOUT = 5

[mailer]
ENABLED = false

[indexer]
ISSUE_INDEXER_TYPE = db
REPO_INDEXER_ENABLED = false

[cron]
ENABLED = false

[cron.update_checker]
ENABLED = false

[actions]
ENABLED = false

[packages]
ENABLED = false

[session]
PROVIDER = memory

[log]
MODE = console
LEVEL = Warn
ROOT_PATH = %[1]s/data/log
`, dir, program, os.Getenv(envAddr), giteaPort, GiteaURL, random, databaseName)
}

// Project is a source repository and its records, with the factory's two users
// let into them as design §6 has it.
type Project struct {
	Source, Apps   string        // "owner/name"
	Reader, Writer secret.Secret // tokens: reads both; writes Apps only
}

// SourceURL gives the clone URL of the source repository.
func (p Project) SourceURL() string { return CloneURL(p.Source) }

// AppsURL gives the clone URL of the records.
func (p Project) AppsURL() string { return CloneURL(p.Apps) }

// CloneURL gives the clone URL of "owner/name".
func CloneURL(repo string) string { return GiteaURL + "/" + repo + ".git" }

// NewProject creates two empty repositories, such as "atlas/atlas" and
// "cluster/apps", and lets the two users in. The users and their tokens are the
// same in all projects.
func (g *GiteaServer) NewProject(ctx context.Context, source, apps string) (Project, error) {
	p := Project{Source: source, Apps: apps}
	var err error
	if p.Reader, err = g.bot(ctx, ReaderName, "read:repository"); err != nil {
		return Project{}, err
	}
	if p.Writer, err = g.bot(ctx, WriterName, "write:repository"); err != nil {
		return Project{}, err
	}
	for _, repo := range []string{source, apps} {
		if err := g.CreateRepo(ctx, repo); err != nil {
			return Project{}, err
		}
		if err := g.AddCollaborator(ctx, repo, ReaderName, gitea.AccessModeRead); err != nil {
			return Project{}, err
		}
	}
	return p, g.AddCollaborator(ctx, apps, WriterName, gitea.AccessModeWrite)
}

// StatusBot lets the user in that writes statuses on commits of a source, and gives
// its token.
func (g *GiteaServer) StatusBot(ctx context.Context, source string) (secret.Secret, error) {
	token, err := g.bot(ctx, StatusName, "write:repository")
	if err != nil {
		return token, err
	}
	return token, g.AddCollaborator(ctx, source, StatusName, gitea.AccessModeWrite)
}

func (g *GiteaServer) bot(ctx context.Context, name string, scope gitea.AccessTokenScope) (secret.Secret, error) {
	g.botsMu.Lock()
	defer g.botsMu.Unlock()
	if token, ok := g.bots[name]; ok {
		return token, nil
	}
	token, err := g.CreateUser(ctx, name, scope)
	if err == nil {
		g.bots[name] = keep(token.Reveal())
	}
	return token, err
}
