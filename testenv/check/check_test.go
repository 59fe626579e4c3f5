package check

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"reveille/infra/policy"
	"reveille/infra/power"
)

var world = World{
	Models: map[string]Model{
		"a": {Type: policy.LLM}, "b": {Type: policy.LLM}, "c": {Type: policy.LLM}, "n": {Type: policy.LLM, NPU: true}, "o": {Type: policy.Audio, NPU: true}, "e": {Type: policy.Embedding},
	},
	Limits:  map[string]policy.Limits{"h": policy.Uniform(1), "two": policy.Uniform(2), "any": policy.Uniform(-1)},
	Reserve: 5 * time.Second, FairAfter: 2 * time.Second, Clear: 20 * time.Second, Lease: 15 * time.Second,
	Catalogue: map[string]bool{"h": true, "two": true, "any": true, "off": true}, Sweep: 10 * time.Second,
	WakeLimit: 20 * time.Second, ForgetAfter: 30 * time.Second,
}

// at makes events; s is in seconds.
func at(s float64, e Event) Event {
	e.At = time.Duration(s * float64(time.Second))
	return e
}

func ask(s float64, id, model string) Event {
	return at(s, Event{Kind: Ask, Request: id, Gateway: "g", Model: model, For: time.Minute})
}

func spawn(s float64, host, model string, pid int, ticket string, queue ...Ticket) Event {
	return at(s, Event{Kind: Spawn, Host: host, Model: model, PID: pid, Ticket: ticket, View: &View{Queue: queue}})
}

// reload is a spawn for a ticket of its own.
func reload(s float64, host, model string, pid int, ticket string) Event {
	e := spawn(s, host, model, pid, ticket)
	e.Text = "explicit"
	return e
}

func of(s float64, k Kind, pid int) Event { return at(s, Event{Kind: k, PID: pid}) }

func by(s float64, k Kind, id string) Event { return at(s, Event{Kind: k, Request: id}) }

func enter(s float64, id string, pid int, loading string) Event {
	return at(s, Event{Kind: Enter, Request: id, PID: pid, View: &View{Loading: loading}})
}

func sample(s float64, host string, v View) Event {
	return at(s, Event{Kind: Sample, Host: host, View: &v})
}

