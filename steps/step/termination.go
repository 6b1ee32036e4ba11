package step

import (
	"errors"
	"io/fs"
	"os"
	"strings"
)

// terminationLog is where Kubernetes reads a container's last words
// (terminationMessagePath, by default), and how many bytes of them.
const (
	terminationLog    = "/dev/termination-log"
	terminationLength = 4096
)

// writeTermination writes an error's text to file, if that is there: outside a pod
// it is not. Of a long text the middle goes, as its end has the last lines of what
// failed.
func writeTermination(file string, failure error) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	text := Printable(failure.Error())
	if len(text) > terminationLength {
		const cut, head = "\n… (cut) …\n", 1024
		text = strings.ToValidUTF8(text[:head], "") + cut + strings.ToValidUTF8(text[len(text)-(terminationLength-head-len(cut)):], "")
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
