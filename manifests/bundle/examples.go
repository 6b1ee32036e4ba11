package bundle

import (
	"bytes"
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v3"
)

const exampleHeader = "# Written by fabrique bundle. %s\n"

// examples gives what the tools of the repository must be told to leave the folder
// alone, each to be merged into the tool's own file: the ignore lists of prettier and
// yamllint have gitignore's patterns, jscpd's has globs, and trivy's ignore file (YAML)
// has entries for the rights that operators inherently have. The form of the last is
// trivy's documentation, "Filtering", "By Finding IDs"; a path there is one of the
// scanned folder, which is taken to be the repository.
func examples(folder string, allowed []allowance) map[string][]byte {
	type entry struct {
		ID        string   `yaml:"id"`
		Paths     []string `yaml:"paths"`
		Statement string   `yaml:"statement"`
	}
	var trivy struct {
		Misconfigurations []entry `yaml:"misconfigurations"`
	}
	for _, a := range allowed {
		trivy.Misconfigurations = append(trivy.Misconfigurations, entry{a.id, []string{folder + "/" + a.file}, a.statement})
	}
	return map[string][]byte{
		".prettierignore.example":   fmt.Appendf(nil, exampleHeader+"/%s/\n", "Merge it into .prettierignore.", folder),
		".yamllint.yaml.example":    commented("Merge it into .yamllint.yaml.", map[string]any{"extends": "default", "ignore": "/" + folder + "/\n"}),
		".jscpd.json.example":       jscpd(folder),
		".trivyignore.yaml.example": commented("Merge it into .trivyignore.yaml.", trivy),
	}
}

func commented(comment string, v any) []byte {
	text := bytes.NewBuffer(fmt.Appendf(nil, exampleHeader+"---\n", comment))
	encoder := yaml.NewEncoder(text)
	encoder.SetIndent(2)
	if err := encoder.Encode(v); err != nil {
		panic(err) // texts alone
	}
	return text.Bytes()
}

// jscpd gives its configuration, in JSON, which has no comments.
func jscpd(folder string) []byte {
	text, err := json.MarshalIndent(map[string]any{"ignore": []string{"**/" + folder + "/**"}}, "", "  ")
	if err != nil {
		panic(err) // texts alone
	}
	return append(text, '\n')
}
