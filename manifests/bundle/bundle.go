// Package bundle renders the installs of the operators that the factory stands on, for
// a cluster that is cut off from the Internet (adr-0095, "Surface d'opérateurs"): Argo
// Workflows, Argo Events, and the NATS images of its bus.
//
// The manifests come from the Go modules that this program is linked with, so that the
// controllers are those whose types the factory's own manifests have. Every image in
// them, wherever it is named, becomes the mirror in the configured registry by digest,
// the digest being that of the tag's own descriptor, so of the index where the mirror
// has all platforms (adr-0095 §2, ADR 0006). A lock keeps the digests: a tag that moves
// in the registry changes nothing until it is asked to.
//
// What is changed besides images stands at [WorkflowsInstall], [EventsInstall] and
// [SetBus].
package bundle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	k8syaml "sigs.k8s.io/yaml"

	k8s "fabrique/manifests/object"
	"fabrique/steps/config"
	"fabrique/steps/image"
	"fabrique/steps/step"
)

// DefaultPrefix is the folder of the mirrors in the registry.
const DefaultPrefix = "mirror"

// Options say what to render.
type Options struct {
	Config config.Config
	// Prefix stands before every mirror's name in the registry; empty for none.
	Prefix string
	// Versions take the place of those that the program is linked with.
	Versions []Version
	// Path is where the folder is in its repository. See [Lock].
	Path string
}

// Plan is what will be rendered, and which images that takes. Digests are missing yet.
type Plan struct {
	Images  []Image // by source, without what the registry tells
	modules map[string]Module
	bundles map[string][]*yaml.Node
	roles   []role
	options Options
}

// NewPlan reads the modules' manifests. Errors: those of [Find]; exit code 2 for a
// manifest that is not as it is known, and for two images that would share a mirror.
func NewPlan(ctx context.Context, o Options) (*Plan, error) {
	found := map[string]Module{}
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		module, err := Find(ctx, modules[name], o.Versions)
		if err != nil {
			return nil, err
		}
		found[name] = module
	}
	return plan(found, o)
}

// moduleOf names the module that a bundle is from.
func (p *Plan) moduleOf(bundle string) Module {
	if bundle == NATS {
		return p.modules[Events]
	}
	return p.modules[bundle]
}

func plan(found map[string]Module, o Options) (*Plan, error) {
	objects, err := installs(found, o.Config.Cluster.EventBus.Version)
	if err != nil {
		return nil, err
	}
	p := &Plan{modules: found, bundles: map[string][]*yaml.Node{}, options: o}
	mirrors := map[string]string{}
	for _, bundle := range slices.Sorted(maps.Keys(objects)) {
		module := p.moduleOf(bundle)
		for _, object := range objects[bundle] {
			doc, err := document(object)
			if err != nil {
				return nil, fmt.Errorf("rendering %s: %s %s: %w", module, object.Kind(), object.Name(), err)
			}
			p.bundles[bundle] = append(p.bundles[bundle], doc)
			if isRole(object) {
				p.roles = append(p.roles, role{bundle, object})
			}
			for _, r := range references(doc) {
				mirror, err := mirror(o.Config, o.Prefix, r.text)
				if err != nil {
					return nil, fmt.Errorf("rendering %s: %s %s: %w", module, object.Kind(), object.Name(), err)
				}
				if other, taken := mirrors[mirror]; taken && other != r.text {
					return nil, step.Invalidf("rendering %s: %q and %q would share the mirror %s", module, other, r.text, mirror)
				} else if !taken {
					mirrors[mirror] = r.text
					p.Images = append(p.Images, Image{Source: r.text, Mirror: mirror, Module: module.Path, Version: module.Version})
				}
			}
		}
	}
	slices.SortFunc(p.Images, func(a, b Image) int { return strings.Compare(a.Source, b.Source) })
	return p, nil
}

// document gives an object as a YAML document whose nodes can be changed in place.
func document(o k8s.Object) (*yaml.Node, error) {
	text, err := k8syaml.Marshal(o)
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	return &doc, yaml.Unmarshal(text, &doc)
}

// mirror gives the place of an image in the configured registry: the same name and tag
// (or digest), without upstream's host.
func mirror(c config.Config, prefix, source string) (string, error) {
	ref, err := parseSource(source)
	if err != nil {
		return "", err
	}
	repository := ref.Context().RepositoryStr()
	if prefix != "" {
		repository = prefix + "/" + repository
	}
	name, err := image.ParseName(repository)
	if err != nil {
		return "", err
	}
	place := c.Repository(name).String()
	if digest, err := image.ParseDigest(ref.Identifier()); err == nil {
		return place + "@" + string(digest), nil
	}
	return place + ":" + ref.Identifier(), nil
}

// Rendered is what is to be written.
type Rendered struct {
	Lock  Lock
	Files map[string][]byte // by path in the folder
	// Unexplained are rights of upstream's roles that the allow-list for trivy leaves
	// out, because nobody has said why they must be; see [allowances].
	Unexplained []string
}

// Render writes the files with these images, which are the plan's with what the
// registry tells; see [Resolve].
func (p *Plan) Render(images []Image) (Rendered, error) {
	pinned := map[string]string{}
	for _, i := range images {
		pinned[i.Source] = i.Pinned()
	}
	out := Rendered{Files: map[string][]byte{}}
	for _, bundle := range slices.Sorted(maps.Keys(p.bundles)) {
		for _, doc := range p.bundles[bundle] {
			if err := replace(references(doc), func(source string) (string, error) {
				if ref := pinned[source]; ref != "" {
					return ref, nil
				}
				return "", step.Invalidf("it has no mirror")
			}); err != nil {
				return Rendered{}, err
			}
			file := fileOf(bundle, doc)
			if out.Files[file] == nil {
				out.Files[file] = fmt.Appendf(nil, "# Generated by fabrique bundle from %s. DO NOT EDIT.\n", p.moduleOf(bundle))
			}
			text := bytes.NewBufferString("---\n")
			encoder := yaml.NewEncoder(text)
			encoder.SetIndent(2)
			if err := encoder.Encode(doc); err != nil {
				return Rendered{}, fmt.Errorf("writing %s: %w", file, err)
			}
			out.Files[file] = append(out.Files[file], text.Bytes()...)
		}
	}
	allowed, unexplained := allow(p.roles)
	out.Unexplained = unexplained
	for file, text := range examples(p.options.Path, allowed) {
		out.Files[file] = text
	}
	out.Lock = Lock{Path: p.options.Path, Images: images, Files: []File{}}
	for _, file := range slices.Sorted(maps.Keys(out.Files)) {
		out.Lock.Files = append(out.Lock.Files, File{file, hash(out.Files[file])})
	}
	return out, nil
}

func hash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// fileOf gives a role a file of its own, so that what trivy is told to accept of it
// (by path) holds for no other.
func fileOf(bundle string, doc *yaml.Node) string {
	var o k8s.Object
	if err := doc.Decode(&o); err == nil && isRole(o) {
		return bundle + "/" + o.ID() + ".yaml"
	}
	return bundle + "/install.yaml"
}