// Each history breaks one promise and no other.
func TestEachPromise(t *testing.T) {
	up := func(hosts ...string) (out []Event) {
		for _, h := range hosts {
			out = append(out, Event{Kind: HostUp, Host: h})
		}
		return out
	}
	idle := View{Ready: true, State: policy.Ready, Power: power.On}
	waits := Ticket{ID: "5", Model: "b", Load: true, Wanted: true}
	outlast := func(mine, others uint64, n int) []Event { // a request waits at its engine while n that came later are computed
		r := ask(0, "r", "a")
		r.Value = mine
		out := []Event{r, spawn(1, "h", "a", 1, "1"), of(2, Ready, 1), enter(3, "r", 1, "")}
		for i := range n {
			other := ask(3, fmt.Sprint(i), "a")
			other.Value = others
			out = append(out, other, enter(4, fmt.Sprint(i), 1, ""))
		}
		for i := range n {
			out = append(out, by(5+float64(i), Turn, fmt.Sprint(i)))
		}
		return append(out, by(30, Turn, "r"))
	}
	tests := []struct {
		name    string
		want    int
		history []Event
	}{
		{"limit", 1, []Event{ask(0, "r", "a"), ask(0, "s", "b"), spawn(1, "h", "a", 1, "1"), of(2, Ready, 1), spawn(3, "h", "b", 2, "2")}},
		{"npu", 2, []Event{ask(0, "r", "n"), ask(0, "s", "o"), spawn(1, "h", "n", 1, "1"), of(2, Ready, 1), spawn(3, "h", "o", 2, "2")}},
		{"busy", 3, []Event{ask(0, "r", "a"), spawn(1, "h", "a", 1, "1"), of(2, Ready, 1), enter(3, "r", 1, ""), of(4, StopBegin, 1)}},
		{"cut for an edit", 3, []Event{
			ask(0, "r", "a"), spawn(1, "h", "a", 1, "1"), of(2, Ready, 1), at(2, Event{Kind: Granted, Request: "r", Host: "h", Ticket: "1"}), enter(3, "r", 1, ""),
			at(4, Event{Kind: Edited, Model: "a"}), by(5, Cut, "r"),
		}},
		{"two loads", 4, []Event{ask(0, "r", "a"), ask(0, "s", "e"), spawn(1, "h", "a", 1, "1"), spawn(1, "h", "e", 2, "2")}},
		{"victim", 6, []Event{
			ask(0, "r", "a"), ask(0, "s", "b"), spawn(1, "two", "a", 1, "1"), of(2, Ready, 1), spawn(3, "two", "b", 2, "2"), of(4, Ready, 2),
			at(60, Event{Kind: StopBegin, PID: 2, View: &View{Loading: "c", Residents: []Resident{
				{Model: "a", PID: 1, State: policy.ModelLoaded, Used: 2 * time.Second}, {Model: "b", PID: 2, State: policy.ModelLoaded, Used: 4 * time.Second},
			}}}),
		}},
		{"revived", 7, []Event{ask(0, "r", "a"), spawn(1, "h", "a", 1, "1"), of(2, Ready, 1), enter(3, "r", 1, "b")}},
		{"stopping", 7, []Event{ask(0, "r", "a"), spawn(1, "h", "a", 1, "1"), of(2, Ready, 1), of(3, StopBegin, 1), enter(4, "r", 1, "")}},
		{"not served", 8, []Event{
			ask(0, "r", "a"), spawn(1, "h", "a", 1, "1"), of(2, Ready, 1), at(2, Event{Kind: Granted, Request: "r", Host: "h", Ticket: "1"}),
			of(3, StopBegin, 1), of(4, Exit, 1), at(5, Event{Kind: Refused, Request: "r", Host: "h", Text: "not_loaded"}),
		}},
		{"a lower priority first", 31, outlast(1, 2, 8)},
		{"starved", 31, outlast(2, 1, 20)},
		{"loaded for the background", 11, []Event{at(0, Event{Kind: Ask, Request: "r", Model: "a", For: time.Minute, Text: "loaded"}), spawn(1, "h", "a", 1, "1")}},
		{"two spawns", 10, []Event{ask(0, "r", "a"), spawn(1, "h", "a", 1, "1"), spawn(1, "two", "a", 2, "2")}},
		{"explicit load beside a copy", 10, []Event{
			ask(0, "r", "a"), spawn(1, "h", "a", 1, "1"), of(2, Ready, 1), at(3, Event{Kind: Ask, Request: "s", Model: "a", Text: "explicit"}), reload(4, "two", "a", 2, "2"),
		}},
		{"explicit load after the copy of its host", 10, []Event{
			ask(0, "r", "a"), spawn(1, "two", "a", 1, "1"), of(2, Ready, 1), of(3, StopBegin, 1), of(3, Exit, 1), ask(3, "s", "a"), spawn(4, "h", "a", 2, "2"), of(5, Ready, 2),
			at(9, Event{Kind: Ask, Request: "t", Model: "a", Text: "explicit"}), reload(10, "two", "a", 3, "3"),
		}},
		{"unwanted", 11, []Event{ask(0, "r", "a"), at(1, Event{Kind: Outcome, Request: "r", Text: "left"}), spawn(40, "h", "a", 1, "1")}},
		{"dead gateway", 11, []Event{ask(0, "r", "a"), at(1, Event{Kind: GatewayEnd, Gateway: "g"}), at(2, Event{Kind: Outcome, Request: "r", Text: "reset"}), spawn(40, "h", "a", 1, "1")}},
		{"third try", 12, []Event{
			ask(0, "r", "a"), spawn(1, "h", "a", 1, "1"), of(2, Failed, 1), spawn(3, "h", "a", 2, "1"), of(4, Failed, 2), spawn(5, "h", "a", 3, "1"),
		}},
		{"no file", 12, []Event{ask(0, "r", "a"), spawn(1, "h", "a", 1, "1"), at(2, Event{Kind: Failed, PID: 1, Text: "file"}), spawn(3, "h", "a", 2, "1")}},
		{"not cleared", 12, []Event{
			ask(0, "r", "a"), ask(0, "s", "e"), spawn(1, "h", "e", 1, "1"), of(2, Ready, 1), spawn(3, "h", "a", 2, "2"), of(4, Failed, 2), spawn(5, "h", "a", 3, "2"),
		}},
		{"two outcomes", 13, []Event{ask(0, "r", "a"), at(1, Event{Kind: Outcome, Request: "r", Text: "left"}), at(2, Event{Kind: Outcome, Request: "r", Text: "ok"})}},
		{"late", 13, []Event{ask(0, "r", "a"), sample(62, "h", View{})}},
		{"no cause", 13, []Event{ask(0, "r", "a"), at(1, Event{Kind: Outcome, Request: "r", Text: "state_unavailable"})}},
		{"lost wake-up", 14, []Event{sample(1, "h", View{Ready: true, Queue: []Ticket{waits}}), sample(3, "h", View{Ready: true, Queue: []Ticket{waits}})}},
		{"order", 15, []Event{ask(0, "r", "a"), spawn(1, "h", "a", 1, "9", waits)}},
		{"held up", 15, []Event{
			ask(0, "r", "a"), spawn(1, "h", "a", 1, "1"), of(2, Ready, 1), sample(3, "h", View{Ready: true, Queue: []Ticket{waits}}), enter(9, "r", 1, ""),
		}},
		{"token", 17, []Event{at(1, Event{Kind: Registered, Host: "h", Value: 7}), at(2, Event{Kind: Registered, Host: "h", Value: 7})}},
		{"record", 18, []Event{
			ask(0, "r", "a"), spawn(1, "h", "a", 1, "1"), of(2, Ready, 1), of(3, Died, 1), of(3, Exit, 1), sample(6, "h", View{Records: []Record{{Model: "a", State: "loaded", PID: 1}}}),
		}},
		{"not idle", 21, []Event{
			ask(0, "r", "a"), spawn(1, "h", "a", 1, "1"), of(2, Ready, 1), at(3, Event{Kind: Unload, Host: "h", Model: "a", For: 5 * time.Second}),
			at(4, Event{Kind: StopBegin, PID: 1, View: &View{}}),
		}},
		{"count", 22, []Event{
			ask(0, "r", "a"), spawn(1, "h", "a", 1, "1"), of(2, Ready, 1), sample(3, "h", View{Residents: []Resident{{Model: "a", PID: 1, State: policy.ModelLoaded, InFlight: 1}}}),
		}},
		{"two ends", 22, []Event{ask(0, "r", "a"), spawn(1, "h", "a", 1, "1"), of(2, Ready, 1), enter(3, "r", 1, ""), by(4, End, "r"), by(5, End, "r")}},
		{"refusal that writes", 26, []Event{at(1, Event{Kind: Declined, Text: "fenced"}), at(2, Event{Kind: Declined, Text: "fenced", Value: 1})}},
		{"left on", 19, []Event{ask(0, "r", "a"), spawn(1, "h", "a", 1, "1"), of(2, Ready, 1), at(3, Event{Kind: PowerOff, Host: "h"})}},
		{"not woken", 20, []Event{
			sample(1, "off", View{State: policy.Asleep, Power: power.Off, Queue: []Ticket{waits}}), sample(32, "off", View{State: policy.Asleep, Power: power.Off, Queue: []Ticket{waits}}),
		}},
		{"runs unseen", 28, []Event{sample(1, "off", View{State: policy.Asleep, Power: power.On}), sample(62, "off", View{State: policy.Asleep, Power: power.On})}},
		{"not forgotten", 29, []Event{sample(1, "gone", View{State: policy.Lost}), sample(122, "gone", View{State: policy.Lost})}},
		{"keys that disagree", 30, []Event{at(1, Event{Kind: Keys}), at(2, Event{Kind: Keys, Text: "ticket 7 is in no queue"})}},
		{"forgotten", 29, []Event{{Kind: HostUp, Host: "guest"}, at(1, Event{Kind: Forgotten, Host: "guest"})}},
		{"nothing happens", 14, []Event{
			ask(0, "r", "a"), sample(1, "h", idle), sample(1, "two", idle), sample(1, "any", idle), sample(8, "h", idle),
		}},
		{"repeated after a byte", 23, []Event{
			ask(0, "r", "a"), spawn(1, "h", "a", 1, "1"), of(2, Ready, 1), enter(3, "r", 1, ""), by(4, Bytes, "r"), of(5, Died, 1), of(5, Exit, 1), by(5, End, "r"), by(5, Repeat, "r"),
		}},
		{"repeated twice", 23, []Event{
			ask(0, "r", "a"), spawn(1, "h", "a", 1, "1"), of(2, Ready, 1), enter(3, "r", 1, ""), of(5, Died, 1), of(5, Exit, 1), by(5, End, "r"), by(5, Repeat, "r"),
			spawn(6, "h", "a", 2, "2"), of(7, Ready, 2), enter(7, "r", 2, ""), of(8, Died, 2), of(8, Exit, 2), by(8, End, "r"), by(8, Repeat, "r"),
		}},
		{"not repeated", 23, []Event{
			ask(0, "r", "a"), spawn(1, "h", "a", 1, "1"), of(2, Ready, 1), enter(3, "r", 1, ""), of(5, Died, 1), of(5, Exit, 1), by(5, End, "r"),
			at(5, Event{Kind: Outcome, Request: "r", Text: "engine_crashed"}),
		}},
		{"two engines", 23, []Event{
			ask(0, "r", "a"), spawn(1, "any", "a", 1, "1"), of(2, Ready, 1), enter(3, "r", 1, ""), by(4, End, "r"), enter(5, "r", 1, ""),
		}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			got := Check(world, append(up("h", "two", "any"), tc.history...))
			if len(got) != 1 || got[0].Invariant != tc.want {
				t.Fatalf("got %v, want invariant %d", got, tc.want)
			}
			if got[0].At != tc.history[len(tc.history)-1].At {
				t.Errorf("it is said to be at %v", got[0].At)
			}
		})
	}
}

