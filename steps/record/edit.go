package record

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"fabrique/steps/gitref"
	"fabrique/steps/image"
	"fabrique/steps/step"
)

// Change is what [Apply] does to a record. The zero Change does nothing.
type Change struct {
	Deploy     *Deployment       // what is deployed from now on
	Hold       *string           // the reason; "" removes the hold
	RollbackOf *gitref.SourceKey // the rejected source key; "" removes it
}

// Deployment is an image and the source that it was built from.
type Deployment struct {
	Revision   gitref.Revision
	SourceKey  gitref.SourceKey
	Repository image.Repository // its Name must be the record's image
	Digest     image.Digest
}

// Apply gives the file with the change made to the record of app. Every byte
// outside the changed fields stays as it is: comments, blank lines, line ends,
// order, quotes, other documents. New values are double-quoted strings, as a
// revision like 7222512345e2… is a number otherwise; new lines take the file's
// own indentation and line ends. Applying the same change twice gives the same
// bytes.
//
// A file whose fields cannot be replaced in place (anchors, aliases, tags, block
// scalars, several sources) is refused with an error that names the place and
// the remedy. The result is parsed again and compared with the original; on any
// difference outside the change there is an error and no file.
func Apply(file string, data []byte, app string, change Change) ([]byte, error) {
	old, m, err := find(file, data, app)
	if err != nil {
		return nil, err
	}
	e := &editor{src: m.src}
	if err := e.change(m, old, change); err != nil {
		return nil, err
	}
	edited := e.result()
	if err := verify(file, data, edited, old, change); err != nil {
		return nil, err
	}
	return edited, nil
}

// find gives the record of app and its manifest.
func find(file string, data []byte, app string) (Record, *manifest, error) {
	records, err := ParseFile(file, data)
	for _, r := range records {
		if r.App != app {
			continue
		}
		src, err := parseSource(file, data)
		if err != nil {
			return Record{}, nil, err
		}
		m, err := src.application(src.docs[r.Document])
		return r, m, err
	}
	if err != nil {
		return Record{}, nil, err
	}
	return Record{}, nil, step.Invalidf("reading the record %q: it holds no Application %q with the annotation %s; declare the app there or name another file", file, step.Clip(app), AnnotationContext)
}

// editor collects replacements of byte ranges.
type editor struct {
	src     *source
	splices []splice
}

type splice struct {
	start, end int
	text       string
}

func (e *editor) replace(start, end int, text string) {
	e.splices = append(e.splices, splice{start, end, text})
}

func (e *editor) insert(at int, text string) { e.replace(at, at, text) }

func (e *editor) result() []byte {
	slices.SortStableFunc(e.splices, func(a, b splice) int { return cmp.Compare(a.start, b.start) })
	var out bytes.Buffer
	at := 0
	for _, s := range e.splices {
		if s.start > at {
			out.Write(e.src.data[at:s.start])
		}
		out.WriteString(s.text)
		at = max(at, s.end)
	}
	out.Write(e.src.data[at:])
	return out.Bytes()
}

func (e *editor) change(m *manifest, old Record, change Change) error {
	if d := change.Deploy; d != nil {
		if d.Repository.Name != old.Image {
			return step.Invalidf("editing the record %q: the image %q is not the app's, which is %q; correct --image or the annotation %s", e.src.file, d.Repository, old.Image, AnnotationImage)
		}
		if err := e.annotate(m, AnnotationRevision, string(d.Revision)); err != nil {
			return err
		}
		if err := e.annotate(m, AnnotationSourceKey, string(d.SourceKey)); err != nil {
			return err
		}
	}
	if change.RollbackOf != nil {
		if err := e.annotate(m, AnnotationRollbackOf, string(*change.RollbackOf)); err != nil {
			return err
		}
	}
	if change.Hold != nil {
		if err := e.annotate(m, AnnotationHold, OneLine(*change.Hold)); err != nil {
			return err
		}
	}
	if d := change.Deploy; d != nil {
		if err := e.set(m.source, "targetRevision", string(d.Revision), "repoURL", "path", "chart"); err != nil {
			return err
		}
		return e.setImage(m, *d)
	}
	return nil
}

// annotate sets an annotation, or removes it if value is empty.
func (e *editor) annotate(m *manifest, key, value string) error {
	if value == "" {
		return e.remove(m.annotations, key)
	}
	// A new annotation follows Fabrique's last one.
	var ours []string
	for i := len(m.annotations.Content) - 2; i >= 0; i -= 2 {
		if k := m.annotations.Content[i].Value; slices.Contains(annotations, k) && !slices.Contains(ours, k) {
			ours = append(ours, k)
		}
	}
	return e.set(m.annotations, key, value, ours...)
}

