package front

import (
	"context"

	"github.com/valyala/fasthttp"

	"reveille/infra/mmcache"
)

// sums are the counters of the pool that are told even before anything counted.
var sums = [...]string{
	"request_count_total", "input_tokens_total", "output_tokens_total", "prompt_tokens_total", "cache_tokens_total",
	"cold_starts_total", "evictions_total",
}

// stats tells of the last request that this gateway served, the sums of the pool, and what the encoder cache did for
// each model.
func (s *Server) stats(r *request) error {
	ctx, cancel := context.WithTimeout(context.Background(), freshWait)
	defer cancel()
	counters, err := s.cfg.Store.Stats(ctx)
	if err != nil {
		return storeError(err)
	}
	u := s.last.get()
	out := map[string]any{
		"time_to_first_token": u.TTFT, "tokens_per_second": u.PerSecond, "input_tokens": u.Input, "output_tokens": u.Output,
		"prompt_tokens": u.Input, "cache_tokens": u.Cached, "decode_token_times": []float64{},
	}
	for _, name := range sums {
		out[name] = int64(0)
	}
	for name, n := range counters { // whole numbers look like such in JSON
		if !mmcache.IsCounterOf(name) {
			out[name] = n
		}
	}
	var media mmcache.Tally
	byModel := mmcache.Tallies(counters)
	for _, t := range byModel {
		media = media.Plus(t)
	}
	out["media_hits_total"], out["media_misses_total"], out["media_cache"] = media.Hits(), media.Misses, byModel
	return r.reply(fasthttp.StatusOK, out)
}
