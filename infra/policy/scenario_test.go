package policy

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "rewrite the decisions sections of testdata/*.txtar")

// TestScenarioFiles plays each file's events on its state and compares the decisions with its decisions section.
// testdata/README.md describes the language.
func TestScenarioFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			sections := map[string]*txtar.File{}
			for i := range a.Files {
				sections[a.Files[i].Name] = &a.Files[i]
			}
			for _, name := range []string{"state", "event", "decisions"} {
				if sections[name] == nil {
					t.Fatalf("no section %q", name)
				}
			}
			got := play(t, string(sections["state"].Data), string(sections["event"].Data))
			if *update {
				sections["decisions"].Data = []byte(got)
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if want := string(sections["decisions"].Data); got != want {
				t.Errorf("decisions differ\ngot:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// stage is the world of one scenario.
type stage struct {
	t    testing.TB
	now  time.Time
	s    Snapshot
	fair time.Duration
	d    SweepSettings
	out  strings.Builder
}

func play(t testing.TB, state, events string) string {
	g := &stage{
		t: t, now: time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC), fair: 2 * time.Second,
		d: SweepSettings{Idle: 10 * time.Minute, HostIdle: 15 * time.Minute, HostMinUp: 5 * time.Minute},
	}
	for line := range strings.Lines(state) {
		if l := parseLine(line); l.verb != "" {
			g.declare(l)
		}
	}
	for line := range strings.Lines(events) {
		if l := parseLine(line); l.verb != "" {
			fmt.Fprintf(&g.out, "> %s\n", strings.TrimSpace(line))
			g.event(l)
		}
	}
	return g.out.String()
}

// line is "verb arg arg key=value flag"; words without "=" are arguments.
type line struct {
	verb string
	args []string
	opts map[string]string
}

func parseLine(s string) line {
	s, _, _ = strings.Cut(s, "#")
	l := line{opts: map[string]string{}}
	for i, f := range strings.Fields(s) {
		k, v, ok := strings.Cut(f, "=")
		switch {
		case i == 0:
			l.verb = f
		case ok:
			l.opts[k] = v
		default:
			l.args = append(l.args, f)
		}
	}
	return l
}

func (l line) has(word string) bool { return slices.Contains(l.args, word) }

func (g *stage) list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}

func (g *stage) int(s string) int {
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		g.t.Fatal(err)
	}
	return n
}

func (g *stage) dur(s string) time.Duration {
	if s == "" {
		return 0
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		g.t.Fatal(err)
	}
	return d
}

// ago returns the moment s before now, zero for "".
func (g *stage) ago(s string) time.Time {
	if s == "" {
		return time.Time{}
	}
	return g.now.Add(-g.dur(s))
}

func (g *stage) devices(s string) Devices {
	d, err := ParseDevices(s)
	if err != nil {
		g.t.Fatal(err)
	}
	return d
}

func (g *stage) declare(l line) {
	switch l.verb {
	case "host":
		h := Host{
			Name: l.args[0], State: Ready, Devices: CPU | GPU | NPU, Limits: Uniform(1), Labels: g.list(l.opts["labels"]),
			UpSince: g.ago(l.opts["up"]), Active: g.ago(l.opts["active"]),
			InFlight: g.int(l.opts["inflight"]),
		}
		if v := l.opts["state"]; v != "" {
			h.State = HostState(v)
		}
		if v := l.opts["devices"]; v != "" {
			h.Devices = g.devices(v)
		}
		if v := l.opts["limits"]; v != "" {
			limits, err := ParseLimits(v)
			if err != nil {
				g.t.Fatal(err)
			}
			h.Limits = limits
		}
		for _, b := range g.list(l.opts["budget"]) {
			dev, n, _ := strings.Cut(b, ":")
			if h.Budget == nil {
				h.Budget = map[Devices]int64{}
			}
			h.Budget[g.devices(dev)] = int64(g.int(n))
		}
		for _, b := range g.list(l.opts["seats"]) {
			typ, n, _ := strings.Cut(b, ":")
			if h.NPUSeats == nil {
				h.NPUSeats = map[Type]int{}
			}
			h.NPUSeats[Type(typ)] = g.int(n)
		}
		g.s.Hosts = append(g.s.Hosts, h)
	case "model":
		m := g.model(l)
		h := &g.s.Hosts[len(g.s.Hosts)-1]
		r := Resident{
			ID: m.ID, Type: m.Type, Devices: m.Devices, State: ModelLoaded, Pinned: m.Pinned, Memory: m.Memory, Idle: m.Idle,
			InFlight: g.int(l.opts["inflight"]), Reserved: l.has("reserved"), Kept: l.has("kept"), Closed: l.has("closed"), Used: g.ago(l.opts["used"]),
		}
		for _, s := range []ModelState{ModelLoading, ModelDraining} {
			if l.has(string(s)) {
				r.State = s
			}
		}
		h.Residents = append(h.Residents, r)
	case "ticket":
		g.queue(&g.s.Hosts[len(g.s.Hosts)-1], l)
	default:
		g.t.Fatalf("unknown declaration %q", l.verb)
	}
}

