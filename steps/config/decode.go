package config

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	goccy "github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// maxSize is the size in bytes above which a file is refused; the parser takes
// time in proportion to the square of the nesting.
const maxSize = 16 << 10

// decoder fills a struct from YAML, strictly, and remembers where each field
// stands. Fields that the file does not have keep their value.
type decoder struct {
	file     string
	at       map[string]place // by field path, "gitea.url"; "" is the file
	problems []problem
}

// problem reports a value. A field that the file does not have is reported at
// its nearest parent.
func (d *decoder) problem(field, format string, args ...any) {
	where, ok := d.at[field]
	for parent := field; !ok; where, ok = d.at[parent] {
		parent = parent[:max(0, strings.LastIndexAny(parent, ".["))]
	}
	d.problemAt(where, field, format, args...)
}

func (d *decoder) problemAt(where place, field, format string, args ...any) {
	err := fmt.Errorf(format, args...)
	if field != "" {
		err = fmt.Errorf("%s: %w", field, err)
	}
	d.problems = append(d.problems, problem{where, err})
}

func (d *decoder) missing(field, advice string) { d.problem(field, "it is missing; %s", advice) }

// decode parses the text and fills target, a pointer to a struct.
func (d *decoder) decode(data []byte, target any) {
	if len(data) > maxSize {
		d.problem("", "the file has %d bytes, at most %d are allowed", len(data), maxSize)
		return
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		where, what := place{1, 1}, err.Error()
		var syntax *goccy.SyntaxError
		if errors.As(err, &syntax) {
			what = syntax.Message
			if syntax.Token != nil {
				where = place{syntax.Token.Position.Line, syntax.Token.Position.Column}
			}
		}
		d.problemAt(where, "", "%s; correct the YAML", what)
		return
	}
	seen := false
	for _, doc := range file.Docs {
		if doc == nil || doc.Body == nil {
			continue
		}
		if _, comment := doc.Body.(*ast.CommentGroupNode); comment {
			continue
		}
		if seen {
			d.problemAt(position(doc.Body), "", "a second YAML document; keep one")
			return
		}
		seen = true
		d.value("", doc.Body, reflect.ValueOf(target).Elem())
	}
}

func position(node ast.Node) place {
	if mapping, ok := node.(*ast.MappingNode); ok && len(mapping.Values) > 0 {
		node = mapping.Values[0].Key
	}
	if pair, ok := node.(*ast.MappingValueNode); ok {
		node = pair.Key
	}
	if token := node.GetToken(); token != nil && token.Position != nil {
		return place{token.Position.Line, token.Position.Column}
	}
	return place{1, 1}
}

var durationType = reflect.TypeFor[time.Duration]()

// value fills one value and reports whether the node was of the right type.
func (d *decoder) value(field string, node ast.Node, target reflect.Value) {
	where := position(node)
	if _, ok := d.at[field]; !ok {
		d.at[field] = where
	}
	wrong := func(want string) {
		d.problemAt(where, field, "it is %s; want %s", kind(node), want)
	}
	switch node.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode, *ast.MergeKeyNode:
		d.problemAt(where, field, "it is %s; write the value out", kind(node))
		return
	case *ast.NullNode:
		return // as if the field were not there
	}
	switch {
	case target.Type() == durationType:
		text, ok := node.(*ast.StringNode)
		if !ok {
			wrong("a duration, as in 90s or 30m")
			return
		}
		duration, err := time.ParseDuration(text.Value)
		if err != nil {
			d.problemAt(where, field, "%q is not a duration; want one as in 90s or 30m", text.Value)
			return
		}
		target.SetInt(int64(duration))
	case target.Kind() == reflect.Struct:
		d.structure(field, node, target)
	case target.Kind() == reflect.Map:
		d.mapping(field, node, target)
	case target.Kind() == reflect.Slice:
		list, ok := node.(*ast.SequenceNode)
		if !ok {
			wrong("a list")
			return
		}
		target.Set(reflect.MakeSlice(target.Type(), len(list.Values), len(list.Values)))
		for i, item := range list.Values {
			d.value(fmt.Sprintf("%s[%d]", field, i), item, target.Index(i))
		}
	case target.Kind() == reflect.String:
		text, ok := scalarText(node)
		if !ok {
			wrong("a string; put it in double quotes if it is one")
			return
		}
		target.SetString(text)
	case target.Kind() == reflect.Bool:
		value, ok := node.(*ast.BoolNode)
		if !ok {
			wrong("true or false")
			return
		}
		target.SetBool(value.Value)
	case target.CanInt():
		number, ok := node.(*ast.IntegerNode)
		if !ok {
			wrong("a whole number")
			return
		}
		switch n := number.Value.(type) {
		case int64:
			if target.OverflowInt(n) {
				d.problemAt(where, field, "%d is out of range", n)
				return
			}
			target.SetInt(n)
		case uint64:
			if n > math.MaxInt64 || target.OverflowInt(int64(n)) {
				d.problemAt(where, field, "%d is too large", n)
				return
			}
			target.SetInt(int64(n))
		default:
			wrong("a whole number")
		}
	default:
		panic(fmt.Sprintf("config: no way to read a %s into %s", target.Type(), field)) // a type of this package
	}
}

