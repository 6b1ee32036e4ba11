// Package eventsources generates the EventSource that receives Gitea's webhook #2
// (adr-0095 §1.b).
package eventsources

import (
	"fmt"
	"strings"

	events "github.com/argoproj/argo-events/pkg/apis/events/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fabrique/manifests/zone"
	"fabrique/steps/config"
)

// What the Sensor and the webhook's URL name.
const (
	Name     = "gitea"
	Event    = "push"
	Port     = 12000
	Endpoint = "/push"
	// Service is made by Argo Events from the EventSource's name.
	Service = Name + "-eventsource-svc"
)

// URL is where webhook #2 delivers to.
func URL() string {
	return fmt.Sprintf("http://%s.%s.svc:%d%s", Service, zone.Events, Port, Endpoint)
}

// Objects gives the EventSource. It is of the type github, whose HMAC over the
// body Gitea sends too (X-Hub-Signature-256); the plain webhook type compares a
// token only. Without an API token it registers nothing anywhere.
func Objects(c config.Config) []any {
	owner, name, _ := strings.Cut(string(c.Source.Repository), "/")
	limit := c.Cluster.Webhook.MaxPayloadBytes
	return []any{&events.EventSource{
		TypeMeta: zone.Type("argoproj.io/v1alpha1", "EventSource"), ObjectMeta: zone.Meta(zone.Events, Name),
		Spec: events.EventSourceSpec{
			Service: &events.Service{Ports: []corev1.ServicePort{{Name: "http", Port: Port, TargetPort: intstr.FromInt32(Port)}}},
			Template: &events.Template{
				ServiceAccountName: zone.BusAccount,
				SecurityContext:    zone.PodSecurity(),
				Container:          &events.Container{SecurityContext: zone.ContainerSecurity()},
			},
			Github: map[string]events.GithubEventSource{Event: {
				Webhook: &events.WebhookContext{Endpoint: Endpoint, Port: "12000", Method: "POST", MaxPayloadSize: &limit},
				Events:  []string{"push"},
				WebhookSecret: &corev1.SecretKeySelector{
					LocalObjectReference: corev1.LocalObjectReference{Name: zone.WebhookSecret}, Key: "secret",
				},
				ContentType:  "json",
				Active:       true,
				Repositories: []events.OwnedRepositories{{Owner: owner, Names: []string{name}}},
			}},
		},
	}}
}
