package weights

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"sync"
	"sync/atomic"
	"time"
)

// target is a file of a pull that is being written.
type target struct {
	File
	f   *os.File
	got []chan struct{} // one a range, closed when all of it is written
}

// span is one range of a target.
type span struct {
	target   *target
	n        int   // of its ranges
	from, to int64 // offsets, to is behind it
}

// fetch writes files below a folder, several ranges at a time, and compares each with its checksum close behind the
// ranges that have come. When it returns without an error, all bytes are durable.
func (c *Cache) fetch(ctx context.Context, p *pull, folder *os.Root, files []File) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	targets, err := c.create(folder, files)
	defer func() {
		for _, t := range targets {
			_ = t.f.Close() // synced before, or worth nothing
		}
	}()
	if err != nil {
		return err
	}
	c.mu.Lock()
	p.unwritten = 0 // what is allocated the file system counts by itself
	c.mu.Unlock()

	var work sync.WaitGroup
	spans := make(chan span)
	work.Go(func() { c.deal(ctx, targets, spans) })
	for range c.cfg.Ranges {
		work.Go(func() {
			for s := range spans {
				if err := c.read(ctx, p, s); err != nil {
					stop(err)
					return
				}
				close(s.target.got[s.n])
			}
		})
	}
	work.Go(func() {
		if err := c.verify(ctx, targets); err != nil {
			stop(err)
		}
	})
	work.Wait()
	return context.Cause(ctx)
}

// create makes the files in their sizes. What it returns is open, also with an error.
func (c *Cache) create(folder *os.Root, files []File) ([]*target, error) {
	targets := make([]*target, 0, len(files))
	for _, file := range files {
		if err := folder.MkdirAll(path.Dir(file.Name), 0o755); err != nil {
			return targets, localError(err)
		}
		f, err := folder.OpenFile(file.Name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
		if err != nil {
			return targets, localError(err)
		}
		t := &target{File: file, f: f, got: make([]chan struct{}, (file.Size+c.cfg.Range-1)/c.cfg.Range)}
		for i := range t.got {
			t.got[i] = make(chan struct{})
		}
		targets = append(targets, t)
		if err := c.disk.allocate(f, file.Size); err != nil {
			return targets, localError(err)
		}
	}
	return targets, nil
}

// span is the n-th range of a target.
func (c *Cache) span(t *target, n int) span {
	from := int64(n) * c.cfg.Range
	return span{t, n, from, min(from+c.cfg.Range, t.Size)}
}

// deal hands out all ranges in order, and closes the channel.
func (c *Cache) deal(ctx context.Context, targets []*target, to chan<- span) {
	defer close(to)
	for _, t := range targets {
		for n := range t.got {
			select {
			case to <- c.span(t, n):
			case <-ctx.Done():
				return
			}
		}
	}
}

// read writes one range. After an interruption it continues where it stopped.
func (c *Cache) read(ctx context.Context, p *pull, s span) error {
	select {
	case c.ranges <- struct{}{}:
		defer func() { <-c.ranges }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return c.persist(ctx, func() (moved bool, err error) {
		from := s.from
		s.from, err = c.readOnce(ctx, s, &p.got)
		return s.from > from, err
	})
}

var errStalled = errors.New("nothing has come for too long")

// readOnce reads a range until its end or the first error, and returns how far it came. What it writes it adds to got.
func (c *Cache) readOnce(ctx context.Context, s span, got *atomic.Int64) (at int64, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	watch := time.AfterFunc(c.cfg.Stall, func() { stop(errStalled) })
	defer watch.Stop()
	at = s.from
	body, err := s.target.Open(ctx, s.from, s.to-s.from)
	if err != nil {
		return at, causeOr(ctx, err)
	}
	defer body.Close()
	buf := c.buffers.Get().(*[]byte)
	defer c.buffers.Put(buf)
	for at < s.to {
		n, err := body.Read((*buf)[:min(int64(len(*buf)), s.to-at)])
		watch.Reset(c.cfg.Stall)
		if _, werr := s.target.f.WriteAt((*buf)[:n], at); werr != nil {
			return at, localError(werr)
		}
		at += int64(n)
		got.Add(int64(n))
		c.m.bytes.Add(n)
		if err != nil && at < s.to {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return at, causeOr(ctx, fmt.Errorf("%s broke off at byte %d of %d: %w", s.target.Name, at, s.target.Size, err))
		}
	}
	return at, nil
}

// causeOr returns the cause of ctx's end if it has ended, else err.
func causeOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// maxPause bounds the pause before another try.
const maxPause = 15 * time.Second

// persist repeats a step until it succeeds, fails for good, or has failed Config.Tries times in a row without moving.
func (c *Cache) persist(ctx context.Context, step func() (moved bool, err error)) error {
	for tries := 1; ; tries++ {
		moved, err := step()
		if ctx.Err() != nil && err != nil {
			return context.Cause(ctx)
		}
		if moved {
			tries = 1
		}
		if err == nil || final(err) || tries >= c.cfg.Tries {
			return err
		}
		c.cfg.Log.Debug("source failed, trying again", "error", err)
		select {
		case <-time.After(min(c.cfg.Pause<<min(tries-1, 16), maxPause)):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// verify follows the ranges in order: it sums what is written, compares, and makes it durable.
func (c *Cache) verify(ctx context.Context, targets []*target) error {
	buf := c.buffers.Get().(*[]byte)
	defer c.buffers.Put(buf)
	for _, t := range targets {
		sum := t.Digest.hash(t.Size)
		for n, got := range t.got {
			select {
			case <-got:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if sum == nil {
				continue
			}
			s := c.span(t, n)
			if _, err := io.CopyBuffer(sum, onlyReader{io.NewSectionReader(t.f, s.from, s.to-s.from)}, *buf); err != nil {
				return localError(err)
			}
		}
		if sum != nil {
			if err := t.Digest.compare(t.Name, sum); err != nil {
				return err
			}
		}
		if err := t.f.Sync(); err != nil {
			return localError(err)
		}
	}
	return nil
}

// onlyReader hides WriteTo, which would not use the buffer.
type onlyReader struct{ io.Reader }
