// Package bus generates the EventBus (adr-0095 §1.b): NATS JetStream that keeps
// its events over a restart.
package bus

import (
	"strconv"

	events "github.com/argoproj/argo-events/pkg/apis/events/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"fabrique/manifests/zone"
	"fabrique/steps/config"
)

// Name is the bus that EventSources and Sensors use when they name none.
const Name = "default"

// Objects gives the bus: one server, as an event that is lost costs the time until
// the next scheduled run and nothing else; every write is synced to its volume.
func Objects(c config.Config) []any {
	replicas, size := int32(1), resource.MustParse(c.Cluster.EventBus.Storage)
	mode := corev1.ReadWriteOnce
	settings, stream := "sync_interval: always\n", "replicas: 1\nmaxAge: 72h\nduplicates: 300s\n"
	container := &events.ContainerTemplate{SecurityContext: zone.ContainerSecurity()}
	// Its start script writes beside its configuration.
	writes := false
	container.SecurityContext.ReadOnlyRootFilesystem = &writes
	return []any{&events.EventBus{
		TypeMeta: zone.Type("argoproj.io/v1alpha1", "EventBus"), ObjectMeta: zone.Meta(zone.Events, Name),
		Spec: events.EventBusSpec{JetStream: &events.JetStreamBus{
			Version: c.Cluster.EventBus.Version, Replicas: &replicas, Settings: &settings, StreamConfig: &stream,
			MaxPayload:         payload(c.Cluster.Webhook.MaxPayloadBytes),
			Persistence:        &events.PersistenceStrategy{AccessMode: &mode, VolumeSize: &size, StorageClassName: class(c)},
			ServiceAccountName: zone.BusAccount,
			SecurityContext:    zone.PodSecurity(),
			ContainerTemplate:  container, ReloaderContainerTemplate: container, MetricsContainerTemplate: container,
		}},
	}}
}

// payload gives the size of the largest message: a delivery with its headers, of which
// an EventSource makes a CloudEvent with base64 inside. NATS takes at most 64 MiB.
func payload(delivery int64) *string {
	size := strconv.FormatInt(delivery*3/2+(64<<10), 10)
	return &size
}

// class gives the configured StorageClass, nil for the cluster's default.
func class(c config.Config) *string {
	if c.Cluster.StorageClass == "" {
		return nil
	}
	return &c.Cluster.StorageClass
}
