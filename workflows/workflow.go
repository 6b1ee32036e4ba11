// Package workflows generates the WorkflowTemplate that brings every app to a
// revision, and the CronWorkflow that runs it without an event (adr-0095 §1.b and
// its gates).
package workflows

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	argo "github.com/argoproj/argo-workflows/v3/pkg/apis/workflow/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fabrique/manifests/buildkitd"
	"fabrique/manifests/egress"
	"fabrique/manifests/zone"
	"fabrique/steps/config"
	"fabrique/steps/frontend"
	"fabrique/steps/runnetwork"
	"fabrique/workflows/run"
)

// Names that others use.
const (
	TemplateName      = "fabrique"
	CronName          = "fabrique-head"
	RevisionParameter = "revision" // a full commit id; empty for the head of the branch
	AppParameter      = "app"      // one app only; empty for all
)

// How long a finished Workflow can be looked at, in seconds.
const (
	keepSucceeded = int32(24 * 60 * 60)
	keepFailed    = int32(7 * 24 * 60 * 60)
)

// item are the fields of an item (reconcile-head's result) that the next steps are
// given. Each has passed a strict parser, and none may hold "{{".
var item = []string{"app", "record", "revision", "context", "dockerfile", "image", "buildArgs", "target", "sourceKey"}

// Objects gives the WorkflowTemplate and the CronWorkflow.
func Objects(c config.Config) []any {
	g := generator{c}
	meta := zone.Meta(zone.Workflows, CronName)
	deadline := int64(600)
	// By count, beside the age: as many as a day of the default schedule has.
	history := int32(150)
	return []any{
		&argo.WorkflowTemplate{
			TypeMeta: zone.Type("argoproj.io/v1alpha1", "WorkflowTemplate"), ObjectMeta: zone.Meta(zone.Workflows, TemplateName),
			Spec: g.spec(),
		},
		&argo.CronWorkflow{
			TypeMeta: zone.Type("argoproj.io/v1alpha1", "CronWorkflow"), ObjectMeta: meta,
			Spec: argo.CronWorkflowSpec{
				Schedules: []string{c.Cluster.Schedule}, StartingDeadlineSeconds: &deadline,
				// One that hangs, on a builder that is gone, must not stop the others. Beside each
				// other they do no harm: see app.
				ConcurrencyPolicy:          argo.AllowConcurrent,
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
		// The run's verdict is the exit handler's: it ends as the run did, with the reason
		// as its message. Argo takes a failed exit handler's message for the Workflow's, but
		// has only "child failed" to say of a failed step.
		OnExit: run.Report,
		Templates: []argo.Template{
			g.main(), g.apps(), g.plan(), g.report(run.Announce), g.app(), g.recheck(), g.build(), g.publish(), g.report(run.Report),
		},
	}
}

// failing lets what comes after a failed step go on.
var failing = &argo.ContinueOn{Failed: true, Error: true}

func (g generator) main() argo.Template {
	return argo.Template{Name: "main", Steps: []argo.ParallelSteps{
		{Steps: []argo.WorkflowStep{{Name: "apps", Template: "apps", ContinueOn: failing}}},
		// Argo calls a run that was terminated a success if nothing failed but what may:
		// there is no exit handler then. This step is not begun either, and so fails it.
		{Steps: []argo.WorkflowStep{{Name: "failed", Template: run.Announce, When: "{{steps.apps.status}} != Succeeded"}}},
	}}
}

func (g generator) apps() argo.Template {
	arguments := argo.Arguments{}
	for _, field := range item {
		arguments.Parameters = append(arguments.Parameters, value(field, "{{item."+field+"}}"))
	}
	// Each build takes a share of its builder's memory.
	atOnce := int64(1 + 4*g.Cluster.Builders)
	return argo.Template{Name: "apps", Parallelism: &atOnce, Steps: []argo.ParallelSteps{
		{Steps: []argo.WorkflowStep{{Name: "plan", Template: run.Plan}}},
		{Steps: []argo.WorkflowStep{
			{Name: "announce", Template: run.Announce, When: "{{steps.plan.outputs.parameters.count}} > 0", ContinueOn: failing},
			{Name: "app", Template: run.App, WithParam: "{{steps.plan.outputs.parameters.items}}", Arguments: arguments},
		}},
	}}
}

// plan decides what is due: the one comparison that all ways in share.
func (g generator) plan() argo.Template {
	t := g.compare(run.Plan, "{{workflow.parameters."+RevisionParameter+"}}", "{{workflow.parameters."+AppParameter+"}}")
	t.Container.Args = append(t.Container.Args, "--limit", strconv.Itoa(maxApps))
	for _, field := range []string{"due", "items", "count", "left", "broken", "apps", "head", "revision", "superseded"} {
		output(&t, field)
	}
	return t
}

// maxApps bounds a run: a Workflow is one object of at most 1 MiB.
const maxApps = 100

// recheck compares once more when the app's mutex is held: another run may have
// deployed the app meanwhile, or a newer commit come.
func (g generator) recheck() argo.Template {
	t := g.compare(run.Recheck, input("revision"), input("app"))
	t.Inputs.Parameters = []argo.Parameter{{Name: "app"}, {Name: "revision"}}
	for _, field := range []string{"count", "idle", "broken", "head", "superseded"} {
		output(&t, field)
	}
	return t
}

func (g generator) compare(name, revision, app string) argo.Template {
	t := g.step(name, "reconcile-head", g.Cluster.Images.ReconcileHead, g.Timeouts.Reconcile,
		"--source-url", g.SourceURL(), "--source-branch", string(g.Source.Branch),
		"--apps-url", g.AppsURL(), "--apps-branch", string(g.Apps.Branch), "--apps-path", string(g.Apps.Path),
		"--token-file", tokenFile)
	t.Container.Env = []corev1.EnvVar{{Name: "FABRIQUE_REVISION", Value: revision}, {Name: "FABRIQUE_APP", Value: app}}
	g.token(&t, zone.ReaderSecret)
	mount(t.Container, "tmp", "/tmp")
	t.Volumes = append(t.Volumes, empty("tmp"))
	return t
}

// app builds and publishes one app, in one run at a time: what another has deployed
// meanwhile is not built again. Argo forgets who holds the mutex when its controller
// restarts; two runs that build the same then make one commit all the same.
func (g generator) app() argo.Template {
	arguments := argo.Arguments{}
	t := argo.Template{Name: run.App}
	for _, field := range item {
		t.Inputs.Parameters = append(t.Inputs.Parameters, argo.Parameter{Name: field})
		arguments.Parameters = append(arguments.Parameters, value(field, input(field)))
	}
	t.Synchronization = &argo.Synchronization{Mutexes: []*argo.Mutex{{Name: "app-" + input("app")}}}
	still := "{{steps.recheck.outputs.parameters.count}} > 0"
	for _, s := range []argo.WorkflowStep{
		{Name: "recheck", Template: run.Recheck},
		{Name: "build", Template: run.Build, When: still},
		{Name: "publish", Template: run.Publish, When: still},
	} {
		s.Arguments = arguments
		if s.Name == "publish" {
			s.Arguments.Parameters = append(slices.Clone(arguments.Parameters), value("digest", "{{steps.build.outputs.parameters.digest}}"))
		}
		t.Steps = append(t.Steps, argo.ParallelSteps{Steps: []argo.WorkflowStep{s}})
	}
	return t
}

// build fetches exactly the commit and has buildkitd build and push it. No
// writer's token is near.
func (g generator) build() argo.Template {
	t := g.step(run.Build, "buildkit-build", g.Cluster.Images.BuildkitBuild, g.Builder.Timeout+g.Timeouts.Clone,
		"--dir", "/workspace/clone/tree", "--timeout", g.Builder.Timeout.String(),
		"--platform", string(g.Builder.Platform), "--cache", g.Builder.Cache, "--frontends", frontends(g.Builder.Frontends),
		"--proxy", runnetwork.ProxyURL, "--proxy-report", egress.AdminURL, "--egress-key-file", egressDir+"/"+zone.EgressKey)
	for _, address := range buildkitd.Addresses(g.Config) {
		t.Container.Args = append(t.Container.Args, "--address", address)
	}
	if g.Registry.PlainHTTP {
		t.Container.Args = append(t.Container.Args, "--plain-http")
	}
	inputs(&t, map[string]string{
		"FABRIQUE_APP": "app", "FABRIQUE_CONTEXT": "context", "FABRIQUE_DOCKERFILE": "dockerfile", "FABRIQUE_BUILD_ARGS": "buildArgs",
		"FABRIQUE_TARGET": "target", "FABRIQUE_REVISION": "revision", "FABRIQUE_SOURCE_KEY": "sourceKey",
	}, "record", "image")
	t.Container.Env = append(t.Container.Env,
		corev1.EnvVar{Name: "FABRIQUE_IMAGE", Value: string(g.Registry.Address) + "/" + input("image")},
		corev1.EnvVar{Name: "FABRIQUE_WORKFLOW", Value: "{{workflow.name}}"})
	mount(t.Container, "egress-token", egressDir)
	t.Volumes = append(t.Volumes, secretVolume("egress-token", zone.EgressSecret))
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
	for _, field := range []string{"digest", "cached", "total", "reused", "builder"} {
		output(&t, field)
	}
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

// publish asks the registry what it has, checks that it is what was built, and writes
// that digest into the record. Only here, and only in the second container, is the
// writer's token.
func (g generator) publish() argo.Template {
	t := g.step(run.Publish, "gitea-writeback", g.Cluster.Images.GiteaWriteback, g.Timeouts.WriteBack,
		"--gitea-url", g.Gitea.URL, "--apps-repository", string(g.Apps.Repository), "--apps-branch", string(g.Apps.Branch),
		"--source-repository", string(g.Source.Repository), "--source-branch", string(g.Source.Branch),
		"--author-name", g.Author.Name, "--author-email", g.Author.Email, "--digest-file", "/inspected/digest",
		"--token-file", tokenFile, "--reader-token-file", readerTokenFile)
	inputs(&t, map[string]string{
		"FABRIQUE_APP": "app", "FABRIQUE_RECORD": "record", "FABRIQUE_REVISION": "revision", "FABRIQUE_SOURCE_KEY": "sourceKey",
	}, "image", "context", "dockerfile", "buildArgs", "target")
	t.Inputs.Parameters = append(t.Inputs.Parameters, argo.Parameter{Name: "digest"})
	*t.ActiveDeadlineSeconds = intstr.FromInt32(int32((g.Timeouts.Inspect + g.Timeouts.WriteBack + time.Minute).Seconds()))
	image := corev1.EnvVar{Name: "FABRIQUE_IMAGE", Value: string(g.Registry.Address) + "/" + input("image")}
	t.Container.Env = append(t.Container.Env, image)
	g.token(&t, zone.WriterSecret)
	// The writer may not read the source, and which commit is newer is told there.
	mount(t.Container, "reader-token", readerTokenDir)
	t.Volumes = append(t.Volumes, secretVolume("reader-token", zone.ReaderSecret), empty("inspected"))
	t.Container.VolumeMounts = append(t.Container.VolumeMounts, corev1.VolumeMount{Name: "inspected", MountPath: "/inspected", ReadOnly: true})

	inspect := g.container("inspect", "digest-inspect", g.Cluster.Images.DigestInspect, g.Timeouts.Inspect, "--platform", string(g.Builder.Platform))
	inspect.Args[1] = "/inspected" // for the next container alone
	if g.Registry.PlainHTTP {
		inspect.Args = append(inspect.Args, "--plain-http")
	}
	inspect.Env = []corev1.EnvVar{
		{Name: "FABRIQUE_REVISION", Value: input("revision")}, {Name: "FABRIQUE_SOURCE_KEY", Value: input("sourceKey")}, image,
		{Name: "FABRIQUE_EXPECT", Value: input("digest")},
	}
	mount(inspect, "inspected", "/inspected")
	t.InitContainers = []argo.UserContainer{{Container: *inspect}}
	for _, field := range []string{"result", "reason", "commit", "digest"} {
		output(&t, field)
	}
	return t
}

// report shows on the commit what the run makes of it: when it is known what is
// due, and at the end. It reads the Workflow from the API server, as what the steps
// said must not pass through a template.
func (g generator) report(name string) argo.Template {
	t := g.step(name, "commit-status", g.Cluster.Images.CommitStatus, reportTimeout,
		"--namespace", zone.Workflows, "--workflow", "{{workflow.name}}",
		"--gitea-url", g.Gitea.URL, "--source-repository", string(g.Source.Repository), "--token-file", tokenFile)
	if g.Cluster.WorkflowsURL != "" {
		t.Container.Args = append(t.Container.Args, "--link", g.Cluster.WorkflowsURL)
	}
	if name == run.Report {
		t.Container.Args = append(t.Container.Args, "--end")
	}
	// It tries again by itself. Argo retries a pod that was lost, and keeps the message
	// of one that failed, as it would not if it looked at its exit code.
	t.RetryStrategy.RetryPolicy, t.RetryStrategy.Expression = argo.RetryPolicyOnError, ""
	yes := true
	t.ServiceAccountName, t.AutomountServiceAccountToken = zone.ReporterAccount, &yes
	g.token(&t, zone.StatusSecret)
	return t
}

// reportTimeout bounds one report.
const reportTimeout = 10 * time.Minute

// step gives a template of one step program.
func (g generator) step(name, program, image string, timeout time.Duration, args ...string) argo.Template {
	limit, deadline := intstr.FromInt32(4), intstr.FromInt32(int32((timeout + time.Minute).Seconds()))
	factor := intstr.FromInt32(2)
	container := g.container("main", program, image, timeout, args...)
	mount(container, "out", "/out")
	return argo.Template{
		Name: name, Metadata: argo.Metadata{Labels: map[string]string{zone.StepLabel: name}}, Container: container, Volumes: []corev1.Volume{empty("out")}, ActiveDeadlineSeconds: &deadline,
		RetryStrategy: &argo.RetryStrategy{
			Limit: &limit, RetryPolicy: argo.RetryPolicyAlways,
			Backoff: &argo.Backoff{Duration: "10s", Factor: &factor},
			// Exit codes 2 (bad input) and 3 (the source is at fault) come again with every
			// try. The message tells those of a container before the main one.
			Expression: `!(lastRetry.exitCode in ["2", "3"]) && !(lastRetry.message matches "^[a-z0-9-]+: \\w+ \\(exit code [23]\\)")`,
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
	egressDir       = "/run/secrets/egress"
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
	for _, name := range item {
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