// set gives key a double-quoted value. A new entry goes after the first of the
// keys in after that can be followed by a line.
func (e *editor) set(mapping *yaml.Node, key, value string, after ...string) error {
	k, v, err := e.src.entry(mapping, key)
	if err != nil {
		return err
	}
	if k == nil {
		return e.add(mapping, key, after, quote(value), nil)
	}
	if v.Value == value && v.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
		return nil
	}
	return e.overwrite(k, v, quote(value))
}

// overwrite replaces the scalar v, the value of k, by text.
func (e *editor) overwrite(k, v *yaml.Node, text string) error {
	if isNull(v) && v.Value == "" {
		// Nothing stands there; the value goes behind the colon.
		_, end, err := e.extent(k)
		if err != nil {
			return err
		}
		for end < len(e.src.data) && e.src.data[end] == ' ' {
			end++
		}
		if end >= len(e.src.data) || e.src.data[end] != ':' || v.Anchor != "" || v.Style&yaml.TaggedStyle != 0 {
			return e.src.errorAt(k, "%s: it has no value on its line; write %s: \"\" instead", k.Value, k.Value)
		}
		e.insert(end+1, " "+text)
		return nil
	}
	if err := e.src.plainScalar(k.Value, v); err != nil {
		return err
	}
	start, end, err := e.extent(v)
	if err != nil {
		return err
	}
	e.replace(start, end, text)
	return nil
}

// add puts a new entry into a mapping: in block style "key: value" or, with
// lines, "key:" and the lines under it, each indented by the editor; in flow
// style always "key: value".
func (e *editor) add(mapping *yaml.Node, key string, after []string, value string, lines []string) error {
	if mapping.Style&yaml.FlowStyle != 0 {
		return e.addFlow(mapping, key, value)
	}
	text := key + ": " + value
	if lines != nil {
		text = key + ":"
	}
	for _, name := range after {
		k, v, err := e.src.entry(mapping, name)
		if err != nil {
			return err
		}
		if k == nil {
			continue
		}
		indent, ok := e.indent(k)
		if !ok {
			continue
		}
		end := 0
		if isNull(v) && v.Value == "" {
			_, end, err = e.extent(k)
		} else if e.src.plainScalar(name, v) != nil {
			continue
		} else {
			_, end, err = e.extent(v)
		}
		if err != nil {
			continue
		}
		e.insertLinesAfter(end, indent, append([]string{text}, lines...))
		return nil
	}
	first := mapping.Content[0]
	indent, ok := e.indent(first)
	if !ok || strings.Contains(indent, "-") {
		return e.src.errorAt(first, "there is no place for a new line with %s; write %s: \"\" where it belongs", key, key)
	}
	start := e.above(first)
	eol := e.lineEnd(start)
	for _, line := range append([]string{text}, lines...) {
		e.insert(start, indent+line+eol)
	}
	return nil
}

func (e *editor) addFlow(mapping *yaml.Node, key, value string) error {
	start := e.offset(mapping)
	if start >= len(e.src.data) || e.src.data[start] != '{' {
		return e.src.errorAt(mapping, "there is no place for a new entry %s; write the mapping in lines of their own", key)
	}
	if len(mapping.Content) == 0 {
		e.insert(start+1, key+": "+value)
		return nil
	}
	if mapping.Content[0].Style&yaml.DoubleQuotedStyle != 0 { // JSON
		key = quote(key)
	}
	e.insert(start+1, key+": "+value+","+e.gap(start+1))
	return nil
}

// gap is the space to put after a comma if none follows already.
func (e *editor) gap(at int) string {
	if at < len(e.src.data) && strings.IndexByte(" \r\n", e.src.data[at]) >= 0 {
		return ""
	}
	return " "
}