// A model is too large when no host that the pool can know of holds it. One outside the catalog is known when its
// runner has registered with the state that Redis has.
func TestTooLarge(t *testing.T) {
	w := world
	w.Models = map[string]Model{"a": {Type: policy.LLM, Memory: 2}}
	w.Limits = map[string]policy.Limits{"h": policy.Uniform(1), "guest": policy.Uniform(1)}
	w.Catalogue, w.Budgets = map[string]bool{"h": true}, map[string]int64{"h": 1, "guest": 2}
	refusal := []Event{ask(9, "r", "a"), at(9, Event{Kind: Outcome, Request: "r", Text: "model_too_large"})}
	up, registered := at(1, Event{Kind: HostUp, Host: "guest"}), at(2, Event{Kind: Registered, Host: "guest", Value: 1})
	again := at(4, Event{Kind: Registered, Host: "guest", Value: 2})
	for _, c := range []struct {
		name    string
		history []Event
		broken  int
	}{
		{"no guest", nil, 0},
		{"a guest that has not registered", []Event{up}, 0},
		{"a guest", []Event{up, registered}, 1},
		{"a guest whom Redis has lost", []Event{up, registered, at(3, Event{Kind: Restored})}, 0},
		{"a guest who came back", []Event{up, registered, at(3, Event{Kind: Restored}), again}, 1},
		{"a guest that ended", []Event{up, registered, at(3, Event{Kind: HostDown, Host: "guest"})}, 0},
	} {
		if got := Check(w, append(c.history, refusal...)); len(got) != c.broken || c.broken > 0 && got[0].Invariant != 27 {
			t.Errorf("%s: got %v, want %d", c.name, got, c.broken)
		}
	}
}

