package mmcache

import (
	"container/list"
	"sync"
)

// lru keeps the most recently used entries within a number of bytes. It is safe for concurrent use.
type lru struct {
	limit int64

	mu    sync.Mutex
	bytes int64
	order *list.List // of *lruItem, most recently used first
	items map[Ident]*list.Element
}

type lruItem struct {
	id    Ident
	entry *Entry
}

// entryOverhead is the memory of an entry in addition to its floats, in bytes.
const entryOverhead = 512

func newLRU(limit int64) *lru {
	return &lru{limit: limit, order: list.New(), items: map[Ident]*list.Element{}}
}

func (e *Entry) cost() int64 { return int64(len(e.Floats)) + entryOverhead }

func (l *lru) get(id Ident) *Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	el, ok := l.items[id]
	if !ok {
		return nil
	}
	l.order.MoveToFront(el)
	return el.Value.(*lruItem).entry
}

// put stores an entry. An entry that alone exceeds the limit is not stored and evicts no others.
func (l *lru) put(id Ident, e *Entry) {
	if e.cost() > l.limit {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if el, ok := l.items[id]; ok {
		l.bytes += e.cost() - el.Value.(*lruItem).entry.cost()
		el.Value.(*lruItem).entry = e
		l.order.MoveToFront(el)
	} else {
		l.items[id] = l.order.PushFront(&lruItem{id, e})
		l.bytes += e.cost()
	}
	for l.bytes > l.limit {
		last := l.order.Back()
		item := l.order.Remove(last).(*lruItem)
		delete(l.items, item.id)
		l.bytes -= item.entry.cost()
	}
}

func (l *lru) size() (entries int, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.items), l.bytes
}
