package weights

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"reveille/infra/catalog"
	"reveille/runner/filelock"
)

const (
	lockName     = ".lock"
	pullingName  = ".pulling"
	manifestName = ".weights.json"
)

// Config of a Cache. Zero values have defaults where one is named.
type Config struct {
	Dir     string // of the cache alone; made where it is missing
	Bytes   int64  // most bytes of all entries; default half of what they have and the disk has free when the cache is opened
	Margin  int64  // bytes of the disk left free; default 512 MiB
	Sources map[catalog.Scheme]Source
	Log     *slog.Logger // default: none
	Metrics *metrics.Set // gets the metrics; default a set of its own

	Ranges int           // read at a time, of all pulls together; default 8
	Range  int64         // bytes of one; default 16 MiB
	Stall  time.Duration // a range that makes no progress for so long is requested again; default 30 s
	Tries  int           // failures in a row, without a byte between them, that end a pull; default 6
	Pause  time.Duration // before the second try, doubled with each; default 500 ms, at most 15 s
	Limit  time.Duration // of a whole pull; default 6 h
	Wanted time.Duration // entries that Has found so lately make no room; default 10 s
}

// Cache is the folder of fetched weights. It is safe for concurrent use.
type Cache struct {
	cfg     Config
	m       meters
	dir     string // absolute
	root    *os.Root
	lock    *os.File
	disk    disk
	ranges  chan struct{} // capacity Config.Ranges: the reads in progress
	buffers sync.Pool     // of *[]byte
	life    context.Context
	end     context.CancelFunc
	work    sync.WaitGroup // pulls

	mu      sync.Mutex // guards all below; held over the disk, never over a source
	entries map[string]*cachedWeights
	pulls   map[*pull]struct{}
	total   int64 // bytes of entries
	serial  int   // of the names below .pulling
}

// disk is what the cache needs of the file system besides its files.
type disk struct {
	free     func(dir string) (int64, error)
	allocate func(f *os.File, size int64) error
}

// Open takes a cache's folder into possession, clears away what pulls left behind that did not end, and reads what is
// there. ErrInUse: another process has it. Close gives it back.
func Open(cfg Config) (*Cache, error) {
	cfg.Margin = cmp.Or(max(cfg.Margin, 0), 512<<20)
	cfg.Ranges = cmp.Or(max(cfg.Ranges, 0), 8)
	cfg.Range = cmp.Or(max(cfg.Range, 0), 16<<20)
	cfg.Stall = cmp.Or(max(cfg.Stall, 0), 30*time.Second)
	cfg.Tries = cmp.Or(max(cfg.Tries, 0), 6)
	cfg.Pause = cmp.Or(max(cfg.Pause, 0), 500*time.Millisecond)
	cfg.Limit = cmp.Or(max(cfg.Limit, 0), 6*time.Hour)
	cfg.Wanted = cmp.Or(max(cfg.Wanted, 0), 10*time.Second)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	c := &Cache{
		cfg: cfg, disk: disk{freeBytes, allocate}, ranges: make(chan struct{}, cfg.Ranges), entries: map[string]*cachedWeights{}, pulls: map[*pull]struct{}{},
		buffers: sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }},
	}
	cfg.Metrics = cmp.Or(cfg.Metrics, metrics.NewSet())
	c.life, c.end = context.WithCancel(context.Background())
	var err error
	if c.dir, err = filepath.Abs(cfg.Dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return nil, fmt.Errorf("folder of weights: %w", err)
	}
	if c.root, err = os.OpenRoot(c.dir); err != nil {
		return nil, fmt.Errorf("folder of weights: %w", err)
	}
	if err := c.acquireLock(); err != nil {
		c.release()
		return nil, err
	}
	if c.cfg.Bytes <= 0 {
		free, err := c.disk.free(c.dir)
		if err != nil {
			c.release()
			return nil, fmt.Errorf("folder of weights: %w", err)
		}
		c.cfg.Bytes = free/2 + c.total/2
	}
	c.m = newMeters(cfg.Metrics, c)
	return c, nil
}

// acquireLock takes the folder's lock, and then what is in it.
func (c *Cache) acquireLock() error {
	var err error
	if c.lock, err = c.root.OpenFile(lockName, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return fmt.Errorf("folder of weights: %w", err)
	}
	mine, err := filelock.Try(c.lock)
	if err != nil {
		return fmt.Errorf("folder of weights: %w", err)
	}
	if !mine {
		return fmt.Errorf("%w: %s", ErrInUse, c.dir)
	}
	if err := c.root.RemoveAll(pullingName); err != nil {
		return fmt.Errorf("what earlier pulls left: %w", err)
	}
	return c.scan()
}

func (c *Cache) release() {
	if c.lock != nil {
		_ = c.lock.Close()
	}
	_ = c.root.Close()
}

// Close ends the pulls in progress and gives the folder back. Holds may be released afterwards.
func (c *Cache) Close() {
	c.end()
	c.work.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.release()
}

// Has reports whether the weights of a location are there for a load that is about to hold them: for Config.Wanted they will
// not be removed. So loads that wait for each other's slots do not take each other's weights away in turn.
func (c *Cache) Has(at Location) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.wholeLocked(at)
	if e != nil {
		e.wanted = time.Now()
	}
	return e != nil
}

// Path is where an engine finds the weights of a location, false when they have to be pulled first. Without a hold they may
// be removed at any time.
func (c *Cache) Path(at Location) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.wholeLocked(at); e != nil {
		return c.pathOf(e), true
	}
	return "", false
}

// pathOf is the path of an entry for its engine.
func (c *Cache) pathOf(e *cachedWeights) string {
	return filepath.Join(c.dir, e.id, filepath.FromSlash(e.Path))
}

// A Hold keeps an entry where it is.
type Hold struct {
	Path string // what an engine is given: a file, or the folder of several

	cache   *Cache
	weights *cachedWeights
	once    sync.Once
}

// holdTries bounds how often an entry may be removed between its pull and its hold.
const holdTries = 3

// Hold keeps the weights of a location in the cache until Release, pulling them first if need be. Errors are [*Error], or
// the end of ctx.
func (c *Cache) Hold(ctx context.Context, at Location) (*Hold, error) {
	for range holdTries {
		c.mu.Lock()
		if e := c.wholeLocked(at); e != nil {
			e.holds++
			c.touchLocked(e)
			c.mu.Unlock()
			return &Hold{Path: c.pathOf(e), cache: c, weights: e}, nil
		}
		c.mu.Unlock()
		if err := c.Pull(ctx, at); err != nil {
			return nil, err
		}
	}
	return nil, &Error{Location: at.String(), Kind: ErrFull, Note: "other weights take its room again and again"}
}

// Release ends the hold. Further calls do nothing.
func (h *Hold) Release() {
	h.once.Do(func() {
		h.cache.mu.Lock()
		defer h.cache.mu.Unlock()
		h.weights.holds--
		h.cache.touchLocked(h.weights)
	})
}

// touchLocked makes an entry the one used last.
func (c *Cache) touchLocked(e *cachedWeights) {
	e.used = time.Now()
	if c.entries[e.id] == e {
		_ = c.root.Chtimes(e.id, e.used, e.used) // only the order after a restart depends on it
	}
}
