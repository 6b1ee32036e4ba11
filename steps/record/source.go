package record

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/parser"
	"go.yaml.in/yaml/v3"

	goccy "github.com/goccy/go-yaml"

	"fabrique/steps/image"
	"fabrique/steps/step"
)

// source is a file's text and its YAML documents.
type source struct {
	file    string
	data    []byte
	lines   []int // offset of each line's first byte
	docs    []*yaml.Node
	strange int // offset of the first line break that editors do not count as one, or -1
}

// Whoever may push a record may try to keep the factory busy with it. Reading a
// file takes time in proportion to its size, whatever stands in it: aliases and
// merge keys lead back into the same nodes, so nothing follows them twice
// ([lookup]) or from within a loop, and these two bound what the parsers do.
const (
	// maxTagDirectives: the YAML parser compares each %TAG with all before it.
	maxTagDirectives = 100
	// maxForColumn is the size in bytes up to which a file with a syntax error
	// is given to a second parser, which knows the column but takes time in
	// proportion to the square of the nesting.
	maxForColumn = 4 << 10
)

var byteOrderMark = []byte("\xef\xbb\xbf")

// parseSource parses all documents of a file that may hold records.
func parseSource(file string, data []byte) (*source, error) {
	src := &source{file: file, data: data, strange: strangeLineBreak(data)}
	if len(data) > MaxSize {
		return nil, src.errorOn(1, 1, "%d bytes, at most %d are allowed; split the file", len(data), MaxSize)
	}
	if !utf8.Valid(data) {
		return nil, src.errorOn(1, 1, "it is not UTF-8 text; save it as UTF-8")
	}
	if !bytes.Contains(data, []byte(AnnotationContext)) {
		return src, nil // no record; it may be a template that is not even YAML
	}
	if n := bytes.Count(data, []byte("%TAG")); n > maxTagDirectives {
		return nil, src.errorOn(1, 1, "%d %%TAG directives, at most %d are allowed; write the tags out", n, maxTagDirectives)
	}
	src.lines = []int{0}
	if bytes.HasPrefix(data, byteOrderMark) {
		src.lines[0] = len(byteOrderMark) // YAML's first column comes after it
	}
	for i, b := range data {
		if b == '\n' {
			src.lines = append(src.lines, i+1)
		}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		err := decoder.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return src, nil
		}
		if err != nil {
			return nil, src.syntaxError(err)
		}
		src.docs = append(src.docs, &doc)
	}
}

var yamlErrorLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// syntaxError places an error of the YAML parser, which knows no column and
// often only the line where the surrounding part begins. The other parser knows
// both.
func (s *source) syntaxError(err error) error {
	if s.strange >= 0 {
		return s.strangeError()
	}
	line, column := 1, 1
	what := err.Error()
	if found := yamlErrorLine.FindStringSubmatch(what); found != nil {
		line, _ = strconv.Atoi(found[1])
		line = max(line, 1)
		what = strings.TrimPrefix(what, found[0])
	}
	if len(s.data) > maxForColumn {
		return s.errorOn(line, column, "%s; correct the YAML", what)
	}
	var syntax *goccy.SyntaxError
	if _, err := parser.ParseBytes(s.data, 0); errors.As(err, &syntax) && syntax.Token != nil {
		line, column = syntax.Token.Position.Line, syntax.Token.Position.Column
		what = syntax.Message
	}
	return s.errorOn(line, column, "%s; correct the YAML", what)
}

func (s *source) errorOn(line, column int, format string, args ...any) error {
	return step.Invalidf("reading the record %q: line %d, column %d: %w", s.file, line, column, fmt.Errorf(format, args...))
}

func (s *source) errorAt(node *yaml.Node, format string, args ...any) error {
	return s.errorOn(node.Line, node.Column, format, args...)
}

// manifest is a document that is a record, with the mappings that hold our
// fields.
type manifest struct {
	src         *source
	name        *yaml.Node // metadata.name, a scalar
	annotations *yaml.Node
	source      *yaml.Node // spec.source
}