// A process gets all that it needs on GPUs, and no GPU more than it has beside the processes that still live.
func TestGPUs(t *testing.T) {
	w := world
	w.Models = map[string]Model{"a": {Type: policy.LLM, Memory: 20}, "b": {Type: policy.LLM, Memory: 20}}
	w.Limits, w.Budgets = map[string]policy.Limits{"h": policy.Uniform(-1)}, map[string]int64{"h": 48}
	w.Cards = map[string]policy.GPUMemory{"h": {0: 24, 1: 24}}
	spawn := func(model string, pid int, cards policy.GPUMemory) []Event {
		return []Event{
			at(1, Event{Kind: Ask, Request: model, Model: model, For: time.Minute, Text: "background"}),
			at(2, Event{Kind: Spawn, Host: "h", Model: model, PID: pid, Cards: cards, View: &View{}}), at(2, Event{Kind: Ready, PID: pid}),
		}
	}
	first := append([]Event{{Kind: HostUp, Host: "h"}}, spawn("a", 1, policy.GPUMemory{0: 20})...)
	for _, c := range []struct {
		name   string
		cards  policy.GPUMemory
		broken bool
	}{
		{"the other GPU", policy.GPUMemory{1: 20}, false},
		{"both", policy.GPUMemory{0: 4, 1: 16}, false},
		{"the same GPU", policy.GPUMemory{0: 20}, true},
		{"too much of one", policy.GPUMemory{0: 5, 1: 15}, true},
		{"too little", policy.GPUMemory{1: 10}, true},
		{"none", nil, true},
	} {
		broken := false
		for _, v := range Check(w, append(slices.Clone(first), spawn("b", 2, c.cards)...)) {
			broken = broken || v.Invariant == 27
		}
		if broken != c.broken {
			t.Errorf("%s: broken %v, want %v", c.name, broken, c.broken)
		}
	}
}

