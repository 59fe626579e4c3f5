// Package mmstats looks at the encoder cache from outside: which models have entries in Redis, how many, and how large
// ([List]); and what the cache did for each model ([ReadStats]). Package runner/mmcache writes both: the entries as
// strings mm:<pool>:<signature>:<identity>, the last two in hex, the rest as counters of the pool's statistics.
package mmstats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Usage is what one model signature has in Redis.
type Usage struct {
	Signature uint64
	Entries   int   // media
	Bytes     int64 // of Redis's memory
}

const scanCount = 500 // keys a step

// List reads a pool's usage of every signature, the largest first. It walks through all keys of the database a few hundred at
// a time, so it is for people, not for hot paths; entries that come or go meanwhile may be missed. Any error of Redis
// ends it.
func List(ctx context.Context, rdb redis.UniversalClient, pool string) ([]Usage, error) {
	entryRE := regexp.MustCompile(`^mm:` + regexp.QuoteMeta(pool) + `:([0-9a-f]{16}):[0-9a-f]{64}$`)
	var mu sync.Mutex
	bySig := map[uint64]Usage{}
	node := func(ctx context.Context, c *redis.Client) error {
		for cursor := uint64(0); ; {
			keys, next, err := c.Scan(ctx, cursor, "mm:*:*:*", scanCount).Result()
			if err != nil {
				return err
			}
			keys = slices.DeleteFunc(keys, func(k string) bool { return !entryRE.MatchString(k) })
			sizes := make([]*redis.IntCmd, len(keys))
			if _, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
				for i, k := range keys {
					sizes[i] = p.MemoryUsage(ctx, k)
				}
				return nil
			}); err != nil && !errors.Is(err, redis.Nil) { // of a key that has gone
				return err
			}
			mu.Lock()
			for i, k := range keys {
				if sizes[i].Err() != nil {
					continue
				}
				sig, _ := strconv.ParseUint(entryRE.FindStringSubmatch(k)[1], 16, 64)
				u := bySig[sig]
				bySig[sig] = Usage{sig, u.Entries + 1, u.Bytes + sizes[i].Val()}
			}
			mu.Unlock()
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	}
	var err error
	switch c := rdb.(type) {
	case *redis.ClusterClient:
		err = c.ForEachMaster(ctx, node)
	case *redis.Client:
		err = node(ctx, c)
	default:
		err = fmt.Errorf("unknown client %T", rdb)
	}
	if err != nil {
		return nil, fmt.Errorf("list encoder cache: %w", err)
	}
	out := make([]Usage, 0, len(bySig))
	for _, u := range bySig {
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, b Usage) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Signature, b.Signature))
	})
	return out, nil
}
