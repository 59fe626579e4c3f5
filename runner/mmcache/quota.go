package mmcache

import (
	"context"
	_ "embed" // the script
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/used.lua
var luaUsed string

// quotaKey is a hash of the bytes written in each hour (hours since 1970). Whatever was written longer ago than the
// time to live has expired, so the sum of the rest is an upper bound.
const quotaKey = "mm:used"

const quotaFresh = 2 * time.Second // greatest age of the sum used for a decision

// poolQuota keeps the entries of all hosts within a number of bytes, apart from what others write within quotaFresh. It
// is not safe for concurrent use.
type poolQuota struct {
	rdb   redis.UniversalClient
	ttl   time.Duration
	quota int64 // 0 means no limit

	used int64
	read time.Time
}

func hour(t time.Time) int64 { return t.Unix() / 3600 }

// reserve reports whether n more bytes fit. If they do, it counts them as used until it next reads the sum.
func (l *poolQuota) reserve(ctx context.Context, n int64) (bool, error) {
	if l.quota <= 0 {
		return true, nil
	}
	if time.Since(l.read) > quotaFresh {
		used, err := l.rdb.Eval(ctx, luaUsed, []string{quotaKey}, hour(time.Now().Add(-l.ttl))).Int64()
		if err != nil {
			return false, err
		}
		l.used = used
		l.read = time.Now()
	}
	if l.used+n > l.quota {
		return false, nil
	}
	l.used += n
	return true, nil
}

// add records bytes that were written. If it fails, the counted sum is too low by n.
func (l *poolQuota) add(ctx context.Context, n int64) error {
	if n == 0 {
		return nil
	}
	pipe := l.rdb.Pipeline()
	pipe.HIncrBy(ctx, quotaKey, strconv.FormatInt(hour(time.Now()), 10), n)
	pipe.PExpire(ctx, quotaKey, l.ttl+time.Hour)
	_, err := pipe.Exec(ctx)
	return err
}

const (
	breakerFailures = 5 // in a row
	breakerPause    = time.Second
)

// breaker spares callers the wait for an unreachable Redis, and logs one line per change of state. It is safe for
// concurrent use.
type breaker struct {
	log  *slog.Logger
	what string // completes "encoder cache can ... Redis"

	mu       sync.Mutex
	failures int
	until    time.Time // after this, one caller may try again
}

func (b *breaker) allow() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures < breakerFailures {
		return true
	}
	if now := time.Now(); now.After(b.until) {
		b.until = now.Add(breakerPause)
		return true
	}
	return false
}

func (b *breaker) record(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		if b.failures >= breakerFailures {
			b.log.Info("encoder cache can " + b.what + " Redis again")
		}
		b.failures = 0
		return
	}
	b.failures++
	if b.failures == breakerFailures {
		b.until = time.Now().Add(breakerPause)
		b.log.Warn("encoder cache cannot "+b.what+" Redis for now", "error", err)
	}
}
