package batches

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/keys"
)

// Config configures a Service. All fields are required.
type Config struct {
	Dir      string // exists; the gateways that share it need the same runner secret
	MaxBytes int64  // of all its files
	MaxHeld  int64  // bytes of lines and responses in memory; see Memory
	Tenant   func(*keys.Key) string
	// Key returns the key with that digest; one that is no longer valid has no scopes.
	Key func(digest [sha256.Size]byte) keys.Key
	// Do runs a line.
	Do func(context.Context, Call) Result
	// Hours reports whether lines may wake hosts and load models at a time, whatever is left of their batch's window.
	Hours func(time.Time) bool
	// Count counts an outcome of a line: completed, failed or expired.
	Count func(outcome string)
	Log   *slog.Logger
}

// Call is a line to run.
type Call struct {
	Key    keys.Key
	Path   string
	Body   []byte
	Urgent bool    // it may load its model as other requests do, with low priority
	Memory *Memory // counts the response
}

// Result is the response to a line.
type Result struct {
	Status  int
	Request string     // id
	Body    []byte     // JSON
	Err     *api.Error // why the gateway refused the line or broke off; nil: the response is an engine's
	Release func()     // releases Body and its Memory; never nil
}

// Service serves the routes of files and batches and runs batches. Make it with New. Its methods are safe for
// concurrent use.
type Service struct {
	cfg   Config
	woken chan struct{} // capacity 1

	mu      sync.Mutex
	running map[string]bool      // ids of batches that run here
	ran     map[string]time.Time // by id: when others last did
	waiting bool                 // batches wait for others that run here

	final sync.Map // ids of batches that have ended

	check sync.Mutex // held while a batch is validated: one at a time

	size    sync.Mutex
	used    int64     // bytes of the folder, as far as this gateway knows
	counted time.Time // when they were counted

	held   atomic.Int64  // bytes of lines and responses in memory
	beyond chan struct{} // capacity 1, full while a line holds more than Config.MaxHeld has room for
}

// New makes a service.
func New(cfg Config) *Service {
	return &Service{cfg: cfg, woken: make(chan struct{}, 1), beyond: make(chan struct{}, 1), running: map[string]bool{}, ran: map[string]time.Time{}}
}

const (
	maxRunning = 16              // batches that run at a gateway
	scanEvery  = 2 * time.Second // how often it looks for batches
	sweepEvery = time.Hour       // how often it removes what has expired
	orphanAge  = 24 * time.Hour  // when files without a record are removed, such as of uploads that broke off
)

func (s *Service) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// Run runs batches until ctx ends. What it was running then, another gateway resumes. Call it once.
func (s *Service) Run(ctx context.Context) {
	var batches sync.WaitGroup
	defer batches.Wait()
	scan, sweep := time.NewTicker(scanEvery), time.NewTicker(sweepEvery)
	defer scan.Stop()
	defer sweep.Stop()
	s.sweep(time.Now())
	for {
		for _, next := range s.next() {
			batches.Go(func() {
				err := s.run(ctx, next.tenant, next.ID)
				if err != nil && ctx.Err() == nil {
					s.cfg.Log.Error("a batch stopped; it will be resumed", "batch", next.ID, "error", err)
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				delete(s.running, next.ID)
				s.ran[next.ID] = time.Now()
			})
		}
		select {
		case <-ctx.Done():
			return
		case <-scan.C:
		case <-s.woken:
		case <-sweep.C:
			s.sweep(time.Now())
		}
	}
}

// next returns the batches to start, and marks them as running: those that have not run here for longest, and then the
// oldest.
func (s *Service) next() (found []*stored) {
	tenants, err := s.tenants()
	errs := []error{err}
	for _, tenant := range tenants {
		open, err := s.open(tenant)
		errs = append(errs, err)
		found = append(found, open...)
	}
	if err := errors.Join(errs...); err != nil {
		s.cfg.Log.Error("the batch folder cannot be read", "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	found = slices.DeleteFunc(found, func(b *stored) bool { return s.running[b.ID] })
	slices.SortFunc(found, func(a, b *stored) int { return cmp.Or(s.ran[a.ID].Compare(s.ran[b.ID]), strings.Compare(a.ID, b.ID)) })
	free := maxRunning - len(s.running)
	s.waiting = len(found) > free
	found = found[:min(len(found), free)]
	for _, b := range found {
		s.running[b.ID] = true
	}
	return found
}

// sweep removes what has expired.
func (s *Service) sweep(now time.Time) {
	tenants, _ := s.tenants()
	for _, tenant := range tenants {
		if err := s.sweepKey(tenant, now); err != nil {
			s.cfg.Log.Error("the batch folder cannot be cleaned up", "error", err)
		}
	}
	s.final.Clear() // it has ids of batches that were removed
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.ran)
}

func (s *Service) sweepKey(tenant string, now time.Time) error {
	inUse, err := s.inUse(tenant)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(s.path(tenant, ""))
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		name := e.Name()
		id := strings.TrimSuffix(name, filepath.Ext(name))
		info, err := e.Info()
		if err != nil || now.Sub(info.ModTime()) < minLifetime/2 {
			continue
		}
		remove, old := false, now.Sub(info.ModTime()) > orphanAge
		switch {
		case isID(batchPrefix, id) && filepath.Ext(name) == record:
			b, err := s.load(tenant, id)
			remove = err == nil && b.ended() && now.Sub(time.Unix(b.Ended, 0)) > retention
		case isID(filePrefix, id) && filepath.Ext(name) == record:
			var f File
			if s.read(tenant, id, &f) == nil && !inUse[id] && f.expired(now) {
				errs = append(errs, s.removeFile(tenant, id))
			}
		case isID(filePrefix, id), isID(batchPrefix, id): // a file's bytes, or the mark of a batch
			_, err := os.Stat(s.path(tenant, id+record))
			remove = old && errors.Is(err, fs.ErrNotExist) && !inUse[id]
		case strings.HasPrefix(name, uploadPrefix), strings.HasPrefix(name, tempPrefix):
			remove = old
		}
		if remove {
			errs = append(errs, s.remove(s.path(tenant, name)))
		}
	}
	return errors.Join(errs...)
}
