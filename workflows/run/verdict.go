package run

import (
	"cmp"
	"fmt"
	"strings"
)

// An Outcome is what can be said of an app in a run, or of the whole run.
type Outcome string

// The outcomes.
const (
	Pending    Outcome = "pending"
	Success    Outcome = "success"
	Failure    Outcome = "failure"
	Superseded Outcome = "superseded"
	Held       Outcome = "held" // not deployed, as a person wants
)

// Verdict is an outcome and the reason for it, in words for a person.
type Verdict struct {
	Outcome Outcome
	Text    string
	// ExitCode of a failure, by the contract of package step: 1 a retry may mend
	// it, 2 bad input or configuration, 3 the source is at fault.
	ExitCode int
}

func failure(s Step) Verdict {
	code := s.ExitCode
	if code < 1 || code > 3 {
		code = 1
	}
	return Verdict{Failure, s.Message, code}
}

// upToDate is reconcile-head's reason for an app whose source is deployed.
const upToDate = "up to date"

// failed tells whether the step has failed for good.
func (s Step) failed(end bool) bool { return s.State == Failed && (end || !s.Again) }

// Verdict says what became of the app. After the end of the steps nothing is
// pending: what was not reached has failed.
func (a AppRun) Verdict(end bool) Verdict {
	for _, s := range []Step{a.Publish, a.Build, a.Recheck} {
		if s.failed(end) {
			return failure(s)
		}
	}
	switch {
	case a.SupersededBy != "":
		return Verdict{Outcome: Superseded, Text: "superseded by " + a.SupersededBy}
	case a.NotDue == upToDate:
		return Verdict{Outcome: Success, Text: fmt.Sprintf("nothing left to do: %s@%s is deployed", a.Image, a.Digest)}
	case a.NotDue != "":
		return Verdict{Outcome: Held, Text: a.NotDue}
	case a.Unusable:
		return Verdict{Failure, cmp.Or(a.Problem, a.Record+": the record cannot be used any more, or is gone; the next run says why"), 2}
	case a.Deployed():
		return Verdict{Outcome: Success, Text: fmt.Sprintf("%s@%s is deployed", a.Image, a.Digest)}
	case a.Result == "stale":
		return Verdict{Outcome: Superseded, Text: "superseded by what the record has: " + a.Reason}
	case a.Result != "":
		return Verdict{Outcome: Held, Text: fmt.Sprintf("%s@%s is built and not deployed, %s: %s", a.Image, a.Digest, a.Result, a.Reason)}
	case end:
		return Verdict{Failure, "the run ended before its turn", 1}
	case a.Lock != "":
		return Verdict{Outcome: Pending, Text: "waits for another run that has this app"}
	case a.Publish.State != NotBegun:
		return a.Publish.pending("built, being written into the record")
	case a.Build.State == Succeeded:
		return Verdict{Outcome: Pending, Text: "built, to be written into the record"}
	case a.Build.State != NotBegun:
		return a.Build.pending("being built")
	}
	return Verdict{Outcome: Pending, Text: "due: " + a.Item.Reason}
}

// pending tells, beside what is being done, what it waits for.
func (s Step) pending(doing string) Verdict {
	switch {
	case s.State == Failed:
		doing += fmt.Sprintf("; try %d failed and another follows: %s", s.Tries, s.Message)
	case s.State == Waiting && s.Message != "" && !starting[s.Message]:
		doing += "; its pod waits: " + s.Message
	case s.Tries > 1:
		doing += fmt.Sprintf(", try %d", s.Tries)
	}
	return Verdict{Outcome: Pending, Text: doing}
}

// starting are the kubelet's words for a pod with which all is well.
var starting = map[string]bool{"PodInitializing": true, "ContainerCreating": true}

// Verdict says what became of the run.
func (r Run) Verdict(end bool) Verdict {
	switch {
	case r.Unreadable != "":
		return Verdict{Failure, "it cannot be read: " + r.Unreadable, 1}
	case r.Plan.failed(end):
		return failure(r.Plan)
	case r.Plan.State != Succeeded && end:
		return Verdict{Failure, cmp.Or(r.Message, "the run ended before it was known what is due"), 1}
	case r.Plan.State != Succeeded:
		return r.Plan.pending("looking for what is due")
	case r.Superseded:
		return Verdict{Outcome: Superseded, Text: "superseded by " + r.Head}
	}
	by := map[Outcome][]string{}
	codes := map[int]bool{}
	for _, a := range r.Apps {
		v := a.Verdict(end)
		by[v.Outcome] = append(by[v.Outcome], a.App+": "+v.Text)
		codes[v.ExitCode] = true
	}
	for _, b := range r.Broken {
		by[Failure] = append(by[Failure], b.Record+": "+b.Error)
		codes[b.ExitCode] = true
	}
	all := func(o Outcome) Verdict { return Verdict{Outcome: o, Text: strings.Join(by[o], "; ")} }
	switch {
	case len(by[Pending]) > 0:
		return all(Pending)
	case len(by[Failure]) > 0:
		v := all(Failure)
		v.ExitCode = 1
		if r.Trouble != "" {
			v.Text += "; " + r.Trouble
		}
		for _, code := range []int{1, 3, 2} { // as fabrique build does
			if codes[code] {
				v.ExitCode = code
				break
			}
		}
		return v
	case r.Left > 0:
		return Verdict{Outcome: Pending, Text: fmt.Sprintf("%d apps are due beyond what one run takes; the next takes more", r.Left)}
	case len(by[Superseded]) > 0:
		return all(Superseded)
	case len(by[Success]) > 0:
		return Verdict{Outcome: Success, Text: strings.Join(append(by[Success], by[Held]...), "; ")}
	case len(by[Held]) > 0:
		return all(Held)
	case r.Revision == "":
		return Verdict{Outcome: Success, Text: "nothing to build: the source repository has no commit"}
	}
	return Verdict{Outcome: Success, Text: fmt.Sprintf("nothing to build: %d declared, none is due", r.Declared)}
}
