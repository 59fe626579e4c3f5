package ui

import (
	"math"
	"strconv"
	"testing"
	"time"

	"reveille/gateway/costs"
	"reveille/infra/state"
)

func TestTimeline(t *testing.T) {
	cat := sourceOf(t).Catalog
	begin := time.Unix(1_800_000_000, 0)
	h := NewHistory(begin)
	host := func(after time.Duration, to string) {
		h.OnEvent(begin.Add(after), state.Event{Kind: "host", Host: "far", State: to})
	}
	host(0, "ready")
	host(30*time.Minute, "asleep")
	host(31*time.Minute, "asleep")
	host(32*time.Minute, "forgotten")
	ticket := func(after time.Duration, to string, fields map[string]string) {
		h.OnEvent(begin.Add(after), state.Event{Kind: "ticket", Host: "far", Model: "a", State: to, Fields: fields})
	}
	ticket(time.Minute, "queued", map[string]string{"kind": "load"})
	ticket(2*time.Minute, "ready", map[string]string{"kind": "load", "load_ms": "1500", "evicted": "b,c"})
	ticket(3*time.Minute, "ready", map[string]string{"kind": "load"}) // it was loaded already
	ticket(4*time.Minute, "ready", map[string]string{"kind": "unload"})
	ticket(5*time.Minute, "failed", map[string]string{"kind": "load"})
	h.CountResponse(begin.Add(6*time.Minute), 2*time.Second, true)
	h.CountResponse(begin.Add(6*time.Minute), time.Second, false)

	got := h.Timeline(begin.Add(40*time.Minute), cat, costs.Report{})
	kinds := ""
	for _, m := range got.Hosts[0].Events {
		kinds += m.Kind + " " + m.Model + ";"
	}
	if kinds != "evict b;evict c;load a;unload a;failed a;" {
		t.Error(kinds)
	}
	if x := got.Hosts[0]; len(got.Hosts) != 2 || got.Hosts[1].Host != "near" || got.Hosts[1].Awake != 0 || len(x.Changes) != 2 || x.Awake != (30*time.Minute).Milliseconds() {
		t.Errorf("%+v", x)
	}
	if math.Abs(got.Spent-0.25) > 1e-9 || math.Abs(got.Always-0.5*40/60) > 1e-9 {
		t.Errorf("%v of %v", got.Spent, got.Always)
	}
	at := (begin.Add(6*time.Minute).UnixMilli() - got.From) / got.Step
	if got.Rate[at] != 2 || got.Cold[at] != 1 || got.First[at] != 1500 || got.First[at+1] != -1 {
		t.Error(got.Rate[at], got.Cold[at], got.First[at])
	}

	later := h.Timeline(begin.Add(80*time.Minute), cat, costs.Report{}) // the first twenty minutes are forgotten
	if x := later.Hosts[0]; len(x.Events) != 0 || len(x.Changes) != 2 || x.Awake > (11*time.Minute).Milliseconds() || later.Rate[at] != 0 {
		t.Errorf("%+v", x)
	}
}

// A host of the catalog that never woke counts in what hosts that are always on would have cost.
func TestHostThatNeverWoke(t *testing.T) {
	begin := time.Unix(1_800_000_000, 0)
	got := NewHistory(begin).Timeline(begin.Add(30*time.Minute), sourceOf(t).Catalog, costs.Report{})
	if got.Spent != 0 || math.Abs(got.Always-0.25) > 1e-9 {
		t.Errorf("%v of %v", got.Spent, got.Always)
	}
}

// What a pool of any size does in an hour takes bounded memory.
func TestHistoryIsBounded(t *testing.T) {
	h, now := NewHistory(time.Now()), time.Now()
	for i := range 3 * maxStateChanges {
		name := "host" + strconv.Itoa(i)
		h.OnEvent(now, state.Event{Kind: "host", Host: name, State: "ready"})
		h.OnEvent(now, state.Event{Kind: "ticket", Host: name, Model: "a", State: "failed", Fields: map[string]string{"kind": "load"}})
	}
	if len(h.changes) > maxStateChanges || len(h.events) > maxEvents || len(h.last) > maxStateChanges {
		t.Error(len(h.changes), len(h.events), len(h.last))
	}
	if n := len(h.Timeline(now, sourceOf(t).Catalog, costs.Report{}).Hosts); n > maxHosts {
		t.Error(n)
	}
}
