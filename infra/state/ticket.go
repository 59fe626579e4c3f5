package state

import (
	"context"
	"strconv"
	"time"

	"reveille/infra/policy"
	"reveille/infra/rpc"
)

// Leases of a gateway, renewed by Renew. A gateway that stops renewing is forgotten when they expire.
const (
	WaiterLease = 15 * time.Second
	WakeLease   = 15 * time.Second
)

// Want is a gateway's request for a ticket.
type Want struct {
	Gateway    string
	Model      string
	Unload     bool              // the ticket unloads instead of loading
	Host       string            // placement decided on a snapshot; "" to attach only
	Revision   uint64            // of host and model in that snapshot, see Snapshot.RevisionOf; for an unload, of the host alone
	HostState  policy.HostState  // for a host that changes too fast: it must be in this state, and Revision covers only the model; "" if any
	Unattended bool              // nobody waits: the ticket is carried out anyway
	Priority   string            // high, low, or "" for normal: the load goes before those of a lower one in the host's queue
	Anew       bool              // a ticket even if a copy is recorded as loaded: its runner just refused it
	OwnTicket  bool              // a ticket to which no other call attaches: of a management call, or for a further copy
	Fields     map[string]string // options, force, pinned … for the runner
	Operation  string            // operation id: a repeated call returns the first ticket; "" if none
	Replaces   string            // ticket on a lost host, dropped when the new one is created; "" if none
}

// Acquired is the result of a Want.
type Acquired struct {
	Status    string      `json:"status"` // loaded, attached, created, none (nothing to attach to, or nothing to replace)
	Host      string      `json:"host"`
	Ticket    string      `json:"ticket"`
	State     TicketState `json:"state"`    // TicketReady for an unload where nothing is loaded; final if an operation is repeated late
	Position  int         `json:"position"` // in the host's queue from 1; 0 when loading
	WakeToken string      `json:"wake"`     // the caller holds the host's power lease; "" if not
}

// Acquire attaches the gateway to the single load ticket for a model, or creates one. A new ticket's number is higher
// than that of every ticket this Store got before, even after Redis lost its data. ErrStale: the placement was made on
// an old snapshot, and nothing changed.
func (s *Store) Acquire(ctx context.Context, w Want) (Acquired, error) {
	kind := "load"
	if w.Unload {
		kind = "unload"
	}
	var out Acquired
	err := s.evalJSON(ctx, &out, "acquire", w.Gateway, w.Model, kind, w.Host, w.Revision, WaiterLease.Milliseconds(), FormatBool(w.Unattended),
		FormatBool(w.Anew), FormatBool(w.OwnTicket), object(w.Fields), w.Operation, WakeLease.Milliseconds(), w.Replaces, s.newest.Load(), string(w.HostState), int(rpc.ParsePriority(w.Priority)))
	s.noteTicket(out.Ticket)
	if err == nil && out.Status == "stale" {
		err = ErrStale
	}
	return out, err
}

// noteTicket records the highest ticket.
func (s *Store) noteTicket(id string) {
	n, _ := strconv.ParseUint(id, 10, 64) // 0 for none
	for old := s.newest.Load(); n > old && !s.newest.CompareAndSwap(old, n); {
		old = s.newest.Load()
	}
}

// TicketState is a state in the life of a ticket.
type TicketState string

// States of a ticket; the last three are outcomes.
const (
	TicketQueued  TicketState = "queued"
	TicketLoading TicketState = "loading" // its host carries it out, be it a load or an unload
	TicketReady   TicketState = "ready"
	TicketFailed  TicketState = "failed"
	TicketDropped TicketState = "dropped"
)

// TicketRecord is a ticket as Redis holds it.
type TicketRecord struct {
	ID        string
	Kind      string // load or unload
	Model     string
	Host      string
	State     TicketState
	Code      string // of the error table, if it failed
	Message   string
	Evicted   string // models evicted for it, comma-separated
	Options   string // JSON of the request's options
	Force     bool
	WakeError bool // the host could not be woken
	LoadMS    int64
	Created   int64 // ms since the epoch
	Waiters   int   // waiting gateways; known only in snapshots
	Pulling   bool  // queued while its weights are downloaded; Pulled has the progress
	Pulled    Pulled
	PullOnly  bool // only the weights are wanted on the host, not a load
	NoEvict   bool // the load fails unless there is room for the model without any other's end
	Fields    map[string]string
}

// FieldNoEvict is the field of a [Want] for [TicketRecord.NoEvict]: "1".
const FieldNoEvict = "no_evict"

// FieldMakesRoom is a field of a model's record: "1" if the copy was loaded with FieldNoEvict, and only requests in the
// background have used it. FieldUnusedMS is the field of a [Want] that unloads such a copy if none of these was open for
// so many milliseconds.
const (
	FieldMakesRoom = "makes_room"
	FieldUnusedMS  = "unused_ms"
)

