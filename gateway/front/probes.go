package front

import (
	"bytes"

	"github.com/VictoriaMetrics/metrics"
	"github.com/valyala/fasthttp"
)

// live answers that the process serves; it touches nothing.
func (s *Server) live(r *request) error { return r.reply(fasthttp.StatusOK, okStatus) }

// ready answers 503 while this gateway drains or the pool's state cannot be read.
func (s *Server) ready(r *request) error {
	why := ""
	if s.draining.Load() {
		why = "draining"
	} else if _, err := s.look(); err != nil {
		why = "state_unavailable"
	}
	if why != "" {
		return r.reply(fasthttp.StatusServiceUnavailable, map[string]string{"status": why})
	}
	return r.reply(fasthttp.StatusOK, okStatus)
}

// metrics answers this gateway's own metrics and those of its process.
func (s *Server) metrics(r *request) error {
	var b bytes.Buffer
	s.set.WritePrometheus(&b)
	metrics.WriteProcessMetrics(&b)
	r.send(fasthttp.StatusOK, "text/plain; version=0.0.4; charset=utf-8", b.Bytes())
	return nil
}
