package state

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/infra/policy"
)

// LostAfter is how long a host may go without a heartbeat before readers consider it lost.
const LostAfter = 10 * time.Second

// Snapshot is the pool, or a part of it. Each host is shown as of one moment; hosts that were read together share it. A
// Snapshot is shared: do not change it.
type Snapshot struct {
	Revision uint64 // rises with every change in the pool; decisions carry RevisionOf
	Epoch    string // "" if Redis has no data of this pool
	Catalog  string // version of the published catalog
	NowMS    int64  // Redis' clock at the snapshot
	Taken    time.Time
	Hosts    map[string]*HostRecord
	Saved    map[string]string // the table SavedOptions
	Runtime  map[string]string // the table Runtime, likewise

	count     int      // number of hosts in the pool, including those not in Hosts
	gone      []string // requested hosts that are not in the pool
	names     []string // of Hosts, in order; nil if unknown
	revisions map[string]uint64

	writesRefused bool // Redis refused writes when it was read: a host's silence means nothing
}

// Name of the whole pool's revision, and prefix of a model's. A host's revision is in its record.
const (
	ofPool  = "pool"
	ofModel = "m:"
)

// RevisionOf returns the revision that a decision carries. It rises if anything changes on the host, or if the model is
// loaded, or its load queued, anywhere. Pass "" for decisions about only one of the two. In a Snapshot that does not
// come from a Store it returns Revision.
func (s *Snapshot) RevisionOf(host, model string) uint64 {
	if s.revisions == nil {
		return s.Revision
	}
	revision := max(s.revisions[ofPool], s.revisions[ofModel+model])
	if h := s.Hosts[host]; h != nil {
		revision = max(revision, h.revision)
	}
	return revision
}

// HostRecord is a host as Redis holds it.
type HostRecord struct {
	Name       string
	State      policy.HostState // Lost if a ready or draining host has sent no heartbeat for LostAfter
	Addr       string
	TLS        string // fingerprint of the runner's certificate, "" if it speaks no TLS
	Devices    string
	Labels     []string
	Limits     string
	Seats      string // JSON, "" if none
	Options    string // load options from the runner's flags, JSON
	Error      string // why the last wake failed
	Loading    string // ticket whose load is in progress
	Generation uint64
	SeenMS     int64
	ActiveMS   int64
	Models     map[string]*ModelRecord
	Queue      []TicketRecord // started tickets (the load first), then queued ones, in order
	Fields     map[string]string

	revision uint64
	readMS   int64 // Redis' clock when it was read
}

// isNotOlder reports whether h is not older than other.
func (h *HostRecord) isNotOlder(other *HostRecord) bool {
	return h.revision > other.revision || h.revision == other.revision && h.readMS >= other.readMS
}

// Stopping identifies the stop in progress on a sleeping host's machine, "" if there is none. If its sweep died, the
// stop is reported until the next one.
func (h *HostRecord) Stopping() string {
	if h.State != policy.Asleep {
		return ""
	}
	return h.Fields["stop_ms"]
}

// PowerOffPending reports whether the host sleeps and its machine is not known to be off.
func (h *HostRecord) PowerOffPending() bool {
	return h.State == policy.Asleep && h.Fields["sleep_token"] != ""
}

// Machine is the id of the machine that has claimed this slot of a group, "" for none and for a single host.
func (h *HostRecord) Machine() string { return h.Fields["machine"] }

// Proven reports whether Wake-on-LAN has woken the host since it is in the pool: its machine was turned off for a sleep,
// a magic packet was sent to it, and its runner registered.
func (h *HostRecord) Proven() bool { return h.Fields["proven"] != "" }

// ModelRecord is a model on a host, as its runner wrote it.
type ModelRecord struct {
	ID         string // of the record; that of a retired copy is not a model's
	Host       string
	Retired    string // model that it is an old copy of, only to finish its requests; "" for other copies
	State      policy.ModelState
	Type       string
	Recipe     string
	Device     string
	Checkpoint string
	BackendURL string
	Command    string
	PID        int
	InFlight   int
	UsedMS     int64
	NeededMS   int64 // policy.Resident.Needed
	LoadMS     int64
	Memory     int64
	Pinned     bool
	LoadPin    bool            // the load set Pinned, so it ends with this copy
	Options    json.RawMessage // object of the options in force
	Fields     map[string]string
}

// A LoadedPlan is the part of its runner's plan that gateways need of a loaded model. Zero means unknown.
type LoadedPlan struct {
	Parallel  int   `json:"parallel"`  // requests that it serves at the same time
	Longest   int64 `json:"longest"`   // tokens of the longest sequence that it takes
	Positions int64 `json:"positions"` // tokens of the longest sequence that it was trained for
}