// application gives the document's manifest, or nil if it is not a record.
func (s *source) application(doc *yaml.Node) (*manifest, error) {
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, nil
	}
	root := doc.Content[0]
	if !isApplication(root) {
		return nil, nil
	}
	if s.strange >= 0 {
		return nil, s.strangeError()
	}
	m := &manifest{src: s}
	metadata, err := s.mapping(root, "metadata")
	if err != nil {
		return nil, err
	}
	if metadata == nil {
		return nil, s.errorAt(root, "metadata: it is missing or not a mapping; add it with name and annotations")
	}
	if m.name, err = s.scalar(metadata, "name"); err != nil {
		return nil, err
	}
	if m.name == nil {
		return nil, s.errorAt(metadata, "metadata.name: it is missing; it is the app's name")
	}
	if m.annotations, err = s.mapping(metadata, "annotations"); err != nil {
		return nil, err
	}
	if m.annotations == nil {
		return nil, s.errorAt(metadata, "metadata.annotations: it is not a mapping; write the annotations out")
	}
	if node, err := m.annotation(AnnotationContext); err != nil {
		return nil, err
	} else if node == nil {
		return nil, s.errorAt(m.annotations, "annotation %s: it has no value; name the app's folder in the source repository", AnnotationContext)
	}
	spec, err := s.mapping(root, "spec")
	if err != nil {
		return nil, err
	}
	if spec == nil {
		return nil, s.errorAt(root, "spec: it is missing; add it with source")
	}
	if key, _, err := s.entry(spec, "sources"); err != nil {
		return nil, err
	} else if key != nil {
		return nil, s.errorAt(key, "spec.sources: several sources are not supported; use the one spec.source")
	}
	if m.source, err = s.mapping(spec, "source"); err != nil {
		return nil, err
	}
	if m.source == nil {
		return nil, s.errorAt(spec, "spec.source: it is missing; add it with repoURL and path")
	}
	return m, nil
}

// isApplication reports whether a document claims to be a record, leniently:
// one that is but is written in a way that cannot be edited must be reported,
// not ignored.
func isApplication(root *yaml.Node) bool {
	kind, api := peek(root, "kind"), peek(root, "apiVersion")
	if kind == nil || kind.Value != "Application" || api == nil || !strings.HasPrefix(api.Value, "argoproj.io/") {
		return false
	}
	metadata := peek(root, "metadata")
	if metadata == nil {
		return false
	}
	annotations := peek(metadata, "annotations")
	return annotations != nil && peek(annotations, AnnotationContext) != nil
}

// peek looks a key up through aliases and merge keys.
func peek(node *yaml.Node, key string) *yaml.Node {
	return lookup{key, map[*yaml.Node]bool{}}.in(node)
}

// lookup is one search for a key. A node that was seen did not have it, however
// many aliases lead to it.
type lookup struct {
	key  string
	seen map[*yaml.Node]bool
}

func (l lookup) in(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if node.Kind != yaml.MappingNode || l.seen[node] {
		return nil
	}
	l.seen[node] = true
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == l.key {
			value := node.Content[i+1]
			if value.Kind == yaml.AliasNode {
				return value.Alias
			}
			return value
		}
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value != "<<" {
			continue
		}
		if found := l.merged(node.Content[i+1]); found != nil {
			return found
		}
	}
	return nil
}

// merged searches the value of a merge key: a mapping or a list of mappings.
func (l lookup) merged(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if node.Kind != yaml.SequenceNode {
		return l.in(node)
	}
	if l.seen[node] {
		return nil
	}
	l.seen[node] = true
	for _, item := range node.Content {
		if found := l.in(item); found != nil {
			return found
		}
	}
	return nil
}

