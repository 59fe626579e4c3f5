package weights

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// pull is the transfer of one location.
type pull struct {
	id       string
	location Location
	done     chan struct{} // closed after err is set
	err      error
	got      atomic.Int64 // bytes on disk
	size     atomic.Int64 // total bytes, 0 until the source reports it
	reserved int64        // guarded by Cache.mu: bytes of the limit
}

// Pull fetches the weights of the locations that the cache lacks. It returns when it has all of them, one has failed,
// or ctx ends; the pulls continue after that. Errors are [*Error], or ctx's.
func (c *Cache) Pull(ctx context.Context, locations ...Location) error {
	all, ctx := errgroup.WithContext(ctx)
	for _, at := range locations {
		all.Go(func() error {
			for {
				p := c.startOrJoin(at)
				if p == nil {
					return nil
				}
				select {
				case <-p.done:
					if p.location == at || c.life.Err() != nil { // otherwise it was compared with another checksum
						return p.err
					}
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
	}
	return all.Wait()
}

// startOrJoin returns the pull of a location, which it starts if there is none. It returns nil if the cache has the
// weights.
func (c *Cache) startOrJoin(at Location) *pull {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entryLocked(at) != nil {
		return nil
	}
	if p := c.pulls[idOf(at)]; p != nil {
		return p
	}
	p := &pull{id: idOf(at), location: at, done: make(chan struct{})}
	c.pulls[p.id] = p
	c.work.Go(func() {
		start := time.Now()
		err := c.run(c.life, p)
		if err == nil {
			c.pullSeconds.UpdateDuration(start)
			c.cfg.Log.Info("pull done", "location", at.String(), "bytes", p.size.Load(), "ms", time.Since(start).Milliseconds())
		} else if !errors.Is(err, context.Canceled) {
			c.pullFailures.Inc()
		}
		c.mu.Lock()
		delete(c.pulls, p.id)
		p.err = pullError(at, err)
		c.mu.Unlock()
		close(p.done)
	})
	return p
}

// Progress returns how many bytes of some locations are on the host, and their size. A location whose source has not
// reported its size yet counts as 0 in both.
func (c *Cache) Progress(locations ...Location) (got, size int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, at := range locations {
		if e := c.entryLocked(at); e != nil {
			got, size = got+e.bytes, size+e.bytes
		} else if p := c.pulls[idOf(at)]; p != nil {
			got, size = got+p.got.Load(), size+p.size.Load()
		}
	}
	return got, size
}

// findTimeout limits one try to list the files of a location.
const findTimeout = 5 * time.Minute

// run fetches a location into a separate folder, which becomes the entry.
func (c *Cache) run(ctx context.Context, p *pull) error {
	src := c.cfg.Sources[p.location.Scheme]
	if src == nil {
		return &Error{Kind: ErrUnclear, Note: "this runner cannot fetch from " + string(p.location.Scheme) + "://"}
	}
	var what found
	err := c.retry(ctx, func() (moved bool, err error) {
		ctx, cancel := context.WithTimeout(ctx, findTimeout)
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
	scratch := pullingName + "/" + p.id
	if err := c.root.MkdirAll(scratch, 0o755); err != nil {
		return localError(err)
	}
	folder, err := c.root.OpenRoot(scratch)
	if err != nil {
		return localError(err)
	}
	defer folder.Close()
	err = c.fetch(ctx, p, folder, what.files)
	var e *entry
	if err == nil {
		e, err = writeManifest(folder, p, what)
	}
	if err == nil {
		err = c.commit(e, scratch)
	}
	if err != nil && (isFinal(err) || p.got.Load() == 0) { // otherwise the next pull continues with what has arrived
		_ = c.root.RemoveAll(scratch)
	}
	return err
}

// writeManifest writes the manifest of a folder whose files are complete, and syncs all its names to disk.
func writeManifest(folder *os.Root, p *pull, what found) (*entry, error) {
	e := &entry{id: p.id, bytes: what.size()}
	e.Location, e.Path = p.location.String(), what.path
	sync := map[string]struct{}{".": {}, manifestName: {}}
	for _, f := range what.files {
		e.Files = append(e.Files, record{f.Name, f.Size, f.Digest.String()})
		for d := path.Dir(f.Name); d != "."; d = path.Dir(d) {
			sync[d] = struct{}{}
		}
	}
	raw, err := json.Marshal(e.manifest)
	if err == nil {
		err = folder.WriteFile(manifestName, raw, 0o644)
	}
	if err == nil {
		err = folder.Remove(progressName)
	}
	for name := range sync {
		if err == nil {
			err = syncName(folder, name)
		}
	}
	return e, localError(err)
}

// commit makes a complete folder the entry. It replaces one that was damaged or had another checksum.
func (c *Cache) commit(e *entry, scratch string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.entries[e.id]
	if _, err := c.root.Lstat(e.id); old == nil && !errors.Is(err, fs.ErrNotExist) {
		old = &entry{id: e.id, manifest: manifest{Location: e.Location}} // its manifest cannot be read
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
	return localError(syncName(c.root, "."))
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
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		return &Error{Kind: ErrFull, Cause: err}
	}
	return &Error{Kind: ErrFetch, Note: "it could not be written", Cause: err}
}
