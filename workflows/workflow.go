// Package workflows generates the WorkflowTemplate that brings every app to a
// revision, and the CronWorkflow that runs it without an event (adr-0095 §1.b and
// its gates).
package workflows

import (
	"maps"
	"slices"
	"strings"
	"time"

	argo "github.com/argoproj/argo-workflows/v3/pkg/apis/workflow/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fabrique/manifests/buildkitd"
	"fabrique/manifests/zone"
	"fabrique/steps/config"
	"fabrique/steps/frontend"
)

// Names that others use.
const (
	TemplateName      = "fabrique"
	CronName          = "fabrique-head"
	RevisionParameter = "revision" // a full commit id; empty for the head of the branch
	AppParameter      = "app"      // one app only; empty for all
	CauseLabel        = "fabrique/cause"
)

// How long a finished Workflow can be looked at, in seconds.
const (
	keepSucceeded = int32(24 * 60 * 60)
	keepFailed    = int32(7 * 24 * 60 * 60)
)

// item are the fields of a due app (reconcile-head's result) that the next steps
// are given. Each has passed a strict parser, and none may hold "{{".
var item = []string{"app", "record", "revision", "context", "dockerfile", "image", "buildArgs", "target", "sourceKey"}

// Objects gives the WorkflowTemplate and the CronWorkflow.
func Objects(c config.Config) []any {
	g := generator{c}
	meta := zone.Meta(zone.Workflows, CronName)
	forbid, deadline, history := argo.ForbidConcurrent, int64(600), int32(3)
	return []any{
		&argo.WorkflowTemplate{
			TypeMeta: zone.Type("argoproj.io/v1alpha1", "WorkflowTemplate"), ObjectMeta: zone.Meta(zone.Workflows, TemplateName),
			Spec: g.spec(),
		},
		&argo.CronWorkflow{
			TypeMeta: zone.Type("argoproj.io/v1alpha1", "CronWorkflow"), ObjectMeta: meta,
			Spec: argo.CronWorkflowSpec{
				Schedules: []string{c.Cluster.Schedule}, ConcurrencyPolicy: forbid, StartingDeadlineSeconds: &deadline,
				SuccessfulJobsHistoryLimit: &history, FailedJobsHistoryLimit: &history,
				WorkflowSpec: argo.WorkflowSpec{WorkflowTemplateRef: &argo.WorkflowTemplateRef{Name: TemplateName}},
			},
		},
	}
}

type generator struct{ config.Config }

func (g generator) spec() argo.WorkflowSpec {
	no, succeeded, failed := false, keepSucceeded, keepFailed
	// Every app may have to wait for another run's, each as long as a build takes.
	limit := int64((3 * (g.Builder.Timeout + g.Timeouts.Clone)).Seconds())
	return argo.WorkflowSpec{
		Entrypoint: "main",
		Arguments: argo.Arguments{Parameters: []argo.Parameter{
			{Name: RevisionParameter, Value: argo.AnyStringPtr(""), Description: argo.AnyStringPtr("commit to build, 40 hex digits; empty: the head of the branch")},
			{Name: AppParameter, Value: argo.AnyStringPtr(""), Description: argo.AnyStringPtr("the only app to look at; empty: all")},
		}},
		ServiceAccountName: zone.WorkflowAccount, AutomountServiceAccountToken: &no,
		Executor:              &argo.ExecutorConfig{ServiceAccountName: zone.ExecutorAccount},
		SecurityContext:       zone.PodSecurity(),
		ActiveDeadlineSeconds: &limit,
		PodGC:                 &argo.PodGC{Strategy: argo.PodGCOnPodSuccess, DeleteDelayDuration: "60s"},
		TTLStrategy:           &argo.TTLStrategy{SecondsAfterSuccess: &succeeded, SecondsAfterFailure: &failed},
		Templates:             []argo.Template{g.main(), g.plan(), g.app(), g.build(), g.inspect(), g.publish()},
	}
}

func (g generator) main() argo.Template {
	arguments := argo.Arguments{}
	for _, field := range item {
		arguments.Parameters = append(arguments.Parameters, value(field, "{{item."+field+"}}"))
	}
	return argo.Template{Name: "main", Steps: []argo.ParallelSteps{
		{Steps: []argo.WorkflowStep{{Name: "plan", Template: "plan"}}},
		{Steps: []argo.WorkflowStep{{
			Name: "app", Template: "app", WithParam: "{{steps.plan.outputs.parameters.due}}", Arguments: arguments,
		}}},
	}}
}

