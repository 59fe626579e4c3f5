// Package costs reports what a month cost by host, model or API key, from the counters of its days in Redis.
package costs

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/state"
)

// By is what a report has a row for.
type By string

// What a report can have a row for.
const (
	ByHost  By = "host"
	ByModel By = "model"
	ByKey   By = "key"
)

// Report is a month. Costs are in the currency of the hosts' prices.
type Report struct {
	Month string `json:"month"`
	By    By     `json:"by"`
	Rows  []Row  `json:"rows"` // the highest cost first
	Total Row    `json:"total"`
}

// Row is a host, a model or an API key. A host has no requests, and the others have no times awake and no wakes.
type Row struct {
	Name           string  `json:"name"`
	AwakeSeconds   float64 `json:"awake_seconds"`
	IdleSeconds    float64 `json:"idle_seconds"` // awake without an open request
	Wakes          int64   `json:"wakes"`        // that ended with a registration
	FailedWakes    int64   `json:"failed_wakes"`
	Requests       int64   `json:"requests"`
	RequestSeconds float64 `json:"request_seconds"`
	InputTokens    int64   `json:"input_tokens"`
	OutputTokens   int64   `json:"output_tokens"`
	// Cost of a host is that of its time awake. A model and a key have a part of all hosts' cost, by request seconds.
	Cost float64 `json:"cost"`
	// AlwaysOn is what a host would have cost without sleep.
	AlwaysOn float64 `json:"always_on"`
}

// OtherNames is the name of what a day had no room to count by name.
const OtherNames = "(others)"

// ParseMonth reads YYYY-MM; "" is the month of now, in UTC.
func ParseMonth(text string, now time.Time) (time.Time, error) {
	if text == "" {
		now = now.UTC()
		return time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC), nil
	}
	m, err := time.Parse("2006-01", text)
	if err != nil {
		return m, fmt.Errorf("month %q: want YYYY-MM", text)
	}
	return m, nil
}

// ReadMonth reads the days of a month up to now.
func ReadMonth(ctx context.Context, store *state.Store, month, now time.Time) ([]state.Day, error) {
	var days []state.Day
	for d := month; d.Month() == month.Month() && !d.After(now); d = d.AddDate(0, 0, 1) {
		one, err := store.Day(ctx, d)
		if err != nil {
			return nil, err
		}
		days = append(days, one)
	}
	return days, nil
}

// New makes the report of a month from its days. A host of the catalog has a row even if it never woke.
func New(month time.Time, days []state.Day, by By, c *catalog.Catalog) Report {
	rows := map[string]*Row{}
	row := func(name string) *Row {
		name = cmp.Or(name, OtherNames)
		if rows[name] == nil {
			rows[name] = &Row{Name: name}
		}
		return rows[name]
	}
	hours, cost := 0.0, 0.0
	if by == ByHost {
		for _, h := range c.Hosts {
			row(h.Name)
		}
	}
	for _, d := range days {
		hours += d.Counted.Hours()
		for name, h := range d.Hosts {
			cost += h.Cost
			if by == ByHost {
				row(name).addHost(h)
			}
		}
		uses := map[By]map[string]state.UseDay{ByModel: d.Models, ByKey: d.Keys}[by]
		for name, u := range uses {
			row(name).addUse(u)
		}
	}
	out := Report{Month: month.Format("2006-01"), By: by, Rows: []Row{}, Total: Row{Name: "total"}}
	for _, r := range rows {
		if h, ok := c.Host(r.Name); ok && by == ByHost {
			r.AlwaysOn = h.Price * hours
		}
		out.Total.add(*r)
	}
	for _, r := range rows {
		if by != ByHost && out.Total.RequestSeconds > 0 {
			r.Cost = cost * r.RequestSeconds / out.Total.RequestSeconds
		}
		out.Rows = append(out.Rows, *r)
	}
	if by != ByHost && len(rows) > 0 {
		out.Total.Cost = cost
	}
	slices.SortFunc(out.Rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(b.Cost, a.Cost), cmp.Compare(b.RequestSeconds, a.RequestSeconds), strings.Compare(a.Name, b.Name))
	})
	return out
}

