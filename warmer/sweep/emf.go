package sweep

import (
	"cmp"
	"encoding/json"
	"io"
	"time"

	"reveille/infra/policy"
)

// WriteMetrics writes the pool's figures in CloudWatch's embedded metric format, as one line of JSON. CloudWatch turns
// such a line in a Lambda function's log into metrics without an API call. Each metric costs $0.30 a month, so only
// what alarms watch is one; the other figures are fields of the line, for queries of the log.
func (r Report) WriteMetrics(w io.Writer) error {
	figures := map[string]int{"Hosts": len(r.Hosts), "HostsReady": 0, "PowerOffPending": 0, "Models": 0, "InFlight": 0, "Queued": 0}
	for _, h := range r.Hosts {
		if h.State == policy.Ready {
			figures["HostsReady"]++
		}
		if h.PowerOffPending {
			figures["PowerOffPending"]++
		}
		figures["Models"] += h.Models
		figures["InFlight"] += h.InFlight
		figures["Queued"] += h.Queued
	}
	metrics := []string{"Queued"}
	if r.Running != nil {
		figures["HostsRunning"] = *r.Running
		metrics = append(metrics, "HostsRunning")
	}
	return r.write(w, r.At, figures, metrics...)
}

// WriteFailures writes the number of failed actions in the same format, which is known only at the end of a sweep.
func (r Report) WriteFailures(w io.Writer) error {
	return r.write(w, cmp.Or(r.At, time.Now()), map[string]int{"FailedActions": r.Failures()}, "FailedActions")
}

func (r Report) write(w io.Writer, at time.Time, figures map[string]int, metrics ...string) error {
	out := map[string]any{"Pool": r.Pool}
	var list []map[string]string
	for name, n := range figures {
		out[name] = n
	}
	for _, name := range metrics {
		list = append(list, map[string]string{"Name": name, "Unit": "Count"})
	}
	out["_aws"] = map[string]any{
		"Timestamp": at.UnixMilli(),
		"CloudWatchMetrics": []any{
			map[string]any{"Namespace": "Reveille", "Dimensions": [][]string{{"Pool"}}, "Metrics": list},
		},
	}
	return json.NewEncoder(w).Encode(out)
}
