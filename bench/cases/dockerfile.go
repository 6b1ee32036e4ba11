package cases

import (
	"fmt"
	"io/fs"
	"strings"

	"fabrique/bench/sample"
)

// original is the first app's Dockerfile.
func original() (string, error) {
	text, err := fs.ReadFile(sample.Atlas(), "web/"+first+"/Dockerfile")
	return string(text), err
}

// with puts an instruction into the first app's Dockerfile, where root runs it.
func with(instruction string) (string, error) {
	text, err := original()
	if err != nil {
		return "", err
	}
	before, after, found := strings.Cut(text, "\nUSER ")
	if !found {
		return "", fmt.Errorf("the Dockerfile of %s has no USER", first)
	}
	return before + "\n" + instruction + "\n\nUSER " + after, nil
}

// slow is a Dockerfile whose build takes so many seconds, whatever is cached.
func slow(seconds int) (string, error) {
	return with(fmt.Sprintf("RUN sleep %d # %s", seconds, nonce()))
}