func (r *Row) addHost(h state.HostDay) {
	r.add(Row{
		AwakeSeconds: h.Awake.Seconds(), IdleSeconds: h.Idle.Seconds(), Wakes: h.Ready, FailedWakes: h.Failed + h.Overdue, Cost: h.Cost,
	})
}

func (r *Row) addUse(u state.UseDay) {
	r.add(Row{Requests: u.Requests, RequestSeconds: u.Took.Seconds(), InputTokens: u.Input, OutputTokens: u.Output})
}

func (r *Row) add(o Row) {
	r.AwakeSeconds += o.AwakeSeconds
	r.IdleSeconds += o.IdleSeconds
	r.Wakes += o.Wakes
	r.FailedWakes += o.FailedWakes
	r.Requests += o.Requests
	r.RequestSeconds += o.RequestSeconds
	r.InputTokens += o.InputTokens
	r.OutputTokens += o.OutputTokens
	r.Cost += o.Cost
	r.AlwaysOn += o.AlwaysOn
}

// metric writes series of one family with a label, sorted by its value.
type metric struct {
	name, labels string // labels: before the label of the name
	label        string
	values       map[string]float64
}

// AppendMetrics appends the counters of a day in Prometheus' text format, those of API keys only if keys is set.
func AppendMetrics(dst []byte, d state.Day, keys bool) []byte {
	families := map[string]bool{}
	write := func(m metric) {
		if len(m.values) == 0 {
			return
		}
		if !families[m.name] {
			families[m.name] = true
			dst = fmt.Appendf(dst, "# TYPE %s counter\n", m.name)
		}
		for _, name := range slices.Sorted(maps.Keys(m.values)) {
			dst = fmt.Appendf(dst, "%s{%s%s=%q} %g\n", m.name, m.labels, m.label, cmp.Or(name, OtherNames), m.values[name])
		}
	}
	host := func(name, labels string, value func(state.HostDay) float64) {
		write(metric{name, labels, "host", collect(d.Hosts, value)})
	}
	host("reveille_day_host_awake_seconds", "", func(h state.HostDay) float64 { return h.Awake.Seconds() })
	host("reveille_day_host_idle_seconds", "", func(h state.HostDay) float64 { return h.Idle.Seconds() })
	host("reveille_day_host_cost", "", func(h state.HostDay) float64 { return h.Cost })
	host("reveille_day_host_wakes", `result="ready",`, func(h state.HostDay) float64 { return float64(h.Ready) })
	host("reveille_day_host_wakes", `result="failed",`, func(h state.HostDay) float64 { return float64(h.Failed) })
	host("reveille_day_host_wakes", `result="overdue",`, func(h state.HostDay) float64 { return float64(h.Overdue) })
	requests := func(u state.UseDay) float64 { return float64(u.Requests) }
	seconds := func(u state.UseDay) float64 { return u.Took.Seconds() }
	input := func(u state.UseDay) float64 { return float64(u.Input) }
	output := func(u state.UseDay) float64 { return float64(u.Output) }
	write(metric{"reveille_day_model_requests", "", "model", collect(d.Models, requests)})
	write(metric{"reveille_day_model_request_seconds", "", "model", collect(d.Models, seconds)})
	write(metric{"reveille_day_model_tokens", `kind="input",`, "model", collect(d.Models, input)})
	write(metric{"reveille_day_model_tokens", `kind="output",`, "model", collect(d.Models, output)})
	if !keys {
		return dst
	}
	write(metric{"reveille_day_key_requests", "", "key", collect(d.Keys, requests)})
	write(metric{"reveille_day_key_request_seconds", "", "key", collect(d.Keys, seconds)})
	write(metric{"reveille_day_key_tokens", `kind="input",`, "key", collect(d.Keys, input)})
	write(metric{"reveille_day_key_tokens", `kind="output",`, "key", collect(d.Keys, output)})
	return dst
}

func collect[D any](days map[string]D, value func(D) float64) map[string]float64 {
	out := make(map[string]float64, len(days))
	for name, d := range days {
		out[name] = value(d)
	}
	return out
}