func scalarText(node ast.Node) (string, bool) {
	switch text := node.(type) {
	case *ast.StringNode:
		return text.Value, true
	case *ast.LiteralNode:
		return text.Value.Value, true
	}
	return "", false
}

// pairs calls each with the entries of a mapping whose keys are strings, each
// key once.
func (d *decoder) pairs(field string, node ast.Node, each func(key string, at place, value ast.Node)) {
	var entries []*ast.MappingValueNode
	switch mapping := node.(type) {
	case *ast.MappingNode:
		entries = mapping.Values
	case *ast.MappingValueNode:
		entries = []*ast.MappingValueNode{mapping}
	default:
		d.problemAt(position(node), field, "it is %s; want a mapping of fields", kind(node))
		return
	}
	seen := map[string]bool{}
	for _, entry := range entries {
		at := position(entry)
		key, ok := scalarText(entry.Key)
		switch {
		case !ok:
			d.problemAt(at, field, "a key is %s; want a field's name", kind(entry.Key))
		case seen[key]:
			d.problemAt(at, join(field, key), "it is given twice; keep one")
		default:
			each(key, at, entry.Value)
		}
		seen[key] = true
	}
}

func (d *decoder) structure(field string, node ast.Node, target reflect.Value) {
	d.pairs(field, node, func(key string, at place, value ast.Node) {
		var names []string
		for i := range target.NumField() {
			name := target.Type().Field(i).Tag.Get("yaml")
			if name == key {
				if _, null := value.(*ast.NullNode); null {
					d.at[join(field, key)] = at
				}
				d.value(join(field, key), value, target.Field(i))
				return
			}
			names = append(names, name)
		}
		d.problemAt(at, join(field, key), "there is no such field; want one of %s", strings.Join(names, ", "))
	})
}

// mapping fills a map of strings with the entries of the file and no others.
func (d *decoder) mapping(field string, node ast.Node, target reflect.Value) {
	entries := reflect.MakeMap(target.Type())
	d.pairs(field, node, func(key string, at place, value ast.Node) {
		d.at[join(field, key)] = at
		item := reflect.New(target.Type().Elem()).Elem()
		d.value(join(field, key), value, item)
		entries.SetMapIndex(reflect.ValueOf(key), item)
	})
	target.Set(entries)
}

func join(field, key string) string {
	if field == "" {
		return key
	}
	return field + "." + key
}

// kind names a node's type as a person would.
func kind(node ast.Node) string {
	switch node.(type) {
	case *ast.StringNode, *ast.LiteralNode:
		return "a string"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.BoolNode:
		return "true or false"
	case *ast.NullNode:
		return "empty"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.AnchorNode, *ast.AliasNode:
		return "an anchor or alias"
	case *ast.TagNode:
		return "a tagged value"
	case *ast.MergeKeyNode:
		return "a merge key"
	}
	return "something else"
}
