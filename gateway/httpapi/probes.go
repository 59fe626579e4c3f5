package httpapi

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/valyala/fasthttp"

	"reveille/gateway/costs"
	"reveille/infra/meter"
	"reveille/infra/policy"
	"reveille/infra/rpc"
)

// root returns the text that Ollama's clients look for before they use a server, and sends browsers to the page.
func (s *Server) root(r *request) error {
	r.Ctx.Response.Header.Add("Vary", "Accept")
	if bytes.Contains(r.Ctx.Request.Header.Peek("Accept"), []byte("text/html")) {
		r.CountResponse(fasthttp.StatusFound)
		r.Ctx.Response.Header.Set("Location", "/ui")
		r.Ctx.SetStatusCode(fasthttp.StatusFound)
		return nil
	}
	r.Send(fasthttp.StatusOK, "text/plain; charset=utf-8", []byte("Ollama is running"))
	return nil
}

// live reports that the process serves. It touches nothing.
func (s *Server) live(r *request) error { return r.Reply(fasthttp.StatusOK, okStatus) }

// ready returns 503 while this gateway drains or the pool's state cannot be read.
func (s *Server) ready(r *request) error {
	why := ""
	if s.draining.Load() {
		why = "draining"
	} else if _, err := s.registry.Fresh(); err != nil {
		why = "state_unavailable"
	}
	if why != "" {
		return r.Reply(fasthttp.StatusServiceUnavailable, map[string]string{"status": why})
	}
	return r.Reply(fasthttp.StatusOK, okStatus)
}

// metrics returns this gateway's own metrics, those of its process, the sums of the awake runners' metrics, and the
// pool's counters of today.
func (s *Server) metrics(r *request) error {
	var b bytes.Buffer
	metrics.ExposeMetadata(true) // the lines TYPE
	s.set.WritePrometheus(&b)
	metrics.WriteProcessMetrics(&b)
	sums := r.runnerMetrics()
	if _, err := sums.WriteTo(&b); err != nil {
		return err
	}
	text := costs.AppendMetrics(b.Bytes(), s.costs.Today(time.Now()), !s.cfg.FreeMetrics)
	r.Send(fasthttp.StatusOK, "text/plain; version=0.0.4; charset=utf-8", text)
	return nil
}

const (
	summedWait = time.Second // timeout for the metrics of a runner
	maxMetrics = 4 << 20
)

// runnerMetrics adds up the metrics of the runners on ready hosts, and names them reveille_pool_… instead of
// reveille_runner_…. It wakes nothing and leaves out runners that do not respond in time, so sums can fall as counters
// do when a process restarts. reveille_pool_runners is the number of runners included.
func (r *request) runnerMetrics() *meter.Sum {
	var mu sync.Mutex
	var work sync.WaitGroup
	sum := &meter.Sum{}
	runners := 0
	snap, _ := r.s.registry.Fresh()
	ctx, stop := context.WithTimeout(context.Background(), summedWait)
	defer stop()
	for _, h := range snap.Hosts {
		if h.State != policy.Ready {
			continue
		}
		work.Go(func() {
			text, err := r.s.registry.Fetch(ctx, "GET", h, rpc.PathMetrics, r.ID, maxMetrics)
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			runners++
			sum.Add(bytes.ReplaceAll(text, []byte(meter.RunnerPrefix), []byte(meter.PoolPrefix)), meter.PoolPrefix)
		})
	}
	work.Wait()
	sum.Add(fmt.Appendf(nil, "# TYPE reveille_pool_runners gauge\nreveille_pool_runners %d", runners), meter.PoolPrefix)
	return sum
}

var okStatus = map[string]string{"status": "ok"}