// What quiet times forbid is allowed while something is wrong.
func TestDisturbed(t *testing.T) {
	history := []Event{
		{Kind: HostUp, Host: "h"}, {Kind: HostUp, Host: "two"}, {Kind: Disturbed, For: 10 * time.Second},
		ask(0, "r", "a"), spawn(1, "h", "a", 1, "1"), spawn(1, "two", "a", 2, "2"),
		ask(2, "s", "a"), at(3, Event{Kind: Outcome, Request: "s", Text: "state_unavailable"}),
	}
	if got := Check(world, history); got != nil {
		t.Errorf("%v", got)
	}
}

// What is wrong is over once it is mended, but for what a jump of the clock does to leases.
func TestMended(t *testing.T) {
	c := New(world)
	for _, e := range []Event{
		{Kind: Disturbed, For: 10 * time.Minute, Text: "cut"}, at(1, Event{Kind: Disturbed, For: time.Minute, Text: "clock"}),
		at(2, Event{Kind: Mended, For: 30 * time.Second}), at(60, Event{Kind: Registered, Host: "h", Value: 1}),
	} {
		c.Add(e)
	}
	if c.Calm() {
		t.Error("leases may still be late")
	}
	if c.Add(at(61, Event{Kind: Registered, Host: "h", Value: 2})); !c.Calm() {
		t.Error("it is not over")
	}
}

