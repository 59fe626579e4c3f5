package ui

import (
	"fmt"
	"strings"
	"time"

	"reveille/gateway/api"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// queue lists a host's tickets in their order.
func (src Source) queue(rec *state.HostRecord, h policy.Host) []Ticket {
	if len(rec.Queue) == 0 {
		return nil
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
		row.Why = waitReason(rec, t, step, models)
		out = append(out, row)
	}
	return out
}

// waitReason says what a ticket waits for.
func waitReason(rec *state.HostRecord, t state.TicketRecord, step policy.QueueDecision, models map[string]string) string {
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
			return "waits until " + describeBusy(rec, w.For) + ": a busy model is not stopped"
		}
	}
	return "waits for its turn"
}

// describeBusy names models with their open requests.
func describeBusy(rec *state.HostRecord, ids []string) string {
	var out []string
	for _, id := range ids {
		word := id + " is idle"
		if m := rec.Models[id]; m != nil && m.InFlight > 0 {
			word = fmt.Sprintf("%s has finished its open requests (%d)", id, m.InFlight)
		}
		out = append(out, word)
	}
	return strings.Join(out, " and ")
}
