package state

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strconv"
)

// HostInfo is what a runner says of its host when it registers. All values are its own.
type HostInfo struct {
	Name       string
	Boot       string // changes with every start of the runner
	Addr       string // where gateways reach the runner, host:port
	Devices    string // space-separated
	Labels     string // comma-separated
	Limits     string // as --max-loaded-models
	Version    string
	Sandbox    string            // how engines are confined, as JSON
	NPUSeats   string            // NPU seats as JSON, "" none: then the catalogue's count
	Budget     string            // memory for models by device, "cpu=BYTES gpu=BYTES"; a device without one has no limit
	Total      string            // memory by device in the same form, where it is known
	Found      string            // each device that the machine has, as JSON, "" unknown
	Options    string            // load options of the runner's flags, JSON
	Learned    map[string]string // further fields: what loads taught, see Outcome
	Generation uint64            // highest generation that the runner knows of, 0 at its first start
	Owned      uint64            // last generation that this boot had, 0 at its first registration
	Models     []ModelPut
	NPU        string // models on the NPU, comma-separated
	Loading    string // ticket whose load is under way, "" none
}

// ModelPut is a record of a model on a host as its runner writes it.
type ModelPut struct {
	ID     string
	Fields map[string]string // as in the key table of this package; "type" is needed, used_age_ms becomes used_ms
}

// Register makes the caller the owner of its host's records, replacing those of an earlier generation, and returns its
// generation: a fencing token that all its later writes carry. It is repeated whenever Redis lost the host; ErrFenced: a
// later boot has taken the host since.
func (s *Store) Register(ctx context.Context, h HostInfo) (generation uint64, epoch string, err error) {
	fields := map[string]string{
		"addr": h.Addr, "addr_mac": s.signer.mac("addr", h.Name, h.Addr), "devices": h.Devices, "labels": h.Labels, "limits": h.Limits, "version": h.Version, "npu_seats": h.NPUSeats,
		"memory_budget": h.Budget, "memory_total": h.Total, "options": h.Options,
		"sandbox": h.Sandbox, "found": h.Found,
	}
	maps.Copy(fields, h.Learned)
	words, err := s.evalWords(ctx, s.scripts.register, h.Name, h.Boot, h.Generation, object(fields), records(h.Models), h.NPU, h.Loading, h.Owned)
	if err != nil {
		return 0, "", err
	}
	if len(words) != 2 {
		return 0, "", errors.New("state script register answered without a generation")
	}
	generation, err = strconv.ParseUint(words[0], 10, 64)
	return generation, words[1], err
}

// Beat says that the host lives and how many requests are open on each model, and returns the host's revision.
// ErrUnknownHost: register again, since Redis lost the host, took it for lost, or it had been written asleep and is wanted awake.
func (s *Store) Beat(ctx context.Context, host string, generation uint64, active bool, inFlight map[string]int) (revision uint64, err error) {
	args := make([]any, 0, 3+2*len(inFlight))
	args = append(args, host, generation, Flag(active))
	for m, n := range inFlight {
		args = append(args, m, n)
	}
	words, err := s.evalWords(ctx, s.scripts.beat, args...)
	if err != nil || len(words) != 1 {
		return 0, err
	}
	return uint64(Number(words[0])), nil
}

// PutModels writes records of models on the caller's host; npu are the models on its NPU, comma-separated. A last use never moves
// back. ErrUnknownHost: also for a host that is not awake.
func (s *Store) PutModels(ctx context.Context, host string, generation uint64, models []ModelPut, npu string) error {
	return s.evalWord(ctx, s.scripts.modelPut, host, generation, records(models), npu)
}

// records is how scripts take records.
func records(models []ModelPut) string {
	type record struct {
		ID     string            `json:"id"`
		Fields map[string]string `json:"fields"`
	}
	out := make([]record, 0, len(models))
	for _, m := range models {
		out = append(out, record(m))
	}
	text, _ := json.Marshal(out) // strings always marshal
	return string(text)
}

// DropModel removes a model whose process is gone. reason is for people; evicted counts it as an eviction.
func (s *Store) DropModel(ctx context.Context, host string, generation uint64, model, npu, reason string, evicted bool) error {
	return s.evalWord(ctx, s.scripts.modelDrop, host, generation, model, npu, reason, Flag(evicted))
}

// Begin takes a ticket out of the host's queue; repeating it is harmless. ErrDropped: nobody waits for it any more;
// ErrGone: it is not there; ErrBusy: another load is under way on the host.
func (s *Store) Begin(ctx context.Context, host string, generation uint64, ticket string) error {
	return s.evalWord(ctx, s.scripts.begin, host, generation, ticket)
}

// Outcome is how a ticket ended: ready, or failed with a code of the error table.
type Outcome struct {
	Failed bool
	Fields map[string]string // code, message, evicted, load_ms, cold

	// Learned are fields of the host that are written in the same step, and Models records, with which NPU are the models on
	// its NPU: whoever hears the outcome finds them.
	Learned map[string]string
	Models  []ModelPut
	NPU     string
}

// Finish ends a ticket and returns the gateways that still wait for it. ErrGone: it had ended before; when it had ended
// the same way, as after a reply that was lost, the gateways that waited then are returned beside the error.
func (s *Store) Finish(ctx context.Context, host string, generation uint64, ticket string, o Outcome) ([]string, error) {
	st := "ready"
	if o.Failed {
		st = "failed"
	}
	return s.evalWords(ctx, s.scripts.finish, host, generation, ticket, st, object(o.Fields), object(o.Learned), records(o.Models), o.NPU)
}

// SetHostState says that the host is draining, ready again (a drain called off), or asleep with all its models gone.
// Tickets stay queued for its next wake; unloads among them are ended as ready.
func (s *Store) SetHostState(ctx context.Context, host string, generation uint64, st string) error {
	return s.evalWord(ctx, s.scripts.hostState, host, generation, st)
}
