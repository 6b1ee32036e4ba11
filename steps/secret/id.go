package secret

import (
	"regexp"

	"fabrique/steps/step"
)

// Environment variables that hold a token when no token file is named.
const (
	EnvAdminToken  = "FABRIQUE_ADMIN_TOKEN"  // of an administrator of Gitea, for fabrique seed alone
	EnvReaderToken = "FABRIQUE_READER_TOKEN" // of the bot that reads both repositories
	EnvStatusToken = "FABRIQUE_STATUS_TOKEN" // of the bot that writes the statuses on commits
	EnvWriterToken = "FABRIQUE_WRITER_TOKEN" // of the bot that writes the apps repository
)

var idForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// ParseID accepts the id of a build secret, as in RUN --mount=type=secret,id=….
// Exit code 2.
func ParseID(s string) (string, error) {
	if !idForm.MatchString(s) {
		return "", step.Invalidf("parsing the secret's id %q: want letters, digits and ._-, at most 63", step.Clip(s))
	}
	return s, nil
}
