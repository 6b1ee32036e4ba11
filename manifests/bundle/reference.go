package bundle

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// reference is a place in a YAML document that names an image.
type reference struct {
	text     string
	line     int // in the file, from 1
	node     *yaml.Node
	from, to int // in the node's value
}

// An image is named where a key, a variable or an option ends in "image", also inside a
// text such as a ConfigMap's, and wherever something has a registry's form: a host with
// a dot or a port, a path, and a tag or digest. What has neither, as "nats:2" in the
// middle of a sentence, nobody can tell from other words.
var (
	imageKey    = regexp.MustCompile(`(?i)image$`)
	imageOption = regexp.MustCompile(`(?i)^--?[a-z-]*image$`)
	// assigned is "natsImage: nats:2", "--executor-image=x", `"image":"x"` inside a text.
	assigned = regexp.MustCompile(`(?i)image["']?[ \t]*[:=][ \t]*["']?([^\s"',}\]]+)`)
	// hosted is a reference that names its registry.
	hosted = regexp.MustCompile(`(?:[a-z0-9-]+(?:\.[a-z0-9-]+)+(?::[0-9]+)?|[a-z0-9-]+:[0-9]+)(?:/[a-z0-9._-]+)+(?::[A-Za-z0-9_][A-Za-z0-9_.-]*)?(?:@sha256:[0-9a-f]*)?`)
	tagged = regexp.MustCompile(`:[A-Za-z0-9_][A-Za-z0-9_.-]*$|@`)
	// short is an argument or a value that is nothing but a name and a tag: "busybox:latest".
	short = regexp.MustCompile(`^[a-z0-9][a-z0-9._/-]*:([A-Za-z_][A-Za-z0-9_.-]*|[0-9]+\.[A-Za-z0-9_.-]+)(@sha256:[0-9a-f]*)?$`)
)

// references finds all images that a document names.
func references(doc *yaml.Node) []reference {
	f := finder{schema: kindOf(doc) == "CustomResourceDefinition"}
	f.walk(doc)
	return f.found
}

func kindOf(doc *yaml.Node) string {
	if doc.Kind == yaml.DocumentNode && len(doc.Content) == 1 {
		doc = doc.Content[0]
	}
	if kind := field(doc, "kind"); kind != nil {
		return kind.Value
	}
	return ""
}

// field gives the value at a mapping's key, nil where there is none.
func field(mapping *yaml.Node, key string) *yaml.Node {
	if mapping.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

type finder struct {
	schema bool // of a CustomResourceDefinition, where keys are fields' names and texts are prose
	found  []reference
}

func (f *finder) walk(n *yaml.Node) {
	switch n.Kind {
	case yaml.DocumentNode:
		for _, c := range n.Content {
			f.walk(c)
		}
	case yaml.MappingNode:
		variable := field(n, "name")
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			named := imageKey.MatchString(key.Value) ||
				key.Value == "value" && variable != nil && imageKey.MatchString(variable.Value)
			switch {
			case value.Kind != yaml.ScalarNode:
				f.walk(value)
			case named && !f.schema:
				f.whole(value)
			case key.Value == "value" && short.MatchString(value.Value):
				f.whole(value)
			default:
				f.text(value)
			}
		}
	case yaml.SequenceNode:
		option := false
		for _, item := range n.Content {
			switch {
			case item.Kind != yaml.ScalarNode:
				f.walk(item)
			case option || !f.schema && short.MatchString(item.Value) && !strings.HasPrefix(item.Value, "system:"):
				f.whole(item)
			default:
				f.text(item)
			}
			option = item.Kind == yaml.ScalarNode && imageOption.MatchString(item.Value)
		}
	case yaml.ScalarNode:
		f.text(n)
	}
}

// whole takes a value that is a reference, whatever it looks like.
func (f *finder) whole(n *yaml.Node) {
	f.found = append(f.found, reference{n.Value, n.Line, n, 0, len(n.Value)})
}

// text finds references inside a value.
func (f *finder) text(n *yaml.Node) {
	var spans [][2]int
	add := func(from, to int) {
		if !slices.ContainsFunc(spans, func(s [2]int) bool { return from < s[1] && s[0] < to }) {
			spans = append(spans, [2]int{from, to})
		}
	}
	if !f.schema {
		for _, m := range assigned.FindAllStringSubmatchIndex(n.Value, -1) {
			add(m[2], m[3])
		}
	}
	for _, m := range hosted.FindAllStringIndex(n.Value, -1) {
		before := n.Value[:m[0]]
		if found := n.Value[m[0]:m[1]]; tagged.MatchString(found[strings.Index(found, "/"):]) && !strings.HasSuffix(before, "/") && !strings.HasSuffix(before, "@") {
			add(m[0], m[1])
		}
	}
	slices.SortFunc(spans, func(a, b [2]int) int { return a[0] - b[0] })
	for _, s := range spans {
		line := n.Line
		if n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
			line += 1 + strings.Count(n.Value[:s[0]], "\n")
		}
		f.found = append(f.found, reference{n.Value[s[0]:s[1]], line, n, s[0], s[1]})
	}
}

// replace writes another reference in each one's place.
func replace(all []reference, with func(string) (string, error)) error {
	for _, r := range slices.Backward(all) { // those behind stay where they are
		text, err := with(r.text)
		if err != nil {
			return fmt.Errorf("replacing the image %q: %w", r.text, err)
		}
		r.node.Value = r.node.Value[:r.from] + text + r.node.Value[r.to:]
	}
	return nil
}
