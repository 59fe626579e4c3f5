package mmcache

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	queueLen     = 256      // maximum number of entries waiting to be written; others are not written
	queueBytes   = 64 << 20 // maximum bytes of their floats; likewise
	writeTimeout = 2 * time.Second
)

// l2 is the tier that all hosts share. Every failure is counted, and is a miss or a dropped write. Contexts bound
// reads; writes are asynchronous. It is safe for concurrent use.
type l2 struct {
	rdb    redis.UniversalClient
	codec  entryCodec
	ttl    time.Duration
	log    *slog.Logger
	m      *meters
	quota  poolQuota
	reads  redisBreaker
	writes redisBreaker

	queue  chan queuedWrite
	queued atomic.Int64  // bytes of floats in queue
	done   chan struct{} // closed by run
}

type queuedWrite struct {
	sig Sig
	id  Ident
	e   *Entry
}

func newL2(c Config, codec entryCodec, m *meters) *l2 {
	return &l2{
		rdb: c.Redis, codec: codec, ttl: c.TTL, log: c.Log, m: m,
		quota: poolQuota{rdb: c.Redis, key: quotaKey(c.Pool), ttl: c.TTL, quota: c.Quota},
		reads: redisBreaker{log: c.Log, what: "read from"}, writes: redisBreaker{log: c.Log, what: "write to"},
		queue: make(chan queuedWrite, queueLen), done: make(chan struct{}),
	}
}

func (s *l2) key(sig Sig, id Ident) string { return redisKey(s.codec.pool, sig, id) }

// get reads entries in one pipeline, and of each at most one byte more than its expected size. Missing or refused
// entries are nil.
func (s *l2) get(ctx context.Context, sig Sig, ids []Ident, layouts []Layout) []*Entry {
	out := make([]*Entry, len(ids))
	if len(ids) == 0 || !s.reads.Allow() {
		return out
	}
	pipe := s.rdb.Pipeline()
	cmds := make([]*redis.StringCmd, len(ids))
	for i, id := range ids {
		cmds[i] = pipe.GetRange(ctx, s.key(sig, id), 0, layouts[i].valueSize())
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	var failure error
	for i, cmd := range cmds {
		v, err := cmd.Bytes()
		s.m.redisRead.Add(len(v))
		switch {
		case err != nil:
			failure = err
		case int64(len(v)) > layouts[i].valueSize():
			s.m.refused[reasonSize].Inc()
		case len(v) > 0:
			out[i] = s.decode(sig, ids[i], layouts[i], v)
		}
	}
	s.reads.record(failure)
	if failure != nil {
		s.m.redisErrors.Inc()
	}
	return out
}

func (s *l2) decode(sig Sig, id Ident, want Layout, v []byte) *Entry {
	e, err := s.codec.Decode(sig, id, want, v)
	if err != nil {
		s.m.refused[reasonInvalid].Inc()
		s.log.Debug("encoder cache refused an entry", "key", s.key(sig, id), "error", err)
	}
	return e
}

// put queues an entry to be written, or drops it if the queue is full.
func (s *l2) put(sig Sig, id Ident, e *Entry) {
	n := int64(len(e.Floats))
	if s.queued.Add(n) > queueBytes {
		s.queued.Add(-n)
		s.m.refused[reasonQueue].Inc()
		return
	}
	select {
	case s.queue <- queuedWrite{sig, id, e}:
	default:
		s.queued.Add(-n)
		s.m.refused[reasonQueue].Inc()
	}
}

// run writes queued entries until ctx ends. Entries still queued are lost.
func (s *l2) run(ctx context.Context) {
	defer close(s.done)
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-s.queue:
			s.queued.Add(-int64(len(p.e.Floats)))
			if err := s.write(ctx, p); err != nil {
				s.m.redisErrors.Inc()
			}
		}
	}
}

// write writes an entry, if the quota has room for it.
func (s *l2) write(ctx context.Context, p queuedWrite) error {
	if !s.writes.Allow() {
		return errors.New("recent Redis calls failed")
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout+fetchTime(int64(len(p.e.Floats))))
	defer cancel()
	v := s.codec.Encode(p.sig, p.id, p.e)
	fits, err := s.quota.reserve(ctx, int64(len(v)))
	switch {
	case err != nil:
		s.writes.record(err)
		return err
	case !fits:
		s.m.refused[reasonQuota].Inc()
		return nil
	}
	if err = s.rdb.Set(ctx, s.key(p.sig, p.id), v, s.ttl).Err(); err == nil {
		s.m.redisWritten.Add(len(v))
		s.log.Debug("encoder cache entry shared", "key", s.key(p.sig, p.id), "bytes", len(v))
		err = s.quota.add(ctx, int64(len(v)))
	}
	s.writes.record(err)
	return err
}