// entry finds a key in a mapping that Fabrique edits. Such a mapping must be
// written out in the place: no anchor, tag, merge key or doubled key.
func (s *source) entry(mapping *yaml.Node, key string) (k, v *yaml.Node, err error) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		at := mapping.Content[i]
		if at.Kind != yaml.ScalarNode {
			continue
		}
		if at.Tag == "!!merge" {
			return nil, nil, s.errorAt(at, "a merge key (<<) stands beside %s; write the entries out", key)
		}
		if at.Value != key {
			continue
		}
		if k != nil {
			return nil, nil, s.errorAt(at, "%s: the key stands twice (also in line %d); keep one", key, k.Line)
		}
		k, v = at, mapping.Content[i+1]
	}
	if k != nil && (k.Anchor != "" || k.Style&yaml.TaggedStyle != 0) {
		return nil, nil, s.errorAt(k, "%s: the key has an anchor or a tag; remove it", key)
	}
	return k, v, nil
}

// container gives the value of key if it is of the kind, nil if it is absent or
// null.
func (s *source) container(mapping *yaml.Node, key string, kind yaml.Kind) (*yaml.Node, error) {
	k, v, err := s.entry(mapping, key)
	if err != nil || k == nil {
		return nil, err
	}
	switch {
	case v.Kind == yaml.AliasNode || v.Anchor != "" || v.Style&yaml.TaggedStyle != 0:
		return nil, s.errorAt(v, "%s: it has an anchor, an alias or a tag; write it out without", key)
	case isNull(v):
		return nil, nil
	case v.Kind != kind && kind == yaml.SequenceNode:
		return nil, s.errorAt(v, "%s: want a list", key)
	case v.Kind != kind:
		return nil, s.errorAt(v, "%s: want a mapping", key)
	}
	return v, nil
}

func (s *source) mapping(mapping *yaml.Node, key string) (*yaml.Node, error) {
	return s.container(mapping, key, yaml.MappingNode)
}

// scalar gives the value of key if it is a scalar on its own, nil if it is
// absent or null.
func (s *source) scalar(mapping *yaml.Node, key string) (*yaml.Node, error) {
	k, v, err := s.entry(mapping, key)
	if err != nil || k == nil || isNull(v) {
		return nil, err
	}
	return v, s.plainScalar(key, v)
}

// plainScalar refuses what cannot be replaced in place.
func (s *source) plainScalar(key string, v *yaml.Node) error {
	switch {
	case v.Kind == yaml.AliasNode || v.Anchor != "" || v.Style&yaml.TaggedStyle != 0:
		return s.errorAt(v, "%s: it has an anchor, an alias or a tag; write it out without", key)
	case v.Kind != yaml.ScalarNode:
		return s.errorAt(v, "%s: want one string", key)
	case v.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		return s.errorAt(v, "%s: it is a block scalar (| or >); write it on one line in double quotes", key)
	}
	return nil
}

// annotation gives an annotation's value, nil if it is absent or null.
// Kubernetes takes strings only.
func (m *manifest) annotation(key string) (*yaml.Node, error) {
	v, err := m.src.scalar(m.annotations, key)
	if err != nil || v == nil {
		return nil, err
	}
	if v.Tag != "!!str" {
		return nil, m.src.errorAt(v, "annotation %s: YAML reads %s as %s; put it in double quotes", key, step.Clip(v.Value), strings.TrimPrefix(v.Tag, "!!"))
	}
	return v, nil
}

// slot is where a record holds its image.
type slot struct {
	helm      bool
	parameter *yaml.Node // helm: the parameter, a mapping
	value     *yaml.Node // the scalar that names the image or digest, nil if there is none
}

