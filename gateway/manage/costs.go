package manage

import (
	"cmp"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/costs"
	"reveille/gateway/web"
)

// Costs is GET /internal/costs?month=YYYY-MM&by=host|model|key: what a month cost, by default this one by host.
func (s *Service) Costs(r *web.Request) error {
	now := time.Now()
	month, err := costs.ParseMonth(r.Query("month"), now)
	if err != nil {
		return api.New(api.InvalidRequest, "The month must have the form YYYY-MM.").WithParam("month")
	}
	by := cmp.Or(costs.By(r.Query("by")), costs.ByHost)
	if by != costs.ByHost && by != costs.ByModel && by != costs.ByKey {
		return api.New(api.InvalidRequest, "'by' must be host, model or key.").WithParam("by")
	}
	ctx, stop := r.ClientContext()
	defer stop()
	days, err := costs.ReadMonth(ctx, s.cfg.Store, month, now)
	if err != nil {
		return r.UnlessClientGone(api.New(api.StateUnavailable, "The costs cannot be read at the moment; try again.").WithCause(err))
	}
	return r.Reply(fasthttp.StatusOK, costs.New(month, days, by, s.cfg.Catalog()))
}
