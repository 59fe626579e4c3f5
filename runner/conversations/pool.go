package conversations

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"reveille/infra/policy"
	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/infra/state"
)

const (
	maxSisters = 3         // hosts that are asked for a model's conversations
	maxListed  = maxSlots  // conversations in an answer
	maxList    = 256 << 10 // bytes of it
	maxName    = 128
	usualNet   = 1e-8 // seconds to fetch a byte, until it is measured
)

var errFetch = errors.New("a conversation is not fetched")

// Pool is how a host's conversations are known to the pool's other hosts, and theirs to it.
type Pool struct {
	Host   string // this one's name
	State  *state.Store
	Signer *rpc.Signer
}

// Listed is a saved conversation as other hosts see it.
type Listed struct {
	Name     string  `json:"name"`
	Bytes    uint64  `json:"bytes"` // of the engine's data
	Tokens   uint32  `json:"tokens"`
	CRC      uint32  `json:"crc"`
	SavedMS  int64   `json:"saved_ms"`
	PromptMS float64 `json:"prompt_ms"`
}

func (l Listed) cost(perByte float64) time.Duration {
	return time.Duration(perByte * float64(l.Bytes) * float64(time.Second))
}

// identityOf reads an identity in hex; false if it is none.
func identityOf(text string) (id Signature, ok bool) {
	if len(text) != 2*len(id) {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(text))
	return id, err == nil && id != Signature{}
}

// sharedLocked returns the conversations with an identity, the last saved first.
func (s *Store) sharedLocked(id Signature) []*entry {
	return s.whereLocked(func(e *entry) bool { return e.Identity == id })
}

// List returns the conversations with an identity, in hex, the last saved first.
func (s *Store) List(identity string) []Listed {
	out := []Listed{}
	id, ok := identityOf(identity)
	if s == nil || !ok {
		return out
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.sharedLocked(id) {
		if len(out) < maxListed {
			out = append(out, Listed{e.name, e.Bytes, e.Tokens, e.CRC, e.SavedMS, e.PromptMS})
		}
	}
	return out
}

// Part returns at most rpc.ConversationsPart bytes of the file of a listed conversation, from an offset; false if there is
// none with this identity and name.
func (s *Store) Part(identity, name string, offset int64) ([]byte, bool) {
	id, ok := identityOf(identity)
	if s == nil || !ok {
		return nil, false
	}
	s.mu.Lock()
	e := s.entries[name]
	s.mu.Unlock()
	if e == nil || e.Identity != id || offset < 0 || offset >= e.size {
		return nil, false
	}
	f, err := s.root.Open(e.name)
	if err != nil {
		return nil, false
	}
	defer f.Close()
	out := make([]byte, min(rpc.ConversationsPart, e.size-offset))
	_, err = f.ReadAt(out, offset)
	return out, err == nil
}

// publish tells the pool what this host has saved of a model.
func (s *Store) publish(ctx context.Context, model string, id Signature) {
	if s.cfg.Pool == nil || id == (Signature{}) {
		return
	}
	c := state.Conversations{Identity: hex.EncodeToString(id[:])}
	s.mu.Lock()
	for _, e := range s.sharedLocked(id) {
		c.Count++
		c.Tokens += int64(e.Tokens)
		c.Bytes += e.size
		c.SavedMS = max(c.SavedMS, e.SavedMS)
	}
	s.mu.Unlock()
	if c.Count == 0 {
		return
	}
	if err := s.cfg.Pool.State.PutConversations(ctx, model, s.cfg.Pool.Host, c); err != nil {
		s.cfg.Log.Debug("saved conversations are not announced", "model", model, "error", err)
	}
}

// fetch copies conversations that other hosts have saved of the engine's model into the store, if that and restoring
// them is quicker than computing them anew. It returns when they are here, or ctx ends.
func (e *Engine) fetch(ctx context.Context) {
	p := e.store.cfg.Pool
	if p == nil {
		return
	}
	hosts, err := p.State.Conversations(ctx, e.model)
	delete(hosts, p.Host)
	if err != nil || len(hosts) == 0 {
		return
	}
	select {
	case <-e.identified:
	case <-ctx.Done():
		return
	}
	id := e.identity.Load()
	if id == nil {
		return
	}
	maps.DeleteFunc(hosts, func(_ string, c state.Conversations) bool { return c.Identity != hex.EncodeToString(id[:]) })
	names := slices.SortedFunc(maps.Keys(hosts), func(a, b string) int {
		return cmp.Or(cmp.Compare(hosts[b].SavedMS, hosts[a].SavedMS), cmp.Compare(a, b))
	})
	if len(names) == 0 {
		return
	}
	names = names[:min(len(names), maxSisters)]
	found, err := p.State.SnapshotOf(ctx, names, nil)
	if err != nil {
		return
	}
	left := e.slots
	for _, name := range names {
		if h := found.Hosts[name]; h != nil && h.Addr != "" && (h.State == policy.Ready || h.State == policy.Draining) && left > 0 {
			n, err := e.fetchFrom(ctx, &sister{pool: p, host: name, client: relay.New(relay.Config{Addr: h.Addr})}, *id, left)
			if left -= n; err != nil {
				e.store.m.unfetched.Inc()
				e.log.Warn("conversations of another host are not used", "from", name, "error", err)
			}
			if n > 0 {
				e.log.Info("conversations fetched", "from", name, "conversations", n)
			}
		}
	}
}

// fetchFrom copies at most most conversations of a host, the last saved first.
func (e *Engine) fetchFrom(ctx context.Context, from *sister, id Signature, most int) (n int, err error) {
	defer from.client.Close()
	path := rpc.PathConversations + hex.EncodeToString(id[:])
	text, err := from.get(ctx, path, nil, maxList)
	if err != nil {
		return 0, err
	}
	var list []Listed
	if err := json.Unmarshal(text, &list); err != nil || len(list) > maxListed {
		return 0, fmt.Errorf("%w: list of %d bytes: %w", errFetch, len(text), cmp.Or(err, errForeign))
	}
	s := e.store
	for _, c := range list {
		if len(c.Name) == 0 || len(c.Name) > maxName || !plainName(c.Name) || c.Bytes == 0 || c.Bytes > uint64(s.cfg.Bytes) || c.Tokens == 0 || !(c.PromptMS > 0) {
			return n, fmt.Errorf("%w: listed as %+v", errFetch, c)
		}
		s.mu.Lock()
		here := slices.ContainsFunc(s.newestLocked(e.sig), func(o *entry) bool { return o.Bytes == c.Bytes && o.Tokens == c.Tokens && o.CRC == c.CRC })
		perByte := cmp.Or(s.fetchPerByte, usualNet)
		s.mu.Unlock()
		takes := c.cost(perByte)
		worth := time.Duration(min(c.PromptMS, 1e9) * float64(time.Millisecond))
		if until, ok := ctx.Deadline(); here || takes+s.cost(int64(c.Bytes)) >= worth || ok && time.Until(until) < takes {
			continue
		}
		if n >= most {
			break
		}
		began := time.Now()
		if err := e.fetchOne(ctx, from, path+"/"+c.Name, id, c); err != nil {
			return n, err
		}
		now := time.Since(began).Seconds() / float64(c.Bytes)
		s.mu.Lock()
		if s.fetchPerByte > 0 {
			now = (3*s.fetchPerByte + now) / 4
		}
		s.fetchPerByte = now
		s.mu.Unlock()
		s.m.fetched.Inc()
		n++
	}
	return n, nil
}

// plainName reports whether a name stands in a path as it is.
func plainName(name string) bool {
	for _, c := range []byte(name) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.') {
			return false
		}
	}
	return true
}

