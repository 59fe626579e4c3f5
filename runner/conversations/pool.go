package conversations

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"reveille/infra/policy"
	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/infra/state"
)

const (
	maxPeers         = 3         // hosts that are asked for a model's conversations
	maxListed        = maxSlots  // conversations in an answer
	maxList          = 256 << 10 // bytes of it
	defaultFetchCost = 1e-8      // seconds to fetch a byte, until it is measured
)

var errFetch = errors.New("a conversation is not fetched")

// Pool announces this host's conversations to the pool and finds those of other hosts.
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

	Forgotten uint64 `json:"forgotten,omitempty"` // as in header
}

func (l Listed) cost(perByte float64) time.Duration {
	return time.Duration(perByte * float64(l.Bytes) * float64(time.Second))
}

// identityOf reads an identity in hex; false if it is none.
func identityOf(text string) (id Identity, ok bool) {
	if len(text) != 2*len(id) {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(text))
	return id, err == nil && id != Identity{}
}

// sharedLocked returns the conversations with an identity, the last saved first.
func (s *Store) sharedLocked(id Identity) []*entry {
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
			out = append(out, Listed{e.name, e.Bytes, e.Tokens, e.CRC, e.SavedMS, e.PromptMS, e.Forgotten})
		}
	}
	return out
}

// Part returns at most rpc.ConversationsPart bytes of the file of a listed conversation, from an offset; false if
// there is none with this identity and name.
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
func (s *Store) publish(ctx context.Context, model string, id Identity) {
	if s.cfg.Pool == nil {
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

// source is a place that conversations are fetched from.
type source interface {
	// list returns the conversations with an identity, at most maxListed, the last saved first.
	list(ctx context.Context, id Identity) ([]Listed, error)
	// open returns the file of a listed one. Its reader fails before its end if the file is not what a holder of the
	// pool's secret wrote.
	open(ctx context.Context, id Identity, c Listed) (io.ReadCloser, error)
	// perByte is the seconds to fetch a byte, smoothed; 0 before the first. The store's lock guards it.
	perByte() *float64
}

// fetch copies conversations that other hosts have saved of the engine's model into the store, if that and restoring
// them is quicker than computing them anew. It asks the bucket for those of hosts that give none, and if this host has
// none at all. It returns when they are here, or ctx ends.
func (e *Engine) fetch(ctx context.Context) {
	p, s := e.store.cfg.Pool, e.store
	if p == nil {
		return
	}
	hosts, err := p.State.Conversations(ctx, e.model)
	delete(hosts, p.Host)
	if s.bucket == nil && (err != nil || len(hosts) == 0) {
		return
	}
	maps.DeleteFunc(hosts, func(_ string, c state.Conversations) bool { return c.Identity != hex.EncodeToString(e.id[:]) })
	left, asked := e.fetchFromHosts(ctx, hosts, e.id)
	s.mu.Lock()
	none := len(s.newestLocked(e.id, e.devices)) == 0
	s.mu.Unlock()
	if s.bucket != nil && left > 0 && (none || asked < len(hosts)) {
		_, _ = e.fetchFrom(ctx, ofModel{s.bucket, e.model}, "the bucket", e.id, left)
	}
}

// fetchFromHosts copies conversations of hosts, the last saved first, until the engine has no slot left. It returns
// how many are left, and how many of the hosts answered.
func (e *Engine) fetchFromHosts(ctx context.Context, hosts map[string]state.Conversations, id Identity) (left, asked int) {
	p := e.store.cfg.Pool
	left = e.slots
	names := slices.SortedFunc(maps.Keys(hosts), func(a, b string) int {
		return cmp.Or(cmp.Compare(hosts[b].SavedMS, hosts[a].SavedMS), cmp.Compare(a, b))
	})
	if len(names) == 0 {
		return left, 0
	}
	names = names[:min(len(names), maxPeers)]
	found, err := p.State.SnapshotOf(ctx, names, nil)
	if err != nil {
		return left, 0
	}
	for _, name := range names {
		if h := found.Hosts[name]; h != nil && h.Addr != "" && (h.State == policy.Ready || h.State == policy.Draining) && left > 0 {
			client := relay.New(relay.Config{Addr: h.Addr})
			n, err := e.fetchFrom(ctx, &peer{store: e.store, host: name, client: client}, name, id, left)
			client.Close()
			if left -= n; err == nil {
				asked++
			}
		}
	}
	return left, asked
}

// fetchFrom copies at most most conversations of a source, the last saved first, and logs what came of it.
func (e *Engine) fetchFrom(ctx context.Context, from source, name string, id Identity, most int) (n int, err error) {
	s := e.store
	defer func() {
		if err != nil {
			s.m.unfetched.Inc()
			e.log.Warn("conversations saved elsewhere are not used", "from", name, "error", err)
		}
		if n > 0 {
			e.log.Info("conversations fetched", "from", name, "conversations", n)
		}
	}()
	list, err := from.list(ctx, id)
	if err != nil {
		return 0, err
	}
	for _, c := range list {
		if c.Bytes == 0 || c.Bytes > uint64(s.cfg.Bytes) || c.Tokens == 0 || !(c.PromptMS > 0) {
			return n, fmt.Errorf("%w: listed as %+v", errFetch, c)
		}
		s.mu.Lock()
		here := slices.ContainsFunc(s.newestLocked(e.id, e.devices), func(o *entry) bool {
			return o.Bytes == c.Bytes && o.Tokens == c.Tokens && o.CRC == c.CRC
		})
		perByte := cmp.Or(*from.perByte(), defaultFetchCost)
		s.mu.Unlock()
		takes := c.cost(perByte)
		worth := time.Duration(min(c.PromptMS, 1e9) * float64(time.Millisecond))
		until, ok := ctx.Deadline()
		late := ok && time.Until(until) < takes
		if here || late || c.Forgotten < s.lastForget(e.model) || takes+s.cost(int64(c.Bytes)) >= worth {
			continue
		}
		if n >= most {
			break
		}
		began := time.Now()
		if err := e.fetchOne(ctx, from, id, c); err != nil {
			return n, err
		}
		now := time.Since(began).Seconds() / float64(c.Bytes)
		s.mu.Lock()
		if before := *from.perByte(); before > 0 {
			now = (3*before + now) / 4
		}
		*from.perByte() = now
		s.mu.Unlock()
		s.m.fetched.Inc()
		n++
	}
	return n, nil
}

// fetchOne copies one conversation.
func (e *Engine) fetchOne(ctx context.Context, from source, id Identity, c Listed) error {
	r, err := from.open(ctx, id, c)
	if err != nil {
		return err
	}
	defer r.Close()
	var h header
	if err := binary.Read(r, binary.LittleEndian, &h); err != nil {
		return err
	}
	if h.Magic != magic || h.Identity != id || h.Bytes != c.Bytes || h.Tokens != c.Tokens || h.CRC != c.CRC || h.Forgotten != c.Forgotten {
		return fmt.Errorf("%w: it is not the one that was listed", errFetch)
	}
	h.Devices, h.Model, h.SavedMS = e.devices, nameOf(e.model), min(h.SavedMS, time.Now().UnixMilli())
	_, _, err = e.store.storeOne(saved{header: h, data: r, fetched: true})
	return err
}
