package mmcache

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

const (
	replyWait = time.Second // for an engine to receive a reply
	maxWait   = 10 * time.Minute
	maxRaw    = 1 << 30 // bytes of the media of a look-up, the maximum that the interposer sends
)

// session is one connection of an engine. One goroutine runs it; the encodings that it leads end with it.
type session struct {
	a      *Attachment
	conn   *net.UnixConn
	ctx    context.Context
	cancel context.CancelFunc
}

func newSession(a *Attachment, c *net.UnixConn) *session {
	x := &session{a: a, conn: c}
	x.ctx, x.cancel = context.WithCancel(a.s.ctx)
	return x
}

func (x *session) run() {
	defer x.a.wg.Done()
	defer func() {
		x.cancel()
		_ = x.conn.Close()
		x.a.s.encodings.endAll(x)
		x.a.mu.Lock()
		delete(x.a.open, x)
		x.a.mu.Unlock()
	}()
	for {
		m, err := readMessage(x.conn)
		if err == nil {
			err = x.handle(m)
		}
		m.close()
		switch {
		case err == nil:
			continue
		case errors.Is(err, errProtocol), errors.Is(err, io.ErrUnexpectedEOF):
			x.a.s.m.refused[reasonProtocol].Inc()
			x.a.s.cfg.Log.Debug("encoder cache closed an engine's connection", "model", x.a.model, "error", err)
		}
		return
	}
}

func (x *session) handle(m *message) error {
	switch m.op {
	case opLookup:
		results, err := x.lookup(m)
		if err != nil {
			return err
		}
		return x.reply(m.op, results)
	case opAcquire:
		return x.reply(m.op, x.acquire(m))
	case opStore:
		return x.store(m)
	}
	for _, it := range m.items { // opAbandon
		x.a.s.encodings.end(it.ident, x)
	}
	return nil
}

func (x *session) reply(o op, results []itemResult) error {
	_ = x.conn.SetWriteDeadline(time.Now().Add(replyWait))
	return writeReply(x.conn, o, results)
}

// lookup hashes the media and finds their entries, first in memory, then all others in Redis with one pipeline.
func (x *session) lookup(m *message) ([]itemResult, error) {
	s := x.a.s
	if m.file == nil {
		return nil, errProtocol
	}
	results := make([]itemResult, len(m.items))
	var total uint64
	for _, it := range m.items {
		total += it.bytes
	}
	if total > maxRaw {
		s.m.refused[reasonSize].Add(len(m.items))
		return results, nil
	}
	ctx, cancel := context.WithTimeout(x.ctx, s.cfg.lookupTime(m.items))
	defer cancel()
	namespace, known := x.a.awaitNamespace(ctx)
	tenant, ok := x.a.tenantOf(m.token)
	namespace.Tenant = tenant
	if !known || !ok { // identities stay zero, so nothing is looked up, waited for or stored
		s.m.refused[reasonIdentity].Add(len(m.items))
		return results, nil
	}
	var remote []int
	var ids []Ident
	var layouts []Layout
	for i, it := range m.items {
		raw := io.NewSectionReader(m.file, int64(it.offset), int64(it.bytes))
		h := sha256.New()
		_, err := io.CopyN(h, contextReader{ctx, raw}, int64(it.bytes))
		if ctx.Err() != nil { // the engine has stopped waiting
			return results, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errProtocol, err)
		}
		id := namespace.Ident(it.media, [sha256.Size]byte(h.Sum(nil)), it.layout)
		results[i].ident = id
		x.a.recordLookup(id, it.layout)
		if e := s.l1.get(id); e != nil {
			x.recordHit(&results[i], e, tierMemory)
			continue
		}
		if it.layout.Bytes() <= s.cfg.MaxEntry {
			remote, ids, layouts = append(remote, i), append(ids, id), append(layouts, it.layout)
		}
	}
	s.m.lookups.Add(len(m.items))
	if s.l2 == nil || len(remote) == 0 {
		return results, nil
	}
	for j, e := range s.l2.get(ctx, namespace.Sig, ids, layouts) {
		if e != nil {
			s.l1.put(ids[j], e)
			x.recordHit(&results[remote[j]], e, tierRedis)
		}
	}
	return results, nil
}

