package weights

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"reveille/infra/catalog"
)

// entry is a location's weights in the cache. Cache.mu guards holds, used and wanted.
type entry struct {
	id    string // its folder
	bytes int64
	manifest

	holds  int
	used   time.Time
	wanted time.Time // when Has last found it
}

// manifest is the content of .weights.json.
type manifest struct {
	Location string   `json:"place"`          // "place" for compatibility with existing files
	Path     string   `json:"path,omitempty"` // of the file that engines get, "" for the folder
	Files    []record `json:"files"`
}

type record struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	Digest string `json:"digest,omitempty"` // as Digest.String
}

// idOf returns the name of a location's folder, readable and unique.
func idOf(at Location) string {
	sum := sha256.Sum256([]byte(at.String()))
	readable := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_':
			return r
		}
		return '-'
	}, string(at.Scheme)+"-"+at.Repo+at.Bucket+"-"+path.Base("/"+at.Path))
	return strings.TrimRight(readable[:min(len(readable), 100)], "-.") + "-" + hex.EncodeToString(sum[:6])
}

// scan reads the existing entries.
func (c *Cache) scan() error {
	_ = c.root.RemoveAll(removedName) // left by a process that was killed while it removed an entry
	dirs, err := fs.ReadDir(c.root.FS(), ".")
	if err != nil {
		return err
	}
	for _, d := range dirs {
		if !d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			continue
		}
		e, err := c.readEntry(d.Name())
		if err != nil {
			c.cfg.Log.Warn("ignoring a folder among the weights", "folder", d.Name(), "error", err)
			continue
		}
		c.entries[e.id] = e
		c.total += e.bytes
	}
	return nil
}

func (c *Cache) readEntry(id string) (*entry, error) {
	raw, err := c.root.ReadFile(id + "/" + manifestName)
	if err != nil {
		return nil, err
	}
	e := &entry{id: id}
	if err := json.Unmarshal(raw, &e.manifest); err != nil {
		return nil, err
	}
	for _, f := range e.Files {
		e.bytes += f.Size
	}
	info, err := c.root.Stat(id)
	if err != nil {
		return nil, err
	}
	e.used = info.ModTime()
	return e, nil
}

// entryLocked returns the entry of a location if all its files exist with their sizes and the requested checksum,
// otherwise nil.
func (c *Cache) entryLocked(at Location) *entry {
	e := c.entries[idOf(at)]
	if e == nil || e.Location != at.String() {
		return nil
	}
	for _, f := range e.Files {
		info, err := c.root.Stat(e.id + "/" + f.Name)
		if err != nil || info.Size() != f.Size {
			return nil
		}
	}
	want := Digest{SHA256, at.SHA256}.String()
	if at.SHA256 != "" && (len(e.Files) != 1 || e.Files[0].Digest != want) {
		return nil
	}
	return e
}

// removeLocked removes an entry atomically. An engine that has its files open keeps them.
func (c *Cache) removeLocked(e *entry, why string) error {
	if err := c.root.RemoveAll(removedName); err != nil { // what an earlier call could not remove
		return err
	}
	if err := c.root.Rename(e.id, removedName); err != nil && !os.IsNotExist(err) {
		return err
	}
	if c.entries[e.id] == e {
		delete(c.entries, e.id)
		c.total -= e.bytes
	}
	c.cfg.Log.Info("weights removed", "location", e.Location, "bytes", e.bytes, "reason", why)
	return c.root.RemoveAll(removedName)
}

// reserve makes space for more bytes of a pull and reserves it until the pull ends. If all idle entries together are
// not enough, none is removed.
func (c *Cache) reserve(p *pull, more int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	shortfall, err := c.shortfallLocked(more)
	if err != nil {
		return err
	}
	if shortfall > 0 {
		c.removePartialsLocked()
		if shortfall, err = c.shortfallLocked(more); err != nil {
			return err
		}
	}
	var idle []*entry // neither held nor about to be
	var idleBytes int64
	for _, e := range c.entries {
		if e.holds == 0 && time.Since(e.wanted) > c.cfg.Wanted {
			idle, idleBytes = append(idle, e), idleBytes+e.bytes
		}
	}
	if shortfall > idleBytes {
		return errFull(more, max(0, more-shortfall+idleBytes))
	}
	slices.SortFunc(idle, func(a, b *entry) int { return a.used.Compare(b.used) })
	for ; shortfall > 0; idle = idle[1:] {
		if len(idle) == 0 {
			return errFull(more, max(0, more-shortfall))
		}
		if err := c.removeLocked(idle[0], "space for "+p.location.String()); err != nil {
			return &Error{Kind: ErrFull, Cause: err}
		}
		if shortfall, err = c.shortfallLocked(more); err != nil {
			return err
		}
	}
	p.reserved += more
	return nil
}

// errFull returns the error of a pull of size bytes for which there is less space.
func errFull(size, space int64) error {
	note := fmt.Sprintf("needs %s, only %s free", catalog.FormatSize(size), catalog.FormatSize(space))
	return &Error{Kind: ErrFull, Note: note}
}

// shortfallLocked returns how many bytes must be removed before more bytes fit; 0 or less for none.
func (c *Cache) shortfallLocked(more int64) (int64, error) {
	free, err := c.free(c.dir)
	if err != nil {
		return 0, &Error{Kind: ErrFull, Cause: err}
	}
	var reserved, unwritten int64
	for _, p := range c.pulls {
		reserved += p.reserved
		unwritten += max(0, p.reserved-p.got.Load())
	}
	ofLimit := more - (c.cfg.Bytes - c.total - reserved)
	ofDisk := more - (free - c.cfg.Margin - unwritten)
	return max(ofLimit, ofDisk), nil
}

// removePartialsLocked removes the files of unfinished pulls that are not in progress.
func (c *Cache) removePartialsLocked() {
	left, _ := fs.ReadDir(c.root.FS(), pullingName)
	for _, d := range left {
		if c.pulls[d.Name()] == nil {
			_ = c.root.RemoveAll(pullingName + "/" + d.Name())
		}
	}
}
