package mmcache

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/redis/go-redis/v9"

	"reveille/runner/filestate"
)

// Defaults of [Config].
const (
	DefaultBytes      = 256 << 20
	DefaultTTL        = 24 * time.Hour
	DefaultQuota      = 1 << 30
	DefaultMaxEntry   = 64 << 20
	DefaultLookupWait = 50 * time.Millisecond
	DefaultEncodeWait = 15 * time.Second
)

// MaxLookupWait is the maximum look-up wait that engines accept from a [Config]; with a longer one they use the
// default.
const MaxLookupWait = 10 * time.Second

// MaxEntryLimit is the maximum of [Config.MaxEntry].
const MaxEntryLimit = 1 << 30

// Config configures a [Server]. Log is required; other zero values mean the defaults.
type Config struct {
	Pool    string                // scope of the entries
	Secret  []byte                // the pool's runner secret
	Redis   redis.UniversalClient // shares entries between hosts; nil: not shared; the caller closes it
	Library string                // path of the interposer, see [FindLibrary]
	Dir     string                // folder for sockets; only the runner's user should be able to read it
	Log     *slog.Logger
	Metrics *metrics.Set // receives the cache's metrics; nil means a separate set
	// Count adds to a counter of the pool's statistics, see infra/mmstats.Stats. It must not block. Nil counts nothing.
	Count func(counter string, n float64)

	Bytes      int64         // of floats in this process's memory; -1 means none
	TTL        time.Duration // of entries in Redis
	Quota      int64         // bytes of all values in Redis, from all hosts; -1 means no limit
	MaxEntry   int64         // bytes of one medium's floats; larger ones are not cached
	LookupWait time.Duration // maximum wait of an engine for a look-up, plus 4 ms per MiB of media and 32 ms per MiB of outputs
	EncodeWait time.Duration // maximum wait of an engine for another engine's encoding of the same medium
}

func (c Config) withDefaults() Config {
	c.Bytes = max(cmp.Or(c.Bytes, DefaultBytes), 0)
	c.Quota = max(cmp.Or(c.Quota, DefaultQuota), 0)
	c.MaxEntry = max(cmp.Or(c.MaxEntry, DefaultMaxEntry), 0)
	c.TTL = cmp.Or(max(c.TTL, 0), DefaultTTL)
	c.LookupWait = cmp.Or(max(c.LookupWait, 0), DefaultLookupWait)
	c.EncodeWait = cmp.Or(max(c.EncodeWait, 0), DefaultEncodeWait)
	c.Metrics = cmp.Or(c.Metrics, metrics.NewSet())
	if c.Count == nil {
		c.Count = func(string, float64) {}
	}
	return c
}

// A Server caches encoder outputs for the engines of one runner. It is safe for concurrent use.
type Server struct {
	cfg       Config
	l1        *lru
	l2        *l2 // nil without Redis
	m         *meters
	encodings encodings
	contents  filestate.Contents // of encoders' files
	ctx       context.Context    // ends with Close
	cancel    context.CancelFunc

	mu       sync.Mutex
	closed   bool
	attached map[*Attachment]struct{}
}

// ErrClosed means that the server was closed.
var ErrClosed = errors.New("mmcache: server is closed")

// New starts a server. Close ends its goroutines.
func New(cfg Config) *Server {
	cfg = cfg.withDefaults()
	s := &Server{cfg: cfg, l1: newLRU(cfg.Bytes), attached: map[*Attachment]struct{}{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.m = newMeters(cfg.Metrics, s.l1)
	if cfg.Redis != nil {
		s.l2 = newL2(cfg, newCodec(cfg.Pool, cfg.Secret), s.m)
		go s.l2.run(s.ctx)
	}
	return s
}

// Close detaches every engine and ends the server's goroutines. Entries waiting to be written are lost.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	var all []*Attachment
	for a := range s.attached {
		all = append(all, a)
	}
	s.mu.Unlock()
	s.cancel()
	for _, a := range all {
		a.Detach()
	}
	if s.l2 != nil {
		<-s.l2.done
	}
}
