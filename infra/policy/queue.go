package policy

import (
	"slices"
	"time"
)

// MaxOvertaken is how many later loads may overtake a ticket that waits for a busy victim (rule 5).
const MaxOvertaken = 8

// QueueDecision is what a host's queue does next. The caller first applies Close and Reopen, then starts or refuses
// Ticket. It asks again after every event on the host (a request ends, a process exits, a ticket arrives or is dropped,
// a load ends) and at Again.
type QueueDecision struct {
	Ticket    string    // the ticket to start or to refuse now; "" if none
	Admission Admission // of Ticket: DecideLoad or DecideRefuse. Its Close is empty: use QueueDecision.Close
	Overtakes []string  // tickets that Ticket overtakes: each one's Overtaken grows by one
	Close     []string  // models that take no new request from now on
	Reopen    []string  // closed models for which no ticket waits any more
	Waits     []Waiting // the other tickets that wait, in queue order, without those that a later call will refuse
	Again     time.Time // when the decision changes without an event; zero for never
}

// Waiting is why a ticket stays in the queue.
type Waiting struct {
	Ticket    string
	Unblocked bool     // it waits for models, not behind another ticket: if its Since is zero, the caller sets it to the time of this decision
	For       []string // models whose slot or memory it waits for
	Behind    string   // earlier ticket that it must not overtake, "" if none
	Reason    Reason
}

// earlier is a ticket that later ones must not delay.
type earlier struct {
	ticket  *Ticket
	victims []Resident
}

// Next decides which ticket of h.Queue starts now.
//
// The first ticket that can load without waiting starts. It may overtake earlier tickets only if (rule 5) its type
// differs from all of theirs, loading it does not raise the number of models that any of them must evict, none of them
// would have to evict it, and none has been overtaken MaxOvertaken times. Nothing starts while a load is in progress. A
// ticket that can never be served is refused, one for each call, whatever its position and whatever is loading.
//
// A ticket that waits for models rather than behind another ticket is unblocked. After fairAfter its busy victims are
// closed (rule 4). A closed model is reopened unless it is a victim of an unblocked ticket, of the ticket that starts,
// or of one that waits only because another load runs or starts first.
//
// A ticket for a resident model is a reload. The caller must first remove tickets that the resident copy satisfies.
func Next(h Host, now time.Time, fairAfter time.Duration) QueueDecision {
	var (
		s       QueueDecision
		ahead   []earlier
		claimed []Resident // victims of the tickets that wait for models, start now, or wait only for another load
	)
	for i := range h.Queue {
		t := &h.Queue[i]
		victims, gpus, refusal := findVictims(&h, &t.Model)
		if refusal != nil {
			if s.Ticket == "" {
				s.Ticket, s.Admission = t.ID, admission(nil, refusal, false)
			}
			continue
		}
		waited := waitedFor(t, now)
		a := admission(victims, nil, waited >= fairAfter)
		a.GPUMemory = gpus
		w := Waiting{Ticket: t.ID, For: a.WaitFor, Reason: a.Reason}
		blocker := blockedBy(&h, ahead, t, victims, gpus)
		switch {
		case blocker != "":
			w.Behind, w.Reason = blocker, Reason{Code: Behind, Detail: "waits behind " + blocker}
		case a.Decision == DecideWait:
			w.Unblocked = true
			for _, id := range a.Close {
				if !slices.Contains(s.Close, id) {
					s.Close = append(s.Close, id)
				}
			}
			claimed = append(claimed, victims...)
			if waited < fairAfter && a.Reason.Code == BusyVictim {
				s.Again = sooner(s.Again, now.Add(fairAfter-waited))
			}
		case h.Loading != "":
			w.Reason = Reason{Code: OneLoad, Detail: "waits for the load of " + h.Loading}
			claimed = append(claimed, victims...)
		case s.Ticket != "":
			w.Behind, w.Reason = s.Ticket, Reason{Code: Behind, Detail: "waits behind " + s.Ticket}
			claimed = append(claimed, victims...)
		case overtakenTooOften(ahead) != "":
			w.Behind = overtakenTooOften(ahead)
			w.Reason = Reason{Code: Behind, Detail: w.Behind + " may not be overtaken again"}
		default:
			s.Ticket, s.Admission = t.ID, a
			for _, e := range ahead {
				s.Overtakes = append(s.Overtakes, e.ticket.ID)
			}
			claimed = append(claimed, victims...)
			ahead = append(ahead, earlier{t, victims})
			continue
		}
		s.Waits = append(s.Waits, w)
		ahead = append(ahead, earlier{t, victims})
	}
	s.Reopen = closedExcept(&h, claimed)
	return s
}

// blockedBy returns the first of the tickets ahead that loading t first would harm, "" if none.
func blockedBy(h *Host, ahead []earlier, t *Ticket, victims []Resident, gpus GPUMemory) string {
	if len(ahead) == 0 {
		return ""
	}
	for _, e := range ahead {
		if e.ticket.Model.Type == t.Model.Type {
			return e.ticket.ID
		}
	}
	next := after(h, &t.Model, victims, gpus)
	for _, e := range ahead {
		needed, _, refusal := findVictims(&next, &e.ticket.Model)
		if refusal != nil || len(needed) > len(e.victims) || contains(needed, t.Model.ID) {
			return e.ticket.ID
		}
	}
	return ""
}

func overtakenTooOften(ahead []earlier) string {
	i := slices.IndexFunc(ahead, func(e earlier) bool { return e.ticket.Overtaken >= MaxOvertaken })
	if i < 0 {
		return ""
	}
	return ahead[i].ticket.ID
}

// waitedFor returns the time since t was first unblocked: 0 if it never was, or if its Since is in the future.
func waitedFor(t *Ticket, now time.Time) time.Duration {
	if t.Since.IsZero() {
		return 0
	}
	return max(0, now.Sub(t.Since))
}

// sooner returns the earlier of two times. A zero time does not count.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