// Plan reads the plan. It is zero if the record has none, or an invalid one.
func (m *ModelRecord) Plan() (p LoadedPlan) {
	if json.Unmarshal([]byte(m.Fields["plan"]), &p) != nil {
		return LoadedPlan{}
	}
	return p
}

// Hosts are read in pages of pageHosts, so that no script takes long: an empty host takes about 5 µs.
const pageHosts = 200

// Large reports whether the pool has so many hosts that a decision should read only those it is about.
func (s *Snapshot) Large() bool { return len(s.Hosts) > 32 }

// Names returns the names of the hosts in order. Do not change the slice.
func (s *Snapshot) Names() []string {
	if s.names != nil {
		return s.names
	}
	return slices.Sorted(maps.Keys(s.Hosts))
}

// Snapshot reads the pool.
func (s *Store) Snapshot(ctx context.Context) (*Snapshot, error) {
	out, top, err := s.readSnapshot(ctx, pageHosts, "")
	if err != nil {
		return nil, err
	}
	out.Saved, out.Runtime = fields(top[8]), fields(top[9])
	for hosts := range slices.Chunk(toStrings(top[7]), pageHosts) {
		page, err := s.SnapshotOf(ctx, hosts, nil)
		if err != nil {
			return nil, err
		}
		maps.Copy(out.Hosts, page.Hosts)
		maps.Copy(out.revisions, page.revisions)
	}
	out.names = out.Names()
	return out, nil
}

// SnapshotOf reads some hosts of the pool and those that have copies or loads of some models, at most pageHosts in
// total, in one step. It reads no tables.
func (s *Store) SnapshotOf(ctx context.Context, hosts, models []string) (*Snapshot, error) {
	args := make([]any, 0, 1+len(hosts)+len(models))
	args = append(args, len(hosts))
	for _, name := range slices.Concat(hosts, models) {
		args = append(args, name)
	}
	out, _, err := s.readSnapshot(ctx, pageHosts, args...)
	return out, err
}

// CheckFormat returns an error if the pool's state has another format than this program's. Where Redis does not respond
// it returns nil, since every script looks again.
func (s *Store) CheckFormat(ctx context.Context) error {
	if _, err := s.SnapshotOf(ctx, nil, nil); redis.HasErrorPrefix(err, wrongFormat) {
		return err
	}
	return nil
}

// hostSummaries shows which hosts must be read again.
type hostSummaries struct {
	epoch string
	pool  uint64                 // its revision
	hosts map[string]*HostRecord // with only State (Lost or not) and revision
}

func (s *Store) readSummaries(ctx context.Context) (hostSummaries, error) {
	out, top, err := s.readSnapshot(ctx, 0, "")
	if err != nil {
		return hostSummaries{}, err
	}
	p := hostSummaries{epoch: out.Epoch, pool: out.revisions[ofPool], hosts: map[string]*HostRecord{}}
	for part := range slices.Chunk(list(top[7]), 4) {
		if len(part) == 4 {
			name := text(part[0])
			p.hosts[name] = out.hostRecord(name, map[string]string{"state": text(part[1]), "seen_ms": text(part[2]), "rev": text(part[3])})
		}
	}
	return p, nil
}

// readSnapshot runs the script, for at most page hosts, and also returns the parts of its reply.
func (s *Store) readSnapshot(ctx context.Context, page int, hosts ...any) (out *Snapshot, top []any, err error) {
	reply, err := s.eval(ctx, "snapshot", append([]any{page}, hosts...)...)
	if err != nil {
		return nil, nil, fmt.Errorf("snapshot: %w", err)
	}
	top = list(reply)
	if len(top) != 10 {
		return nil, nil, fmt.Errorf("snapshot: a reply of %d parts, want 10", len(top))
	}
	out = &Snapshot{
		Revision: uint64(ParseNumber(text(top[0]))), NowMS: ParseNumber(text(top[1])), Epoch: text(top[2]), Catalog: text(top[3]), Taken: time.Now(),
		Hosts: make(map[string]*HostRecord, len(list(top[5]))),
		count: int(ParseNumber(text(top[4]))), revisions: map[string]uint64{}, writesRefused: s.breaker.writesRefused.Load(),
	}
	for name, rev := range fields(top[6]) {
		out.revisions[name] = uint64(ParseNumber(rev))
	}
	for _, h := range list(top[5]) {
		if err := out.add(list(h)); err != nil {
			return nil, nil, fmt.Errorf("snapshot: %w", err)
		}
	}
	return out, top, nil
}

