package day

import (
	"slices"
	"time"

	"reveille/infra/policy"
)

// arrive is a request: served, or held by the load of its model.
func (w *world) arrive(m int) {
	w.tally.requests++
	id := w.catalog[m].ID
	for _, h := range w.hosts {
		if r := resident(h, id); r != nil && h.State == policy.Ready && r.State == policy.ModelLoaded && !r.Closed {
			w.serve(h, id)
			return
		}
	}
	w.tally.cold++
	if l := w.loads[m]; l != nil {
		l.waiters = append(l.waiters, w.now)
		return
	}
	p := policy.Place(w.snapshot(), w.catalog[m], nil)
	if p.Host == "" {
		w.fail("no place for " + id + ": " + p.Refusal.Explain())
		return
	}
	h := w.hosts[slices.IndexFunc(w.hosts, func(h *host) bool { return h.Name == p.Host })]
	w.serial++
	l := &load{id: id + "-" + w.now.Format("150405.000"), model: m, host: h, waiters: []time.Time{w.now}}
	w.loads[m] = l
	h.Queue = append(h.Queue, policy.Ticket{ID: l.id, Model: w.catalog[m]})
	w.touch(h)
	tell(w.mirror.place, l)
	if h.State == policy.Asleep && !h.stopping {
		w.wake(h)
	}
	w.next(h)
}

func tell[T any](hear func(T), what T) {
	if hear != nil {
		hear(what)
	}
}

func resident(h *host, id string) *policy.Resident {
	for i := range h.Residents {
		if h.Residents[i].ID == id {
			return &h.Residents[i]
		}
	}
	return nil
}

// serve counts a request in flight for as long as its answer takes.
func (w *world) serve(h *host, id string) {
	r := resident(h, id)
	r.InFlight++
	r.Used, h.Active = w.now, w.now
	w.touch(h)
	w.in(time.Second+time.Duration(w.rng.ExpFloat64()*3*float64(time.Second)), func() {
		r := resident(h, id)
		if r == nil || r.InFlight == 0 {
			w.fail(id + " was stopped under a request")
			return
		}
		r.InFlight--
		r.Used, h.Active = w.now, w.now
		w.touch(h)
		w.next(h)
	})
}

// next lets the host's runner look at its queue.
func (w *world) next(h *host) {
	for h.State == policy.Ready {
		view := w.view(h)
		for i := range view.Queue {
			l := w.loads[w.index[view.Queue[i].Model.ID]]
			view.Queue[i].Since, view.Queue[i].Overtaken = l.since, l.passed
		}
		step := policy.Next(view, w.now, fairAfter)
		w.touch(h)
		for _, id := range step.Close {
			resident(h, id).Closed = true
		}
		for _, id := range step.Reopen {
			resident(h, id).Closed = false
		}
		for _, t := range step.Waits {
			if l := w.byTicket(h, t.Ticket); t.Heads && l.since.IsZero() {
				l.since = w.now
			}
		}
		for _, id := range step.Overtakes {
			w.byTicket(h, id).passed++
		}
		if !step.Again.IsZero() {
			w.at(step.Again, func() { w.next(h) })
		}
		if step.Ticket == "" {
			return
		}
		l := w.byTicket(h, step.Ticket)
		if step.Admission.Decision != policy.Load {
			w.fail("a load was refused: " + step.Admission.Reason.String())
			return
		}
		w.oldest(h, w.catalog[l.model], step.Admission.Evict)
		for _, id := range step.Admission.Evict {
			w.tally.evictions++
			w.stop(h, id)
		}
		w.begin(h, l)
	}
}

func (w *world) byTicket(h *host, id string) *load {
	at := slices.IndexFunc(h.Queue, func(t policy.Ticket) bool { return t.ID == id })
	return w.loads[w.index[h.Queue[at].Model.ID]]
}

// stop ends an engine.
func (w *world) stop(h *host, id string) {
	if r := resident(h, id); r.Busy() { // 3, 8
		w.fail(id + " is stopped while it is busy")
	}
	w.touch(h)
	h.Residents = slices.DeleteFunc(h.Residents, func(r policy.Resident) bool { return r.ID == id })
	if w.mirror.drop != nil {
		w.mirror.drop(h, id)
	}
}

// oldest checks that under LRU no idle model stays that was used before one that goes, but for one on the NPU that a model
// for the NPU replaces.
func (w *world) oldest(h *host, newcomer policy.Model, victims []string) {
	if w.evict != policy.LRU || newcomer.Devices.Has(policy.NPU) {
		return
	}
	for _, id := range victims {
		for _, r := range h.Residents {
			if !r.Busy() && !slices.Contains(victims, r.ID) && r.Used.Before(resident(h, id).Used) { // 6
				w.fail(id + " goes although " + r.ID + " is unused for longer")
			}
		}
	}
}

