package weights

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// fetch writes files below a folder and compares each with its checksum. When it returns without an error, all bytes
// are durable.
func (c *Cache) fetch(ctx context.Context, p *pull, folder *os.Root, files []File) error {
	progress, err := openProgress(folder, c.cfg.Range, files)
	if err != nil {
		return localError(err)
	}
	defer progress.file.Close()
	for i, f := range files {
		for n := range c.ranges(&f) {
			if from, to := c.bounds(&f, n); progress.done[span{i, n}] {
				p.got.Add(to - from)
			}
		}
	}
	c.mu.Lock()
	p.reserved = p.got.Load()
	c.mu.Unlock()
	if err := c.reserve(p, p.size.Load()-p.got.Load()); err != nil {
		return err
	}
	c.cfg.Log.Info("pull started", "location", p.location.String(), "files", len(files), "bytes", p.size.Load(), "present", p.got.Load())
	for i := range files {
		if err := c.fetchFile(ctx, p, folder, progress, i, &files[i]); err != nil {
			return err
		}
	}
	return nil
}

// progress records which ranges of a pull's files have arrived. A pull after a restart continues with it.
type progress struct {
	file *os.File
	done map[span]bool // ranges that had arrived when the pull started
}

type span struct{ file, n int }

// openProgress reads the progress of an earlier pull of the same files in the folder. If the files differ, it removes
// everything.
func openProgress(folder *os.Root, step int64, files []File) (*progress, error) {
	records := make([]record, len(files))
	for i, f := range files {
		records[i] = record{f.Name, f.Size, f.Digest.String()}
	}
	list, err := json.Marshal(records)
	if err != nil {
		return nil, err
	}
	header := fmt.Sprintf("%d %s\n", step, list)
	raw, _ := folder.ReadFile(progressName)
	rest, ok := strings.CutPrefix(string(raw[:bytes.LastIndexByte(raw, '\n')+1]), header)
	if !ok {
		old, err := fs.ReadDir(folder.FS(), ".")
		for _, d := range old {
			err = errors.Join(err, folder.RemoveAll(d.Name()))
		}
		if err = errors.Join(err, folder.WriteFile(progressName, []byte(header), 0o644)); err != nil {
			return nil, err
		}
	}
	p := &progress{done: map[span]bool{}}
	for line := range strings.Lines(rest) {
		var s span
		if _, err := fmt.Sscanf(line, "%d %d", &s.file, &s.n); err == nil {
			p.done[s] = true
		}
	}
	p.file, err = folder.OpenFile(progressName, os.O_APPEND|os.O_WRONLY, 0)
	return p, err
}

// ranges returns the number of ranges of a file.
func (c *Cache) ranges(f *File) int {
	if f.NoRanges {
		return 1
	}
	return int((f.Size + c.cfg.Range - 1) / c.cfg.Range)
}

// bounds returns the offsets of a file's n-th range, which ends before to.
func (c *Cache) bounds(f *File, n int) (from, to int64) {
	if f.NoRanges {
		return 0, f.Size
	}
	from = int64(n) * c.cfg.Range
	return from, min(from+c.cfg.Range, f.Size)
}

// fetchFile writes a file, several ranges in parallel, and computes the checksum as ranges arrive.
func (c *Cache) fetchFile(ctx context.Context, p *pull, folder *os.Root, progress *progress, i int, file *File) error {
	if err := folder.MkdirAll(path.Dir(file.Name), 0o755); err != nil {
		return localError(err)
	}
	f, err := folder.OpenFile(file.Name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return localError(err)
	}
	defer f.Close() // the file was synced before, or is not used
	unsized := file.Size < 0
	if err := f.Truncate(max(file.Size, 0)); err != nil {
		return localError(err)
	}
	arrived := make([]chan struct{}, c.ranges(file))
	for n := range arrived {
		arrived[n] = make(chan struct{})
	}
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(1 + c.cfg.Ranges)
	work.Go(func() error { return c.verify(ctx, file, f, arrived) })
	for n := range arrived {
		s := span{i, n}
		if progress.done[s] {
			close(arrived[n])
			continue
		}
		work.Go(func() error {
			if err := c.readRange(ctx, p, file, f, n); err != nil {
				return err
			}
			if file.Digest != (Digest{}) && !unsized { // without a checksum, the loss of a range with the page cache would not be noticed
				_, _ = fmt.Fprintf(progress.file, "%d %d\n", s.file, s.n)
			}
			close(arrived[n])
			return nil
		})
	}
	return work.Wait()
}

