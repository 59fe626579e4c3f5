package mmcache

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/infra/breaker"
)

// quotaKey names a hash of the bytes that a pool wrote in each hour (hours since 1970). Entries written longer ago than
// the time to live have expired, so the sum of the rest is an upper bound.
func quotaKey(pool string) string { return "mm:" + pool + ":used" }

const quotaMaxAge = 2 * time.Second // maximum age of the sum used for a decision

// Shares of a Redis that has a maxmemory. The rest is for the pool's state, whose writes Redis refuses when it is full.
const (
	entriesDivisor = 4 // entries use at most a quarter of it
	inUseDivisor   = 2 // nothing is written while more than half of it is in use, for whatever data
)

// poolQuota keeps the entries of all hosts within a number of bytes, and within their share of Redis' memory, except
// for what other hosts write within quotaMaxAge. It is not safe for concurrent use.
type poolQuota struct {
	rdb   redis.UniversalClient
	key   string
	ttl   time.Duration
	quota int64 // 0 means no limit but the share

	limit int64 // bytes that entries can use now
	used  int64
	read  time.Time
}

func hour(t time.Time) int64 { return t.Unix() / 3600 }

// reserve reports whether n more bytes fit. If they do, it counts them as used until it next reads the sum.
func (q *poolQuota) reserve(ctx context.Context, n int64) (bool, error) {
	if time.Since(q.read) > quotaMaxAge {
		used, err := q.usedSince(ctx, hour(time.Now().Add(-q.ttl)))
		if err != nil {
			return false, err
		}
		taken, memory, err := memoryOf(ctx, q.rdb)
		if err != nil {
			return false, err
		}
		q.used, q.limit, q.read = used, math.MaxInt64, time.Now()
		if q.quota > 0 {
			q.limit = q.quota
		}
		if memory > 0 {
			q.limit = min(q.limit, memory/entriesDivisor)
		}
		if memory > 0 && taken > memory/inUseDivisor {
			q.limit = 0
		}
	}
	if n > q.limit-q.used {
		return false, nil
	}
	q.used += n
	return true, nil
}

// usedSince sums the bytes written in the hour oldest and later, and removes the counts of earlier hours and invalid fields.
func (q *poolQuota) usedSince(ctx context.Context, oldest int64) (sum int64, err error) {
	counts, err := q.rdb.HGetAll(ctx, q.key).Result()
	var stale []string
	for field, text := range counts {
		at, hourErr := strconv.ParseInt(field, 10, 64)
		bytes, countErr := strconv.ParseInt(text, 10, 64)
		if hourErr != nil || countErr != nil || at < oldest || bytes < 0 {
			stale = append(stale, field)
			continue
		}
		sum += min(bytes, 1<<50)
	}
	if err == nil && len(stale) > 0 {
		err = q.rdb.HDel(ctx, q.key, stale...).Err()
	}
	return sum, err
}

// memoryOf returns the bytes that Redis uses and its maxmemory, which is 0 if it is not set or not reported. In a
// Cluster it asks one node.
func memoryOf(ctx context.Context, rdb redis.UniversalClient) (used, maxMemory int64, err error) {
	text, err := rdb.Info(ctx, "memory").Result()
	if _, refused := errors.AsType[redis.Error](err); refused {
		return 0, 0, nil // the embedded Redis has no such section
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch n, _ := strconv.ParseInt(value, 10, 64); name {
		case "used_memory":
			used = n
		case "maxmemory":
			maxMemory = n
		}
	}
	return used, maxMemory, err
}

// add records bytes that were written. If it fails, the counted sum is too low by n.
func (q *poolQuota) add(ctx context.Context, n int64) error {
	if n == 0 {
		return nil
	}
	pipe := q.rdb.Pipeline()
	pipe.HIncrBy(ctx, q.key, strconv.FormatInt(hour(time.Now()), 10), n)
	pipe.PExpire(ctx, q.key, q.ttl+time.Hour)
	_, err := pipe.Exec(ctx)
	return err
}

// redisBreaker spares callers the wait for an unreachable Redis, and logs one line for each change of state. It is safe
// for concurrent use.
type redisBreaker struct {
	breaker.Breaker
	log  *slog.Logger
	what string // completes "encoder cache can ... Redis"
}

func (b *redisBreaker) record(err error) {
	switch changed := b.Record(err != nil); {
	case changed && err != nil:
		b.log.Warn("encoder cache cannot "+b.what+" Redis for now", "error", err)
	case changed:
		b.log.Info("encoder cache can " + b.what + " Redis again")
	}
}
