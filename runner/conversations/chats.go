package conversations

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"reveille/runner/engineslots"
	"reveille/runner/filestate"
)

const (
	idleBeforeSave = time.Second      // without a request, until the engine saves what it was told
	evictTimeout   = 5 * time.Second  // for a conversation whose slot a request waits for
	sealTimeout    = 30 * time.Second // for a conversation while the engine runs
)

// errUnstable: what the template makes of a conversation changes with the next message, or by itself.
var errUnstable = errors.New("the chat template renders the conversation anew for each message, so its state cannot be reused")

// chats are the conversations of a running engine. Where the engine chooses the slots, they are saved once it has been
// idle for a moment, or when there are as many unsaved ones as slots, because the next request would take one's slot.
// Where a table does, they are saved before another conversation gets their slot.
type chats struct {
	mu        sync.Mutex
	slots     int
	running   int     // requests
	pending   []*Turn // answered and not saved, the last answered last
	current   *Turn   // being saved
	interrupt context.CancelFunc
	keeping   bool // keep runs
	closed    bool
	timer     *time.Timer
	work      sync.WaitGroup // keep
	live      []liveChat     // in the engine for sure, the last used last

	restoring  sync.Mutex  // guards what follows; one conversation is restored at a time
	restoredAt map[int]int // slots that one was restored into → as if that were their last task
	restores   int
}

type liveChat struct {
	keys   []Key // of its beginnings, the longest last
	tenant engineslots.Tenant
	slot   int
}

// Chat reads a chat request that Begin was called for. slot is where it runs, [engineslots.Any] if the engine chooses.
// It returns nil if the conversation is not saved while the engine runs: states that can go back are saved by Save, as
// they then are, and until then llama-server keeps them in memory.
func (e *Engine) Chat(tenant engineslots.Tenant, slot int, prompt engineslots.Prompt, body []byte) *Turn {
	if e == nil || !e.sealed || e.client == nil || e.table != nil && slot == engineslots.Any {
		return nil
	}
	t := newTurn(body)
	if t == nil {
		return nil
	}
	t.e, t.tenant, t.slot, t.prompt = e, tenant, slot, prompt
	if e.table == nil {
		t.tenant = engineslots.Tenant{}
	}
	c := &e.chats
	c.mu.Lock()
	defer c.mu.Unlock()
	goesOn := func(old *Turn) bool { return old.tenant == t.tenant && slices.Contains(t.keys, old.key) }
	c.pending = slices.DeleteFunc(c.pending, goesOn)
	if c.current != nil && goesOn(c.current) {
		c.current.goesOn = true
	}
	return t
}

// Restore makes the engine restore the conversation that the request continues, if it is saved and not in the engine.
func (t *Turn) Restore(ctx context.Context) {
	if t == nil {
		return
	}
	e := t.e
	c, key := e.find(t)
	if c == nil || e.store.cost(int64(c.Bytes))*minGain > c.worth() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	e.chats.restoring.Lock()
	defer e.chats.restoring.Unlock()
	slot := t.slot
	if slot == engineslots.Any {
		slot = e.victim(ctx)
	}
	if slot == engineslots.Any || ctx.Err() != nil || !filestate.Unchanged(e.files) {
		return
	}
	e.chats.restores++
	file := stagedFile{c, "restore-" + strconv.Itoa(e.chats.restores)}
	if err := e.stageOne(c, file.name); errors.Is(err, errDamaged) {
		e.dropBad(c, err)
		return
	} else if err != nil {
		e.log.Warn("conversation not restored", "error", err)
		return
	}
	n, err := e.restoreSlot(ctx, slot, file)
	_ = os.Remove(filepath.Join(e.dir, file.name))
	if err == nil && n > 0 {
		e.chats.nowLive(liveChat{[]Key{key}, t.tenant, slot})
	}
}

// find returns the longest saved conversation that the request continues; nil if a longer one is in the engine.
func (e *Engine) find(t *Turn) (*entry, Key) {
	select {
	case <-e.identified:
	default:
		return nil, Key{}
	}
	for _, key := range slices.Backward(t.keys) {
		if e.chats.isLive(key, t) {
			return nil, key
		}
		if c := e.store.find(place{e.id, t.tenant, key}); c != nil {
			return c, key
		}
	}
	return nil, Key{}
}

func (c *chats) isLive(key Key, t *Turn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.live, func(l liveChat) bool {
		return slices.Contains(l.keys, key) && l.tenant == t.tenant && (t.slot == engineslots.Any || l.slot == t.slot)
	})
}

