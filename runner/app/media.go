package app

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/VictoriaMetrics/metrics"
	"github.com/redis/go-redis/v9"

	"reveille/infra/state"
	"reveille/runner/mmcache"
)

// mediaCache is the host's encoder cache, nil where engines cannot be attached: they then run uncached.
func mediaCache(s Settings, secret []byte, bytes int64, dir string, set *metrics.Set, log *slog.Logger) (cache *mmcache.Server, end func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	lib, err := mmcache.FindLibrary(filepath.Dir(self))
	if errors.Is(err, mmcache.ErrNoInterposer) {
		log.Info("encoder outputs are not cached", "reason", err)
		return nil, func() {}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	var rdb redis.UniversalClient
	if rdb, err = state.Client(state.Options{URL: s.RedisURL}); err != nil {
		return nil, nil, err
	}
	if bytes == 0 {
		bytes = -1 // none in this process
	}
	cache, err = mmcache.New(mmcache.Config{Pool: s.Pool, Secret: secret, Redis: rdb, Library: lib, Dir: dir, Log: log, Metrics: set, Bytes: bytes})
	if err != nil {
		return nil, nil, errors.Join(err, rdb.Close())
	}
	return cache, func() {
		cache.Close()
		_ = rdb.Close()
	}, nil
}
