package weights

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/shirou/gopsutil/v4/disk"

	"reveille/infra/catalog"
	"reveille/infra/filelock"
)

const (
	lockName     = ".lock"
	pullingName  = ".pulling"
	removedName  = ".removed"
	manifestName = ".weights.json"
	progressName = ".progress"
)

// Config configures a Cache. Where a field names a default, zero selects it.
type Config struct {
	Dir     string // used by the cache alone; created if missing
	Bytes   int64  // size limit of all entries; default half of their size and the disk's free space when the cache is opened
	Margin  int64  // bytes of the disk that stay free; default 512 MiB
	Sources map[catalog.Scheme]Source
	Log     *slog.Logger // default: none
	Metrics *metrics.Set // default: a new set

	Ranges int           // parallel reads of one pull; default 8
	Range  int64         // bytes of one read; default 64 MiB
	Stall  time.Duration // a read without progress for this long is repeated; default 30 s
	Tries  int           // consecutive failures without a byte between them that end a pull; default 6
	Pause  time.Duration // before the second try, doubled with each further one up to 15 s; default 500 ms
	Wanted time.Duration // entries that Has found within this time are not removed; default 10 s
}

// Cache is the folder of fetched weights. It is safe for concurrent use.
type Cache struct {
	cfg  Config
	dir  string // absolute
	root *os.Root
	lock *os.File
	free func(dir string) (int64, error)
	life context.Context
	end  context.CancelFunc
	work sync.WaitGroup // pulls

	pullBytes    *metrics.Counter // written bytes, including those of pulls that fail later
	pullFailures *metrics.Counter
	pullSeconds  *metrics.PrometheusHistogram // of pulls that succeeded

	mu      sync.Mutex // guards all below; held over the disk, never over a source
	entries map[string]*entry
	pulls   map[string]*pull // by entry
	total   int64            // bytes of entries
}

// Open locks a folder and reads its entries. It returns ErrInUse if another process has locked it.
func Open(cfg Config) (*Cache, error) {
	cfg.Margin = cmp.Or(max(cfg.Margin, 0), 512<<20)
	cfg.Ranges = cmp.Or(max(cfg.Ranges, 0), 8)
	cfg.Range = cmp.Or(max(cfg.Range, 0), 64<<20)
	cfg.Stall = cmp.Or(max(cfg.Stall, 0), 30*time.Second)
	cfg.Tries = cmp.Or(max(cfg.Tries, 0), 6)
	cfg.Pause = cmp.Or(max(cfg.Pause, 0), 500*time.Millisecond)
	cfg.Wanted = cmp.Or(max(cfg.Wanted, 0), 10*time.Second)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	set := cmp.Or(cfg.Metrics, metrics.NewSet())
	c := &Cache{
		cfg: cfg, free: freeBytes,
		entries: map[string]*entry{}, pulls: map[string]*pull{},
		pullBytes:    set.NewCounter("reveille_runner_pull_bytes_total"),
		pullFailures: set.NewCounter("reveille_runner_pull_failures_total"),
		pullSeconds:  set.NewPrometheusHistogramExt("reveille_runner_pull_seconds", pullSeconds),
	}
	c.life, c.end = context.WithCancel(context.Background())
	if err := c.open(); err != nil {
		c.release()
		return nil, fmt.Errorf("folder of weights: %w", err)
	}
	set.NewGauge("reveille_runner_weights_bytes", func() float64 {
		c.mu.Lock()
		defer c.mu.Unlock()
		return float64(c.total)
	})
	return c, nil
}

// pullSeconds are the buckets of the histogram.
var pullSeconds = []float64{1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 10800}

func (c *Cache) open() (err error) {
	if c.dir, err = filepath.Abs(c.cfg.Dir); err != nil {
		return err
	}
	if err = os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	if c.root, err = os.OpenRoot(c.dir); err != nil {
		return err
	}
	if c.lock, err = c.root.OpenFile(lockName, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	if locked, err := filelock.Try(c.lock); err != nil {
		return err
	} else if !locked {
		return fmt.Errorf("%w: %s", ErrInUse, c.dir)
	}
	if err = c.scan(); err != nil {
		return err
	}
	if c.cfg.Bytes <= 0 {
		free, err := c.free(c.dir)
		if err != nil {
			return err
		}
		c.cfg.Bytes = free/2 + c.total/2
	}
	return nil
}

// freeBytes returns how many bytes an unprivileged process can still write to the file system of a folder.
func freeBytes(dir string) (int64, error) {
	usage, err := disk.Usage(dir)
	if err != nil {
		return 0, err
	}
	return int64(min(usage.Free, math.MaxInt64)), nil
}

func (c *Cache) release() {
	if c.lock != nil {
		_ = c.lock.Close()
	}
	if c.root != nil {
		_ = c.root.Close()
	}
}

// Close ends the pulls in progress and unlocks the folder. Holds can be released afterwards.
func (c *Cache) Close() {
	c.end()
	c.work.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.release()
}

// Has reports whether the cache has the weights of a location, and keeps them for Config.Wanted, because a load is
// about to hold them. This prevents loads that wait for each other's slots from evicting each other's weights in turn.
func (c *Cache) Has(at Location) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entryLocked(at)
	if e != nil {
		e.wanted = time.Now()
	}
	return e != nil
}

// Path returns the path of a location's weights for an engine, and false if they must be pulled first. Without a hold
// they can be removed at any time.
func (c *Cache) Path(at Location) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entryLocked(at); e != nil {
		return c.pathOf(e), true
	}
	return "", false
}

func (c *Cache) pathOf(e *entry) string {
	return filepath.Join(c.dir, e.id, filepath.FromSlash(e.Path))
}

// A Hold protects an entry from removal.
type Hold struct {
	Path string // the engine's argument: a file, or the folder of several

	cache *Cache
	entry *entry
}

// holdTries limits how often an entry can be removed between its pull and its hold.
const holdTries = 3

// Hold keeps the weights of a location in the cache until Release. It pulls them first if necessary. Errors are
// [*Error], or the end of ctx.
func (c *Cache) Hold(ctx context.Context, at Location) (*Hold, error) {
	for range holdTries {
		c.mu.Lock()
		if e := c.entryLocked(at); e != nil {
			e.holds++
			c.touchLocked(e)
			c.mu.Unlock()
			return &Hold{Path: c.pathOf(e), cache: c, entry: e}, nil
		}
		c.mu.Unlock()
		if err := c.Pull(ctx, at); err != nil {
			return nil, err
		}
	}
	return nil, &Error{Location: at.String(), Kind: ErrFull, Note: "other weights repeatedly take its space"}
}

// Release ends the hold. It must be called once.
func (h *Hold) Release() {
	h.cache.mu.Lock()
	defer h.cache.mu.Unlock()
	h.entry.holds--
	h.cache.touchLocked(h.entry)
}

// touchLocked makes an entry the one used last.
func (c *Cache) touchLocked(e *entry) {
	e.used = time.Now()
	if c.entries[e.id] == e {
		_ = c.root.Chtimes(e.id, e.used, e.used) // only the order after a restart depends on it
	}
}
