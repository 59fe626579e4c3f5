package weights

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"
)

// cachedWeights is a location's weights in the cache. Cache.mu guards holds, used and wanted.
type cachedWeights struct {
	id    string // its folder
	bytes int64
	manifest

	holds  int
	used   time.Time
	wanted time.Time // when a load last asked for it
}

// manifest is the content of .weights.json.
type manifest struct {
	Location string   `json:"place"`          // the name in files already written
	Path     string   `json:"path,omitempty"` // of the file that engines are given, "" for the folder
	Files    []record `json:"files"`
}

type record struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	Digest string `json:"digest,omitempty"` // that it was compared with, as Digest.String
}

// idOf is the name of a location's folder: readable, and its own.
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

// scan reads the entries that are there.
func (c *Cache) scan() error {
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
			c.cfg.Log.Warn("folder among the weights is left alone", "folder", d.Name(), "error", err)
			continue
		}
		c.entries[e.id] = e
		c.total += e.bytes
	}
	return nil
}

func (c *Cache) readEntry(id string) (*cachedWeights, error) {
	raw, err := c.root.ReadFile(id + "/" + manifestName)
	if err != nil {
		return nil, err
	}
	e := &cachedWeights{id: id}
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

// wholeLocked is the entry of a location whose files are all there in their sizes and have the checksum asked for; nil for
// none.
func (c *Cache) wholeLocked(at Location) *cachedWeights {
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
	if want := (Digest{SHA256, at.SHA256}).String(); at.SHA256 != "" && (len(e.Files) != 1 || e.Files[0].Digest != want) {
		return nil
	}
	return e
}

// removeLocked takes an entry out of the cache. It vanishes at once and whole; an engine that reads its files keeps them.
func (c *Cache) removeLocked(e *cachedWeights, why string) error {
	away := c.scratchLocked(e.id)
	err := c.root.MkdirAll(pullingName, 0o755)
	if err == nil {
		err = c.root.Rename(e.id, away)
	}
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	delete(c.entries, e.id)
	c.total -= e.bytes
	c.cfg.Log.Info("weights are removed", "location", e.Location, "bytes", e.bytes, "reason", why)
	return c.root.RemoveAll(away)
}
