package sweep

import (
	"encoding/json"
	"io"
)

// Namespace is where the metrics of sweeps are found in CloudWatch.
const Namespace = "Reveille"

// emfMetric names a metric and its unit in CloudWatch's embedded metric format.
type emfMetric struct {
	Name string `json:"Name"`
	Unit string `json:"Unit"`
}

// Metrics writes the report in CloudWatch's embedded metric format: one JSON line for the pool, one for each host and one
// for each copy of a model. CloudWatch makes metrics of such lines in a Lambda function's log without a call to it.
func (r Report) Metrics(w io.Writer) error {
	pool := map[string]float64{"Hosts": float64(len(r.Hosts)), "FailedActions": float64(r.Failures())}
	for _, h := range r.Hosts {
		if h.State == "ready" {
			pool["HostsReady"]++
		}
		pool["InFlight"] += float64(h.InFlight)
		pool["Queued"] += float64(h.Queued)
	}
	pool["Models"] = float64(len(r.Models))
	pool["HostsReady"] += 0
	units := map[string]string{"IdleSeconds": "Seconds", "UpSeconds": "Seconds"}
	line := func(dimensions map[string]string, order []string, values map[string]float64) error {
		var metrics []emfMetric
		for _, name := range [...]string{"Hosts", "HostsReady", "Models", "InFlight", "Queued", "FailedActions", "IdleSeconds", "UpSeconds", "Ready"} {
			if _, there := values[name]; !there {
				continue
			}
			unit := "Count"
			if u := units[name]; u != "" {
				unit = u
			}
			metrics = append(metrics, emfMetric{name, unit})
		}
		out := map[string]any{"_aws": map[string]any{
			"Timestamp":         r.At.UnixMilli(),
			"CloudWatchMetrics": []any{map[string]any{"Namespace": Namespace, "Dimensions": [][]string{order}, "Metrics": metrics}},
		}}
		for k, v := range dimensions {
			out[k] = v
		}
		for k, v := range values {
			out[k] = v
		}
		b, err := json.Marshal(out)
		if err != nil {
			return err
		}
		_, err = w.Write(append(b, '\n'))
		return err
	}
	if err := line(map[string]string{"Pool": r.Pool}, []string{"Pool"}, pool); err != nil {
		return err
	}
	for _, h := range r.Hosts {
		ready := 0.0
		if h.State == "ready" {
			ready = 1
		}
		err := line(map[string]string{"Pool": r.Pool, "Host": h.Name}, []string{"Pool", "Host"}, map[string]float64{
			"Ready": ready, "Models": float64(h.Models), "InFlight": float64(h.InFlight), "Queued": float64(h.Queued), "IdleSeconds": h.Idle, "UpSeconds": h.Up,
		})
		if err != nil {
			return err
		}
	}
	for _, m := range r.Models {
		err := line(map[string]string{"Pool": r.Pool, "Model": m.Name, "Host": m.Host}, []string{"Pool", "Model", "Host"}, map[string]float64{
			"InFlight": float64(m.InFlight), "IdleSeconds": m.Idle,
		})
		if err != nil {
			return err
		}
	}
	return nil
}
