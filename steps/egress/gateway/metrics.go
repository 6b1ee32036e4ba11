package gateway

import (
	"fmt"
	"io"
	"sync/atomic"

	"fabrique/steps/egress"
)

// counters are what the gateway tells of itself.
type counters struct {
	requests         [4]atomic.Int64 // by verdict, in the order of verdicts
	sent, received   atomic.Int64    // bytes of requests that are over
	open, lingering  atomic.Int64
	reloads, invalid atomic.Int64
}

var verdicts = [4]egress.Verdict{egress.Allowed, egress.Refused, egress.Failed, egress.Asked}

func (c *counters) add(verdict egress.Verdict, sent, received int64) {
	for i, v := range verdicts {
		if v == verdict {
			c.requests[i].Add(1)
		}
	}
	c.sent.Add(sent)
	c.received.Add(received)
}

// write gives the counters in the text format of Prometheus
// (prometheus.io/docs/instrumenting/exposition_formats).
func (c *counters) write(w io.Writer) {
	metric := func(name, kind, help string) { fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind) }
	metric("fabrique_egress_requests_total", "counter", "Requests that are over, by verdict.")
	for i, v := range verdicts {
		fmt.Fprintf(w, "fabrique_egress_requests_total{verdict=%q} %d\n", v, c.requests[i].Load())
	}
	metric("fabrique_egress_bytes_total", "counter", "Bytes of requests that are over, sent to and received from destinations.")
	fmt.Fprintf(w, "fabrique_egress_bytes_total{direction=\"sent\"} %d\n", c.sent.Load())
	fmt.Fprintf(w, "fabrique_egress_bytes_total{direction=\"received\"} %d\n", c.received.Load())
	metric("fabrique_egress_open_tunnels", "gauge", "Requests under way: tunnels, and requests by plain HTTP.")
	fmt.Fprintf(w, "fabrique_egress_open_tunnels %d\n", c.open.Load())
	metric("fabrique_egress_policy_reloads_total", "counter", "Changes of the policy's file that were seen, by what became of them.")
	fmt.Fprintf(w, "fabrique_egress_policy_reloads_total{result=\"taken\"} %d\n", c.reloads.Load())
	fmt.Fprintf(w, "fabrique_egress_policy_reloads_total{result=\"invalid\"} %d\n", c.invalid.Load())
}
