package check

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"time"

	"code.gitea.io/sdk/gitea"

	"fabrique/bench/action"
	"fabrique/bench/platform"
)

func workflow(ctx context.Context, c cluster) (string, error) {
	if err := c.apply(ctx, "workflow.yaml", nil); err != nil {
		return "", err
	}
	start := time.Now()
	err := action.Poll(ctx, 4*time.Minute, func(ctx context.Context) error {
		out, err := c.run(ctx, "get", "workflow", "two-steps", "-o", "jsonpath={.status.phase} {.status.message}")
		switch {
		case err != nil:
			return err
		case strings.HasPrefix(out, "Succeeded"):
			return nil
		case strings.HasPrefix(out, "Failed"), strings.HasPrefix(out, "Error"):
			return &action.Final{Err: errors.New(out)}
		}
		return fmt.Errorf("the Workflow is %q", out)
	})
	if err != nil {
		out, _ := c.run(ctx, "describe", "pods")
		fmt.Fprintln(c.log, out)
		return "", err
	}
	return fmt.Sprintf("one step's output reached the next in %s", time.Since(start).Round(time.Second)), nil
}

// eventBus posts one event, takes the Sensor away, posts another, kills the bus
// and only then brings the Sensor back: what the bus had taken must arrive.
func eventBus(ctx context.Context, c cluster) (string, error) {
	if err := c.apply(ctx, "events.yaml", map[string]string{"BUS_VERSION": platform.BusVersion}); err != nil {
		return "", err
	}
	available := func(selector string) error {
		return action.Poll(ctx, 3*time.Minute, func(ctx context.Context) error {
			out, err := c.run(ctx, "get", "pods", "-l", selector, "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)
			if err == nil && out != "True" {
				err = fmt.Errorf("the pod of %s is ready: %q", selector, out)
			}
			return err
		})
	}
	const bus, source, sensor = "controller=eventbus-controller", "eventsource-name=hook", "sensor-name=recorder"
	for _, selector := range []string{bus, source, sensor} {
		if err := available(selector); err != nil {
			return "", c.explain(ctx, err)
		}
	}
	address, stop, err := c.Kubectl.Forward(ctx, c.namespace, "service/hook-eventsource-svc", 12000)
	if err != nil {
		return "", err
	}
	defer stop()
	post := func(name string) error {
		return action.Poll(ctx, time.Minute, func(ctx context.Context) error {
			return postJSON(ctx, "http://"+address+"/push", `{"name": "`+name+`"}`)
		})
	}
	recorded := func(name string) error {
		return action.Poll(ctx, 2*time.Minute, func(ctx context.Context) error {
			_, err := c.run(ctx, "get", "configmap", name)
			return err
		})
	}
	// The Sensor hears what comes after it has subscribed, which it does not tell.
	heard := errors.New("")
	for try := 0; heard != nil && try < 20; try++ {
		name := fmt.Sprintf("before-%d", try)
		if err := post(name); err != nil {
			return "", c.explain(ctx, err)
		}
		heard = action.Poll(ctx, 5*time.Second, func(ctx context.Context) error { _, err := c.run(ctx, "get", "configmap", name); return err })
	}
	if heard != nil {
		return "", c.explain(ctx, fmt.Errorf("with all running, no event arrives: %w", heard))
	}
	deployment, err := c.run(ctx, "get", "deployments", "-l", sensor, "-o", "name")
	if err != nil {
		return "", err
	}
	if _, err := c.run(ctx, "scale", deployment, "--replicas=0"); err != nil {
		return "", err
	}
	if _, err := c.run(ctx, "delete", "pods", "-l", sensor, "--wait"); err != nil {
		return "", err
	}
	if err := post("during"); err != nil {
		return "", err
	}
	if _, err := c.run(ctx, "delete", "pods", "-l", bus, "--grace-period=0", "--force"); err != nil {
		return "", err
	}
	if err := available(bus); err != nil {
		return "", c.explain(ctx, err)
	}
	if there, err := c.run(ctx, "get", "configmap", "during", "--ignore-not-found", "-o", "name"); err != nil || there != "" {
		return "", errors.Join(err, errors.New("the event arrived before the Sensor was back: the check shows nothing"))
	}
	start := time.Now()
	if _, err := c.run(ctx, "scale", deployment, "--replicas=1"); err != nil {
		return "", err
	}
	if err := recorded("during"); err != nil {
		return "", c.explain(ctx, fmt.Errorf("the event posted before the kill does not arrive: %w", err))
	}
	return fmt.Sprintf("posted, bus killed, Sensor brought back: arrived in %s", time.Since(start).Round(time.Second)), nil
}

// explain notes what the pods say.
func (c cluster) explain(ctx context.Context, err error) error {
	for _, args := range [][]string{{"get", "pods"}, {"get", "events", "--field-selector", "type=Warning", "-o", `jsonpath={range .items[*]}{.involvedObject.name}: {.message}{"\n"}{end}`}} {
		out, _ := c.run(ctx, args...)
		fmt.Fprintln(c.log, out)
	}
	return err
}

func postJSON(ctx context.Context, url, body string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 500))
		return fmt.Errorf("%s answers %s: %s", url, answer.Status, text)
	}
	return nil
}

