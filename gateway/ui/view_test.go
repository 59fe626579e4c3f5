package ui

import (
	"slices"
	"strings"
	"testing"
	"time"

	"reveille/gateway/api"
	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/state"
)

const gib = 1 << 30

func sourceOf(t *testing.T, hosts ...*state.HostRecord) Source {
	t.Helper()
	cat, _, err := catalog.Parse("models.yaml", []byte(`
defaults: {min_loaded: 30s}
models:
  a: {type: llm, recipe: standin, device: cpu, description: The first}
  b: {type: llm, recipe: standin, device: cpu}
  c: {type: llm, recipe: standin, device: cpu}
  e: {type: embedding, recipe: standin, device: npu}
hosts:
  far: {driver: wol, mac: "02:00:00:00:00:01", devices: [cpu], price: 0.5}
  near: {driver: local, devices: [cpu, npu]}
`))
	if err != nil {
		t.Fatal(err)
	}
	snap := &state.Snapshot{NowMS: 100_000, Taken: time.Now(), Hosts: map[string]*state.HostRecord{}}
	for _, h := range hosts {
		for id, m := range h.Models {
			m.ID, m.Host, m.Recipe = id, h.Name, "standin"
		}
		snap.Hosts[h.Name] = h
	}
	return Source{
		Snapshot: snap, Catalog: cat, Waiting: map[string]int{}, Stage: func(string) (api.LoadingProgress, bool) { return api.LoadingProgress{}, false },
		Copy: func(_ *state.HostRecord, m *state.ModelRecord) Model {
			return Model{ID: m.ID, Used: m.UsedMS, Busy: m.InFlight > 0, Pinned: m.Pinned}
		},
	}
}

func near(models map[string]*state.ModelRecord, queue ...state.TicketRecord) *state.HostRecord {
	return &state.HostRecord{
		Name: "near", State: policy.Ready, Addr: "127.0.0.1:1", Devices: "cpu npu", Limits: "2 1", Models: models, Queue: queue,
		Fields: map[string]string{"memory_budget": "cpu=8589934592"},
	}
}

func loaded(typ, device string, used int64, open int) *state.ModelRecord {
	return &state.ModelRecord{State: policy.ModelLoaded, Type: typ, Device: device, UsedMS: used, InFlight: open, Memory: 2 * gib}
}

func TestPoolView(t *testing.T) {
	src := sourceOf(t, near(map[string]*state.ModelRecord{"a": loaded("llm", "cpu", 2000, 0), "b": loaded("llm", "cpu", 1000, 2), "e": loaded("embedding", "npu", 3000, 0)}))
	src.Snapshot.Hosts["near"].Models["b"].Fields = map[string]string{"plan": `{"parallel":1}`}
	pool := src.Pool()
	if len(pool.Hosts) != 2 || pool.Hosts[0].Name != "far" || pool.Hosts[0].State != "asleep" || pool.Hosts[0].Price != 0.5 {
		t.Fatalf("%+v", pool.Hosts)
	}
	h := pool.Hosts[1]
	if want := (Device{"cpu", 4 * gib, 8 * gib}); h.State != "ready" || h.Devices[0] != want {
		t.Errorf("%+v", h)
	}
	if b := h.Types[0].Models[0]; b.Queued != 1 {
		t.Errorf("one of two requests waits for its turn: %+v", b)
	}
	if len(h.Seats) != 1 || !slices.Equal(h.Seats[0].By, []string{"e"}) {
		t.Errorf("seats: %+v", h.Seats)
	}
	llm := h.Types[0]
	if llm.Limit != 2 || llm.Victim != "a" || llm.Models[0].ID != "b" || !llm.Models[0].Busy || llm.Models[0].Requests != 2 {
		t.Errorf("the least recently used comes first, and the idle one goes: %+v", llm)
	}
	if e := h.Types[1]; e.Type != "embedding" || e.Victim != "e" {
		t.Errorf("%+v", e)
	}
	src.Snapshot.Hosts["near"].Models["a"].Pinned = true
	src.Snapshot.Hosts["near"].Models["b"].Pinned = true
	if llm := src.Pool().Hosts[1].Types[0]; llm.Victim != "" || !llm.Pinned {
		t.Errorf("all pinned: %+v", llm)
	}
}

