package weights

import (
	"fmt"
	"time"

	"reveille/infra/catalog"
)

// reserve makes room for a pull and keeps it until the pull's end. When all that nobody holds would not make enough,
// nothing is removed.
func (c *Cache) reserve(p *pull, size int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	lack, err := c.lackLocked(size)
	if err != nil {
		return err
	}
	var idle int64
	for _, e := range c.entries {
		if c.idleLocked(e) {
			idle += e.bytes
		}
	}
	if lack > idle {
		return full(size, max(0, size-lack+idle))
	}
	for lack > 0 {
		e := c.oldestLocked()
		if e == nil {
			return full(size, max(0, size-lack))
		}
		if err := c.removeLocked(e, "room for "+p.location.String()); err != nil {
			return &Error{Kind: ErrFull, Cause: err}
		}
		if lack, err = c.lackLocked(size); err != nil {
			return err
		}
	}
	p.reserved, p.unwritten = size, size
	return nil
}

// full is the error of a pull of size bytes for which there is less room.
func full(size, room int64) error {
	return &Error{Kind: ErrFull, Note: fmt.Sprintf("it needs %s, there are %s", catalog.FormatSize(size), catalog.FormatSize(room))}
}

// lackLocked is how many bytes have to be removed before size more may come; 0 or less for none.
func (c *Cache) lackLocked(size int64) (int64, error) {
	free, err := c.disk.free(c.dir)
	if err != nil {
		return 0, &Error{Kind: ErrFull, Cause: err}
	}
	var reserved, unwritten int64
	for p := range c.pulls {
		reserved += p.reserved
		unwritten += p.unwritten
	}
	ofBound := size - (c.cfg.Bytes - c.total - reserved)
	ofDisk := size - (free - c.cfg.Margin - unwritten)
	return max(ofBound, ofDisk), nil
}

// idleLocked reports whether an entry is not held and not about to be.
func (c *Cache) idleLocked(e *cachedWeights) bool {
	return e.holds == 0 && time.Since(e.wanted) > c.cfg.Wanted
}

// oldestLocked is the idle entry used longest ago, nil for none.
func (c *Cache) oldestLocked() *cachedWeights {
	var out *cachedWeights
	for _, e := range c.entries {
		if c.idleLocked(e) && (out == nil || e.used.Before(out.used) || e.used.Equal(out.used) && e.id < out.id) {
			out = e
		}
	}
	return out
}
