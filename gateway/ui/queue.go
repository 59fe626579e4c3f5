package ui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"reveille/gateway/api"
	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// queue lists a host's tickets in their order.
func (src Source) queue(rec *state.HostRecord, h policy.Host) []Ticket {
	if len(rec.Queue) == 0 {
		return nil
	}
	h.Residents = slices.Clone(h.Residents)
	for i := range h.Residents {
		r := &h.Residents[i]
		r.Kept = src.kept(rec, r.ID) > 0
	}
	step := policy.Next(h, time.UnixMilli(src.Snapshot.NowMS), 0)
	models := map[string]string{}
	for _, t := range rec.Queue {
		models[t.ID] = t.Model
	}
	var out []Ticket
	place := 0
	for _, t := range rec.Queue {
		row := Ticket{Model: t.Model, Kind: t.Kind, Host: rec.Name, State: "queued", Waiting: src.Waiting[t.Model], Gateways: t.Waiters, Since: t.Created}
		if t.PullOnly {
			row.Kind = "pull"
		}
		if t.State == state.TicketLoading {
			row.State = "loading"
		} else {
			place++
			row.Place, row.Head = place, place == 1
		}
		if st, loading := src.Stage(t.Model); loading && row.Kind == "load" && st.Host == rec.Name {
			row.State, row.ETA, row.Done, row.Total = st.Stage, api.Seconds(st.ETA), st.BytesDone, st.BytesTotal
		}
		row.Why = src.waitReason(rec, t, step, models)
		out = append(out, row)
	}
	return out
}

// kept returns how much longer its min_loaded keeps a model that others wait for, 0 if not at all.
func (src Source) kept(rec *state.HostRecord, id string) time.Duration {
	m, r := rec.Models[id], (*catalog.Model)(nil)
	if m != nil {
		r, _ = src.Catalog.Model(id)
	}
	if r == nil || m.State != policy.ModelLoaded || m.Fields[state.FieldMakesRoom] == "1" {
		return 0
	}
	loaded := time.UnixMilli(state.ParseNumber(m.Fields["loaded_ms"]))
	return max(0, loaded.Add(src.Catalog.MinLoaded(r)).Sub(time.UnixMilli(src.Snapshot.NowMS)))
}

// waitReason says what a ticket waits for.
func (src Source) waitReason(rec *state.HostRecord, t state.TicketRecord, step policy.QueueDecision, models map[string]string) string {
	switch {
	case t.State == state.TicketLoading && t.Kind == "load":
		return "its engine is starting"
	case rec.PowerOffPending():
		return "its host is not known to be off yet; then it is woken"
	case rec.State == policy.Asleep:
		return "its host is asleep and about to be woken"
	case rec.State == policy.Waking:
		return "its host is waking"
	case rec.State == policy.Lost:
		return "its host is lost: no heartbeat"
	case rec.State == policy.Draining:
		return "its host is draining: it stops, then wakes again"
	case t.Pulling:
		return "its weights are being fetched"
	case t.Kind != "load" || t.PullOnly:
		return "its turn comes when open requests and loads before it have ended"
	case step.Ticket == t.ID && step.Admission.Decision == policy.DecideRefuse:
		return "cannot be loaded here: " + step.Admission.Refusal.Reason().Detail
	case step.Ticket == t.ID:
		return "is next to start"
	}
	for _, w := range step.Waits {
		if w.Ticket != t.ID {
			continue
		}
		switch {
		case w.Behind != "":
			return "waits behind the load of " + models[w.Behind]
		case w.Reason.Code == policy.OneLoad:
			return "waits for the load of " + models[rec.Loading]
		case w.Reason.Code == policy.Stopping:
			return "waits until " + strings.Join(w.For, ", ") + " has stopped"
		case len(w.For) > 0:
			return "waits until " + src.describeBusy(rec, w.For)
		}
	}
	return "waits for its turn"
}

// describeBusy says when models may be stopped.
func (src Source) describeBusy(rec *state.HostRecord, ids []string) string {
	var out []string
	for _, id := range ids {
		word := id + " is idle"
		if m := rec.Models[id]; m != nil && m.InFlight > 0 {
			word = fmt.Sprintf("%s has finished its open requests (%d)", id, m.InFlight)
		} else if kept := src.kept(rec, id); kept > 0 {
			word = fmt.Sprintf("the min_loaded of %s is over (%v)", id, kept.Round(time.Second))
		}
		out = append(out, word)
	}
	return strings.Join(out, " and ")
}
