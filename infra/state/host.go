package state

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"
)

// HostInfo is what a runner reports about its host when it registers. All values are the runner's own.
type HostInfo struct {
	Name       string
	Boot       string // changes with every start of the runner
	Machine    string // id of the machine that claimed this slot of a group, "" for a single host
	Addr       string // host:port at which gateways reach the runner
	TLS        string // fingerprint of its certificate, "" if it speaks no TLS
	Devices    string // space-separated
	Labels     string // comma-separated
	Limits     string // in the form of --max-loaded-models
	Version    string
	Sandbox    string            // how engines are confined, as JSON
	NPUSeats   string            // NPU seats as JSON; "" means the catalog's count
	Budget     string            // memory for models by device, "cpu=BYTES gpu=BYTES gpu:0=BYTES"; a device not listed has no limit
	GPUAPI     string            // how single GPUs are selected for engines, such as "cuda"; "" if they cannot be
	Total      string            // memory by device in the same form, if known
	Found      string            // the machine's devices as JSON, "" if unknown
	Options    string            // load options from the runner's flags, JSON
	Learned    map[string]string // additional fields learned from loads, see Outcome
	Generation uint64            // highest generation that the runner knows, 0 at its first start
	Owned      uint64            // last generation of this boot, 0 at its first registration
	Models     []ModelPut
	Loading    string // ticket whose load is in progress, "" if none
}

// ModelPut is a record of a model on a host, as its runner writes it.
type ModelPut struct {
	ID     string            `json:"id"`
	Fields map[string]string `json:"fields"` // as in the key table of this package; "type" is required; used_age_ms is how long ago it was last used
}

// Register makes the caller the owner of its host's records, replacing those of an earlier generation. It returns the
// caller's generation, a fencing token that all its later writes carry. The runner repeats it whenever Redis has lost
// the host. ErrFenced: a later boot has since taken the host, or another machine its slot of a group.
func (s *Store) Register(ctx context.Context, h HostInfo) (generation uint64, epoch string, err error) {
	fields := map[string]string{
		"addr": h.Addr, "tls": h.TLS, "devices": h.Devices, "labels": h.Labels, "limits": h.Limits, "version": h.Version, "npu_seats": h.NPUSeats,
		"memory_budget": h.Budget, "memory_total": h.Total, "gpu_api": h.GPUAPI, "options": h.Options,
		"sandbox": h.Sandbox, "found": h.Found,
	}
	maps.Copy(fields, h.Learned)
	if h.Machine != "" {
		fields["machine"] = h.Machine
	}
	words, err := s.evalList(ctx, "register", h.Name, h.Boot, h.Generation, object(fields), records(h.Models), h.Loading, h.Owned)
	if err != nil {
		return 0, "", err
	}
	generation, err = strconv.ParseUint(words[0], 10, 64)
	return generation, words[1], err
}

// Use is what is open on a model of a host, how long ago it was last used, negative if an earlier beat said so, and how
// long ago it was needed (policy.Resident.Needed), negative if it never was.
type Use struct {
	Open      int
	Age       time.Duration
	NeededAge time.Duration
}

// Beat reports that the host is alive and how its models are used. It returns the host's revision and when each model
// was last used as Redis has it, by the caller's clock. ErrUnknownHost: the runner must register again, because Redis
// lost the host, considered it lost, or recorded it as asleep and now wants it awake.
func (s *Store) Beat(ctx context.Context, host string, generation uint64, active bool, uses map[string]Use) (
	revision uint64, used map[string]time.Time, err error) {
	args := make([]any, 0, 3+4*len(uses))
	args = append(args, host, generation, FormatBool(active))
	models := slices.Collect(maps.Keys(uses))
	for _, m := range models {
		args = append(args, m, uses[m].Open, ageMS(uses[m].Age), ageMS(uses[m].NeededAge))
	}
	now := time.Now()
	words, err := s.evalList(ctx, "beat", args...)
	if err != nil || len(words) != 1+len(models) {
		return 0, nil, err
	}
	used = make(map[string]time.Time, len(models))
	for i, m := range models {
		if age := words[1+i]; age != "" {
			used[m] = now.Add(-time.Duration(ParseNumber(age)) * time.Millisecond)
		}
	}
	return uint64(ParseNumber(words[0])), used, nil
}