// begin starts an engine; its waiters are served when it is ready.
func (w *world) begin(h *host, l *load) {
	w.tally.loads++
	m := w.catalog[l.model]
	h.Queue = slices.DeleteFunc(h.Queue, func(t policy.Ticket) bool { return t.ID == l.id })
	h.Loading = m.ID
	if other := w.loading[m.ID]; other != nil { // 10
		w.fail(m.ID + " is started on " + other.Name + " and on " + h.Name)
	}
	w.loading[m.ID] = h
	w.touch(h)
	h.Residents = append(h.Residents, policy.Resident{ID: m.ID, Type: m.Type, Devices: m.Devices, State: policy.ModelLoading, Reserved: true, Used: w.now})
	tell(w.mirror.begin, l)
	w.in(w.reload[l.model], func() {
		r := resident(h, m.ID)
		r.State, r.Reserved, r.Used = policy.ModelLoaded, false, w.now
		h.Loading, h.Active = "", w.now
		delete(w.loading, m.ID)
		delete(w.loads, l.model)
		w.touch(h)
		tell(w.mirror.loaded, l)
		for _, came := range l.waiters {
			w.tally.waits = append(w.tally.waits, w.now.Sub(came))
			w.serve(h, m.ID)
		}
		w.next(h)
	})
}

// wake starts a machine.
func (w *world) wake(h *host) {
	w.tally.wakes++
	h.State, h.woken = policy.Waking, w.now
	w.touch(h)
	w.in(wakeTime, func() {
		h.State, h.UpSince, h.Active = policy.Ready, w.now, w.now
		w.touch(h)
		tell(w.mirror.ready, h)
		w.next(h)
	})
}

// sweep is the warmer's.
func (w *world) sweep() {
	d := policy.Defaults{Idle: modelIdle, HostIdle: hostIdle, HostMinUp: hostMinUp}
	plan := policy.Idle(w.snapshot(), w.now, d)
	at := func(name string) *host {
		return w.hosts[slices.IndexFunc(w.hosts, func(h *host) bool { return h.Name == name })]
	}
	for _, u := range plan.Unload {
		if r := resident(at(u.Host), u.Model); w.now.Sub(r.Used) < modelIdle { // 21
			w.fail(u.Model + " goes before its idle time is over")
		}
		w.stop(at(u.Host), u.Model)
	}
	for _, s := range plan.Sleep {
		w.sleep(at(s.Host))
	}
}

// sleep puts an idle host to sleep. Its machine takes a while to stop: what comes for it meanwhile waits for that, and then
// wakes it again.
func (w *world) sleep(h *host) {
	if len(h.Residents)+len(h.Queue) > 0 || h.Loading != "" { // 19
		w.fail(h.Name + " is put to sleep with work")
	}
	w.sleepsNow(h)
	tell(w.mirror.asleep, h)
	h.State, h.stopping = policy.Asleep, true
	w.touch(h)
	w.in(stopTime, func() {
		h.stopping = false
		w.touch(h)
		tell(w.mirror.stopped, h)
		if len(h.Queue) > 0 { // 20
			w.tally.again++
			w.wake(h)
		}
	})
}

// sleepsNow settles what a life of a host cost.
func (w *world) sleepsNow(h *host) {
	hours := w.now.Add(stopTime).Sub(h.woken).Hours()
	h.woken = time.Time{}
	w.tally.hours += hours
	w.tally.price += hours * h.price
}

func (w *world) fail(what string) {
	w.broken = append(w.broken, w.now.Format("15:04:05.000 ")+what)
}

// check holds the hosts that changed, and the loads, to the invariants that a moment shows.
func (w *world) check() {
	for _, h := range w.touched {
		w.checkHost(h)
	}
	for m, l := range w.loads {
		if w.now.Sub(l.waiters[0]) > time.Hour { // 13
			w.fail(w.catalog[m].ID + " is waited for without end")
		}
		if l.passed > overtakes { // 15
			w.fail(w.catalog[m].ID + " is overtaken again and again")
		}
	}
}

func (w *world) checkHost(h *host) {
	loading, npu := 0, 0
	for _, r := range h.Residents {
		if r.Devices.Has(policy.NPU) {
			npu++
		}
		if r.State == policy.ModelLoading {
			loading++
		}
	}
	switch {
	case len(h.Residents) > slots: // 1
		w.fail(h.Name + " holds more models than it has slots")
	case npu > 1: // 2
		w.fail(h.Name + " holds two models on its NPU")
	case loading > 1: // 4
		w.fail(h.Name + " executes two loads")
	case h.State != policy.Ready && len(h.Residents) > 0: // 19
		w.fail(h.Name + " holds models while it is " + string(h.State))
	case h.State == policy.Asleep && !h.stopping && len(h.Queue) > 0: // 20
		w.fail(h.Name + " sleeps although it is wanted")
	case h.State == policy.Ready && h.Loading == "" && len(h.Queue) > 0 && w.room(h, h.Queue[0].Model): // 14
		w.fail(h.Name + " has a free slot and does not load")
	}
}

// room reports whether a host could load a model and stop nothing for it.
func (w *world) room(h *host, m policy.Model) bool {
	return len(h.Residents) < slots && !slices.ContainsFunc(h.Residents, func(r policy.Resident) bool {
		return r.Devices.Has(policy.NPU) && m.Devices.Has(policy.NPU)
	})
}
