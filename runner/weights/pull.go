package weights

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// pull is one location being fetched.
type pull struct {
	id       string
	location Location
	cancel   context.CancelFunc
	done     chan struct{} // closed after err is set
	err      error
	got      atomic.Int64 // bytes on disk
	size     atomic.Int64 // bytes in all, 0 until the source reports it

	wanted    int   // guarded by Cache.mu: callers that wait; nobody joins at 0
	reserved  int64 // guarded by Cache.mu: bytes of the bound
	unwritten int64 // guarded by Cache.mu: bytes that the file system does not count yet
}

// Pull fetches the weights of some locations into the cache, unless they are there already. It returns when all are there, one
// has failed, or ctx ends. Errors are [*Error], or ctx's cause.
func (c *Cache) Pull(ctx context.Context, locations ...Location) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, at := range locations {
		wg.Go(func() {
			if err := c.pullOne(ctx, at); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// pullOne joins the pull of a location, or begins it. The last caller to leave cancels the pull and waits for its end.
func (c *Cache) pullOne(ctx context.Context, at Location) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	if c.wholeLocked(at) != nil {
		c.mu.Unlock()
		return nil
	}
	p := c.joinLocked(at)
	c.mu.Unlock()
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
	}
	c.mu.Lock()
	p.wanted--
	last := p.wanted == 0
	c.mu.Unlock()
	if last {
		p.cancel()
		<-p.done
	}
	return context.Cause(ctx)
}

func (c *Cache) joinLocked(at Location) *pull {
	if p := c.pullingLocked(at); p != nil {
		p.wanted++
		return p
	}
	ctx, cancel := context.WithTimeout(c.life, c.cfg.Limit)
	p := &pull{id: idOf(at), location: at, cancel: cancel, done: make(chan struct{}), wanted: 1}
	c.pulls[p] = struct{}{}
	c.work.Go(func() {
		defer cancel()
		began := time.Now()
		err := c.run(ctx, p)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
			err = &Error{Kind: ErrFetch, Note: fmt.Sprintf("it takes longer than %v", c.cfg.Limit), Cause: err}
		}
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				c.m.failures.Inc()
			}
			err = failed(at, err)
		} else {
			c.m.seconds.UpdateDuration(began)
			c.cfg.Log.Info("pull done", "location", at.String(), "bytes", p.size.Load(), "ms", time.Since(began).Milliseconds())
		}
		c.mu.Lock()
		delete(c.pulls, p)
		p.err = err
		c.mu.Unlock()
		close(p.done)
	})
	return p
}

// pullingLocked returns the pull of a location that has waiting callers, nil for none.
func (c *Cache) pullingLocked(at Location) *pull {
	for p := range c.pulls {
		if p.location == at && p.wanted > 0 {
			return p
		}
	}
	return nil
}

// Progress returns how many bytes of some locations are on the host, and their size. A location whose source has not reported
// its size yet counts as 0 in both.
func (c *Cache) Progress(locations ...Location) (got, size int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, at := range locations {
		if e := c.wholeLocked(at); e != nil {
			got, size = got+e.bytes, size+e.bytes
		} else if p := c.pullingLocked(at); p != nil {
			got, size = got+p.got.Load(), size+p.size.Load()
		}
	}
	return got, size
}

// findTime bounds one try to list the files of a location.
const findTime = 5 * time.Minute

// run fetches a location into a folder of its own and makes that the entry.
func (c *Cache) run(ctx context.Context, p *pull) error {
	src := c.cfg.Sources[p.location.Scheme]
	if src == nil {
		return &Error{Kind: ErrUnclear, Note: "this runner fetches nothing from " + string(p.location.Scheme) + "://"}
	}
	var what found
	err := c.persist(ctx, func() (moved bool, err error) {
		ctx, cancel := context.WithTimeout(ctx, findTime)
		defer cancel()
		what, err = find(ctx, src, p.location)
		return false, err
	})
	if err != nil {
		return err
	}
	if p.location.SHA256 != "" {
		what.files[0].Digest = Digest{SHA256, p.location.SHA256}
	}
	p.size.Store(what.size())
	if err := c.reserve(p, what.size()); err != nil {
		return err
	}
	c.cfg.Log.Info("pull begins", "location", p.location.String(), "files", len(what.files), "bytes", what.size())
	c.mu.Lock()
	scratch := c.scratchLocked(p.id)
	c.mu.Unlock()
	defer func() { _ = c.root.RemoveAll(scratch) }()
	if err := c.root.MkdirAll(scratch, 0o755); err != nil {
		return localError(err)
	}
	folder, err := c.root.OpenRoot(scratch)
	if err != nil {
		return localError(err)
	}
	defer folder.Close()
	if err := c.fetch(ctx, p, folder, what.files); err != nil {
		return err
	}
	e, err := writeManifest(folder, p, what)
	if err != nil {
		return err
	}
	return c.commit(e, scratch)
}

// writeManifest writes the manifest of a folder whose files are complete, and syncs all its names to disk.
func writeManifest(folder *os.Root, p *pull, what found) (*cachedWeights, error) {
	e := &cachedWeights{id: p.id, bytes: what.size(), manifest: manifest{Location: p.location.String(), Path: what.path}, used: time.Now()}
	dirs := []string{"."}
	for _, f := range what.files {
		e.Files = append(e.Files, record{f.Name, f.Size, f.Digest.String()})
		for d := path.Dir(f.Name); d != "."; d = path.Dir(d) {
			dirs = append(dirs, d)
		}
	}
	raw, err := json.Marshal(e.manifest)
	if err != nil {
		return nil, err
	}
	if err := folder.WriteFile(manifestName, raw, 0o644); err != nil {
		return nil, localError(err)
	}
	slices.Sort(dirs)
	for _, name := range append(slices.Compact(dirs), manifestName) {
		if err := syncName(folder, name); err != nil {
			return nil, localError(err)
		}
	}
	return e, nil
}

// commit makes a complete folder the entry. It replaces one that was damaged or had another checksum.
func (c *Cache) commit(e *cachedWeights, scratch string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.entries[e.id]
	if _, err := c.root.Lstat(e.id); old == nil && !errors.Is(err, fs.ErrNotExist) {
		old = &cachedWeights{id: e.id, manifest: manifest{Location: e.Location}} // of a manifest that cannot be read
	}
	if old != nil {
		if err := c.removeLocked(old, "replaced"); err != nil {
			return localError(err)
		}
	}
	if err := c.root.Rename(scratch, e.id); err != nil {
		return localError(err)
	}
	c.entries[e.id] = e
	c.total += e.bytes
	c.touchLocked(e)
	if err := syncName(c.root, "."); err != nil {
		return localError(err)
	}
	return nil
}

// scratchLocked is a new name below .pulling.
func (c *Cache) scratchLocked(id string) string {
	c.serial++
	return fmt.Sprintf("%s/%s-%d", pullingName, id, c.serial)
}

// syncName syncs a file's bytes, or a folder's names, to disk.
func syncName(root *os.Root, name string) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// localError is the error of a file operation of this host.
func localError(err error) error {
	if isFull(err) {
		return &Error{Kind: ErrFull, Cause: err}
	}
	return &Error{Kind: ErrFetch, Note: "it could not be written", Cause: err}
}
