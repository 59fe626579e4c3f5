package mmcache

import (
	"container/list"
	"crypto/sha256"
	"sync"
)

// field is the strong part of an identity. It covers the model too, and so suffices within this process.
type field = [sha256.Size]byte

// lru keeps the most recently used entries within a number of bytes. It is safe for concurrent use.
type lru struct {
	limit int64

	mu    sync.Mutex
	bytes int64
	order *list.List // of *lruItem, most recently used first
	items map[field]*list.Element
}

type lruItem struct {
	field field
	entry *Entry
}

// entryOverhead is the memory of an entry besides its floats, in bytes.
const entryOverhead = 512

func newLRU(limit int64) *lru {
	return &lru{limit: limit, order: list.New(), items: map[field]*list.Element{}}
}

func (e *Entry) cost() int64 { return int64(len(e.Floats)) + entryOverhead }

func (l *lru) get(f field) *Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	el, ok := l.items[f]
	if !ok {
		return nil
	}
	l.order.MoveToFront(el)
	return el.Value.(*lruItem).entry
}

// put stores an entry. An entry that exceeds the limit by itself is not stored and evicts no others.
func (l *lru) put(f field, e *Entry) {
	if e.cost() > l.limit {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if el, ok := l.items[f]; ok {
		l.bytes += e.cost() - el.Value.(*lruItem).entry.cost()
		el.Value.(*lruItem).entry = e
		l.order.MoveToFront(el)
	} else {
		l.items[f] = l.order.PushFront(&lruItem{f, e})
		l.bytes += e.cost()
	}
	for l.bytes > l.limit {
		last := l.order.Back()
		item := l.order.Remove(last).(*lruItem)
		delete(l.items, item.field)
		l.bytes -= item.entry.cost()
	}
}

func (l *lru) size() (entries int, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.items), l.bytes
}
