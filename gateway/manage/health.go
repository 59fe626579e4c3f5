package manage

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"reveille/gateway/scheduling"
	"reveille/gateway/ui"
	"reveille/gateway/web"
	"reveille/infra/catalog"
	"reveille/infra/placement"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/state"
)

// HealthReport is the response of GET /health.
type HealthReport struct {
	Status  string              `json:"status"`
	Version string              `json:"version"`
	Model   *string             `json:"model_loaded"` // the one that was loaded last
	Loaded  []LoadedModel       `json:"all_models_loaded"`
	Retired []LoadedModel       `json:"models_retired"` // copies of outdated catalog entries, which finish their requests
	Loading []LoadingModel      `json:"models_loading"`
	Max     map[policy.Type]int `json:"max_models,omitempty"` // loaded at a time, by type; absent until a host has reported
	Queue   int                 `json:"queue_length"`
	Runners []RunnerInfo        `json:"runners"`
}

// LoadedModel is a copy of a model that is ready to serve, or a retired one.
type LoadedModel struct {
	Name       string          `json:"model_name"`
	Checkpoint string          `json:"checkpoint"`
	Recipe     string          `json:"recipe"`
	LastUse    float64         `json:"last_use"` // Unix seconds
	Type       string          `json:"type"`
	Device     string          `json:"device"`
	BackendURL string          `json:"backend_url"`
	Options    json.RawMessage `json:"recipe_options"`
	Pinned     bool            `json:"pinned"`
	Busy       bool            `json:"is_busy"`
	PID        int             `json:"pid"`
	Runner     string          `json:"runner"`
	Expires    *float64        `json:"idle_expires_at"` // Unix seconds; null: it stays, or this gateway does not know
	LoadMS     int64           `json:"load_ms"`
	Plan       json.RawMessage `json:"plan,omitempty"` // how its runner planned the load

	loadedMS int64 // when its load ended
}

// LoadingModel is a model that is queued or loading.
type LoadingModel struct {
	Name    string  `json:"model_name"`
	Type    string  `json:"type"`
	State   string  `json:"state"`
	Since   float64 `json:"since"` // Unix seconds
	Waiting int     `json:"waiting"`
}

type RunnerInfo struct {
	ID      string           `json:"id"`
	State   policy.HostState `json:"state"`
	Devices string           `json:"devices"`
	// Sandbox says how the host's engines are confined: mode, the active measures, and the missing ones with the
	// reason. Absent for a host that has not registered.
	Sandbox json.RawMessage `json:"sandbox,omitempty"`
	// Found lists the devices that the host's runner found, and those it did not find. Absent for a host that has not
	// registered.
	Found           json.RawMessage `json:"found,omitempty"`
	PowerOffPending bool            `json:"power_off_pending,omitempty"` // asleep, but its machine may still be on
	Unproven        bool            `json:"unproven,omitempty"`          // it is not put to sleep before Wake-on-LAN has woken it once
	Boot            *BootInfo       `json:"boot,omitempty"`              // what its machine says of its start; absent once its runner is up
}

// BootInfo is how the start of a host's machine goes.
type BootInfo struct {
	State  string  `json:"state"`            // booting or failed
	Reason string  `json:"reason,omitempty"` // why it failed
	Since  float64 `json:"since"`            // Unix seconds
}

// maxDescription bounds what a runner reports of its devices and its sandbox, in bytes.
const maxDescription = 64 << 10

// Health is GET /health: what is loaded, what is being loaded, and what could be. While the pool's state is
// unavailable, it responds from the mirror.
func (s *Service) Health(r *web.Request) error {
	snap, _ := s.registry.Fresh() // /ready shows a missing store
	cat := s.cfg.Catalog()
	h := HealthReport{
		Status: "ok", Version: s.cfg.Version, Loaded: s.loaded(r, snap, cat), Loading: s.loading(r, snap, cat), Runners: runnersOf(snap, cat),
		Max:     maxModels(snap),
		Retired: s.copies(r, snap, cat, func(m *state.ModelRecord) bool { return m.Retired != "" }),
	}
	if len(h.Loaded) > 0 {
		latest := slices.MaxFunc(h.Loaded, func(a, b LoadedModel) int { return cmp.Compare(a.loadedMS, b.loadedMS) })
		h.Model = &latest.Name
	}
	for _, n := range s.cfg.Gate.Waiting() {
		h.Queue += n
	}
	if !r.Manages() {
		h.redact()
	}
	return r.Reply(fasthttp.StatusOK, h)
}

