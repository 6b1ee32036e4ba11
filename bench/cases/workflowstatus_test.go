package cases

import (
	"encoding/json"
	"strings"
	"testing"

	"code.gitea.io/sdk/gitea"

	"fabrique/bench/demo"
)

func TestPushName(t *testing.T) {
	id := strings.Repeat("0123456789", 4)
	for _, after := range []string{id, id + strings.Repeat("f", 24)} {
		if got := pushName(after); got != "push-"+id {
			t.Errorf("of %s it makes %s", after, got)
		}
	}
}

// two are a Workflow whose build was tried again, and one that found nothing due.
const two = `[
  {"metadata": {"name": "push-a"}, "spec": {"arguments": {"parameters": [{"name": "revision", "value": "a"}]}}, "status": {"phase": "Failed", "nodes": {
    "1": {"id": "1", "type": "Steps", "templateName": "main", "phase": "Failed"},
    "2": {"id": "2", "type": "Pod", "templateName": "plan", "phase": "Succeeded", "outputs": {"parameters": [{"name": "due", "value": "[1]"}]}},
    "3": {"id": "3", "type": "Retry", "templateName": "build", "inputs": {"parameters": [{"name": "app", "value": "hello"}, {"name": "revision", "value": "a"}]}},
    "5": {"id": "5", "type": "Pod", "templateName": "build", "phase": "Failed", "startedAt": "2026-01-01T00:00:09Z", "message": "Error (exit code 1): x", "inputs": {"parameters": [{"name": "app", "value": "hello"}, {"name": "revision", "value": "a"}]}, "outputs": {"exitCode": "3"}},
    "6": {"id": "6", "type": "Pod", "templateName": "build", "phase": "Failed", "startedAt": "2026-01-01T00:00:02Z", "message": "Error (exit code 1): x", "inputs": {"parameters": [{"name": "app", "value": "hello"}, {"name": "revision", "value": "a"}]}},
    "7": {"id": "7", "type": "Pod", "templateName": "build", "phase": "Succeeded", "inputs": {"parameters": [{"name": "app", "value": "news"}, {"name": "revision", "value": "a"}]}}
  }}},
  {"metadata": {"name": "by-hand"}, "status": {"phase": "Running", "nodes": {
    "1": {"id": "1", "type": "Skipped", "templateName": "build", "phase": "Skipped"},
    "2": {"id": "2", "type": "Pod", "templateName": "plan", "phase": "Failed", "message": "pod deleted"}
  }}}
]`

func TestWorkflows(t *testing.T) {
	var all []demo.Workflow
	if err := json.Unmarshal([]byte(two), &all); err != nil {
		t.Fatal(err)
	}
	failed, running := all[0], all[1]
	if !failed.Over() || running.Over() {
		t.Error("it is not known which is over")
	}
	if found := asked(all, "a"); len(found) != 1 || found[0].Metadata.Name != "push-a" {
		t.Errorf("for the revision were made %v", found)
	}
	built := builds(all, "hello", "a")
	if len(built) != 2 || built[0].ID != "6" || exitCode(built[0]) != "1" || exitCode(built[1]) != "3" {
		t.Errorf("the builds are %+v", built)
	}
	if code := exitCode(running.Pods("plan")[0]); code != "" {
		t.Errorf("the exit code of a deleted pod is %q", code)
	}
	if idle(failed) == nil || idle(running) != nil {
		t.Errorf("built something: %v, %v", idle(failed), idle(running))
	}
	if due, err := planned(failed, "due"); due != "[1]" || err != nil {
		t.Errorf("the plan says %q, %v", due, err)
	}
	if _, err := planned(running, "due"); err == nil {
		t.Error("a plan that failed says something")
	}
}

// Gitea's order is not relied on.
func TestNewest(t *testing.T) {
	got := newest([]*gitea.Status{
		{ID: 2, Context: whole, State: gitea.StatusPending}, {ID: 9, Context: whole, State: gitea.StatusSuccess},
		{ID: 3, Context: whole, State: gitea.StatusFailure}, {ID: 1, Context: whole + "/hello", State: gitea.StatusPending},
	})
	if len(got) != 2 || got[whole].State != gitea.StatusSuccess || got[whole+"/hello"].State != gitea.StatusPending {
		t.Errorf("got %+v", got)
	}
}