// remove deletes the entry of key, the whole line in block style.
func (e *editor) remove(mapping *yaml.Node, key string) error {
	k, v, err := e.src.entry(mapping, key)
	if err != nil || k == nil {
		return err
	}
	start, end, err := e.extent(k)
	if err != nil {
		return err
	}
	if !isNull(v) || v.Value != "" {
		if err := e.src.plainScalar(key, v); err != nil {
			return err
		}
		if _, end, err = e.extent(v); err != nil {
			return err
		}
	}
	data := e.src.data
	if mapping.Style&yaml.FlowStyle == 0 {
		indent, ok := e.indent(k)
		if !ok || strings.Contains(indent, "-") {
			return e.src.errorAt(k, "%s: it does not stand on a line of its own; remove it by hand", key)
		}
		start -= len(indent)
		if i := bytes.IndexByte(data[end:], '\n'); i >= 0 {
			end += i + 1
		} else {
			// The last line, without a line end: the one before takes its place.
			end = len(data)
			start = len(bytes.TrimSuffix(bytes.TrimSuffix(data[:start], []byte("\n")), []byte("\r")))
		}
		e.replace(start, end, "")
		return nil
	}
	if isNull(v) && v.Value == "" {
		return e.src.errorAt(k, "%s: it has no value; remove it by hand", key)
	}
	before := bytes.TrimRight(data[:start], " \r\n")
	after := end + len(data[end:]) - len(bytes.TrimLeft(data[end:], " \r\n"))
	switch {
	case len(before) > 0 && before[len(before)-1] == ',':
		e.replace(len(before)-1, end, "")
	case after < len(data) && data[after] == ',':
		rest := bytes.TrimLeft(data[after+1:], " ")
		e.replace(start, len(data)-len(rest), "")
	default:
		e.replace(start, end, "")
	}
	return nil
}

// setImage puts the digest into the record's image slot, which it makes if there
// is none.
func (e *editor) setImage(m *manifest, d Deployment) error {
	slot, err := m.imageSlot(d.Repository.Name)
	if err != nil {
		return err
	}
	if slot.helm {
		return e.set(slot.parameter, "value", string(d.Digest), "name")
	}
	value := string(d.Repository.Name) + "=" + d.Repository.At(d.Digest)
	quoted := quote(value)
	if slot.value != nil {
		if slot.value.Value == value && slot.value.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
			return nil
		}
		start, end, err := e.extent(slot.value)
		if err != nil {
			return err
		}
		e.replace(start, end, quoted)
		return nil
	}

	kustomizeKey, kustomize, err := e.src.entry(m.source, "kustomize")
	if err != nil {
		return err
	}
	unit := e.indentUnit(m)
	dash := e.sequenceIndent(m, unit)
	switch {
	case kustomizeKey == nil:
		lines := []string{unit + "images:", unit + dash + "- " + quoted}
		return e.add(m.source, "kustomize", []string{"targetRevision", "path", "repoURL"}, "{images: ["+quoted+"]}", lines)
	case isNull(kustomize):
		return e.overwrite(kustomizeKey, kustomize, "{images: ["+quoted+"]}")
	}
	imagesKey, images, err := e.src.entry(kustomize, "images")
	if err != nil {
		return err
	}
	switch {
	case imagesKey == nil && len(kustomize.Content) == 0:
		return e.addFlow(kustomize, "images", "["+quoted+"]")
	case imagesKey == nil:
		return e.add(kustomize, "images", nil, "["+quoted+"]", []string{dash + "- " + quoted})
	case isNull(images):
		return e.overwrite(imagesKey, images, "["+quoted+"]")
	case images.Style&yaml.FlowStyle != 0:
		start := e.offset(images)
		if start >= len(e.src.data) || e.src.data[start] != '[' {
			return e.src.errorAt(images, "images: there is no place for a new entry; write the list in lines of their own")
		}
		if len(images.Content) == 0 {
			e.insert(start+1, quoted)
			return nil
		}
		e.insert(start+1, quoted+","+e.gap(start+1))
		return nil
	}
	return e.addItem(images, quoted)
}

// addItem puts a new item into a block sequence: after the last one if that is a
// scalar, else before the first.
func (e *editor) addItem(list *yaml.Node, value string) error {
	last := list.Content[len(list.Content)-1]
	if indent, ok := e.indent(last); ok && strings.Count(indent, "-") == 1 && e.src.plainScalar("", last) == nil && !isNull(last) {
		if _, end, err := e.extent(last); err == nil {
			e.insertLinesAfter(end, "", []string{indent + value})
			return nil
		}
	}
	first := list.Content[0]
	indent, ok := e.indent(first)
	if !ok || strings.Count(indent, "-") != 1 {
		return e.src.errorAt(first, "images: there is no place for a new entry; write each on a line of its own")
	}
	start := e.above(first)
	e.insert(start, indent+value+e.lineEnd(start))
	return nil
}

// above gives the start of the node's line or, if comments stand right above
// it, of the first of these.
func (e *editor) above(node *yaml.Node) int {
	line := node.Line - 1
	for line > 0 && bytes.HasPrefix(bytes.TrimLeft(e.src.data[e.src.lines[line-1]:], " "), []byte("#")) {
		line--
	}
	return e.src.lines[line]
}