// model reads "NAME TYPE DEVICES" and the options of a model.
func (g *stage) model(l line) Model {
	m := Model{
		ID: l.args[0], Type: Type(l.args[1]), Devices: g.devices(l.args[2]), Pinned: l.has("pinned"),
		Memory: int64(g.int(l.opts["mem"])), Hosts: g.list(l.opts["hosts"]), Max: g.int(l.opts["max"]), Idle: g.dur(l.opts["idle"]),
		NeedByHost: map[string]Need{}, TooLarge: map[string]*Refusal{}, Saved: map[string]int64{},
	}
	for _, n := range g.list(l.opts["saved"]) {
		f := strings.Split(n, ":")
		m.Saved[f[0]] = int64(g.int(f[1]))
	}
	for _, n := range g.list(l.opts["need"]) {
		f := strings.Split(n, ":")
		m.NeedByHost[f[0]] = Need{Devices: g.devices(f[1]), Memory: int64(g.int(f[2]))}
	}
	for _, n := range g.list(l.opts["refused"]) {
		f := strings.Split(n, ":")
		m.TooLarge[f[0]] = &Refusal{Code: TooLarge, Model: m.ID, Type: m.Type, Device: g.devices(f[1]), Need: int64(g.int(f[2])), Budget: int64(g.int(f[3]))}
	}
	return m
}

// queue reads "TICKET NAME TYPE DEVICES" and appends it to h.
func (g *stage) queue(h *Host, l line) {
	t := Ticket{ID: l.args[0], Since: g.ago(l.opts["since"]), Overtaken: g.int(l.opts["overtaken"])}
	l.args = l.args[1:]
	t.Model = g.model(l)
	h.Queue = append(h.Queue, t)
}

// event plays one line of an event section: it changes the world, or asks for a decision, prints it and applies it.
func (g *stage) event(l line) {
	h := &g.s.Hosts[0]
	if on := l.opts["on"]; on != "" {
		h = &g.s.Hosts[slices.IndexFunc(g.s.Hosts, func(h Host) bool { return h.Name == on })]
	}
	switch l.verb {
	case "after":
		g.now = g.now.Add(g.dur(l.args[0]))
	case "start":
		r := g.resident(h, l.args[0])
		r.InFlight, r.Reserved, r.Used = r.InFlight+1, false, Later(r.Used, g.now)
	case "end":
		r := g.resident(h, l.args[0])
		r.InFlight, r.Used = r.InFlight-1, Later(r.Used, g.now)
	case "touch":
		r := g.resident(h, l.args[0])
		r.Used = Later(r.Used, g.ago(l.args[1]))
	case "pin":
		g.resident(h, l.args[0]).Pinned = true
	case "unpin":
		g.resident(h, l.args[0]).Pinned = false
	case "reserve":
		g.resident(h, l.args[0]).Reserved = true
	case "drain":
		g.resident(h, l.args[0]).State = ModelDraining
	case "gone":
		g.stop(h, l.args[0])
	case "queue":
		g.queue(h, l)
	case "drop":
		h.Queue = slices.DeleteFunc(h.Queue, func(t Ticket) bool { return t.ID == l.args[0] })
	case "loaded":
		r := g.resident(h, h.Loading)
		r.State, r.Used, h.Loading = ModelLoaded, g.now, ""
	case "failed":
		g.stop(h, h.Loading)
		h.Loading = ""
	case "admit":
		g.admission(admit(*h, g.model(l), g.dur(l.opts["waited"]), g.fair))
	case "load":
		m := g.model(l)
		a := admit(*h, m, g.dur(l.opts["waited"]), g.fair)
		g.admission(a)
		if a.Decision == DecideLoad {
			g.begin(h, m, a.Admission)
			h.Loading = ""
			r := g.resident(h, m.ID)
			r.State, r.Reserved = ModelLoaded, false
		}
	case "next":
		g.next(h)
	case "clear":
		evict, drain := ClearAll(*h, l.opts["except"])
		g.print("evict", evict)
		g.print("drain", drain)
	case "place":
		avoid := map[string]string{}
		for _, a := range g.list(l.opts["avoid"]) {
			avoid[a] = "avoided"
		}
		p := Place(g.s, g.model(l), avoid)
		if p.Refusal != nil {
			fmt.Fprintf(&g.out, "refused %s: %s\n", p.Reason.Code, p.Refusal.Explain())
			return
		}
		wake := ""
		if p.Wake {
			wake = " wake"
		}
		fmt.Fprintf(&g.out, "host %s%s (%s)\n", p.Host, wake, p.Reason)
	case "idle":
		g.idle()
	case "show":
		for _, r := range slices.SortedFunc(slices.Values(h.Residents), ByUse) {
			fmt.Fprintf(&g.out, "%s %s used %s ago\n", r.ID, r.State, g.now.Sub(r.Used))
		}
	default:
		g.t.Fatalf("unknown event %q", l.verb)
	}
}

