package manage

import (
	"strings"

	"github.com/valyala/fasthttp"

	"reveille/gateway/web"
	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/state"
)

type backendInfo struct {
	Devices []string `json:"devices"`
	State   string   `json:"state"` // supported, or unsupported: no host of the pool has the devices
}

// SystemInfo is GET /system-info: what the pool's hosts can run. It knows only that a host has a GPU, not which kind.
func (s *Service) SystemInfo(r *web.Request) error {
	snap, _ := s.registry.Fresh()
	cat := s.cfg.Catalog()
	have := poolDevices(snap, cat)
	recipes := map[string]any{}
	for name, rc := range cat.Recipes {
		recipes[name] = map[string]any{"backends": backendsOf(&rc, have)}
	}
	return r.Reply(fasthttp.StatusOK, map[string]any{"recipes": recipes})
}

// poolDevices returns the devices that any host of the pool has.
func poolDevices(snap *state.Snapshot, cat *catalog.Catalog) policy.Devices {
	have := policy.Devices(0)
	for _, h := range cat.Hosts {
		have |= h.Devices
	}
	for _, h := range snap.Hosts {
		d, _ := policy.ParseDevices(h.Devices) // a runner of another version may report more
		have |= d
	}
	return have
}

// backendsOf describes a recipe's backends. A recipe without a choice has a single one, "default".
func backendsOf(rc *recipe.Recipe, have policy.Devices) map[string]backendInfo {
	needs := map[string]policy.Devices{}
	for name, b := range rc.Backends {
		needs[name] = b.Devices
	}
	if len(needs) == 0 {
		needs["default"] = rc.Devices
	}
	out := map[string]backendInfo{}
	for name, devices := range needs {
		b := backendInfo{Devices: strings.Fields(devices.String()), State: "supported"}
		if !have.Has(devices) {
			b.State = "unsupported"
		}
		out[name] = b
	}
	return out
}