// nowLive records that a conversation is in the engine.
func (c *chats) nowLive(l liveChat) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live = slices.DeleteFunc(c.live, func(old liveChat) bool {
		goesOn := old.tenant == l.tenant && slices.Contains(l.keys, old.keys[len(old.keys)-1])
		return goesOn || l.slot >= 0 && old.slot == l.slot
	})
	// Where the engine chooses the slots, requests can have taken some of other chats than the least recently used.
	sure := (c.slots + 1) / 2
	if l.slot >= 0 {
		sure = c.slots
	}
	c.live = append(c.live[max(len(c.live)-sure+1, 0):], l)
}

// victim returns the idle slot that was least recently used, [engineslots.Any] for none.
func (e *Engine) victim(ctx context.Context) int {
	list, err := e.slotList(ctx)
	if err != nil {
		return engineslots.Any
	}
	best, bestUsed, last := engineslots.Any, 0, 0
	for _, s := range list {
		used := e.chats.restoredAt[s.ID]
		if s.Task != nil {
			used = max(used, *s.Task+1)
		}
		last = max(last, used)
		if !s.Busy && (best == engineslots.Any || used < bestUsed) {
			best, bestUsed = s.ID, used
		}
	}
	if best != engineslots.Any {
		e.chats.restoredAt[best] = last + 1
	}
	return best
}

// Done ends the turn; ok means that its response was complete. End follows.
func (t *Turn) Done(ok bool) {
	if t == nil || !ok || !t.answer.end() {
		return
	}
	t.key, t.ended = t.keys[len(t.keys)-1].next(t.answer.message()), time.Now()
	c := &t.e.chats
	c.nowLive(liveChat{append(slices.Clone(t.keys), t.key), t.tenant, t.slot})
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.pending = slices.DeleteFunc(c.pending, func(old *Turn) bool { return old.tenant == t.tenant && old.key == t.key })
		c.pending = append(c.pending, t)
	}
}

// begin records the start of a request, and returns how many run.
func (c *chats) begin() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running++
	if c.interrupt != nil {
		c.interrupt()
	}
	return c.running
}

// End records the end of a request.
func (e *Engine) End() {
	if e == nil {
		return
	}
	c := &e.chats
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	if c.closed || len(c.pending) == 0 || e.table != nil { // with a table, Evict and Save save
		return
	}
	if len(c.pending) >= c.slots {
		e.startKeepingLocked()
	} else if c.running == 0 {
		if c.timer == nil {
			c.timer = time.AfterFunc(idleBeforeSave, func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				e.startKeepingLocked()
			})
		}
		c.timer.Reset(idleBeforeSave)
	}
}

func (e *Engine) startKeepingLocked() {
	if c := &e.chats; !c.keeping && !c.closed {
		c.keeping = true
		c.work.Go(e.keep)
	}
}

// keep saves pending turns one after the other: the oldest if every slot may hold one, else, while no request runs, the
// newest first. A request interrupts the latter.
func (e *Engine) keep() {
	c := &e.chats
	for {
		c.mu.Lock()
		var t *Turn
		n, urgent := len(c.pending), false
		switch {
		case c.closed || n == 0:
		case n >= c.slots:
			t, c.pending, urgent = c.pending[0], c.pending[1:], true
		case c.running == 0:
			t, c.pending = c.pending[n-1], c.pending[:n-1]
		}
		if t == nil {
			c.keeping = false
			c.mu.Unlock()
			return
		}
		ctx, cancel := context.WithTimeout(e.life, sealTimeout)
		c.current = t
		if !urgent {
			c.interrupt = cancel
		}
		c.mu.Unlock()
		err := e.saveTurn(ctx, t)
		c.mu.Lock()
		if ctx.Err() == context.Canceled && !t.goesOn { // saved later, or at the end
			c.pending = append([]*Turn{t}, c.pending...)
		} else if err != nil && !t.goesOn {
			e.logUnsaved(err)
		}
		c.current, c.interrupt = nil, nil
		c.mu.Unlock()
		cancel()
	}
}

func (e *Engine) logUnsaved(err error) {
	e.store.m.unsaved.Inc()
	e.log.Warn("conversation not saved", "error", err)
}

// stopKeeping ends keep, and returns what is not saved, the last used first.
func (e *Engine) stopKeeping() []*Turn {
	c := &e.chats
	c.mu.Lock()
	c.closed = true
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	e.end()
	c.work.Wait()
	slices.SortFunc(c.pending, func(a, b *Turn) int { return b.ended.Compare(a.ended) })
	return c.pending
}

// Close ends what Restore started. Call it when the engine has exited.
func (e *Engine) Close() {
	if e != nil {
		e.stopKeeping()
	}
}

