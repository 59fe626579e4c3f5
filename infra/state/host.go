package state

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strconv"
)

// HostInfo is what a runner reports about its host when it registers. All values are the runner's own.
type HostInfo struct {
	Name       string
	Boot       string // changes with every start of the runner
	Addr       string // host:port at which gateways reach the runner
	Devices    string // space-separated
	Labels     string // comma-separated
	Limits     string // in the form of --max-loaded-models
	Version    string
	Sandbox    string            // how engines are confined, as JSON
	NPUSeats   string            // NPU seats as JSON; "" means the catalogue's count
	Budget     string            // memory for models by device, "cpu=BYTES gpu=BYTES gpu:0=BYTES"; a device not listed has no limit
	GPUAPI     string            // how engines are told of single GPUs, such as "cuda"; "" if they cannot be
	Total      string            // memory by device in the same form, if known
	Found      string            // the machine's devices as JSON, "" if unknown
	Options    string            // load options from the runner's flags, JSON
	Learned    map[string]string // additional fields learned from loads, see Outcome
	Generation uint64            // highest generation that the runner knows, 0 at its first start
	Owned      uint64            // last generation of this boot, 0 at its first registration
	Models     []ModelPut
	NPU        string // models on the NPU, comma-separated
	Loading    string // ticket whose load is in progress, "" if none
}

// ModelPut is a record of a model on a host, as its runner writes it.
type ModelPut struct {
	ID     string
	Fields map[string]string // as in the key table of this package; "type" is required, used_age_ms becomes used_ms
}

// Register makes the caller the owner of its host's records, replacing those of an earlier generation. It returns the
// caller's generation, a fencing token that all its later writes carry. The runner repeats it whenever Redis has lost
// the host. ErrFenced: a later boot has since taken the host.
func (s *Store) Register(ctx context.Context, h HostInfo) (generation uint64, epoch string, err error) {
	fields := map[string]string{
		"addr": h.Addr, "addr_mac": s.signer.mac("addr", h.Name, h.Addr), "devices": h.Devices, "labels": h.Labels, "limits": h.Limits, "version": h.Version, "npu_seats": h.NPUSeats,
		"memory_budget": h.Budget, "memory_total": h.Total, "gpu_api": h.GPUAPI, "options": h.Options,
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

// Beat reports that the host is alive and how many requests are open on each model, and returns the host's revision.
// ErrUnknownHost: the runner must register again, because Redis lost the host, considered it lost, or recorded it as
// asleep and now wants it awake.
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

// PutModels writes records of models on the caller's host. npu lists the models on its NPU, comma-separated. A last use
// never moves back. ErrUnknownHost is also returned for a host that is not awake.
func (s *Store) PutModels(ctx context.Context, host string, generation uint64, models []ModelPut, npu string) error {
	return s.evalWord(ctx, s.scripts.modelPut, host, generation, records(models), npu)
}

// records encodes records for scripts.
func records(models []ModelPut) string {
	type record struct {
		ID     string            `json:"id"`
		Fields map[string]string `json:"fields"`
	}
	out := make([]record, 0, len(models))
	for _, m := range models {
		out = append(out, record(m))
	}
	text, _ := json.Marshal(out) // cannot fail for strings
	return string(text)
}

// DropModel removes a model whose process has ended. reason is for people; evicted counts it as an eviction.
func (s *Store) DropModel(ctx context.Context, host string, generation uint64, model, npu, reason string, evicted bool) error {
	return s.evalWord(ctx, s.scripts.modelDrop, host, generation, model, npu, reason, Flag(evicted))
}

// Begin takes a ticket out of the host's queue. Repeating it is harmless. ErrDropped: nobody waits for the ticket any
// more. ErrGone: it does not exist. ErrBusy: another load is in progress on the host.
func (s *Store) Begin(ctx context.Context, host string, generation uint64, ticket string) error {
	return s.evalWord(ctx, s.scripts.begin, host, generation, ticket)
}

// Outcome is how a ticket ended: ready, or failed with a code of the error table.
type Outcome struct {
	Failed bool
	Fields map[string]string // code, message, evicted, load_ms, cold

	// Learned holds fields of the host, Models records, and NPU the models on its NPU if there are records. They are
	// written in the same step, so that everyone who learns the outcome finds them.
	Learned map[string]string
	Models  []ModelPut
	NPU     string
}

// Finish ends a ticket and returns the gateways that still wait for it. ErrGone: it had already ended. If it ended in
// the same way, as after a lost reply, the gateways that waited then are returned with the error.
func (s *Store) Finish(ctx context.Context, host string, generation uint64, ticket string, o Outcome) ([]string, error) {
	st := "ready"
	if o.Failed {
		st = "failed"
	}
	return s.evalWords(ctx, s.scripts.finish, host, generation, ticket, st, object(o.Fields), object(o.Learned), records(o.Models), o.NPU)
}

// SetHostState records that the host is draining, ready again (its drain was cancelled), or asleep without any models.
// Tickets stay queued for its next wake, except unloads, which end as ready.
func (s *Store) SetHostState(ctx context.Context, host string, generation uint64, st string) error {
	return s.evalWord(ctx, s.scripts.hostState, host, generation, st)
}
