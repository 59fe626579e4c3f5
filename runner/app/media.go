package app

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/VictoriaMetrics/metrics"

	"reveille/infra/state"
	"reveille/runner/mmcache"
)

// mediaCache opens the host's encoder cache. The cache is nil if engines cannot be attached; they then run uncached.
// Its use is counted in the pool's statistics. end closes it and everything that belongs to it.
func mediaCache(s Settings, p parsed, dir string, store *state.Store, credentials *state.Credentials, set *metrics.Set, log *slog.Logger) (cache *mmcache.Server, end func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	lib, err := mmcache.FindLibrary(filepath.Dir(self))
	if err != nil {
		log.Info("encoder outputs are not cached", "reason", err)
		return nil, func() {}, nil
	}
	rdb, err := state.Client(state.Options{URL: s.RedisURL, Credentials: credentials})
	if err != nil {
		return nil, nil, err
	}
	counters := state.NewUsageReporter(store)
	cache = mmcache.New(mmcache.Config{
		Pool: s.Pool, Secret: p.secret, Redis: rdb, Library: lib, Dir: dir, Log: log, Metrics: set, Count: counters.Count,
		Bytes: p.mediaBytes, Quota: p.mediaQuota, MaxEntry: p.mediaEntry, TTL: s.MMTTL, LookupWait: s.MMLookupWait,
	})
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { counters.Run(ctx) })
	return cache, func() {
		cache.Close()
		stop()
		wg.Wait()
		_ = rdb.Close()
	}, nil
}
