package giteaadmin

import (
	"os"

	"fabrique/steps/secret"
)

// GitEnv gives the environment with which the git program reaches the Gitea at
// url with token, without the token on its command line and without the machine's
// git configuration. Commits are a person's, "Ada <ada@bench.invalid>".
func GitEnv(url string, token secret.Secret) []string {
	return append(os.Environ(),
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@bench.invalid",
		"GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@bench.invalid",
		"GIT_CONFIG_COUNT=2",
		"GIT_CONFIG_KEY_0=http."+url+"/.extraHeader", "GIT_CONFIG_VALUE_0=Authorization: "+token.BasicAuth(),
		"GIT_CONFIG_KEY_1=init.defaultBranch", "GIT_CONFIG_VALUE_1=main",
	)
}
