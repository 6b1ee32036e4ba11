package kubectl

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Objects reads a manifest of any number of documents, in which ${NAME} stands
// for a value. Values are the bench's own: they are not quoted.
func Objects(text []byte, values map[string]string) ([]map[string]any, error) {
	replace := make([]string, 0, 2*len(values))
	for name, value := range values {
		replace = append(replace, "${"+name+"}", value)
	}
	filled := strings.NewReplacer(replace...).Replace(string(text))
	var objects []map[string]any
	for decoder := yaml.NewDecoder(bytes.NewReader([]byte(filled))); ; {
		var o map[string]any
		err := decoder.Decode(&o)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading a manifest: %w", err)
		}
		if len(o) > 0 {
			objects = append(objects, o)
		}
	}
}