// add adds a host as described by scripts.
func (s *Snapshot) add(parts []any) error {
	if len(parts) == 1 {
		s.gone = append(s.gone, text(parts[0]))
		return nil
	}
	if len(parts) != 4 {
		return fmt.Errorf("a host of %d parts, want 4", len(parts))
	}
	name := text(parts[0])
	host := s.hostRecord(name, fields(parts[1]))
	for m := range slices.Chunk(list(parts[2]), 2) {
		if len(m) < 2 {
			return errors.New("a model without fields")
		}
		if f, id := fields(m[1]), text(m[0]); len(f) > 0 {
			host.Models[id] = modelRecord(name, id, f)
		}
	}
	for t := range slices.Chunk(list(parts[3]), 3) {
		if len(t) < 3 {
			return errors.New("a ticket without fields")
		}
		if f, id := fields(t[2]), text(t[0]); len(f) > 0 {
			f["waiters"] = text(t[1])
			host.Queue = append(host.Queue, ticketRecord(id, f))
		}
	}
	s.Hosts[name] = host
	return nil
}

// carriedSnapshot returns the part of the pool that an event carries: its host, without the revisions of the pool and
// of models.
func carriedSnapshot(e Event) (*Snapshot, error) {
	var reply any
	if err := json.Unmarshal(e.Carries, &reply); err != nil {
		return nil, err
	}
	top := list(reply)
	if len(top) != 4 {
		return nil, fmt.Errorf("an event carries %d parts, want 4", len(top))
	}
	out := &Snapshot{NowMS: ParseNumber(text(top[0])), Epoch: text(top[1]), Catalog: text(top[2]), Hosts: map[string]*HostRecord{}}
	if err := out.add(list(top[3])); err != nil {
		return nil, err
	}
	return out, nil
}

// list, text and fields read parts of a script's reply; a part of the wrong type is empty.

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case int64:
		return strconv.FormatInt(v, 10)
	case float64: // JSON numbers
		return strconv.FormatInt(int64(v), 10)
	}
	return ""
}

// fields returns a hash given as name, value, name, value.
func fields(v any) map[string]string {
	flat := list(v)
	out := make(map[string]string, len(flat)/2)
	for i := 0; i+1 < len(flat); i += 2 {
		out[text(flat[i])] = text(flat[i+1])
	}
	return out
}

func (s *Snapshot) hostRecord(name string, f map[string]string) *HostRecord {
	h := &HostRecord{
		Name: name, State: policy.HostState(f["state"]), Addr: f["addr"], TLS: f["tls"], Devices: f["devices"], Limits: f["limits"], Seats: f["npu_seats"], Options: f["options"],
		Error: f["error"], Loading: f["loading"], Generation: uint64(ParseNumber(f["generation"])),
		SeenMS: ParseNumber(f["seen_ms"]), ActiveMS: ParseNumber(f["active_ms"]), Models: map[string]*ModelRecord{}, Fields: f,
		revision: uint64(ParseNumber(f["rev"])), readMS: s.NowMS,
	}
	if f["labels"] != "" {
		h.Labels = strings.Split(f["labels"], ",")
	}
	if h.State == "" {
		h.State = policy.Asleep
	}
	if (h.State == policy.Ready || h.State == policy.Draining) && s.NowMS-h.SeenMS > LostAfter.Milliseconds() && !s.writesRefused {
		h.State = policy.Lost
	}
	return h
}

func modelRecord(host, id string, f map[string]string) *ModelRecord {
	m := &ModelRecord{
		ID: id, Host: host, Retired: f["retired"], State: policy.ModelState(f["state"]), Type: f["type"], Recipe: f["recipe"], Device: f["device"], Checkpoint: f["checkpoint"],
		BackendURL: f["backend_url"], Command: f["cmd"], PID: int(ParseNumber(f["pid"])), InFlight: int(ParseNumber(f["in_flight"])),
		UsedMS: ParseNumber(f["used_ms"]), NeededMS: ParseNumber(f["needed_ms"]), LoadMS: ParseNumber(f["load_ms"]), Memory: ParseNumber(f["memory"]),
		Pinned: f["pinned"] == "1", LoadPin: f["load_pin"] == "1", Fields: f,
	}
	if json.Valid([]byte(f["options"])) {
		m.Options = json.RawMessage(f["options"])
	}
	return m
}

// Loaded returns the record of a model that is loaded on the host, or nil unless the host is ready.
func (h *HostRecord) Loaded(model string) *ModelRecord {
	if m := h.Models[model]; m != nil && m.State == policy.ModelLoaded && h.State == policy.Ready {
		return m
	}
	return nil
}

// Copies returns the records of a model that are loaded on ready hosts with an address, those with the fewest open
// requests first, then by host name.
func (s *Snapshot) Copies(model string) []*ModelRecord {
	var out []*ModelRecord
	for _, h := range s.Hosts {
		if m := h.Loaded(model); m != nil && h.Addr != "" {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b *ModelRecord) int {
		return cmp.Or(a.InFlight-b.InFlight, strings.Compare(a.Host, b.Host))
	})
	return out
}