// readRange reads one range into the file. After an interruption it continues where it stopped, if the source supports
// ranges. A file of unknown size ends at the end of the source's stream.
func (c *Cache) readRange(ctx context.Context, p *pull, file *File, f *os.File, n int) error {
	from, to := c.bounds(file, n)
	at, unsized := from, file.Size < 0
	err := c.retry(ctx, func() (moved bool, err error) {
		if file.NoRanges {
			p.got.Add(from - at)
			if unsized {
				p.size.Add(from - at)
			}
			at = from
		}
		start := at
		at, err = c.readOnce(ctx, p, file, f, start, to)
		return at > start && !file.NoRanges, err
	})
	if err == nil && unsized {
		file.Size = at
		err = localError(f.Truncate(at))
	}
	return err
}

var errStalled = errors.New("no data for too long")

// readOnce reads from offset at to offset to, -1 for the end of the stream. It returns the offset that it reached.
func (c *Cache) readOnce(ctx context.Context, p *pull, file *File, f *os.File, at, to int64) (end int64, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	watch := time.AfterFunc(c.cfg.Stall, func() { stop(errStalled) })
	defer watch.Stop()
	body, err := file.Open(ctx, at, to-at)
	if err != nil {
		return at, causeOr(ctx, err)
	}
	defer body.Close()
	buf := make([]byte, 256<<10)
	for at < to || to < 0 {
		if to >= 0 {
			buf = buf[:min(int64(len(buf)), to-at)]
		}
		n, err := body.Read(buf)
		watch.Reset(c.cfg.Stall)
		if to < 0 {
			if err := c.grow(p, int64(n)); err != nil {
				return at, err
			}
		}
		if _, werr := f.WriteAt(buf[:n], at); werr != nil {
			return at, localError(werr)
		}
		at += int64(n)
		p.got.Add(int64(n))
		c.pullBytes.Add(n)
		if to < 0 && errors.Is(err, io.EOF) {
			break
		}
		if err != nil && (at < to || to < 0) {
			return at, causeOr(ctx, fmt.Errorf("%s ended at byte %d of %d: %w", file.Name, at, file.Size, err))
		}
	}
	return at, nil
}

// grow makes space for n more bytes of a pull whose source does not report its size.
func (c *Cache) grow(p *pull, n int64) error {
	size := p.size.Add(n)
	c.mu.Lock()
	more := size - p.reserved
	c.mu.Unlock()
	if more <= 0 {
		return nil
	}
	if err := c.reserve(p, more); err != nil {
		return &Error{Kind: ErrFull, Note: "its source does not report its size", Cause: err}
	}
	return nil
}

// causeOr returns the cause of ctx if it has ended, otherwise err.
func causeOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// maxPause bounds the pause before another try.
const maxPause = 15 * time.Second

// retry repeats a step until it succeeds, fails with a final error, or has failed Config.Tries times in a row without
// progress.
func (c *Cache) retry(ctx context.Context, step func() (moved bool, err error)) error {
	for tries := 1; ; tries++ {
		moved, err := step()
		if ctx.Err() != nil && err != nil {
			return context.Cause(ctx)
		}
		if moved {
			tries = 1
		}
		if err == nil || isFinal(err) || tries >= c.cfg.Tries {
			return err
		}
		c.cfg.Log.Debug("source failed, retrying", "error", err)
		select {
		case <-time.After(min(c.cfg.Pause<<min(tries-1, 16), maxPause)):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// verify computes a file's checksum in order as ranges arrive, compares it, and syncs the file.
func (c *Cache) verify(ctx context.Context, file *File, f *os.File, arrived []chan struct{}) error {
	sum := file.Digest.hash(0)
	for n := range arrived {
		select {
		case <-arrived[n]:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if n == 0 {
			sum = file.Digest.hash(file.Size) // the size may be known only now
		}
		if from, to := c.bounds(file, n); sum != nil {
			if _, err := io.Copy(sum, io.NewSectionReader(f, from, to-from)); err != nil {
				return localError(err)
			}
		}
	}
	// Copies of repositories without LFS have small files that only point to the weights.
	const pointer = "version https://git-lfs.github.com/spec/"
	head := make([]byte, len(pointer))
	if n, _ := f.ReadAt(head, 0); file.Size < 1024 && string(head[:n]) == pointer {
		return &Error{Kind: ErrUnclear, Note: file.Name + " is a Git LFS pointer, not the file"}
	}
	if sum != nil {
		if err := file.Digest.compare(file.Name, sum); err != nil {
			return err
		}
	}
	return localError(f.Sync())
}