// loaded lists the copies that are ready to serve, the most recently used first.
func (s *Service) loaded(r *web.Request, snap *state.Snapshot, cat *catalog.Catalog) []LoadedModel {
	return s.copies(r, snap, cat, func(m *state.ModelRecord) bool { return m.State == policy.ModelLoaded })
}

func (s *Service) copies(r *web.Request, snap *state.Snapshot, cat *catalog.Catalog, match func(*state.ModelRecord) bool) []LoadedModel {
	out := []LoadedModel{}
	for _, h := range snap.Hosts {
		for _, m := range h.Models {
			if match(m) && h.State == policy.Ready && r.Key.Allows(cmp.Or(m.Retired, m.ID)) {
				one := s.loadedModel(snap, cat, h, m)
				if r.Key.Limited() {
					one.Plan = nil // its warnings name other models
				}
				out = append(out, one)
			}
		}
	}
	slices.SortFunc(out, func(a, b LoadedModel) int {
		return cmp.Or(cmp.Compare(b.LastUse, a.LastUse), strings.Compare(a.Name, b.Name), strings.Compare(a.Runner, b.Runner))
	})
	return out
}

func (s *Service) loadedModel(snap *state.Snapshot, cat *catalog.Catalog, h *state.HostRecord, m *state.ModelRecord) LoadedModel {
	used, own := s.registry.Uses.LastOn(m, h.Name)
	out := LoadedModel{
		Name: cmp.Or(m.Retired, m.ID), Checkpoint: m.Checkpoint, Recipe: m.Recipe, LastUse: float64(used) / 1e6, Type: m.Type, Device: m.Device,
		BackendURL: m.BackendURL, Options: m.Options, Pinned: s.registry.IsPinned(cat, m), PID: m.PID,
		Runner: h.Name, LoadMS: m.LoadMS, loadedMS: state.ParseNumber(m.Fields["loaded_ms"]),
	}
	// A runner's count from its last heartbeat may include requests of ours that have ended since.
	out.Busy = s.cfg.Gate.InFlight(h.Name, m.ID) > 0 || m.InFlight > 0 && !(own && used >= h.SeenMS*1000)
	if out.Options == nil {
		out.Options = json.RawMessage("{}")
	}
	if plan := []byte(m.Fields["plan"]); json.Valid(plan) {
		out.Plan = plan
	}
	if idle, known := s.registry.IdleTime(cat, m.ID); known && !out.Pinned && idle >= 0 && m.Retired == "" {
		at := float64(used+idle.Microseconds()) / 1e6
		out.Expires = &at
	}
	return out
}

// PageModel is a loaded or retired copy as the page shows it.
func (s *Service) PageModel(snap *state.Snapshot, cat *catalog.Catalog, h *state.HostRecord, m *state.ModelRecord) ui.Model {
	l := s.loadedModel(snap, cat, h, m)
	out := ui.Model{ID: l.Name, Busy: l.Busy, Pinned: l.Pinned, Used: int64(l.LastUse * 1000)}
	if l.Expires != nil {
		out.Until = int64(*l.Expires * 1000)
	}
	return out
}

func seconds(ms int64) float64 { return float64(ms) / 1000 }

// loading lists the models that are queued or loading, by name.
func (s *Service) loading(r *web.Request, snap *state.Snapshot, cat *catalog.Catalog) []LoadingModel {
	waiting := s.cfg.Gate.Waiting()
	found := map[string]LoadingModel{}
	for _, h := range snap.Hosts {
		for _, t := range h.Queue {
			if old, there := found[t.Model]; t.Kind == "load" && (!there || seconds(t.Created) < old.Since) {
				found[t.Model] = LoadingModel{Name: t.Model, State: scheduling.StageOf(h, t), Since: seconds(t.Created)}
			}
		}
	}
	for id := range waiting {
		if _, there := found[id]; !there { // not yet placed
			found[id] = LoadingModel{Name: id, State: "queued", Since: seconds(snap.NowMS)}
		}
	}
	out := make([]LoadingModel, 0, len(found))
	for _, id := range slices.Sorted(maps.Keys(found)) {
		if !r.Key.Allows(id) {
			continue
		}
		m := found[id]
		m.Waiting = waiting[id]
		if entry, there := cat.Model(id); there {
			m.Type = string(entry.Type)
		}
		out = append(out, m)
	}
	return out
}

