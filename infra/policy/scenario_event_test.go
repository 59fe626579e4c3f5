package policy

import (
	"fmt"
	"slices"
	"strings"
)

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
		r.InFlight, r.Reserved, r.Used = r.InFlight+1, false, Use(r.Used, g.now)
	case "end":
		r := g.resident(h, l.args[0])
		r.InFlight, r.Used = r.InFlight-1, Use(r.Used, g.now)
	case "touch":
		r := g.resident(h, l.args[0])
		r.Used = Use(r.Used, g.ago(l.args[1]))
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
		if a.Decision == Load {
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
	case "want-copy":
		fmt.Fprintln(&g.out, WantCopy(g.s, g.model(l), g.int(l.opts["queued"]), g.int(l.opts["served"])))
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
		heads := ""
		if w.Heads {
			heads = " heads"
			t := &h.Queue[slices.IndexFunc(h.Queue, func(t Ticket) bool { return t.ID == w.Ticket })]
			if t.Since.IsZero() {
				t.Since = g.now
			}
		}
		fmt.Fprintf(&g.out, "%s stays%s (%s)\n", w.Ticket, heads, w.Reason)
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
	if s.Admission.Decision == Load {
		g.begin(h, m, s.Admission)
	}
}

// begin applies a Load as a runner does.
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

// idle prints a sweep's plan, applies it and checks that a second sweep finds nothing.
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
		g.t.Errorf("a second sweep at once still finds %+v", again)
	}
}

func applyIdle(s Snapshot, p IdlePlan) {
	for i := range s.Hosts {
		h := &s.Hosts[i]
		for j := range h.Residents {
			if slices.ContainsFunc(p.Unload, func(u Unload) bool { return u.Host == h.Name && u.Model == h.Residents[j].ID }) {
				h.Residents[j].State = ModelDraining
			}
		}
		if slices.ContainsFunc(p.Sleep, func(s Sleep) bool { return s.Host == h.Name }) {
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
func isEmpty(p IdlePlan) bool { return len(p.Unload) == 0 && len(p.Sleep) == 0 }
