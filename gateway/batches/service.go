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
	"time"

	"reveille/gateway/api"
	"reveille/gateway/keys"
)

// Config configures a Service. All fields are required.
type Config struct {
	Dir      string // exists; the gateways that share it need the same runner secret
	MaxBytes int64  // of all its files
	Tenant   func(*keys.Key) string
	// Key returns the key with that digest; one that is no longer valid has no scopes.
	Key func(digest [sha256.Size]byte) keys.Key
	// Do runs a line.
	Do func(context.Context, Call) Result
	// Count counts outcomes of lines: completed, failed or expired.
	Count func(outcome string, n int)
	Log   *slog.Logger
}

// Call is a line to run.
type Call struct {
	Key    keys.Key
	Path   string
	Body   []byte
	Urgent bool // it may load its model as other requests do, with low priority
}

// Result is the response to a line.
type Result struct {
	Status  int
	Request string     // id
	Body    []byte     // JSON
	Err     *api.Error // why the gateway refused the line or broke off; nil: the response is an engine's
	Release func()     // releases the memory of Body; never nil
}

// Service serves the routes of files and batches and runs batches. Make it with New. Its methods are safe for
// concurrent use.
type Service struct {
	cfg   Config
	woken chan struct{} // capacity 1

	mu     sync.Mutex
	active map[string]time.Time // by id: batches that run here, or when they last did
	final  map[string]bool      // ids of batches that have ended
	full   bool                 // the folder
	// waiting: more batches have not ended than run here
	waiting bool
	check   sync.Mutex // held while a batch is validated: one at a time
}

// New makes a service.
func New(cfg Config) *Service {
	return &Service{cfg: cfg, woken: make(chan struct{}, 1), active: map[string]time.Time{}, final: map[string]bool{}}
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

func (s *Service) isFinal(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.final[id]
}

func (s *Service) setFinal(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.final[id] = true
}

// running is the time of a batch that runs here, in Service.active.
var running = time.Time{}

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
				err := s.run(ctx, next.tenant, next.id)
				if err != nil && ctx.Err() == nil {
					s.cfg.Log.Error("a batch stopped; it will be resumed", "batch", next.id, "error", err)
				}
				s.mu.Lock()
				s.active[next.id] = time.Now()
				s.mu.Unlock()
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

// candidate is a batch that has not ended.
type candidate struct {
	tenant, id string
	last       time.Time // when it last ran here
}

// next returns the batches to start, and marks them as running: those that have not run here for longest, and then the
// oldest.
func (s *Service) next() []candidate {
	tenants, err := s.tenants()
	if err != nil {
		s.cfg.Log.Error("the batch folder cannot be read", "error", err)
		return nil
	}
	var found []candidate
	for _, tenant := range tenants {
		open, err := s.open(tenant)
		if err != nil {
			s.cfg.Log.Error("the batch folder cannot be read", "error", err)
		}
		for _, b := range open {
			found = append(found, candidate{tenant: tenant, id: b.ID})
		}
	}
	if len(found) == 0 {
		return nil
	}
	used, err := s.used()
	if err != nil {
		s.cfg.Log.Error("the batch folder cannot be read", "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = used >= s.cfg.MaxBytes
	free := maxRunning
	for id, last := range s.active {
		switch {
		case last == running:
			free--
		case s.final[id]:
			delete(s.active, id)
		}
	}
	found = slices.DeleteFunc(found, func(c candidate) bool { last, known := s.active[c.id]; return known && last == running })
	for i := range found {
		found[i].last = s.active[found[i].id]
	}
	slices.SortFunc(found, func(a, b candidate) int { return cmp.Or(a.last.Compare(b.last), strings.Compare(a.id, b.id)) })
	s.waiting = len(found) > free
	found = found[:min(len(found), max(free, 0))]
	for _, c := range found {
		s.active[c.id] = running
	}
	return found
}

// sweep removes what has expired, and forgets it.
func (s *Service) sweep(now time.Time) {
	tenants, _ := s.tenants()
	kept := map[string]bool{}
	for _, tenant := range tenants {
		inUse, err := s.inUse(tenant)
		if err == nil {
			err = s.sweepKey(tenant, inUse, kept, now)
		}
		if err != nil {
			s.cfg.Log.Error("the batch folder cannot be cleaned up", "error", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.final {
		if !kept[id] {
			delete(s.final, id)
		}
	}
}

func (s *Service) sweepKey(tenant string, inUse, kept map[string]bool, now time.Time) error {
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
			kept[id] = true
			continue
		}
		remove := false
		switch {
		case isID(batchPrefix, id) && filepath.Ext(name) == record:
			b, _, err := s.load(tenant, id)
			kept[id] = true
			remove = err == nil && b.ended() && now.Sub(time.Unix(b.Ended, 0)) > retention
		case isID(filePrefix, id) && filepath.Ext(name) == record:
			var f File
			if s.read(tenant, id, &f) == nil && !inUse[id] && now.Unix() >= f.ExpiresAt {
				errs = append(errs, s.removeFile(tenant, id))
			}
		case isID(filePrefix, name):
			_, err := os.Stat(s.path(tenant, id+record))
			remove = errors.Is(err, fs.ErrNotExist) && !inUse[id] && now.Sub(info.ModTime()) > orphanAge
		case isID(batchPrefix, id): // its mark
			_, err := os.Stat(s.path(tenant, id+record))
			remove = errors.Is(err, fs.ErrNotExist)
		case strings.HasPrefix(name, uploadPrefix), strings.HasPrefix(name, tempPrefix):
			remove = now.Sub(info.ModTime()) > orphanAge
		}
		if remove {
			errs = append(errs, ignoreMissing(os.Remove(s.path(tenant, name))))
		}
	}
	return errors.Join(errs...)
}