// fetchOne copies one conversation.
func (e *Engine) fetchOne(ctx context.Context, from *sister, path string, id Signature, c Listed) error {
	r := &partReader{get: func(offset int64, dst []byte) ([]byte, error) {
		return from.get(ctx, path+"?offset="+strconv.FormatInt(offset, 10), dst, rpc.ConversationsPart)
	}, size: headerSize + int64(c.Bytes)}
	var h header
	if err := binary.Read(r, binary.LittleEndian, &h); err != nil {
		return err
	}
	if h.Magic != magic || h.Identity != id || h.Bytes != c.Bytes || h.Tokens != c.Tokens || h.CRC != c.CRC {
		return fmt.Errorf("%w: it is not the one that was listed", errFetch)
	}
	return e.store.keepOne(e.sig, saved{
		model: e.model,
		from:  r, crc: h.CRC, bytes: int64(h.Bytes), tokens: int(h.Tokens), promptMS: h.PromptMS, owner: h.Owner, prompt: h.Prompt,
		identity: id, savedMS: min(h.SavedMS, time.Now().UnixMilli()),
	})
}

// partReader reads a file of a known size part by part.
type partReader struct {
	get  func(offset int64, dst []byte) ([]byte, error)
	size int64
	at   int64 // offset of the next part
	part bytes.Reader
	buf  []byte
}

// Read implements [io.Reader]. Parts that are not as long as they have to be are an error.
func (r *partReader) Read(p []byte) (int, error) {
	if r.part.Len() == 0 {
		want := min(rpc.ConversationsPart, r.size-r.at)
		if want == 0 {
			return 0, io.EOF
		}
		buf, err := r.get(r.at, r.buf[:0])
		if err != nil {
			return 0, err
		}
		if int64(len(buf)) != want {
			return 0, fmt.Errorf("%w: a part of %d bytes in place of %d", errFetch, len(buf), want)
		}
		r.buf, r.at = buf, r.at+want
		r.part.Reset(buf)
	}
	return r.part.Read(p)
}

// sister is another host's runner.
type sister struct {
	pool   *Pool
	host   string
	client *relay.Client
}

// get asks the runner, and appends its answer, of limit bytes at most, to dst. Only an answer to this call by a holder of
// the secret counts.
func (s *sister) get(ctx context.Context, path string, dst []byte, limit int) ([]byte, error) {
	for corrected := false; ; corrected = true {
		var call relay.Call
		stop := context.AfterFunc(ctx, func() { call.Cancel(context.Cause(ctx)) })
		auth := s.pool.Signer.Sign(rpc.Call{Method: "GET", Path: path, Host: s.host})
		req := &relay.Request{Method: "GET", Path: []byte(path), FirstByte: askLimit, Silence: askLimit}
		req.Add(rpc.HeaderAuth, []byte(auth))
		resp, err := s.client.Do(&call, req)
		if err != nil {
			stop()
			return nil, err
		}
		body, err := resp.AppendBody(dst, limit)
		status, proof := resp.Status(), string(resp.Header(rpc.HeaderProof))
		clock, bad := strconv.ParseInt(string(resp.Header(rpc.HeaderTime)), 10, 64)
		_ = resp.Close()
		stop()
		switch {
		case err != nil:
			return nil, err
		case status == rpc.StatusRefused && bad == nil && !corrected:
			s.pool.Signer.Correct(s.host, clock)
			continue
		case status != 200:
			return nil, fmt.Errorf("%w: status %d", errFetch, status)
		case !s.pool.Signer.Proved(auth, proof, body[len(dst):]):
			return nil, fmt.Errorf("%w: the answer is not signed by the pool's secret", errFetch)
		}
		return body, nil
	}
}
