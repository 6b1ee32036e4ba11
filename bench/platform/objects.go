package platform

import (
	"fmt"

	"fabrique/bench/kubectl"
	k8s "fabrique/manifests/object"
	"fabrique/steps/image"
)

// object is any Kubernetes object.
type object = k8s.Object

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

// setImages replaces every image of a workload by the reference that refs has for
// its repository, and fails at one for which there is none.
func setImages(o object, refs map[string]string) error {
	pod := o.Pod()
	if pod == nil {
		return nil
	}
	for _, key := range []string{"initContainers", "containers"} {
		for _, c := range pod.Containers(key) {
			name, _ := c["image"].(string)
			ref, err := lookUp(refs, name)
			if err != nil {
				return fmt.Errorf("%s %s: %w", o.Kind(), o.Name(), err)
			}
			c["image"], c["imagePullPolicy"] = ref, "IfNotPresent"
		}
	}
	return nil
}

func lookUp(refs map[string]string, name string) (string, error) {
	if ref, ok := refs[image.Untagged(name)]; ok {
		return ref, nil
	}
	return "", fmt.Errorf("the bench has no image for %q", name)
}
