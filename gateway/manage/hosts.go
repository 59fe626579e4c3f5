package manage

import (
	"context"

	"github.com/valyala/fasthttp"

	"reveille/gateway/web"
)

// HostWake is POST /internal/hosts/{id}/wake. It responds when the host is awake.
func (s *Service) HostWake(r *web.Request) error {
	return s.operate(r, "Host is awake", s.cfg.Gate.WakeHost)
}

// HostSleep is POST /internal/hosts/{id}/sleep. It unloads the host's models and responds when the host is off.
// "force": true cuts open requests.
func (s *Service) HostSleep(r *web.Request) error {
	var asked struct {
		Force bool `json:"force"`
	}
	if err := r.Decode(&asked); err != nil {
		return err
	}
	return s.operate(r, "Host sleeps", func(ctx context.Context, host string) error { return s.cfg.Gate.SleepHost(ctx, host, asked.Force) })
}

// HostForget is POST /internal/hosts/{id}/forget. It removes from the pool a host that is not in the catalog and is
// asleep or lost.
func (s *Service) HostForget(r *web.Request) error {
	return s.operate(r, "Host is forgotten", s.cfg.Gate.ForgetHost)
}

// operate runs do on the path's host and responds with the outcome.
func (s *Service) operate(r *web.Request, outcome string, do func(ctx context.Context, host string) error) error {
	ctx, stop := r.ClientContext()
	defer stop()
	if err := do(ctx, r.Match.ID); err != nil {
		return r.UnlessClientGone(err)
	}
	return r.Reply(fasthttp.StatusOK, map[string]string{"status": "success", "message": outcome, "host": r.Match.ID})
}