func ticketRecord(id string, f map[string]string) TicketRecord {
	return TicketRecord{
		ID: id, Kind: f["kind"], Model: f["model"], Host: f["host"], State: TicketState(f["state"]), Code: f["code"], Message: f["message"],
		Evicted: f["evicted"], Options: f["options"], Force: f["force"] == "1", WakeError: f["wake_failed"] == "1",
		Pulling: f["pulling"] == "1" && f["state"] == "queued", Pulled: Pulled{Done: ParseNumber(f["bytes_done"]), Total: ParseNumber(f["bytes_total"])}, PullOnly: f["pull_only"] == "1", NoEvict: f[FieldNoEvict] == "1",
		LoadMS: ParseNumber(f["load_ms"]), Created: ParseNumber(f["created_ms"]), Waiters: int(ParseNumber(f["waiters"])), Fields: f,
	}
}

// Done reports whether the ticket has an outcome.
func (t TicketRecord) Done() bool {
	return t.State == TicketReady || t.State == TicketFailed || t.State == TicketDropped
}

// TicketStatus is the state of a ticket that the gateway waits for.
type TicketStatus struct {
	Ticket    string
	Found     bool // false: dropped long ago, or lost with Redis' data; acquire again
	Record    TicketRecord
	Position  int
	Waiting   int    // requests that wait for it at all gateways, as of their last renewals
	WakeToken string // the host's power lease has passed to the caller
}

// Renewal renews a gateway's lease as a waiter of a ticket.
type Renewal struct {
	Ticket  string
	Waiting int // requests of the gateway that wait for it
}

// Renew keeps the gateway a waiter of tickets and returns the tickets' states, in the order of the arguments.
func (s *Store) Renew(ctx context.Context, gateway string, renewals ...Renewal) ([]TicketStatus, error) {
	args := make([]any, 0, 3+2*len(renewals))
	args = append(args, gateway, WaiterLease.Milliseconds(), WakeLease.Milliseconds())
	for _, r := range renewals {
		args = append(args, r.Ticket, r.Waiting)
	}
	var raw []struct {
		Ticket   string            `json:"ticket"`
		Found    bool              `json:"found"`
		Fields   map[string]string `json:"fields"`
		Position int               `json:"position"`
		Waiting  int               `json:"waiting"`
		Wake     string            `json:"wake"`
	}
	if err := s.evalJSON(ctx, &raw, "renew", args...); err != nil {
		return nil, err
	}
	out := make([]TicketStatus, len(raw))
	for i, r := range raw {
		out[i] = TicketStatus{Ticket: r.Ticket, Found: r.Found, Record: ticketRecord(r.Ticket, r.Fields), Position: r.Position, Waiting: r.Waiting, WakeToken: r.Wake}
	}
	return out, nil
}

// ReleaseTicket gives up the gateway's place in a ticket. If it was the last waiter and the load has not started, the
// ticket is dropped, unless keep makes the load continue without a waiter.
func (s *Store) ReleaseTicket(ctx context.Context, gateway, ticket string, keep bool) error {
	_, err := s.eval(ctx, "leave", gateway, ticket, FormatBool(keep))
	return err
}

// DropUnwaited drops a ticket for which nobody waits and whose load has not started. ErrGone: the ticket does not
// exist.
func (s *Store) DropUnwaited(ctx context.Context, who, ticket string) error {
	switch word, err := s.eval(ctx, "leave", who, ticket, FormatBool(false)); {
	case err != nil:
		return err
	case word != "dropped":
		return ErrGone
	}
	return nil
}

// RenewWake keeps a host's power lease. ErrAwake: the host is awake. ErrNotOwner: another has taken over.
func (s *Store) RenewWake(ctx context.Context, host, token string) error {
	return s.evalStatus(ctx, "wake", host, token, "renew", WakeLease.Milliseconds(), "", "")
}

// ReleaseWake returns a host's power lease, so that anyone who waits for the host can take it. ErrAwake: the host
// is awake. ErrNotOwner: another has the lease.
func (s *Store) ReleaseWake(ctx context.Context, host, token string) error {
	return s.evalStatus(ctx, "wake", host, token, "leave", 0, "", "")
}

// FailWake gives up a host's power lease and records the reason. Tickets that wait for the host fail with it.
func (s *Store) FailWake(ctx context.Context, host, token, code, message string) error {
	return s.evalStatus(ctx, "wake", host, token, "failed", 0, code, message)
}

// EndOverdueWake is FailWake for a wake that was not refused: the machine may be on, so a sweep turns it off.
func (s *Store) EndOverdueWake(ctx context.Context, host, token, code, message string) error {
	return s.evalStatus(ctx, "wake", host, token, "overdue", 0, code, message)
}

// ClaimWake offers to wake a host that is not awake but has loads queued, in case the previous lease holder is gone. It
// returns the token of the power lease, or "" if the host is awake, another has the lease, or nothing is wanted there.
// It drops loads without waiters.
func (s *Store) ClaimWake(ctx context.Context, gateway, host string) (token string, err error) {
	return s.claim(ctx, gateway, host, false)
}

// ForceWake is ClaimWake for an operator who wants the host awake although nothing is queued there.
func (s *Store) ForceWake(ctx context.Context, gateway, host string) (token string, err error) {
	return s.claim(ctx, gateway, host, true)
}

func (s *Store) claim(ctx context.Context, gateway, host string, forced bool) (token string, err error) {
	out, err := s.eval(ctx, "claim", host, gateway, WakeLease.Milliseconds(), FormatBool(forced))
	token, _ = out.(string)
	return token, err
}

// ParseNumber parses a whole number of a record, or returns 0 for anything else.
func ParseNumber(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}
