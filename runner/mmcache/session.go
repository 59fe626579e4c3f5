package mmcache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

const (
	replyWait  = time.Second // for an engine to receive an answer
	hashBuffer = 256 << 10
	maxWait    = 10 * time.Minute
	maxRaw     = 1 << 30 // bytes of the media of a look-up, the most that the interposer sends
)

// session is one connection of an engine. One goroutine runs it; the encodes that it leads end with it.
type session struct {
	a      *Attachment
	conn   *net.UnixConn
	ctx    context.Context
	cancel context.CancelFunc
	buf    []byte // for hashing
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
		r, err := readRequest(x.conn)
		if err == nil {
			err = x.handle(r)
		}
		r.close()
		switch {
		case err == nil:
			continue
		case errors.Is(err, errProtocol), errors.Is(err, io.ErrUnexpectedEOF):
			x.a.s.m.refused[reasonProtocol].Inc()
			x.a.s.cfg.Log.Debug("encoder cache hung up on an engine", "model", x.a.model, "error", err)
		}
		return
	}
}

func (x *session) handle(r *request) error {
	switch r.op {
	case opLookup:
		answers, err := x.lookup(r)
		if err != nil {
			return err
		}
		return x.reply(r.op, answers)
	case opAcquire:
		return x.reply(r.op, x.acquire(r))
	case opStore:
		return x.store(r)
	}
	for _, it := range r.items { // opAbandon
		x.a.s.encodings.end(it.ident, x)
	}
	return nil
}

func (x *session) reply(o op, answers []answer) error {
	_ = x.conn.SetWriteDeadline(time.Now().Add(replyWait))
	return writeReply(x.conn, o, answers)
}

// lookup hashes the media and finds their entries, first in memory, then all others in Redis at once.
func (x *session) lookup(r *request) ([]answer, error) {
	s := x.a.s
	if r.file == nil {
		return nil, errProtocol
	}
	if x.buf == nil {
		x.buf = make([]byte, hashBuffer)
	}
	answers := make([]answer, len(r.items))
	var total uint64
	for _, it := range r.items {
		total += it.bytes
	}
	if total > maxRaw {
		s.m.refused[reasonSize].Add(len(r.items))
		return answers, nil
	}
	ctx, cancel := context.WithTimeout(x.ctx, s.cfg.lookupTime(r.items))
	defer cancel()
	space, known := x.a.identity(ctx)
	tenant, ok := x.a.tenantOf(r.token)
	space.Tenant = tenant
	if !known || !ok { // identities stay zero: nothing is looked up, waited for or stored
		s.m.refused[reasonIdentity].Add(len(r.items))
		return answers, nil
	}
	var far []int
	var ids []Ident
	var layouts []Layout
	for i, it := range r.items {
		raw := io.NewSectionReader(r.file, int64(it.offset), int64(it.bytes))
		sum, err := hashMedia(inTime{ctx, raw}, int64(it.bytes), x.buf)
		if ctx.Err() != nil { // the engine waits no longer
			return answers, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errProtocol, err)
		}
		id := space.Ident(it.media, sum, it.layout)
		answers[i].ident = id
		x.a.remember(id, it.layout)
		if e := s.l1.get(id); e != nil {
			x.hit(&answers[i], e, tierMemory)
			continue
		}
		if it.layout.Bytes() <= s.cfg.MaxEntry {
			far, ids, layouts = append(far, i), append(ids, id), append(layouts, it.layout)
		}
	}
	s.m.lookups.Add(len(r.items))
	if s.l2 == nil || len(far) == 0 {
		return answers, nil
	}
	for j, e := range s.l2.get(ctx, space.Sig, ids, layouts) {
		if e != nil {
			s.l1.put(ids[j], e)
			x.hit(&answers[far[j]], e, tierRedis)
		}
	}
	return answers, nil
}

// inTime reads until ctx ends.
type inTime struct {
	ctx context.Context
	io.Reader
}

// Read implements [io.Reader].
func (r inTime) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

func (x *session) hit(a *answer, e *Entry, t tier) {
	a.result, a.entry = resultHit, e
	x.a.hit(t, e)
	x.a.s.cfg.Log.Debug("encoder cache hit", "model", x.a.model, "key", redisKey(x.a.namespace.Pool, x.a.namespace.Sig, a.ident), "bytes", len(e.Floats))
}

func (x *session) miss(a *answer, v lookupResult) {
	a.result = v
	x.a.miss()
}

// acquire answers an engine that is about to encode. Each medium gets its entry if that has arrived meanwhile, or else
// the right to encode it for all sessions. If another session is encoding it and does not finish in time, the engine
// may encode it for itself.
func (x *session) acquire(r *request) []answer {
	s := x.a.s
	answers := make([]answer, len(r.items))
	others := map[int]*encoding{}
	encodes := false
	try := func(i int) {
		it, a := r.items[i], &answers[i]
		a.ident = it.ident
		if !x.a.knows(it.ident, it.layout) { // its look-up found no identity, or there was none
			if it.ident != (Ident{}) {
				s.m.refused[reasonProtocol].Inc()
			}
			x.miss(a, resultBusy)
			return
		}
		if other, ok := s.encodings.begin(it.ident, x, it.partial); !ok {
			others[i] = other
			return
		}
		delete(others, i)
		if e := s.l1.get(it.ident); e != nil && e.Bytes() == it.layout.Bytes() {
			s.encodings.end(it.ident, x)
			x.hit(a, e, tierMemory)
			return
		}
		if it.layout.Bytes() > s.cfg.MaxEntry { // nothing to wait for
			s.encodings.end(it.ident, x)
			x.miss(a, resultBusy)
			return
		}
		encodes = true
		x.miss(a, resultMiss)
	}
	for i := range r.items {
		try(i)
	}
	ctx, cancel := context.WithTimeout(x.ctx, min(time.Duration(r.waitMS)*time.Millisecond, maxWait))
	defer cancel()
	for i := range r.items {
		for other := others[i]; other != nil; other = others[i] {
			if encodes || other.partial || ctx.Err() != nil {
				x.miss(&answers[i], resultBusy)
				break
			}
			select {
			case <-other.done:
				try(i)
			case <-ctx.Done():
			}
		}
	}
	return answers
}

// store keeps an encoder's output, in memory at once and in Redis soon, if the session has the right to encode it.
func (x *session) store(r *request) error {
	s := x.a.s
	it := r.items[0]
	defer s.encodings.end(it.ident, x)
	size := it.layout.Bytes()
	if r.file == nil || len(r.items) != 1 || int64(it.bytes) != size {
		return errProtocol
	}
	if !s.encodings.has(it.ident, x) || !x.a.knows(it.ident, it.layout) {
		s.m.refused[reasonProtocol].Inc()
		return nil
	}
	if size > s.cfg.MaxEntry {
		s.m.refused[reasonSize].Inc()
		return nil
	}
	e := &Entry{Layout: it.layout, Floats: make([]byte, size), EncodeTime: time.Duration(it.encodeUS) * time.Microsecond}
	if _, err := io.ReadFull(io.NewSectionReader(r.file, int64(it.offset), size), e.Floats); err != nil {
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