func (g *stage) next(h *Host) {
	s := Next(*h, g.now, g.fair)
	for _, id := range s.Close {
		g.resident(h, id).Closed = true
	}
	for _, id := range s.Reopen {
		g.resident(h, id).Closed = false
	}
	g.print("close", s.Close)
	g.print("reopen", s.Reopen)
	for _, w := range s.Waits {
		unblocked := ""
		if w.Unblocked {
			unblocked = " unblocked"
			t := &h.Queue[slices.IndexFunc(h.Queue, func(t Ticket) bool { return t.ID == w.Ticket })]
			if t.Since.IsZero() {
				t.Since = g.now
			}
		}
		fmt.Fprintf(&g.out, "%s stays%s (%s)\n", w.Ticket, unblocked, w.Reason)
	}
	if !s.Again.IsZero() {
		fmt.Fprintf(&g.out, "again in %s\n", s.Again.Sub(g.now))
	}
	if s.Ticket == "" {
		if len(s.Waits) == 0 {
			g.out.WriteString("nothing to do\n")
		}
		return
	}
	fmt.Fprintf(&g.out, "%s: ", s.Ticket)
	g.admission(admitted{Admission: s.Admission})
	g.print("overtakes", s.Overtakes)
	i := slices.IndexFunc(h.Queue, func(t Ticket) bool { return t.ID == s.Ticket })
	m := h.Queue[i].Model
	h.Queue = slices.Delete(h.Queue, i, i+1)
	for j := range h.Queue {
		if slices.Contains(s.Overtakes, h.Queue[j].ID) {
			h.Queue[j].Overtaken++
		}
	}
	if s.Admission.Decision == DecideLoad {
		g.begin(h, m, s.Admission)
	}
}

// start applies a Load as a runner does.
func (g *stage) begin(h *Host, m Model, a Admission) {
	for _, id := range a.Evict {
		g.stop(h, id)
	}
	h.Loading = m.ID
	h.Residents = append(h.Residents, Resident{
		ID: m.ID, Type: m.Type, Devices: m.Devices, State: ModelLoading, Pinned: m.Pinned, Reserved: true,
		Used: g.now, Memory: m.Memory, Idle: m.Idle,
	})
}

// idle prints a sweep's decision, applies it and checks that a second sweep finds nothing.
func (g *stage) idle() {
	p := Idle(g.s, g.now, g.d)
	for _, u := range p.Unload {
		fmt.Fprintf(&g.out, "unload %s on %s (%s)\n", u.Model, u.Host, u.Reason)
	}
	for _, s := range p.Sleep {
		fmt.Fprintf(&g.out, "sleep %s (%s)\n", s.Host, s.Reason)
	}
	if isEmpty(p) {
		g.out.WriteString("nothing to do\n")
	}
	applyIdle(g.s, p)
	if again := Idle(g.s, g.now, g.d); !isEmpty(again) {
		g.t.Errorf("a second sweep still finds %+v", again)
	}
}

func applyIdle(s Snapshot, d IdleDecision) {
	for i := range s.Hosts {
		h := &s.Hosts[i]
		for j := range h.Residents {
			if slices.ContainsFunc(d.Unload, func(m IdleModel) bool { return m.Host == h.Name && m.Model == h.Residents[j].ID }) {
				h.Residents[j].State = ModelDraining
			}
		}
		if slices.ContainsFunc(d.Sleep, func(s IdleHost) bool { return s.Host == h.Name }) {
			h.State = Draining
		}
	}
}

func (g *stage) admission(a admitted) {
	fmt.Fprintf(&g.out, "%s (%s)\n", a.Decision, a.Reason)
	g.print("evict", a.Evict)
	g.print("close", a.Close)
	g.print("reopen", a.Reopen)
	g.print("wait for", a.WaitFor)
}

func (g *stage) print(what string, ids []string) {
	if len(ids) > 0 {
		fmt.Fprintf(&g.out, "  %s %s\n", what, strings.Join(ids, " "))
	}
}

func (g *stage) resident(h *Host, id string) *Resident {
	i := slices.IndexFunc(h.Residents, func(r Resident) bool { return r.ID == id })
	if i < 0 {
		g.t.Fatalf("model %q is not on %s", id, h.Name)
	}
	return &h.Residents[i]
}

func (g *stage) stop(h *Host, id string) {
	g.resident(h, id)
	h.Residents = slices.DeleteFunc(h.Residents, func(r Resident) bool { return r.ID == id })
}

// isEmpty reports whether there is nothing to do.
func isEmpty(d IdleDecision) bool { return len(d.Unload) == 0 && len(d.Sleep) == 0 }
