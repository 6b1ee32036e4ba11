package record

import (
	"reflect"
	"slices"

	"go.yaml.in/yaml/v3"

	"fabrique/steps/step"
)

// verify parses the edited file and compares it with the original: the record
// must read as the change wants it, and without the changed fields both must be
// the same YAML.
func verify(file string, before, after []byte, old Record, change Change) error {
	broken := func(what string) error {
		return step.Invalidf("editing the record %q of the app %q: %s; write its fields in the plain form of the documentation, one on each line", file, old.App, what)
	}
	want := old
	if d := change.Deploy; d != nil {
		want.Revision, want.SourceKey, want.Digest = d.Revision, d.SourceKey, d.Digest
		want.TargetRevision = string(d.Revision)
	}
	if change.RollbackOf != nil {
		want.RollbackOf = *change.RollbackOf
	}
	if change.Hold != nil {
		want.Hold = OneLine(*change.Hold)
	}
	got, gotManifest, err := find(file, after, old.App)
	if err != nil {
		return broken("the edited file does not parse: " + err.Error())
	}
	if !reflect.DeepEqual(got, want) {
		return broken("the edited file does not read as intended")
	}
	_, oldManifest, err := find(file, before, old.App)
	if err != nil {
		return err
	}
	for _, m := range []*manifest{oldManifest, gotManifest} {
		if err := strip(m, old, change); err != nil {
			return err
		}
	}
	if !slices.EqualFunc(oldManifest.src.docs, gotManifest.src.docs, sameNode) {
		return broken("the edit would change other fields")
	}
	return nil
}

// strip takes the fields that the change writes out of the parsed manifest.
func strip(m *manifest, old Record, change Change) error {
	if change.Hold != nil {
		drop(m.annotations, AnnotationHold)
	}
	if change.RollbackOf != nil {
		drop(m.annotations, AnnotationRollbackOf)
	}
	if change.Deploy == nil {
		return nil
	}
	slot, err := m.imageSlot(old.Image)
	if err != nil {
		return err
	}
	drop(m.annotations, AnnotationRevision)
	drop(m.annotations, AnnotationSourceKey)
	drop(m.source, "targetRevision")
	if slot.helm {
		drop(slot.parameter, "value")
		return nil
	}
	_, kustomize, err := m.src.entry(m.source, "kustomize")
	if err != nil || kustomize == nil {
		return err
	}
	if _, images, err := m.src.entry(kustomize, "images"); err != nil {
		return err
	} else if images != nil {
		images.Content = slices.DeleteFunc(images.Content, func(item *yaml.Node) bool { return item == slot.value })
		if len(images.Content) == 0 {
			drop(kustomize, "images")
		}
	}
	if len(kustomize.Content) == 0 {
		drop(m.source, "kustomize")
	}
	return nil
}

// drop removes the entry of key from a mapping.
func drop(mapping *yaml.Node, key string) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			mapping.Content = slices.Delete(mapping.Content, i, i+2)
			return
		}
	}
}

// sameNode compares two trees by everything but positions and comments.
func sameNode(a, b *yaml.Node) bool {
	return a.Kind == b.Kind && a.Style == b.Style && a.Tag == b.Tag && a.Value == b.Value && a.Anchor == b.Anchor &&
		slices.EqualFunc(a.Content, b.Content, sameNode)
}
