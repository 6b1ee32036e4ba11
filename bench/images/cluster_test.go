package images_test

import (
	"flag"
	"strings"
	"testing"

	"fabrique/bench/images"
)

var cluster = flag.Bool("cluster", false, "also the images whose tools only the cluster has (bench install --cluster)")

func TestClusterProgramsRun(t *testing.T) {
	type command struct {
		line []string
		want string // in what it writes
	}
	for _, test := range []struct {
		image    images.Image
		commands []command
	}{
		{images.Pause, []command{{[]string{"/pause", "-v"}, "pause"}}},
		{images.CoreDNS, []command{{[]string{"/coredns", "-version"}, "CoreDNS-"}}},
		{images.LocalPath, []command{{[]string{"/usr/bin/local-path-provisioner", "--help"}, "USAGE"}}},
		{images.Registry, []command{{[]string{"/bin/registry", "--version"}, "distribution"}}},
		{images.NATS, []command{{[]string{"/nats-server", "--version"}, "nats-server: v"}}},
		{images.Idle, []command{{[]string{"/pause", "-v"}, "pause"}}},
		{images.ArgoEvents, []command{{[]string{"/bin/argo-events", "--help"}, "eventsource-service"}}},
		{images.WorkflowController, []command{{[]string{"/bin/workflow-controller", "version"}, "workflow-controller: "}}},
		{images.ArgoExec, []command{{[]string{"/bin/argoexec", "version"}, "argoexec: "}}},
		{images.Redis, []command{
			{[]string{"/usr/local/bin/redis-server", "--version"}, "Redis server v="},
			{[]string{"/usr/bin/redis-cli", "--version"}, "redis-cli "},
		}},
		{images.ArgoCD, []command{
			{[]string{"/usr/local/bin/argocd", "version", "--client"}, "argocd: v3."},
			{[]string{"/usr/local/bin/argocd-repo-server", "--help"}, "argocd-repo-server [flags]"},
			{[]string{"/usr/local/bin/kustomize", "version"}, "v5"},
			{[]string{"/usr/bin/git", "--version"}, "git version"},
			{[]string{"/bin/cp", "-n", "/etc/passwd", "/tmp/passwd"}, ""},
		}},
		{images.Gitea, []command{
			{[]string{"/app/gitea/gitea", "--version"}, "gitea version 1."},
			{[]string{"/usr/bin/git", "init", "--bare", "/data/git/atlas"}, "Initialized empty"},
			// As its hooks are run.
			{[]string{"/usr/bin/env", "bash", "-c", "basename $(dirname $(echo /a/b/c | cat))"}, "b\n"},
		}},
	} {
		name := short(test.image)
		if !*cluster && name != "registry" && name != "gitea" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			c := unpack(t, test.image)
			for _, command := range test.commands {
				out, err := c.run(command.line[0], command.line[1:]...)
				if err != nil || !strings.Contains(out, command.want) {
					t.Errorf("%s: want %q, got %v\n%s", strings.Join(command.line, " "), command.want, err, out)
				}
			}
		})
	}
}

func TestClusterBeginsWithWhatItsRegistryNeeds(t *testing.T) {
	var names []string
	for _, i := range images.Cluster()[:5] {
		names = append(names, short(i))
	}
	want := "pause coredns local-path-provisioner busybox registry"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