// imageSlot finds the place for the image: the Helm parameter if the file has
// it, else an entry of kustomize.images.
func (m *manifest) imageSlot(name image.Name) (slot, error) {
	for _, kind := range []string{"directory", "plugin"} {
		if key, v, err := m.src.entry(m.source, kind); err != nil {
			return slot{}, err
		} else if key != nil && !isNull(v) {
			return slot{}, m.src.errorAt(key, "spec.source.%s: an image can be set through kustomize or helm only; use one of them", kind)
		}
	}
	kustomize, err := m.src.mapping(m.source, "kustomize")
	if err != nil {
		return slot{}, err
	}
	helmKey, helmValue, err := m.src.entry(m.source, "helm")
	if err != nil {
		return slot{}, err
	}
	chartKey, _, err := m.src.entry(m.source, "chart")
	if err != nil {
		return slot{}, err
	}
	if chartKey != nil || helmKey != nil && !isNull(helmValue) {
		at := helmKey
		if at == nil {
			at = chartKey
		}
		if kustomize != nil {
			return slot{}, m.src.errorAt(at, "spec.source has both helm and kustomize; keep one")
		}
		return m.helmSlot(at)
	}
	if kustomize == nil {
		return slot{}, nil
	}
	images, err := m.src.container(kustomize, "images", yaml.SequenceNode)
	if err != nil || images == nil {
		return slot{}, err
	}
	var found slot
	for _, item := range images.Content {
		if item.Kind == yaml.AliasNode {
			return slot{}, m.src.errorAt(item, "kustomize.images: an entry is an alias; write it out")
		}
		if item.Kind != yaml.ScalarNode || !isOurs(item.Value, name) {
			continue
		}
		if err := m.src.plainScalar("kustomize.images", item); err != nil {
			return slot{}, err
		}
		if found.value != nil {
			return slot{}, m.src.errorAt(item, "kustomize.images: a second entry for the image %s (the first is in line %d); keep one", name, found.value.Line)
		}
		found.value = item
	}
	return found, nil
}

func (m *manifest) helmSlot(at *yaml.Node) (slot, error) {
	missing := m.src.errorAt(at, "spec.source.helm: there is no parameter %s to take the digest; add it to helm.parameters", helmParameter)
	helm, err := m.src.mapping(m.source, "helm")
	if err != nil {
		return slot{}, err
	}
	if helm == nil {
		return slot{}, missing
	}
	parameters, err := m.src.container(helm, "parameters", yaml.SequenceNode)
	if err != nil {
		return slot{}, err
	}
	if parameters == nil {
		return slot{}, missing
	}
	found := slot{helm: true}
	for _, item := range parameters.Content {
		if item.Kind == yaml.AliasNode {
			return slot{}, m.src.errorAt(item, "helm.parameters: an entry is an alias; write it out")
		}
		if item.Kind != yaml.MappingNode {
			continue
		}
		_, name, err := m.src.entry(item, "name")
		if err != nil {
			return slot{}, err
		}
		if name == nil || name.Value != helmParameter && (name.Alias == nil || name.Alias.Value != helmParameter) {
			continue
		}
		if item.Anchor != "" || item.Style&yaml.TaggedStyle != 0 {
			return slot{}, m.src.errorAt(item, "helm.parameters: the parameter %s has an anchor or a tag; write it out without", helmParameter)
		}
		if found.parameter != nil {
			return slot{}, m.src.errorAt(item, "helm.parameters: a second parameter %s (the first is in line %d); keep one", helmParameter, found.parameter.Line)
		}
		found.parameter = item
		if _, err := m.src.scalar(item, "name"); err != nil {
			return slot{}, err
		}
		if found.value, err = m.src.scalar(item, "value"); err != nil {
			return slot{}, err
		}
	}
	if found.parameter == nil {
		return slot{}, missing
	}
	return found, nil
}

func isNull(v *yaml.Node) bool {
	return v.Kind == yaml.ScalarNode && v.Tag == "!!null"
}

func (s *source) strangeError() error {
	line := bytes.Count(s.data[:s.strange], []byte("\n")) + 1
	return s.errorOn(line, s.strange-s.lines[line-1]+1, "a line break other than LF or CR LF (CR, U+0085, U+2028 or U+2029); replace it")
}

// strangeLineBreak gives the offset of the first line break of YAML 1.1 that
// editors do not count as one, or -1.
func strangeLineBreak(data []byte) int {
	for i, b := range data {
		rest := data[i:]
		switch {
		case b == '\r' && (len(rest) == 1 || rest[1] != '\n'),
			bytes.HasPrefix(rest, []byte("\u0085")), bytes.HasPrefix(rest, []byte("\u2028")), bytes.HasPrefix(rest, []byte("\u2029")):
			return i
		}
	}
	return -1
}
