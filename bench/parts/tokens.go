package parts

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"fabrique/steps/secret"
)

// tokens are all that were made in this process.
var tokens struct {
	sync.Mutex
	list []secret.Secret
}

// keep notes a token, so that the logs are searched for it at the end.
func keep(value string) secret.Secret {
	token := secret.New(value)
	tokens.Lock()
	defer tokens.Unlock()
	tokens.list = append(tokens.list, token)
	return token
}

// leaks gives an error for every log in dir that holds one of the tokens, plain or
// as basic authentication: what a step sent must not have reached a server's log,
// whatever failed.
func leaks(dir string) (errs []error) {
	tokens.Lock()
	list := slices.Clone(tokens.list)
	tokens.Unlock()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, token := range list {
			if bytes.Contains(text, []byte(token.Reveal())) || bytes.Contains(text, []byte(token.BasicAuth())) {
				errs = append(errs, fmt.Errorf("a token stands in the log %s", filepath.Base(path)))
			}
		}
		return nil
	})
	if err != nil && !os.IsNotExist(err) {
		errs = append(errs, fmt.Errorf("searching the logs for tokens: %w", err))
	}
	return errs
}
