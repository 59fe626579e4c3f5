package manage

import (
	"maps"
	"slices"

	"reveille/infra/policy"

	"github.com/valyala/fasthttp"

	"reveille/gateway/web"
)

type runningModel struct {
	Model       string `json:"model"`
	State       string `json:"state"` // starting, ready, stopping or stopped
	Command     string `json:"cmd"`
	Proxy       string `json:"proxy"`
	TTL         int64  `json:"ttl"` // seconds without use until it is unloaded, 0 for never
	Name        string `json:"name"`
	Description string `json:"description"`
}

type runningList struct {
	Running []runningModel `json:"running"`
}

// runningStates are this list's names for a model's states.
var runningStates = map[policy.ModelState]string{policy.ModelLoading: "starting", policy.ModelLoaded: "ready", policy.ModelDraining: "stopping"}

// running lists the models that have a process, or will have one soon, by host and name.
func (s *Service) running(r *web.Request) error {
	snap, _ := s.dir.Fresh()
	cat := s.cfg.Catalog()
	list := runningList{Running: []runningModel{}}
	for _, host := range slices.Sorted(maps.Keys(snap.Hosts)) {
		h := snap.Hosts[host]
		for _, id := range slices.Sorted(maps.Keys(h.Models)) {
			rec := h.Models[id]
			if rec.Retired != "" {
				continue
			}
			m := runningModel{Model: id, State: runningStates[rec.State], Command: rec.Command, Proxy: rec.BackendURL, Name: id}
			if !r.Manages() {
				m.Command, m.Proxy = "", ""
			}
			if m.State == "" {
				m.State = "stopped"
			}
			if idle, known := s.dir.IdleTime(cat, id); known && idle > 0 && !s.dir.IsPinned(cat, rec) {
				m.TTL = int64(idle.Seconds())
			}
			if entry, there := cat.Model(id); there {
				m.Description = entry.Description
			}
			list.Running = append(list.Running, m)
		}
	}
	return r.Reply(fasthttp.StatusOK, list)
}
