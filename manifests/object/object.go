// Package object reads and changes Kubernetes objects of any kind, as YAML has them.
package object

import "strings"

// Object is any Kubernetes object, or a part of one.
type Object map[string]any

// Kind gives the object's kind, "" where it has none.
func (o Object) Kind() string {
	kind, _ := o["kind"].(string)
	return kind
}

// Name gives the object's name, "" where it has none.
func (o Object) Name() string {
	name, _ := o.At("metadata")["name"].(string)
	return name
}

// Is tells whether this is the object "Kind/name".
func (o Object) Is(id string) bool { return o.Kind()+"/"+o.Name() == id }

// At gives the map at these keys, made where it is missing.
func (o Object) At(keys ...string) Object {
	for _, key := range keys {
		inner, ok := As(o[key])
		if !ok {
			inner = Object{}
		}
		o[key] = inner
		o = inner
	}
	return o
}

// As gives a value as an object, if it is a map.
func As(v any) (Object, bool) {
	switch m := v.(type) {
	case Object:
		return m, true
	case map[string]any:
		return m, true
	}
	return nil, false
}

// Pod gives the pod's spec of a Deployment or StatefulSet, nil for any other object.
func (o Object) Pod() Object {
	switch o.Kind() {
	case "Deployment", "StatefulSet":
		return o.At("spec", "template", "spec")
	}
	return nil
}

// Containers gives the containers of a pod's spec under key ("containers" or
// "initContainers").
func (o Object) Containers(key string) []Object {
	list, _ := o[key].([]any)
	var found []Object
	for _, c := range list {
		if m, ok := As(c); ok {
			found = append(found, m)
		}
	}
	return found
}

// Strings gives the texts of the list at key.
func (o Object) Strings(key string) []string {
	list, _ := o[key].([]any)
	var texts []string
	for _, v := range list {
		if s, ok := v.(string); ok {
			texts = append(texts, s)
		}
	}
	return texts
}

// SetEnv sets a variable of a container.
func (o Object) SetEnv(name, value string) {
	list, _ := o["env"].([]any)
	for _, e := range list {
		if m, ok := As(e); ok && m["name"] == name {
			m["value"] = value
			delete(m, "valueFrom")
			return
		}
	}
	o["env"] = append(list, map[string]any{"name": name, "value": value})
}

// Namespace makes a namespace that enforces a Pod Security level.
func Namespace(name, level string) Object {
	return Object{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{
		"name": name, "labels": map[string]any{"pod-security.kubernetes.io/enforce": level},
	}}
}

// ID gives an object's name for a file: lower-case kind and name.
func (o Object) ID() string { return strings.ToLower(o.Kind()) + "-" + o.Name() }
