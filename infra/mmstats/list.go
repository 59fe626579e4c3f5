// Package mmstats looks at the encoder cache from outside: which models have entries in Redis, how many, and how large
// ([List]); and what the cache did for each model ([ReadStats]). Package runner/mmcache writes both: the entries as hashes
// mm:<signature>:<key>, both 16 hex digits, the rest as counters of the pool's statistics.
package mmstats

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Usage is what one model signature has in Redis.
type Usage struct {
	Signature uint64
	Keys      int   // hashes
	Entries   int   // fields: media; more than Keys only where keys collide
	Bytes     int64 // of the values
}

const scanCount = 500 // keys a step

// List reads the usage of every signature, the largest first. It walks through all keys of the database a few hundred at
// a time, so it is for people, not for hot paths; entries that come or go meanwhile may be missed. Any error of Redis
// ends it.
func List(ctx context.Context, rdb redis.UniversalClient) ([]Usage, error) {
	var mu sync.Mutex
	bySig := map[uint64]*Usage{}
	node := func(ctx context.Context, c *redis.Client) error {
		var cursor uint64
		for {
			keys, next, err := c.Scan(ctx, cursor, "mm:*:*", scanCount).Result()
			if err != nil {
				return err
			}
			found, err := measure(ctx, c, keys)
			if err != nil {
				return err
			}
			mu.Lock()
			for _, f := range found {
				u := bySig[f.Signature]
				if u == nil {
					u = &Usage{Signature: f.Signature}
					bySig[f.Signature] = u
				}
				u.Keys += f.Keys
				u.Entries += f.Entries
				u.Bytes += f.Bytes
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
		out = append(out, *u)
	}
	slices.SortFunc(out, func(a, b Usage) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Signature, b.Signature))
	})
	return out, nil
}

// measure returns one Usage a key; keys of another form, and such as have gone, are left out.
func measure(ctx context.Context, c *redis.Client, keys []string) ([]Usage, error) {
	keys = slices.DeleteFunc(keys, func(k string) bool { _, ok := signature(k); return !ok })
	if len(keys) == 0 {
		return nil, nil
	}
	fields := make([]*redis.StringSliceCmd, len(keys))
	if _, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, k := range keys {
			fields[i] = p.HKeys(ctx, k)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	var lengths []*redis.Cmd
	var of []int
	if _, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, k := range keys {
			for _, f := range fields[i].Val() {
				lengths, of = append(lengths, p.Do(ctx, "HSTRLEN", k, f)), append(of, i)
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	out := make([]Usage, len(keys))
	for i, k := range keys {
		out[i].Signature, _ = signature(k)
		if len(fields[i].Val()) > 0 {
			out[i].Keys = 1
		}
	}
	for i, l := range lengths {
		n, err := l.Int64()
		if err != nil {
			return nil, err
		}
		out[of[i]].Entries++
		out[of[i]].Bytes += n
	}
	return slices.DeleteFunc(out, func(u Usage) bool { return u.Keys == 0 }), nil
}

// signature is the one in a key of the cache.
func signature(key string) (uint64, bool) {
	sig, k, ok := strings.Cut(strings.TrimPrefix(key, "mm:"), ":")
	if !ok || !strings.HasPrefix(key, "mm:") || len(sig) != 16 || len(k) != 16 {
		return 0, false
	}
	if _, err := strconv.ParseUint(k, 16, 64); err != nil {
		return 0, false
	}
	v, err := strconv.ParseUint(sig, 16, 64)
	return v, err == nil
}