// insertLinesAfter puts lines after the line that holds the offset. The first
// line's indentation is given; a dash in it becomes a space.
func (e *editor) insertLinesAfter(at int, indent string, lines []string) {
	indent = strings.ReplaceAll(indent, "-", " ")
	data := e.src.data
	eol := e.lineEnd(at)
	i := bytes.IndexByte(data[at:], '\n')
	var text strings.Builder
	for _, line := range lines {
		if i >= 0 {
			text.WriteString(indent + line + eol)
		} else {
			text.WriteString(eol + indent + line)
		}
	}
	if i >= 0 {
		at += i + 1
	} else {
		at = len(data)
	}
	e.insert(at, text.String())
}

// lineEnd is the line end of the line that holds the offset, of the file's first
// line if that one has none.
func (e *editor) lineEnd(at int) string {
	data := e.src.data
	i := bytes.IndexByte(data[at:], '\n')
	if i < 0 {
		at = 0
		if i = bytes.IndexByte(data, '\n'); i < 0 {
			return "\n"
		}
	}
	if at+i > 0 && data[at+i-1] == '\r' {
		return "\r\n"
	}
	return "\n"
}

// indent gives what stands before the node on its line, if that is only spaces
// and dashes of a sequence.
func (e *editor) indent(node *yaml.Node) (string, bool) {
	before := string(e.src.data[e.src.lines[node.Line-1]:e.offset(node)])
	return before, strings.Trim(before, " -") == ""
}

// indentUnit is one step of indentation, as the file has it.
func (e *editor) indentUnit(m *manifest) string {
	for _, mapping := range []*yaml.Node{m.source, m.annotations} {
		if mapping.Style&yaml.FlowStyle != 0 || len(mapping.Content) == 0 {
			continue
		}
		// The parent's column is the nearest smaller one above.
		line := mapping.Content[0].Line - 1
		column := mapping.Content[0].Column - 1
		for i := line - 1; i >= 0; i-- {
			text := bytes.TrimRight(e.src.data[e.src.lines[i]:e.src.lines[i+1]], " \r\n")
			trimmed := bytes.TrimLeft(text, " ")
			if indent := len(text) - len(trimmed); len(trimmed) > 0 && trimmed[0] != '#' && indent < column {
				return strings.Repeat(" ", column-indent)
			}
		}
	}
	return "  "
}

// sequenceIndent is how far the file indents a list under its key: not at all,
// or by one unit.
func (e *editor) sequenceIndent(m *manifest, unit string) string {
	var found string
	var walk func(node *yaml.Node, depth int) bool
	walk = func(node *yaml.Node, depth int) bool {
		if depth > 50 {
			return false
		}
		for i, child := range node.Content {
			if node.Kind == yaml.MappingNode && i%2 == 1 && child.Kind == yaml.SequenceNode &&
				child.Style&yaml.FlowStyle == 0 && len(child.Content) > 0 {
				found = strings.Repeat(" ", max(0, child.Column-node.Content[i-1].Column))
				return true
			}
			if walk(child, depth+1) {
				return true
			}
		}
		return false
	}
	for _, doc := range e.src.docs {
		if walk(doc, 0) {
			return found
		}
	}
	return unit
}

// offset gives the byte at which the node starts.
func (e *editor) offset(node *yaml.Node) int {
	at := e.src.lines[min(node.Line, len(e.src.lines))-1]
	for range node.Column - 1 {
		_, size := utf8.DecodeRune(e.src.data[at:])
		at += size
	}
	return at
}

// extent gives the bytes of a scalar, its quotes included.
func (e *editor) extent(node *yaml.Node) (start, end int, err error) {
	data := e.src.data
	start = e.offset(node)
	unclear := e.src.errorAt(node, "the value %q is written in a way that cannot be replaced; write it on one line in double quotes", step.Clip(node.Value))
	switch {
	case node.Style&yaml.DoubleQuotedStyle != 0:
		if start >= len(data) || data[start] != '"' {
			return 0, 0, unclear
		}
		for end = start + 1; end < len(data); end++ {
			switch data[end] {
			case '\\':
				end++
			case '"':
				return start, end + 1, nil
			}
		}
	case node.Style&yaml.SingleQuotedStyle != 0:
		if start >= len(data) || data[start] != '\'' {
			return 0, 0, unclear
		}
		for end = start + 1; end < len(data); end++ {
			if data[end] != '\'' {
				continue
			}
			if end+1 < len(data) && data[end+1] == '\'' {
				end++
				continue
			}
			return start, end + 1, nil
		}
	case bytes.HasPrefix(data[start:], []byte(node.Value)):
		return start, start + len(node.Value), nil
	}
	return 0, 0, unclear
}

// quote writes a YAML double-quoted string. The text has no control characters.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