// plan decides what is due: the one comparison that all ways in share.
func (g generator) plan() argo.Template {
	t := g.step("plan", "reconcile-head", g.Cluster.Images.ReconcileHead, g.Timeouts.Reconcile,
		"--source-url", g.SourceURL(), "--source-branch", string(g.Source.Branch),
		"--apps-url", g.AppsURL(), "--apps-branch", string(g.Apps.Branch), "--apps-path", string(g.Apps.Path),
		"--token-file", tokenFile)
	t.Container.Env = []corev1.EnvVar{
		{Name: "FABRIQUE_REVISION", Value: "{{workflow.parameters." + RevisionParameter + "}}"},
		{Name: "FABRIQUE_APP", Value: "{{workflow.parameters." + AppParameter + "}}"},
	}
	g.token(&t, zone.ReaderSecret)
	mount(t.Container, "tmp", "/tmp")
	t.Volumes = append(t.Volumes, empty("tmp"))
	output(&t, "due")
	return t
}

// app builds and publishes one app; two runs never do the same app at once.
func (g generator) app() argo.Template {
	given := argo.Arguments{}
	t := argo.Template{Name: "app"}
	for _, field := range item {
		t.Inputs.Parameters = append(t.Inputs.Parameters, argo.Parameter{Name: field})
		given.Parameters = append(given.Parameters, value(field, input(field)))
	}
	t.Synchronization = &argo.Synchronization{Mutexes: []*argo.Mutex{{Name: "app-" + input("app")}}}
	withDigest := given
	withDigest.Parameters = append(given.Parameters[:len(given.Parameters):len(given.Parameters)], value("digest", "{{steps.inspect.outputs.parameters.digest}}"))
	for _, step := range []struct {
		name      string
		arguments argo.Arguments
	}{{"build", given}, {"inspect", given}, {"publish", withDigest}} {
		t.Steps = append(t.Steps, argo.ParallelSteps{Steps: []argo.WorkflowStep{{Name: step.name, Template: step.name, Arguments: step.arguments}}})
	}
	return t
}

// build fetches exactly the commit and has buildkitd build and push it. No
// writer's token is near.
func (g generator) build() argo.Template {
	t := g.step("build", "buildkit-build", g.Cluster.Images.BuildkitBuild, g.Builder.Timeout+g.Timeouts.Clone,
		"--address", buildkitd.Address, "--dir", "/workspace/clone/tree", "--timeout", g.Builder.Timeout.String(),
		"--platform", string(g.Builder.Platform), "--cache", g.Builder.Cache, "--frontends", frontends(g.Builder.Frontends))
	if g.Registry.PlainHTTP {
		t.Container.Args = append(t.Container.Args, "--plain-http")
	}
	inputs(&t, map[string]string{
		"FABRIQUE_CONTEXT": "context", "FABRIQUE_DOCKERFILE": "dockerfile", "FABRIQUE_BUILD_ARGS": "buildArgs",
		"FABRIQUE_TARGET": "target", "FABRIQUE_REVISION": "revision", "FABRIQUE_SOURCE_KEY": "sourceKey",
	}, "app", "record", "image")
	t.Container.Env = append(t.Container.Env, corev1.EnvVar{Name: "FABRIQUE_IMAGE", Value: string(g.Registry.Address) + "/" + input("image")})
	mount(t.Container, "work", "/workspace")
	mount(t.Container, "tmp", "/tmp")
	t.Volumes = append(t.Volumes, empty("work"), empty("tmp"))
	clone := g.container("clone", "clone-at-sha", g.Cluster.Images.CloneAtSHA, g.Timeouts.Clone,
		"--url", g.SourceURL(), "--dir", "/workspace/clone", "--token-file", tokenFile, "--path="+input("context"))
	clone.Env = []corev1.EnvVar{{Name: "FABRIQUE_REVISION", Value: input("revision")}}
	mount(clone, "work", "/workspace")
	mount(clone, "tmp", "/tmp")
	mount(clone, "token", tokenDir)
	mount(clone, "out", "/out")
	t.Volumes = append(t.Volumes, secretVolume("token", zone.ReaderSecret))
	t.InitContainers = []argo.UserContainer{{Container: *clone}}
	return t
}

// frontends writes them as the flag of buildkit-build reads them.
func frontends(allowed frontend.Allowed) string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(allowed)) {
		pairs = append(pairs, name+"="+allowed[name])
	}
	return strings.Join(pairs, ",")
}

// inspect asks the registry what it has, and believes the build nothing.
func (g generator) inspect() argo.Template {
	t := g.step("inspect", "digest-inspect", g.Cluster.Images.DigestInspect, g.Timeouts.Inspect, "--platform", string(g.Builder.Platform))
	if g.Registry.PlainHTTP {
		t.Container.Args = append(t.Container.Args, "--plain-http")
	}
	inputs(&t, map[string]string{"FABRIQUE_REVISION": "revision", "FABRIQUE_SOURCE_KEY": "sourceKey"},
		"app", "record", "context", "dockerfile", "image", "buildArgs", "target")
	t.Container.Env = append(t.Container.Env, corev1.EnvVar{Name: "FABRIQUE_IMAGE", Value: string(g.Registry.Address) + "/" + input("image")})
	output(&t, "digest")
	return t
}