// A step in which a promise could have been broken counts once, and apart when it is in a quiet time after a fault.
func TestJudged(t *testing.T) {
	c := New(world)
	history := []Event{
		{Kind: HostUp, Host: "any"}, ask(0, "r", "a"), ask(0, "s", "b"), ask(0, "t", "c"), spawn(0, "any", "a", 1, "1"), of(0, Ready, 1), {Kind: Disturbed, For: time.Second},
		{Step: 1, Kind: Disturbed}, spawn(2, "any", "b", 2, "2"), of(2, Ready, 2), spawn(2, "any", "c", 3, "3"),
	}
	for i, e := range history {
		e.Step = i / 7
		c.Add(e)
	}
	if got, want := c.Judged()[4], (Judged{Steps: 2, After: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, want := c.Judged()[12], (Judged{}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for n := range c.Judged() {
		if !slices.ContainsFunc(Invariants, func(v Invariant) bool { return v.Number == n }) {
			t.Errorf("invariant %d is not in the list", n)
		}
	}
}

// A model that was idle for as long as somebody asked goes for that, not for the load that is under way.
func TestIdleBesideALoad(t *testing.T) {
	beside := func(b Resident) *View {
		return &View{Loading: "c", Residents: []Resident{{Model: "a", PID: 1, State: policy.ModelLoaded, Used: 5 * time.Second}, b}}
	}
	unused := Resident{Model: "b", PID: 2, State: policy.ModelLoaded, Used: 3 * time.Second}
	history := []Event{
		{Kind: HostUp, Host: "any"}, ask(0, "r", "a"), ask(0, "s", "b"), spawn(1, "any", "a", 1, "1"), of(2, Ready, 1), spawn(2, "any", "b", 2, "2"), of(3, Ready, 2),
		ask(4, "t", "c"), at(20, Event{Kind: Unload, Host: "any", Model: "a", For: 5 * time.Second}), at(20, Event{Kind: StopBegin, PID: 1, View: beside(unused)}),
	}
	if got := Check(world, history); got != nil {
		t.Errorf("%v", got)
	}
}

// A load that failed is given up when a busy model does not leave the host in time for the second try; requests then
// get model_busy before their own time is over. Long after the failure there is no such cause.
func TestLoadGivenUpBehindABusyModel(t *testing.T) {
	for after, right := range map[float64]bool{22: true, 40: false} {
		got := Check(world, []Event{
			{Kind: HostUp, Host: "two"}, ask(0, "s", "b"), spawn(1, "two", "b", 1, "1"), of(2, Ready, 1), enter(3, "s", 1, ""),
			ask(4, "r", "a"), spawn(4, "two", "a", 2, "2"), of(5, Failed, 2), at(5+after, Event{Kind: Outcome, Request: "r", Text: "model_busy"}),
		})
		if (got == nil) != right {
			t.Errorf("after %v s: %v", after, got)
		}
	}
}

// The second try of a load may come long after its client left: the host had to be cleared of busy models.
func TestSecondTry(t *testing.T) {
	history := []Event{
		{Kind: HostUp, Host: "h"}, ask(0, "r", "a"), spawn(1, "h", "a", 1, "1"), at(2, Event{Kind: Outcome, Request: "r", Text: "left"}),
		of(3, Failed, 1), of(3, Exit, 1), spawn(40, "h", "a", 2, "1"),
	}
	if got := Check(world, history); got != nil {
		t.Errorf("%v", got)
	}
}

// A fault left two copies, and one of them is loaded with other options. That breaks nothing, whether the copy is stopped for it
// or dies before that, and whether the load needs a second try.
func TestReloadOfOneCopy(t *testing.T) {
	copies := []Event{
		{Kind: HostUp, Host: "h"}, {Kind: HostUp, Host: "two"}, {Kind: Disturbed, For: 10 * time.Second},
		ask(0, "r", "a"), ask(0, "s", "a"), spawn(1, "h", "a", 1, "1"), of(2, Ready, 1), spawn(2, "two", "a", 2, "2"), of(3, Ready, 2),
		at(20, Event{Kind: Ask, Request: "t", Model: "a", Text: "explicit"}),
	}
	stopped := at(21, Event{Kind: StopBegin, PID: 1, View: &View{Loading: "a"}})
	for _, c := range []struct {
		name string
		ends []Event
	}{
		{"stopped", []Event{stopped, of(22, Exit, 1)}},
		{"died", []Event{of(22, Died, 1), of(22, Exit, 1)}},
		{"died a moment before", []Event{of(19, Died, 1), of(19, Exit, 1)}},
	} {
		again := []Event{reload(23, "h", "a", 3, "3"), of(24, Failed, 3), reload(25, "h", "a", 4, "3")}
		history := slices.Concat(copies, c.ends, again)
		slices.SortStableFunc(history, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
		if got := Check(world, history); got != nil {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// A request may be refused whose model's engine died after it was let in, although another is being started already.
func TestRefusedAfterADeath(t *testing.T) {
	history := []Event{
		{Kind: HostUp, Host: "h"}, ask(0, "r", "a"), ask(0, "s", "a"), spawn(1, "h", "a", 1, "1"), of(2, Ready, 1),
		at(2, Event{Kind: Granted, Request: "r", Host: "h", Ticket: "1"}), at(2, Event{Kind: Granted, Request: "s", Host: "h", Ticket: "1"}),
		enter(3, "r", 1, ""), of(4, Died, 1), of(4, Exit, 1), by(4, End, "r"), by(4, Repeat, "r"), spawn(4, "h", "a", 2, "2"),
		at(5, Event{Kind: Refused, Request: "s", Host: "h", Text: "not_loaded"}),
	}
	if got := Check(world, history); got != nil {
		t.Errorf("%v", got)
	}
}

// An ordinary history breaks nothing, and what is open at its end is told.
func TestFinish(t *testing.T) {
	c := New(world)
	for _, e := range []Event{
		{Kind: HostUp, Host: "h"}, at(0, Event{Kind: Registered, Host: "h", Value: 1}), ask(0, "r", "a"), spawn(1, "h", "a", 1, "1"), of(2, Ready, 1),
		at(2, Event{Kind: Granted, Request: "r", Host: "h", Ticket: "1"}), enter(3, "r", 1, ""), ask(4, "s", "b"), by(5, End, "r"),
		at(5, Event{Kind: Outcome, Request: "r", Text: "ok"}), at(6, Event{Kind: StopBegin, PID: 1, View: &View{Loading: "b"}}), of(7, Exit, 1), spawn(7, "h", "b", 2, "2"), of(8, Ready, 2),
	} {
		c.Add(e)
	}
	if got := c.Violations(); got != nil {
		t.Fatalf("%v", got)
	}
	if c.Finish(); len(c.Violations()) != 1 || c.Violations()[0].Invariant != 13 {
		t.Errorf("%v, want the request without an outcome", c.Violations())
	}
}
