package manage

import (
	"context"

	"github.com/valyala/fasthttp"

	"reveille/gateway/models"
	"reveille/gateway/web"
	"reveille/infra/mmstats"
)

// poolStats are the pool's statistics that are shown even before the first count: those of the last request that any
// gateway served, and sums.
var poolStats = [...]string{
	"time_to_first_token", "tokens_per_second", "input_tokens", "output_tokens", "prompt_tokens", "cache_tokens",
	"request_count_total", "input_tokens_total", "output_tokens_total", "prompt_tokens_total", "cache_tokens_total",
	"cold_starts_total", "evictions_total",
}

// Stats returns the figures of the pool's last request, the pool's sums, and the encoder cache's counts for each model.
func (s *Service) Stats(r *web.Request) error {
	ctx, cancel := context.WithTimeout(context.Background(), models.FreshWait)
	defer cancel()
	_ = s.cfg.Usage.Flush(ctx) // so that a client finds the request that it just made; what fails is sent later
	counters, err := s.cfg.Store.Stats(ctx)
	if err != nil {
		return models.StoreError(err)
	}
	out := map[string]any{"decode_token_times": []float64{}}
	for _, name := range poolStats {
		out[name] = int64(0)
	}
	for name, n := range counters { // so that whole numbers look whole in JSON
		if !mmstats.IsCounterOf(name) {
			out[name] = n
		}
	}
	var media mmstats.Stats
	byModel := mmstats.ReadStats(counters)
	for _, t := range byModel {
		media = media.Plus(t)
	}
	out["media_hits_total"], out["media_misses_total"], out["media_cache"] = media.Hits(), media.Misses, byModel
	return r.Reply(fasthttp.StatusOK, out)
}
