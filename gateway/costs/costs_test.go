package costs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/state"
	"reveille/testenv"
)

func catalogOf(t *testing.T) *catalog.Catalog {
	t.Helper()
	c, _, err := catalog.Parse("models.yaml", []byte(`
models: {m: {type: llm, recipe: standin, device: cpu}}
hosts:
  busy: {driver: wol, mac: "02:00:00:00:00:01", devices: [cpu], price: 2}
  never: {driver: wol, mac: "02:00:00:00:00:02", devices: [cpu], price: 1}
`))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var twoDays = []state.Day{{
	Counted: 24 * time.Hour,
	Hosts:   map[string]state.HostDay{"busy": {Awake: time.Hour, Idle: 10 * time.Minute, Cost: 2, Ready: 3, Failed: 1, Overdue: 1}, "gone": {Awake: time.Hour}},
	Models:  map[string]state.UseDay{"m": {Requests: 3, Took: 30 * time.Second, Input: 7, Output: 5}},
	Keys:    map[string]state.UseDay{"k": {Requests: 2, Took: 10 * time.Second}, state.NoKey: {Requests: 1, Took: 20 * time.Second}},
}, {
	Counted: 12 * time.Hour,
	Hosts:   map[string]state.HostDay{"busy": {Awake: time.Hour, Cost: 2}},
	Models:  map[string]state.UseDay{"m": {Requests: 1, Took: 30 * time.Second}, "": {Requests: 9, Took: 60 * time.Second}},
}}

func TestReport(t *testing.T) {
	month := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	for by, want := range map[By]string{
		ByHost: "busy 7200/600 3+2 4.00 of 72.00, gone 3600/0 0+0 0.00 of 0.00, never 0/0 0+0 0.00 of 36.00, " +
			"total 10800/600 3+2 4.00 of 108.00",
		ByModel: "(others) 9 60 0 0 2.00, m 4 60 7 5 2.00, total 13 120 7 5 4.00",
		ByKey:   "none 1 20 0 0 2.67, k 2 10 0 0 1.33, total 3 30 0 0 4.00",
	} {
		r := New(month, twoDays, by, catalogOf(t))
		var got []string
		for _, x := range append(r.Rows, r.Total) {
			if by == ByHost {
				got = append(got, fmt.Sprintf("%s %g/%g %d+%d %.2f of %.2f", x.Name, x.AwakeSeconds, x.IdleSeconds, x.Wakes, x.FailedWakes, x.Cost, x.AlwaysOn))
			} else {
				got = append(got, fmt.Sprintf("%s %d %g %d %d %.2f", x.Name, x.Requests, x.RequestSeconds, x.InputTokens, x.OutputTokens, x.Cost))
			}
		}
		if s := strings.Join(got, ", "); s != want || r.Month != "2026-03" {
			t.Errorf("%s of %s:\ngot  %s\nwant %s", by, r.Month, s, want)
		}
	}
}

func TestMetrics(t *testing.T) {
	text := string(AppendMetrics(nil, twoDays[0], true))
	for _, line := range []string{
		"# TYPE reveille_day_host_wakes counter\n", `reveille_day_host_wakes{result="overdue",host="busy"} 1`, `reveille_day_host_idle_seconds{host="busy"} 600`,
		`reveille_day_host_cost{host="busy"} 2`, `reveille_day_model_tokens{kind="output",model="m"} 5`, `reveille_day_key_request_seconds{key="none"} 20`,
	} {
		if !strings.Contains(text, line) {
			t.Errorf("no %s in\n%s", line, text)
		}
	}
	if n := strings.Count(text, "# TYPE reveille_day_host_wakes "); n != 1 {
		t.Errorf("%d types of one family", n)
	}
}

// The reader knows the month after a restart, and the end of a day after midnight.
func TestReader(t *testing.T) {
	now := time.Date(2026, 3, 9, 23, 59, 50, 0, time.UTC)
	store, err := state.Open(state.Options{URL: "redis://" + testenv.MiniRedis(t).Addr(), Timeout: 10 * time.Second, Now: func() int64 { return now.UnixMilli() }})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	count := func() {
		t.Helper()
		usage := state.NewUsageReporter(store)
		usage.CountUse("m", "k", time.Second, 1, 1)
		if err := usage.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r := NewReader(store)
	requests := func() string {
		_, days := r.Month(now)
		var got []string
		for _, d := range days {
			got = append(got, fmt.Sprint(d.Models["m"].Requests))
		}
		return strings.Join(got, " ")
	}
	is := func(want string) {
		t.Helper()
		if got := requests(); got != want {
			t.Errorf("%v: got %s, want %s", now, got, want)
		}
	}
	is("0 0 0 0 0 0 0 0 0")
	count()
	r.refresh(t.Context(), now)
	is("0 0 0 0 0 0 0 0 1")
	count()
	now = now.Add(time.Minute)
	count()
	r.refresh(t.Context(), now)
	is("0 0 0 0 0 0 0 0 2 1")
	now = now.AddDate(0, 1, 0)
	count()
	r.refresh(t.Context(), now)
	if r.Today(now).Keys["k"].Requests != 1 || len(r.days) != 10 {
		t.Errorf("%d days, today %+v", len(r.days), r.Today(now))
	}
	r = NewReader(store)
	r.refresh(t.Context(), now)
	is("0 0 0 0 0 0 0 0 0 1")
}