// runnersOf lists the pool's hosts by name, including those that never registered.
func runnersOf(snap *state.Snapshot, cat *catalog.Catalog) []RunnerInfo {
	found := map[string]RunnerInfo{}
	for _, h := range cat.Hosts {
		found[h.Name] = RunnerInfo{ID: h.Name, State: policy.Asleep, Devices: h.Devices.String()}
	}
	for name, h := range snap.Hosts {
		kinds := h.Devices
		if kinds == "" {
			kinds = found[name].Devices
		}
		info := RunnerInfo{ID: name, State: h.State, Devices: kinds, PowerOffPending: h.PowerOffPending(), Unproven: placement.Unproven(cat, h)}
		for field, into := range map[string]*json.RawMessage{"sandbox": &info.Sandbox, "found": &info.Found} {
			if text := []byte(h.Fields[field]); len(text) <= maxDescription && json.Valid(text) {
				*into = text
			}
		}
		if b := h.Boot(); b.State != "" {
			info.Boot = &BootInfo{b.State, b.Reason, seconds(b.AtMS)}
		}
		found[name] = info
	}
	out := make([]RunnerInfo, 0, len(found))
	for _, name := range slices.Sorted(maps.Keys(found)) {
		out = append(out, found[name])
	}
	return out
}

type runningModel struct {
	Model       string `json:"model"`
	State       string `json:"state"` // starting, ready, stopping or stopped
	Command     string `json:"cmd"`
	Proxy       string `json:"proxy"`
	TTL         int64  `json:"ttl"` // seconds without use until it is unloaded, 0 for never
	Name        string `json:"name"`
	Description string `json:"description"`
}

// runningStates are this list's names for a model's states.
var runningStates = map[policy.ModelState]string{policy.ModelLoading: "starting", policy.ModelLoaded: "ready", policy.ModelDraining: "stopping"}

// Running is GET /running, in llama-swap's form: the models that have a process, or will have one soon, by host and
// name.
func (s *Service) Running(r *web.Request) error {
	snap, _ := s.registry.Fresh()
	cat := s.cfg.Catalog()
	list := []runningModel{}
	for _, host := range slices.Sorted(maps.Keys(snap.Hosts)) {
		h := snap.Hosts[host]
		for _, id := range slices.Sorted(maps.Keys(h.Models)) {
			rec := h.Models[id]
			if rec.Retired != "" || !r.Key.Allows(id) {
				continue
			}
			m := runningModel{Model: id, State: runningStates[rec.State], Command: rec.Command, Proxy: rec.BackendURL, Name: id}
			if !r.Manages() {
				m.Command, m.Proxy = "", ""
			}
			if m.State == "" {
				m.State = "stopped"
			}
			if idle, known := s.registry.IdleTime(cat, id); known && idle > 0 && !s.registry.IsPinned(cat, rec) {
				m.TTL = int64(idle.Seconds())
			}
			if entry, there := cat.Model(id); there {
				m.Description = entry.Description
			}
			list = append(list, m)
		}
	}
	return r.Reply(fasthttp.StatusOK, map[string]any{"running": list})
}

// Responses to keys without manage leave out where something is stored on a host, how to reach it, and the command line
// of its process. Members stay, with empty values, for clients that expect them.

// redact removes from a report what only managers may see.
func (h *HealthReport) redact() {
	for _, list := range [][]LoadedModel{h.Loaded, h.Retired} {
		for i := range list {
			m := &list[i]
			m.Checkpoint, m.BackendURL, m.PID, m.Plan = redactCheckpoint(m.Checkpoint), "", 0, nil
			var o recipe.Options
			_ = json.Unmarshal(m.Options, &o) // options that are not an object come out as an empty one
			m.Options = json.RawMessage(redactOptions(o).Canonical())
		}
	}
	for i := range h.Runners { // how engines are confined names paths and users
		h.Runners[i].Sandbox, h.Runners[i].Found, h.Runners[i].Boot = nil, nil, nil
	}
}

// redactCheckpoint returns a public repository's checkpoint unchanged, and only the last part of other locations.
func redactCheckpoint(checkpoint string) string {
	if catalog.ParseCheckpoint(checkpoint).Scheme == catalog.SchemeHF {
		return checkpoint
	}
	return weightsName(checkpoint)
}

// redactOptions empties arguments and texts that may hold paths or addresses.
func redactOptions(o recipe.Options) recipe.Options {
	out := maps.Clone(o)
	for name, v := range out {
		if text, is := v.(string); is && (name == "args" || strings.HasSuffix(name, "_args") || strings.ContainsAny(text, `/\:`)) {
			out[name] = ""
		}
	}
	return out
}
