package platform

import (
	"fmt"
	"strings"

	"fabrique/bench/kubectl"
)

// object is any Kubernetes object.
type object map[string]any

func parse(text []byte, values map[string]string) ([]object, error) {
	all, err := kubectl.Objects(text, values)
	if err != nil {
		return nil, err
	}
	var objects []object
	for _, o := range all {
		objects = append(objects, o)
	}
	return objects, nil
}

func (o object) kind() string { return o["kind"].(string) }
func (o object) name() string { return o.at("metadata")["name"].(string) }

// is tells whether this is the object "Kind/name".
func (o object) is(id string) bool { return o.kind()+"/"+o.name() == id }

// at gives the map at these keys, made where it is missing.
func (o object) at(keys ...string) object {
	for _, key := range keys {
		inner, ok := asObject(o[key])
		if !ok {
			inner = object{}
		}
		o[key] = inner
		o = inner
	}
	return o
}

func asObject(v any) (object, bool) {
	switch m := v.(type) {
	case object:
		return m, true
	case map[string]any:
		return m, true
	}
	return nil, false
}

// pod gives the pod's spec of a workload, nil for any other object.
func (o object) pod() object {
	switch o.kind() {
	case "Deployment", "StatefulSet":
		return o.at("spec", "template", "spec")
	}
	return nil
}

// containers gives the containers of a pod's spec under key ("containers" or
// "initContainers").
func (o object) containers(key string) []object {
	list, _ := o[key].([]any)
	var found []object
	for _, c := range list {
		if m, ok := asObject(c); ok {
			found = append(found, m)
		}
	}
	return found
}

// setImages replaces every image by the reference that refs has for its
// repository, and fails at one for which there is none.
func (o object) setImages(refs map[string]string) error {
	pod := o.pod()
	if pod == nil {
		return nil
	}
	for _, key := range []string{"initContainers", "containers"} {
		for _, c := range pod.containers(key) {
			image, _ := c["image"].(string)
			ref, err := lookUp(refs, image)
			if err != nil {
				return fmt.Errorf("%s %s: %w", o.kind(), o.name(), err)
			}
			c["image"], c["imagePullPolicy"] = ref, "IfNotPresent"
		}
	}
	return nil
}

func lookUp(refs map[string]string, image string) (string, error) {
	repository, _, _ := strings.Cut(image, "@")
	if i := strings.LastIndex(repository, ":"); i > strings.LastIndex(repository, "/") {
		repository = repository[:i]
	}
	if ref, ok := refs[repository]; ok {
		return ref, nil
	}
	return "", fmt.Errorf("the bench has no image for %q", image)
}

// setEnv sets a variable of a container.
func (o object) setEnv(name, value string) {
	list, _ := o["env"].([]any)
	for _, e := range list {
		if m, ok := asObject(e); ok && m["name"] == name {
			m["value"] = value
			delete(m, "valueFrom")
			return
		}
	}
	o["env"] = append(list, map[string]any{"name": name, "value": value})
}