// application pushes an Application to cluster/apps and then another revision of
// it, as the factory will.
func application(ctx context.Context, c cluster) (saw string, err error) {
	admin, stop, err := c.Admin(ctx)
	if err != nil {
		return "", err
	}
	defer stop()
	// It is still needed for cleaning up when ctx has ended.
	client, err := admin.Client(context.WithoutCancel(ctx), admin.Token)
	if err != nil {
		return "", err
	}
	files := gitFiles{client}
	source, record := c.namespace+"/app.yaml", c.namespace+".yaml"
	defer func() {
		err = errors.Join(err, files.remove(platform.AppsRepo, record), files.remove(platform.SourceRepo, source))
		err = errors.Join(err, c.gone(context.WithoutCancel(ctx)))
	}()
	if err := errors.Join(files.remove(platform.AppsRepo, record), files.remove(platform.SourceRepo, source)); err != nil {
		return "", err
	}
	var times []string
	for _, version := range []string{"one", "two"} {
		manifest, err := c.text("deployed.yaml", map[string]string{"VERSION": version})
		if err != nil {
			return "", err
		}
		revision, err := files.put(platform.SourceRepo, source, manifest)
		if err != nil {
			return "", err
		}
		app, err := c.text("application.yaml", map[string]string{
			"REPO": platform.GiteaURL + "/" + platform.SourceRepo + ".git", "PATH": path.Dir(source), "REVISION": revision,
		})
		if err != nil {
			return "", err
		}
		before := time.Now()
		if _, err := files.put(platform.AppsRepo, record, app); err != nil {
			return "", err
		}
		if err := action.Poll(ctx, 2*time.Minute, func(ctx context.Context) error {
			out, err := c.run(ctx, "get", "pods", "-l", "version="+version, "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)
			if err == nil && !strings.Contains(out, "True") {
				err = fmt.Errorf("no pod of version %s is ready", version)
			}
			return err
		}); err != nil {
			out, _ := c.Kubectl.Run(ctx, nil, "get", "applications", "-n", "argocd", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.sync.status} {.status.health.status} {.status.conditions[*].message} {.status.operationState.message}{"\n"}{end}`)
			fmt.Fprintln(c.log, out)
			return "", c.explain(ctx, err)
		}
		times = append(times, time.Since(before).Round(100*time.Millisecond).String())
		// Argo CD also looks by itself now and then; that is not what is meant.
		since := fmt.Sprintf("--since=%ds", int(time.Since(before).Seconds())+2)
		log, err := c.Kubectl.Run(ctx, nil, "logs", "-n", "argocd", "deployment/argocd-server", since)
		if err != nil {
			return "", err
		}
		if !strings.Contains(log, "Received push event repo: "+platform.GiteaURL+"/"+platform.AppsRepo) {
			return "", fmt.Errorf("version %s is there, but Argo CD received no webhook", version)
		}
	}
	return "by webhook, running after " + strings.Join(times, " and "), nil
}

// gone waits until Argo CD has removed the Application.
func (c cluster) gone(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return action.Poll(ctx, 2*time.Minute, func(ctx context.Context) error {
		out, err := c.Kubectl.Run(ctx, nil, "get", "application", "-n", "argocd", c.namespace, "--ignore-not-found", "-o", "name")
		if err == nil && out != "" {
			err = errors.New("the Application is still there")
		}
		return err
	})
}

// gitFiles writes files of repositories through Gitea's API.
type gitFiles struct{ *gitea.Client }

// put commits a file to main and gives the commit's id.
func (g gitFiles) put(repo, file, text string) (string, error) {
	owner, name, _ := strings.Cut(repo, "/")
	options := gitea.FileOptions{Message: "Set " + file, BranchName: "main"}
	content := base64.StdEncoding.EncodeToString([]byte(text))
	there, answer, err := g.GetContents(owner, name, "main", file)
	var done *gitea.FileResponse
	switch {
	case err == nil:
		done, _, err = g.UpdateFile(owner, name, file, gitea.UpdateFileOptions{FileOptions: options, SHA: there.SHA, Content: content})
	case answer != nil && answer.StatusCode == http.StatusNotFound:
		done, _, err = g.CreateFile(owner, name, file, gitea.CreateFileOptions{FileOptions: options, Content: content})
	}
	if err != nil {
		return "", fmt.Errorf("writing %s in %s: %w", file, repo, err)
	}
	return done.Commit.SHA, nil
}

// remove removes a file from main if it is there.
func (g gitFiles) remove(repo, file string) error {
	owner, name, _ := strings.Cut(repo, "/")
	there, answer, err := g.GetContents(owner, name, "main", file)
	if answer != nil && answer.StatusCode == http.StatusNotFound {
		return nil
	}
	if err == nil {
		_, err = g.DeleteFile(owner, name, file, gitea.DeleteFileOptions{FileOptions: gitea.FileOptions{Message: "Remove " + file, BranchName: "main"}, SHA: there.SHA})
	}
	if err != nil {
		return fmt.Errorf("removing %s from %s: %w", file, repo, err)
	}
	return nil
}
