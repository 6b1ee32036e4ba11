package images

import (
	"math/rand"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
)

// SmallPlatforms are those of [SmallIndex].
var SmallPlatforms = []v1.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}}

// Small makes an image of a few bytes for a platform, always the same for a seed, to
// stand in a registry for one that is only named.
func Small(seed int64, platform v1.Platform) (v1.Image, error) {
	image, err := random.Image(64, 2, random.WithSource(rand.NewSource(seed)))
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file.OS, file.Architecture = platform.OS, platform.Architecture
	return mutate.ConfigFile(image, file)
}

// SmallIndex makes an index of small images, with an attestation's entry beside them.
func SmallIndex(seed int64) (v1.ImageIndex, error) {
	var index v1.ImageIndex = empty.Index
	for i, platform := range append(SmallPlatforms[:2:2], v1.Platform{OS: "unknown", Architecture: "unknown"}) {
		image, err := Small(seed*10+int64(i), platform)
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &platform}})
	}
	return index, nil
}