// contextReader reads until ctx ends.
type contextReader struct {
	ctx context.Context
	io.Reader
}

// Read implements [io.Reader].
func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

func (x *session) recordHit(r *itemResult, e *Entry, t tier) {
	r.status, r.entry = statusHit, e
	x.a.recordHit(t, e)
	x.a.s.cfg.Log.Debug("encoder cache hit", "model", x.a.model, "key", redisKey(x.a.namespace.Pool, x.a.namespace.Sig, r.ident), "bytes", len(e.Floats))
}

func (x *session) recordMiss(r *itemResult, v itemStatus) {
	r.status = v
	x.a.recordMiss()
}

// acquire replies to an engine that is about to encode. Each medium gets its entry if that has arrived meanwhile.
// Otherwise the first session to ask leads: it encodes the medium for all. If another session leads and does not finish
// in time, the engine can encode it for itself.
func (x *session) acquire(m *message) []itemResult {
	s := x.a.s
	results := make([]itemResult, len(m.items))
	others := map[int]*encoding{}
	encodes := false
	try := func(i int) {
		it, r := m.items[i], &results[i]
		r.ident = it.ident
		if !x.a.wasLookedUp(it.ident, it.layout) { // no look-up returned this identity
			if it.ident != (Ident{}) {
				s.m.refused[reasonProtocol].Inc()
			}
			x.recordMiss(r, statusBusy)
			return
		}
		if other, ok := s.encodings.begin(it.ident, x, it.partial); !ok {
			others[i] = other
			return
		}
		delete(others, i)
		if e := s.l1.get(it.ident); e != nil && e.Bytes() == it.layout.Bytes() {
			s.encodings.end(it.ident, x)
			x.recordHit(r, e, tierMemory)
			return
		}
		if it.layout.Bytes() > s.cfg.MaxEntry { // nothing to wait for
			s.encodings.end(it.ident, x)
			x.recordMiss(r, statusBusy)
			return
		}
		encodes = true
		x.recordMiss(r, statusMiss)
	}
	for i := range m.items {
		try(i)
	}
	ctx, cancel := context.WithTimeout(x.ctx, min(time.Duration(m.waitMS)*time.Millisecond, maxWait))
	defer cancel()
	for i := range m.items {
		for other := others[i]; other != nil; other = others[i] {
			if encodes || other.partial || ctx.Err() != nil {
				x.recordMiss(&results[i], statusBusy)
				break
			}
			select {
			case <-other.done:
				try(i)
			case <-ctx.Done():
			}
		}
	}
	return results
}

// store stores an encoder's output, in memory immediately and in Redis asynchronously, if the session leads its
// encoding.
func (x *session) store(m *message) error {
	s := x.a.s
	it := m.items[0]
	defer s.encodings.end(it.ident, x)
	size := it.layout.Bytes()
	if m.file == nil || len(m.items) != 1 || int64(it.bytes) != size {
		return errProtocol
	}
	if !s.encodings.isLedBy(it.ident, x) || !x.a.wasLookedUp(it.ident, it.layout) {
		s.m.refused[reasonProtocol].Inc()
		return nil
	}
	if size > s.cfg.MaxEntry {
		s.m.refused[reasonSize].Inc()
		return nil
	}
	e := &Entry{Layout: it.layout, Floats: make([]byte, size), EncodeTime: time.Duration(it.encodeUS) * time.Microsecond}
	if _, err := io.ReadFull(io.NewSectionReader(m.file, int64(it.offset), size), e.Floats); err != nil {
		return fmt.Errorf("%w: %w", errProtocol, err)
	}
	s.l1.put(it.ident, e)
	if s.l2 != nil {
		s.l2.put(x.a.namespace.Sig, it.ident, e)
	}
	s.m.stores.Inc()
	s.cfg.Log.Debug("encoder cache insert", "model", x.a.model, "key", redisKey(x.a.namespace.Pool, x.a.namespace.Sig, it.ident),
		"bytes", size, "encode", e.EncodeTime)
	return nil
}
