package httpapi

import "github.com/valyala/fasthttp"

type hostAnswer struct {
	Status  string `json:"status"`
	Message string `json:"message"`
	Host    string `json:"host"`
}

// hostWake is POST /internal/hosts/{id}/wake: it answers when the host is awake.
func (s *Server) hostWake(r *request) error {
	ctx, stop := r.clientContext()
	defer stop()
	if err := s.cfg.Gate.WakeHost(ctx, r.hit.ID); err != nil {
		return r.unlessLeft(err)
	}
	return r.reply(fasthttp.StatusOK, hostAnswer{"success", "Host is awake", r.hit.ID})
}

// hostSleep is POST /internal/hosts/{id}/sleep: the host's models are unloaded, and it answers when the host is off. With
// "force": true open requests are cut.
func (s *Server) hostSleep(r *request) error {
	force, err := r.force()
	if err != nil {
		return err
	}
	ctx, stop := r.clientContext()
	defer stop()
	if err := s.cfg.Gate.SleepHost(ctx, r.hit.ID, force); err != nil {
		return r.unlessLeft(err)
	}
	return r.reply(fasthttp.StatusOK, hostAnswer{"success", "Host sleeps", r.hit.ID})
}

// hostForget is POST /internal/hosts/{id}/forget: a host that is not in the catalogue, and asleep or lost, leaves the pool.
func (s *Server) hostForget(r *request) error {
	ctx, stop := r.clientContext()
	defer stop()
	if err := s.cfg.Gate.ForgetHost(ctx, r.hit.ID); err != nil {
		return r.unlessLeft(err)
	}
	return r.reply(fasthttp.StatusOK, hostAnswer{"success", "Host is forgotten", r.hit.ID})
}