// Evict saves the conversation in a slot that the caller holds and is about to give to another, if it is not saved.
func (e *Engine) Evict(ctx context.Context, slot int) {
	if e == nil {
		return
	}
	c := &e.chats
	c.mu.Lock()
	i := slices.IndexFunc(c.pending, func(t *Turn) bool { return t.slot == slot })
	if i < 0 || c.closed {
		c.mu.Unlock()
		return
	}
	t := c.pending[i]
	c.pending = slices.Delete(c.pending, i, i+1)
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, evictTimeout)
	defer cancel()
	if err := e.saveTurn(ctx, t); err != nil {
		e.logUnsaved(err)
	}
}

// saveTurn seals a conversation and saves it: it has the engine compute exactly what the next turn will begin with,
// because many models' states cannot go back by a token.
func (e *Engine) saveTurn(ctx context.Context, t *Turn) error {
	if e.forgotten < e.store.lastForget(e.model) {
		e.store.m.forgotten.Inc()
		return nil
	}
	if !e.awaitIdentity(ctx) || !filestate.Unchanged(e.files) {
		return nil
	}
	tokens, err := e.stableStart(ctx, t)
	if err != nil {
		return err
	}
	perToken, err := e.secondsPerToken(ctx)
	if err != nil {
		return err
	}
	worth := time.Duration(float64(len(tokens)) * perToken * float64(time.Second))
	if len(tokens) < minTokens || e.store.cost(e.perToken*int64(len(tokens)))*minGain > worth {
		e.store.m.worthless.Inc()
		e.store.dropMeasurement()
		return nil
	}
	// The engine samples a token and parses it; one that is no text would be an error.
	request := map[string]any{"prompt": tokens, "n_predict": 0, "cache_prompt": true, "grammar": "root ::= [a-z]"}
	if e.table != nil {
		request["id_slot"] = t.slot
	}
	var sealed struct {
		Slot *int `json:"id_slot"`
	}
	e.chats.mu.Lock()
	limit := sealTimeout
	if e.chats.current != t || e.chats.interrupt == nil { // else a request ends it
		limit = max(worth, stepTimeout) // if it takes longer, the engine may as well compute it anew for the next turn
	}
	e.chats.mu.Unlock()
	sealing, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err = e.ask(sealing, "/completion", request, &sealed); err != nil {
		return err
	}
	e.chats.mu.Lock()
	if e.chats.current == t {
		e.chats.interrupt = nil // saving takes a moment
	}
	e.chats.mu.Unlock()
	if sealed.Slot == nil {
		return errors.New("the engine does not tell which slot holds the conversation")
	}
	root, err := os.OpenRoot(e.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := e.saveSlot(ctx, root, slotState{ID: *sealed.Slot}, stepTimeout)
	if err != nil {
		return err
	}
	f.Identity, f.Model, f.Forgotten, f.PromptMS = e.id, nameOf(e.model), e.forgotten, worth.Seconds()*1000
	f.Tenant, f.Prompt, f.Key, f.SavedMS = t.tenant, t.prompt, t.key, t.ended.UnixMilli()
	f.before = t.keys
	f.Sum = sha256.Sum256(encodeTokens(tokens))
	e.store.storeAll(e.id, e.model, []savedFile{f})
	e.log.Debug("conversation saved", "tokens", f.Tokens)
	return nil
}

// stableStart returns the tokens that the conversation's next turn starts with, whatever it is.
func (e *Engine) stableStart(ctx context.Context, t *Turn) ([]int32, error) {
	var lists [2][]int32
	for i, text := range []string{"A", "7"} {
		body, err := t.continued(text)
		if err != nil {
			return nil, err
		}
		var rendered struct{ Prompt string }
		if err = e.ask(ctx, "/apply-template", json.RawMessage(body), &rendered); err != nil {
			return nil, err
		}
		var got struct{ Tokens []int32 }
		err = e.ask(ctx, "/tokenize", map[string]any{"content": rendered.Prompt, "add_special": true, "parse_special": true}, &got)
		if err != nil {
			return nil, err
		}
		lists[i] = got.Tokens
	}
	a, b := lists[0], lists[1]
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	n-- // the last can merge with the next message's first
	if n < len(a)/2 {
		return nil, errUnstable
	}
	return a[:n], nil
}

// encodeTokens returns tokens as a state contains them.
func encodeTokens(tokens []int32) []byte {
	out := make([]byte, 0, 4*len(tokens))
	for _, t := range tokens {
		out = binary.LittleEndian.AppendUint32(out, uint32(t))
	}
	return out
}

// ask posts a request to the engine and decodes the response.
func (e *Engine) ask(ctx context.Context, path string, request, response any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	text, err := e.roundTrip(ctx, "POST", path, body, sealTimeout)
	if err == nil {
		err = json.Unmarshal(text, response)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