// publish writes the digest into the record; only here is the writer's token.
func (g generator) publish() argo.Template {
	t := g.step("publish", "gitea-writeback", g.Cluster.Images.GiteaWriteback, g.Timeouts.WriteBack,
		"--gitea-url", g.Gitea.URL, "--apps-repository", string(g.Apps.Repository), "--apps-branch", string(g.Apps.Branch),
		"--source-repository", string(g.Source.Repository), "--source-branch", string(g.Source.Branch),
		"--author-name", g.Author.Name, "--author-email", g.Author.Email,
		"--token-file", tokenFile, "--reader-token-file", readerTokenFile)
	inputs(&t, map[string]string{
		"FABRIQUE_APP": "app", "FABRIQUE_RECORD": "record", "FABRIQUE_REVISION": "revision",
		"FABRIQUE_SOURCE_KEY": "sourceKey", "FABRIQUE_DIGEST": "digest",
	}, "image", "context", "dockerfile", "buildArgs", "target")
	t.Container.Env = append(t.Container.Env, corev1.EnvVar{Name: "FABRIQUE_IMAGE", Value: string(g.Registry.Address) + "/" + input("image")})
	g.token(&t, zone.WriterSecret)
	// The writer may not read the source, and which commit is newer is told there.
	mount(t.Container, "reader-token", readerTokenDir)
	t.Volumes = append(t.Volumes, secretVolume("reader-token", zone.ReaderSecret))
	output(&t, "result")
	return t
}

// step gives a template of one step program.
func (g generator) step(name, program, image string, timeout time.Duration, args ...string) argo.Template {
	limit, deadline := intstr.FromInt32(3), intstr.FromInt32(int32((timeout + time.Minute).Seconds()))
	factor := intstr.FromInt32(2)
	container := g.container("main", program, image, timeout, args...)
	mount(container, "out", "/out")
	return argo.Template{
		Name: name, Container: container, Volumes: []corev1.Volume{empty("out")}, ActiveDeadlineSeconds: &deadline,
		RetryStrategy: &argo.RetryStrategy{
			Limit: &limit, RetryPolicy: argo.RetryPolicyAlways,
			Backoff: &argo.Backoff{Duration: "5s", Factor: &factor},
			// Exit codes 2 (bad input) and 3 (the source is at fault) come again with every
			// try. The message tells those of a container before the main one.
			Expression: `!(lastRetry.exitCode in ["2", "3"]) && !(lastRetry.message matches "exit code [23]\\)")`,
		},
	}
}

func (g generator) container(name, program, image string, timeout time.Duration, args ...string) *corev1.Container {
	all := append([]string{"--outputs", "/out"}, args...)
	if program != "buildkit-build" {
		all = append(all, "--timeout", timeout.String())
	}
	return &corev1.Container{
		Name: name, Image: image,
		// Without a command Argo would ask the registry for it, over HTTPS.
		Command: []string{"/" + program}, Args: all,
		SecurityContext:          zone.ContainerSecurity(),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
		}},
	}
}

const (
	tokenDir        = "/run/secrets/gitea"
	tokenFile       = tokenDir + "/token"
	readerTokenDir  = "/run/secrets/gitea-reader"
	readerTokenFile = readerTokenDir + "/token"
)

func (g generator) token(t *argo.Template, secret string) {
	mount(t.Container, "token", tokenDir)
	t.Volumes = append(t.Volumes, secretVolume("token", secret))
}

func secretVolume(name, secret string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret}}}
}

func empty(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
}

func mount(c *corev1.Container, name, path string) {
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: strings.HasSuffix(name, "token")})
}

// inputs declares a template's parameters and hands those in env to the container,
// as variables: never inside an argument or a script. Others are declared only.
func inputs(t *argo.Template, env map[string]string, others ...string) {
	for _, name := range append(append([]string{}, item...), "digest") {
		for variable, parameter := range env {
			if parameter == name {
				t.Inputs.Parameters = append(t.Inputs.Parameters, argo.Parameter{Name: name})
				t.Container.Env = append(t.Container.Env, corev1.EnvVar{Name: variable, Value: input(name)})
			}
		}
		for _, other := range others {
			if other == name {
				t.Inputs.Parameters = append(t.Inputs.Parameters, argo.Parameter{Name: name})
			}
		}
	}
}

func output(t *argo.Template, field string) {
	t.Outputs.Parameters = append(t.Outputs.Parameters, argo.Parameter{Name: field, ValueFrom: &argo.ValueFrom{Path: "/out/" + field}})
}

func value(name, v string) argo.Parameter {
	return argo.Parameter{Name: name, Value: argo.AnyStringPtr(v)}
}

func input(name string) string { return "{{inputs.parameters." + name + "}}" }