// The queue says in words what each ticket waits for.
func TestQueueInWords(t *testing.T) {
	load := func(id, model string) state.TicketRecord {
		return state.TicketRecord{ID: id, Kind: "load", Model: model, Host: "near", State: "queued", Created: 90_000, Waiters: 1}
	}
	fresh := func(makesRoom string) map[string]*state.ModelRecord {
		a, b := loaded("llm", "cpu", 1, 0), loaded("llm", "cpu", 2, 1)
		a.Fields = map[string]string{"loaded_ms": "95000", state.FieldMakesRoom: makesRoom}
		b.Fields = a.Fields
		return map[string]*state.ModelRecord{"a": a, "b": b}
	}
	busy := map[string]*state.ModelRecord{"a": loaded("llm", "cpu", 2000, 3), "b": loaded("llm", "cpu", 1000, 1)}
	for name, c := range map[string]struct {
		host *state.HostRecord
		want []string
	}{
		"busy victims":      {near(busy, load("1", "c")), []string{"waits until b has finished its open requests (1)"}},
		"an idle victim":    {near(map[string]*state.ModelRecord{"a": loaded("llm", "cpu", 1, 0), "b": loaded("llm", "cpu", 2, 0)}, load("1", "c")), []string{"is next to start"}},
		"min_loaded":        {near(fresh("0"), load("1", "c")), []string{"waits until the min_loaded of a is over (25s)"}},
		"beside a reload":   {near(fresh("0"), load("1", "c"), load("2", "a")), []string{"waits until the min_loaded of a is over (25s)", "waits behind the load of c"}},
		"for a batch":       {near(fresh("1"), load("1", "c")), []string{"is next to start"}},
		"loading":           {near(nil, state.TicketRecord{ID: "1", Kind: "load", Model: "a", State: state.TicketLoading}), []string{"its engine is starting"}},
		"one behind others": {near(busy, load("1", "c"), load("2", "a")), []string{"waits until b", "waits behind the load of c"}},
		"waking":            {&state.HostRecord{Name: "near", State: policy.Waking, Queue: []state.TicketRecord{load("1", "a")}}, []string{"its host is waking"}},
		"asleep":            {&state.HostRecord{Name: "near", State: policy.Asleep, Queue: []state.TicketRecord{load("1", "a")}}, []string{"about to be woken"}},
		"lost":              {&state.HostRecord{Name: "near", State: policy.Lost, Queue: []state.TicketRecord{load("1", "a")}}, []string{"no heartbeat"}},
	} {
		t.Run(name, func(t *testing.T) {
			src := sourceOf(t, c.host)
			src.Waiting["c"] = 4
			queue := src.Pool().Queue
			for i, want := range c.want {
				if got := queue[i]; !strings.Contains(got.Why, want) || got.Head != (got.Place == 1) {
					t.Errorf("%+v, want %q", got, want)
				}
			}
			if last := queue[len(queue)-1]; len(c.host.Queue) > 0 && c.host.Queue[0].Model != "c" && (last.Model != "c" || last.Why != "no host has been chosen yet" || last.Waiting != 4) {
				t.Errorf("requests without a host: %+v", last)
			}
		})
	}
}

// A view is bounded, however many hosts and tickets Redis holds.
func TestViewIsBounded(t *testing.T) {
	var hosts []*state.HostRecord
	for i := range maxHosts + 20 {
		hosts = append(hosts, &state.HostRecord{Name: "h" + string(rune('a'+i/26)) + string(rune('a'+i%26)), State: policy.Asleep, Queue: []state.TicketRecord{{ID: "1", Kind: "load", Model: "a"}, {ID: "2", Kind: "load", Model: "b"}}})
	}
	pool := sourceOf(t, hosts...).Pool()
	if len(pool.Hosts) != maxHosts || len(pool.Queue) != maxTickets || pool.More != 22+2*(maxHosts+20)-maxTickets {
		t.Errorf("%d hosts, %d tickets, %d more", len(pool.Hosts), len(pool.Queue), pool.More)
	}
}

func TestModelsAndNotes(t *testing.T) {
	h := near(map[string]*state.ModelRecord{"a": loaded("llm", "cpu", 1, 0)}, state.TicketRecord{ID: "1", Kind: "load", Model: "b"})
	h.Error = "no such instance"
	src := sourceOf(t, h)
	got := src.Models()
	if want := []Entry{{"a", "llm", "loaded", "The first"}, {"b", "llm", "queued", ""}, {"c", "llm", "unloaded", ""}, {"e", "embedding", "unloaded", ""}}; !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	if src.Notes()["near"] != "no such instance" {
		t.Error(src.Notes())
	}
	h.State = policy.Lost
	if got := src.Models()[0]; got.State != "unloaded" {
		t.Errorf("a model of a lost host: %+v", got)
	}
}
