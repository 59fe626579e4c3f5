package sweep

import (
	"encoding/json"
	"errors"
	"io"
	"slices"

	"reveille/infra/policy"
)

// Namespace is the CloudWatch namespace of the sweeps' metrics.
const Namespace = "Reveille"

// A metric is a number with its CloudWatch name.
type metric struct {
	name  string
	unit  string
	value float64
}

func count[N int | float64](name string, n N) metric { return metric{name, "Count", float64(n)} }

func secondsOf(name string, s float64) metric { return metric{name, "Seconds", s} }

// Metrics writes the report in CloudWatch's embedded metric format: one JSON line for the pool, one for each host and
// one for each model that is loaded on a host or has served there. CloudWatch turns such lines in a Lambda function's
// log into metrics without an API call. Metrics whose name ends in Total only rise: their difference is the traffic
// between two sweeps.
func (r Report) Metrics(w io.Writer) error {
	pool := struct{ ready, models, inFlight, queued, requests, on float64 }{}
	for _, h := range r.Hosts {
		if h.State == policy.Ready {
			pool.ready++
		}
		if h.PowerOffPending {
			pool.on++
		}
		pool.models += float64(h.Models)
		pool.inFlight += float64(h.InFlight)
		pool.queued += float64(h.Queued)
		pool.requests += h.Requests
	}
	whole := []metric{
		count("Hosts", len(r.Hosts)), count("HostsReady", pool.ready), count("Models", pool.models), count("InFlight", pool.inFlight),
		count("Queued", pool.queued), count("RequestsTotal", pool.requests), count("FailedActions", r.Failures()), count("PowerOffPending", pool.on),
	}
	if r.Running != nil {
		whole = append(whole, count("HostsRunning", *r.Running))
	}
	err := r.line(w, nil, whole...)
	for _, h := range r.Hosts {
		ready := 0
		if h.State == policy.Ready {
			ready = 1
		}
		err = errors.Join(err, r.line(w, []string{"Host", h.Name},
			count("Ready", ready), count("Models", h.Models), count("InFlight", h.InFlight), count("Queued", h.Queued),
			count("RequestsTotal", h.Requests), secondsOf("IdleSeconds", h.Idle), secondsOf("UpSeconds", h.Up)))
	}
	for _, m := range r.Models {
		loaded := 0
		if m.State == policy.ModelLoaded {
			loaded = 1
		}
		err = errors.Join(err, r.line(w, []string{"Model", m.Name, "Host", m.Host},
			count("Loaded", loaded), count("InFlight", m.InFlight), count("RequestsTotal", m.Requests), secondsOf("IdleSeconds", m.Idle)))
	}
	return err
}

// line writes metrics of the pool, or of the part of it selected by further dimensions (name, value, …, name).
func (r Report) line(w io.Writer, dimensions []string, metrics ...metric) error {
	type named struct {
		Name string `json:"Name"`
		Unit string `json:"Unit"`
	}
	names, list := []string{"Pool"}, make([]named, 0, len(metrics))
	out := map[string]any{"Pool": r.Pool}
	for d := range slices.Chunk(dimensions, 2) {
		names = append(names, d[0])
		out[d[0]] = d[1]
	}
	for _, m := range metrics {
		list = append(list, named{m.name, m.unit})
		out[m.name] = m.value
	}
	out["_aws"] = map[string]any{
		"Timestamp":         r.At.UnixMilli(),
		"CloudWatchMetrics": []any{map[string]any{"Namespace": Namespace, "Dimensions": [][]string{names}, "Metrics": list}},
	}
	b, err := json.Marshal(out)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}
