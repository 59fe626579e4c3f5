package ui

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"strconv"
	"sync"
	"time"
)

// Feed is one kind of news of the stream.
type Feed int

// The feeds.
const (
	FeedPool    Feed = iota // hosts and queue
	FeedModels              // the catalog's models
	FeedHistory             // the timeline
	FeedNotes               // what only managers may see
	feeds
)

var feedNames = [feeds]string{"pool", "models", "history", "notes"}

// Update is what there is to see of each feed, as JSON without line breaks; nil where that is unknown.
type Update [feeds][]byte

// ErrFull means that there are as many viewers as there may be.
var ErrFull = errors.New("too many viewers")

// HubConfig configures a Hub. All fields are required.
type HubConfig struct {
	MaxViewers int           // viewers at one time
	MaxPerKey  int           // viewers of one key at one time
	Pace       time.Duration // minimum time between two reads of the pool
	Every      time.Duration // maximum time between them
	Build      func() Update
	Changed    func() <-chan struct{} // closed at the next change of the pool
	Now        func() int64           // milliseconds on the pool's clock, sent with each message
}

// Hub shows the pool to any number of viewers up to its bounds. One goroutine looks at the pool, at most once in Pace,
// and only while there are viewers. A viewer who reads slowly gets the newest news, not all. It is safe for concurrent
// use.
type Hub struct {
	cfg  HubConfig
	life context.Context
	work sync.WaitGroup

	mu      sync.Mutex
	viewers int
	byKey   map[[sha256.Size]byte]int // viewers by the digest of their key
	runs    bool                      // the producer
	latest  [feeds]item
	changed chan struct{} // closed with each change of news
}

type item struct {
	body    []byte
	version uint64 // 0: none yet
}

// NewHub makes a hub that ends with ctx.
func NewHub(ctx context.Context, cfg HubConfig) *Hub {
	return &Hub{cfg: cfg, life: ctx, byKey: map[[sha256.Size]byte]int{}, changed: make(chan struct{})}
}

// Wait waits for the producer after the hub's context has ended.
func (h *Hub) Wait() { h.work.Wait() }

// Viewer is one open page. Its methods must not be called at the same time.
type Viewer struct {
	hub     *Hub
	key     [sha256.Size]byte
	manages bool
	seen    [feeds]uint64
}

// Join adds a viewer, who must Leave. key is the digest of the viewer's key, zero without one. Join returns ErrFull if
// there are as many viewers as there may be, in all or of the key.
func (h *Hub) Join(key [sha256.Size]byte, manages bool) (*Viewer, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.viewers >= h.cfg.MaxViewers || key != [sha256.Size]byte{} && h.byKey[key] >= h.cfg.MaxPerKey {
		return nil, ErrFull
	}
	h.viewers++
	h.byKey[key]++
	if !h.runs {
		h.runs = true
		h.work.Go(h.produce)
	}
	return &Viewer{hub: h, key: key, manages: manages}, nil
}

// Leave ends a viewer.
func (v *Viewer) Leave() {
	v.hub.mu.Lock()
	defer v.hub.mu.Unlock()
	v.hub.viewers--
	if v.hub.byKey[v.key]--; v.hub.byKey[v.key] == 0 {
		delete(v.hub.byKey, v.key)
	}
}

// produce reads the pool until no viewer is left or the hub ends.
func (h *Hub) produce() {
	for {
		changed := h.cfg.Changed()
		h.publish(h.cfg.Build())
		pace, idle := time.NewTimer(h.cfg.Pace), time.NewTimer(h.cfg.Every)
		for due := false; !due; {
			select {
			case <-h.life.Done():
				due = true
			case <-changed:
				changed = nil
				select {
				case <-pace.C:
				case <-h.life.Done():
				}
				due = true
			case <-idle.C:
				due = true
			}
		}
		pace.Stop()
		idle.Stop()
		h.mu.Lock()
		if h.viewers == 0 || h.life.Err() != nil {
			h.runs, h.latest = false, [feeds]item{} // the next viewer must not see old news
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
	}
}

// publish takes over what differs from the news.
func (h *Hub) publish(built Update) {
	h.mu.Lock()
	defer h.mu.Unlock()
	any := false
	for i, body := range built {
		if n := &h.latest[i]; body != nil && (n.version == 0 || !bytes.Equal(n.body, body)) {
			*n = item{body, n.version + 1}
			any = true
		}
	}
	if any {
		close(h.changed)
		h.changed = make(chan struct{})
	}
}

// Next appends what the viewer has not seen to dst, as an event stream's bytes, and waits for it at most the given
// time. Nothing new leaves dst as it is. It returns false at the end of the hub or of ctx.
func (v *Viewer) Next(ctx context.Context, dst []byte, wait time.Duration) ([]byte, bool) {
	h := v.hub
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		h.mu.Lock()
		news, changed := h.latest, h.changed
		h.mu.Unlock()
		from := len(dst)
		for i, n := range news {
			if n.version == v.seen[i] || n.version == 0 || Feed(i) == FeedNotes && !v.manages {
				continue
			}
			v.seen[i] = n.version
			dst = append(append(dst, "event: "...), feedNames[i]...)
			dst = append(dst, "\ndata: {\"at\":"...)
			dst = strconv.AppendInt(dst, h.cfg.Now(), 10)
			dst = append(append(append(dst, ",\"view\":"...), n.body...), "}\n\n"...)
		}
		if len(dst) > from {
			return dst, true
		}
		select {
		case <-changed:
		case <-timer.C:
			return dst, true
		case <-ctx.Done():
			return dst, false
		case <-h.life.Done():
			return dst, false
		}
	}
}