// ageMS returns an age in milliseconds, -1 for a negative one.
func ageMS(age time.Duration) int64 {
	if age < 0 {
		return -1
	}
	return age.Milliseconds()
}

// PutModels writes records of models on the caller's host. A last use never moves back. ErrUnknownHost is also returned
// for a host that is not awake.
func (s *Store) PutModels(ctx context.Context, host string, generation uint64, models []ModelPut) error {
	return s.evalStatus(ctx, "model_put", host, generation, records(models))
}

// HostAddress returns the address with which a host's runner last registered, "" if none is known.
func (s *Store) HostAddress(ctx context.Context, host string) (string, error) {
	fields, err := s.hash(ctx, s.keys.host(host))
	return fields["addr"], err
}

// records encodes records for scripts.
func records(models []ModelPut) string {
	text, _ := json.Marshal(append([]ModelPut{}, models...)) // cannot fail for strings, and is [] for none
	return string(text)
}

// DropModel removes a model whose process has ended. reason is for people; evicted counts it as an eviction.
func (s *Store) DropModel(ctx context.Context, host string, generation uint64, model, reason string, evicted bool) error {
	return s.evalStatus(ctx, "model_drop", host, generation, model, reason, FormatBool(evicted))
}

// NPUSeat is what a load needs of its host's NPU. The zero value is none.
type NPUSeat struct {
	Seats   int      // models that can hold the NPU at the same time
	Type    string   // of the seats, "" for any
	Leaving []string // models that are stopped for the load
}

// Begin takes a ticket out of the host's queue, and a seat of the NPU for its load. Repeating it is harmless.
// ErrDropped: nobody waits for the ticket any more. ErrGone: it does not exist. ErrBusy: another load is in progress on
// the host. ErrNPUHeld: others have all seats. ErrNeeded: the ticket is for a spare copy (spare_ms), and no other copy is
// loaded, or the copy was needed since; otherwise the next of n copies can go spare_ms / n later.
func (s *Store) Begin(ctx context.Context, host string, generation uint64, ticket string, seat NPUSeat) error {
	args := []any{host, generation, ticket, "", seat.Type}
	if seat.Seats > 0 {
		args[3] = seat.Seats
	}
	for _, m := range seat.Leaving {
		args = append(args, m)
	}
	return s.evalStatus(ctx, "begin", args...)
}

// Outcome is how a ticket ended: ready, or failed with a code of the error table.
type Outcome struct {
	Failed bool
	Fields map[string]string // code, message, evicted, load_ms, cold

	// Learned holds fields of the host, Models records. They are written in the same step, so that everyone who learns
	// the outcome finds them.
	Learned map[string]string
	Models  []ModelPut
}

// Finish ends a ticket and returns the gateways that still wait for it. ErrGone: it had already ended. If it ended in
// the same way, as after a lost reply, the gateways that waited then are returned with the error.
func (s *Store) Finish(ctx context.Context, host string, generation uint64, ticket string, o Outcome) ([]string, error) {
	st := "ready"
	if o.Failed {
		st = "failed"
	}
	return s.evalList(ctx, "finish", host, generation, ticket, st, object(o.Fields), object(o.Learned), records(o.Models))
}

// SetHostState records that the host is draining, ready again (its drain was canceled), or asleep without any models.
// Tickets stay queued for its next wake, except unloads, which end as ready.
func (s *Store) SetHostState(ctx context.Context, host string, generation uint64, st string) error {
	return s.evalStatus(ctx, "host_state", host, generation, st)
}
