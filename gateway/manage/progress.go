package manage

import (
	"maps"
	"slices"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/web"
	"reveille/infra/state"
)

// statusAnswer is the answer of GET /models/{id}/status. Values that are unknown or do not apply are null. For a load in progress
// it has the same data as the comments of a stream that waits for it.
type statusAnswer struct {
	Model      string   `json:"model"`
	State      string   `json:"state"`
	Host       *string  `json:"host"`
	Waited     *float64 `json:"waited"` // seconds since its load was requested
	Position   *int     `json:"position"`
	ETA        *int64   `json:"eta"` // seconds
	BytesDone  *int64   `json:"bytes_done"`
	BytesTotal *int64   `json:"bytes_total"`
}

// modelStatus reports the progress of a model's load. It never starts one.
func (s *Service) modelStatus(r *web.Request) error {
	m, err := s.dir.Named(&r.Key, r.Match.ID)
	if err != nil {
		return err
	}
	snap, _ := s.dir.Fresh()
	out := statusAnswer{Model: m.ID, State: s.dir.StateOf(m.ID), Host: known(anyHostOf(snap, m.ID))}
	if out.State != "loaded" {
		if st, loading := s.cfg.Gate.ProgressOf(m.ID); loading {
			waited := st.Waited.Truncate(time.Millisecond).Seconds()
			out.State, out.Host, out.Waited = st.Stage, known(st.Host), &waited
			out.Position, out.ETA = known(st.Position), known(api.Seconds(st.ETA))
			if st.BytesTotal > 0 {
				out.BytesDone, out.BytesTotal = &st.BytesDone, &st.BytesTotal
			}
		}
	}
	r.Ctx.Response.Header.Set(api.HeaderModel, m.ID)
	return r.Reply(fasthttp.StatusOK, out)
}

// known returns nil for a zero value, which means unknown.
func known[T comparable](v T) *T {
	var unknown T
	if v == unknown {
		return nil
	}
	return &v
}

// anyHostOf returns the host that holds a model, preferably one that serves it; "" if none does.
func anyHostOf(snap *state.Snapshot, model string) string {
	if copies := snap.Copies(model); len(copies) > 0 {
		return copies[0].Host
	}
	for _, name := range slices.Sorted(maps.Keys(snap.Hosts)) {
		if snap.Hosts[name].Models[model] != nil {
			return name
		}
	}
	return ""
}
