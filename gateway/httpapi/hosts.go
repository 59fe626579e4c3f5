package httpapi

import (
	"context"

	"github.com/valyala/fasthttp"
)

type hostAnswer struct {
	Status  string `json:"status"`
	Message string `json:"message"`
	Host    string `json:"host"`
}

// hostWake is POST /internal/hosts/{id}/wake. It answers when the host is awake.
func (s *Server) hostWake(r *request) error {
	return r.operate("Host is awake", s.cfg.Gate.WakeHost)
}

// hostSleep is POST /internal/hosts/{id}/sleep. It unloads the host's models and answers when the host is off. "force":
// true cuts open requests.
func (s *Server) hostSleep(r *request) error {
	force, err := r.force()
	if err != nil {
		return err
	}
	return r.operate("Host sleeps", func(ctx context.Context, host string) error { return s.cfg.Gate.SleepHost(ctx, host, force) })
}

// hostForget is POST /internal/hosts/{id}/forget. It removes from the pool a host that is not in the catalogue and is
// asleep or lost.
func (s *Server) hostForget(r *request) error {
	return r.operate("Host is forgotten", s.cfg.Gate.ForgetHost)
}

// operate runs do on the path's host and answers with the outcome.
func (r *request) operate(outcome string, do func(ctx context.Context, host string) error) error {
	ctx, stop := r.clientContext()
	defer stop()
	if err := do(ctx, r.hit.ID); err != nil {
		return r.unlessLeft(err)
	}
	return r.reply(fasthttp.StatusOK, hostAnswer{"success", outcome, r.hit.ID})
}
