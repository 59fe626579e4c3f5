package conversations

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"reveille/runner/engineslots"
	"reveille/runner/filestate"
)

const (
	idleBeforeSave = time.Second            // without a request, until the engine saves what it was told
	idleFactor     = 20                     // at least this many times what saving takes
	maxHurry       = 250 * time.Millisecond // for the tokens of an answer that a save in a hurry computes
	evictTimeout   = 5 * time.Second        // for a conversation whose slot a request waits for
	sealTimeout    = 30 * time.Second       // for a conversation while the engine runs
)

// errUnstable: what the template makes of a conversation changes with the next message, or by itself.
var errUnstable = errors.New("the chat template renders the conversation anew for each message, so its state cannot be reused")

// chats are the conversations of a running engine. Where the engine chooses the slots, they are saved once it has been
// idle for a while, or when there are as many unsaved ones as slots, because the next request would take one's slot.
// Where a table does, they are saved before another conversation gets their slot.
type chats struct {
	mu        sync.Mutex
	slots     int
	running   int                // requests
	pending   []*Turn            // answered and not saved, the last answered last
	interrupt context.CancelFunc // of what is being saved while no request runs
	closed    bool
	timer     *time.Timer
	work      sync.WaitGroup // keep
	live      []liveChat     // in the engine for sure, the last used last

	savedFrom map[int]int // slots that one was saved from → its tokens

	// moving is held by keep or by one Restore, because what one computes or restores can take the slot of the other's
	// conversation.
	moving     chan struct{}
	restoredAt map[int]int // slots that one was restored into → as if that were their last task; owned by moving's holder
}

// liveChat is a conversation in the engine, or what a request that is not one has made of a slot.
type liveChat struct {
	keys   []Key // of its beginnings, the longest last; none: of no use to another request
	tenant engineslots.Tenant
	slot   int
}

// Begin records the start of a request. slot is where it runs, [engineslots.Any] if the engine chooses. Call End when
// its response is complete.
func (e *Engine) Begin(tenant engineslots.Tenant, slot int, path string, body []byte) *Turn {
	if e == nil {
		return nil
	}
	t := cmp.Or(newTurn(path, body, e.sealed), &Turn{})
	t.e, t.slot = e, slot
	if e.table != nil {
		if t.tenant = tenant; slot == engineslots.Any {
			t.marks = nil
		}
	}
	c := &e.chats
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running++
	if c.interrupt != nil {
		c.interrupt()
	}
	for _, old := range c.pending {
		if t.goesOn(old) {
			t.before = append(t.before, old)
			old.next++
		}
	}
	return t
}

// goesOn reports whether t continues an earlier turn or repeats it.
func (t *Turn) goesOn(old *Turn) bool { return old.tenant == t.tenant && t.has(old.end.Key) }

// Restore makes the engine save the conversation in the request's slot, and restore the saved one that the request has
// the longest start in common with, unless the engine has one that is as long.
func (t *Turn) Restore(ctx context.Context) {
	if t == nil {
		return
	}
	e := t.e
	if t.slot != engineslots.Any {
		e.Evict(ctx, t.slot)
	}
	if len(t.marks) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if !e.awaitIdentity(ctx) {
		return
	}
	c, live := e.find(t)
	if c == nil && !live && e.store.await(ctx, e.id, t.tenant) {
		c, _ = e.find(t)
	}
	if c == nil {
		return
	}
	select {
	case e.chats.moving <- struct{}{}:
		defer func() { <-e.chats.moving }()
	case <-ctx.Done():
		return
	}
	slot := t.slot
	if slot == engineslots.Any {
		slot = e.victim(ctx)
	}
	if slot == engineslots.Any || ctx.Err() != nil || !filestate.Unchanged(e.files) {
		return
	}
	if err := e.restore(ctx, slot, c); err != nil {
		e.log.Warn("conversation not restored", "error", err)
		return
	}
	t.restored, t.restoredSlot = c, slot
	e.chats.mu.Lock()
	defer e.chats.mu.Unlock()
	e.chats.setLiveLocked(liveChat{c.keys(), t.tenant, slot})
}

// find returns the saved conversation that the request has the longest start in common with, nil if none is worth it.
// live means that the engine has one that is as long.
func (e *Engine) find(t *Turn) (c *entry, live bool) {
	for _, m := range slices.Backward(t.marks) {
		if e.chats.isLive(m.Key, t) {
			return nil, true
		}
		c := e.store.find(place{e.id, t.tenant, m.Key})
		if c == nil {
			continue
		}
		share := c.share(m.Key)
		gain := time.Duration(float64(c.worth()) * share)
		if share*float64(c.Tokens) >= minTokens && e.store.cost(int64(c.Bytes))*minGain <= gain {
			return c, false
		}
	}
	return nil, false
}

func (c *chats) isLive(key Key, t *Turn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.live, func(l liveChat) bool {
		return slices.Contains(l.keys, key) && l.tenant == t.tenant && (t.slot == engineslots.Any || l.slot == t.slot)
	})
}

// setLiveLocked records what a slot now holds.
func (c *chats) setLiveLocked(l liveChat) {
	c.live = slices.DeleteFunc(c.live, func(old liveChat) bool {
		n := len(old.keys)
		return n > 0 && old.tenant == l.tenant && slices.Contains(l.keys, old.keys[n-1]) || l.slot >= 0 && old.slot == l.slot
	})
	// Where the engine chooses the slots, requests can have taken some of other chats than the least recently used.
	sure := (c.slots + 1) / 2
	if l.slot >= 0 {
		sure = c.slots
	}
	c.live = append(c.live[max(len(c.live)-sure+1, 0):], l)
}

// Reused returns how many prompt tokens of the request came from the restored conversation, 0 if that is unknown.
func (t *Turn) Reused(ctx context.Context) int {
	if t == nil || t.restored == nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	list, _ := t.e.slotList(ctx)
	for _, s := range list {
		if s.ID == t.restoredSlot && s.Task != nil {
			return max(min(s.cached(), int(t.restored.Tokens)), 0)
		}
	}
	return 0
}

// victim returns an idle slot, [engineslots.Any] for none: one that still holds what was saved from it, else the least
// recently used.
func (e *Engine) victim(ctx context.Context) int {
	list, _ := e.slotList(ctx) // none on an error
	e.chats.mu.Lock()
	defer e.chats.mu.Unlock()
	best, bestUsed, last := engineslots.Any, 0, 0
	for _, s := range list {
		used := e.chats.restoredAt[s.ID]
		if s.Task != nil {
			used = max(used, *s.Task+1)
		}
		last = max(last, used)
		if n, ok := e.chats.savedFrom[s.ID]; ok && n == s.Tokens {
			used = 0
		}
		if !s.Busy && (best == engineslots.Any || used < bestUsed) {
			best, bestUsed = s.ID, used
		}
	}
	if best != engineslots.Any {
		e.chats.restoredAt[best] = last + 1
		delete(e.chats.savedFrom, best)
	}
	return best
}

// End records the end of the request; ok means that its response was complete. Only then are the turns that it
// continues out of date.
func (t *Turn) End(ok bool) {
	if t == nil {
		return
	}
	e, c := t.e, &t.e.chats
	ok = ok && t.finish()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	for _, old := range t.before {
		old.next--
	}
	if c.closed {
		return
	}
	c.setLiveLocked(liveChat{t.keys(), t.tenant, t.slot})
	if !ok {
		c.live[len(c.live)-1].keys = nil
	}
	if e.table != nil && t.slot == engineslots.Any { // it had all slots
		c.live = nil
	}
	if ok {
		c.pending = append(slices.DeleteFunc(c.pending, t.goesOn), t)
		if n := len(c.pending) - 2*c.slots; n > 0 { // the engine is too busy to save them
			e.store.m.unsaved.Add(n)
			c.pending = slices.Delete(c.pending, 0, n)
		}
	}
	list := c.unsavedLocked()
	switch {
	case len(list) == 0 || e.table != nil: // with a table, Evict and Save save
	case c.isFullLocked(list):
		e.startKeepingLocked()
	case c.running == 0:
		if c.timer == nil {
			c.timer = time.AfterFunc(idleBeforeSave, func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				e.startKeepingLocked()
			})
		}
		// Large states of long chats are not written after each of their turns.
		last := list[len(list)-1]
		c.timer.Reset(max(idleBeforeSave, idleFactor*e.store.cost(e.perToken*int64(len(last.body))/4)))
	}
}

// unsavedLocked returns the turns to save: those that no request continues.
func (c *chats) unsavedLocked() (out []*Turn) {
	for _, t := range c.pending {
		if t.next == 0 {
			out = append(out, t)
		}
	}
	return out
}

// isFullLocked reports whether every slot may hold a conversation of list, and one is free to save it.
func (c *chats) isFullLocked(list []*Turn) bool { return len(list) >= c.slots && c.running < c.slots }

func (e *Engine) startKeepingLocked() {
	c := &e.chats
	if c.closed {
		return
	}
	select {
	case c.moving <- struct{}{}:
		c.work.Go(e.keep)
	default: // keep runs already, or a Restore does, whose End follows
	}
}

// keep saves pending turns one after the other: the oldest if every slot may hold one, else, while no request runs, the
// newest first. A request interrupts the latter.
func (e *Engine) keep() {
	c := &e.chats
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { <-c.moving }()
	for {
		list := c.unsavedLocked()
		isUrgent := c.isFullLocked(list)
		if c.closed || len(list) == 0 || c.running > 0 && !isUrgent {
			return
		}
		t, limit := list[len(list)-1], sealTimeout
		if isUrgent {
			t, limit = list[0], evictTimeout
		}
		ctx, cancel := context.WithTimeout(e.life, limit)
		if !isUrgent {
			c.interrupt = cancel
		}
		c.mu.Unlock()
		err := e.saveTurn(ctx, t, false)
		c.mu.Lock()
		c.interrupt = nil
		if err == nil || ctx.Err() != context.Canceled { // else saved later, or at the end
			c.pending = slices.DeleteFunc(c.pending, func(old *Turn) bool { return old == t })
			e.logUnsaved(err)
		}
		cancel()
	}
}

func (e *Engine) logUnsaved(err error) {
	if err != nil {
		e.store.m.unsaved.Inc()
		e.log.Warn("conversation not saved", "error", err)
	}
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
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(slices.Values(c.pending), func(a, b *Turn) int { return b.ended.Compare(a.ended) })
}

// Close ends what Serve started. Call it when the engine has exited.
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
	i := slices.IndexFunc(c.pending, func(t *Turn) bool { return t.slot == slot && t.next == 0 })
	if i < 0 || c.closed {
		c.mu.Unlock()
		return
	}
	t := c.pending[i]
	c.pending = slices.Delete(c.pending, i, i+1)
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, evictTimeout)
	defer cancel()
	e.logUnsaved(e.saveTurn(ctx, t, true))
}

// saveTurn seals a conversation, which is to have the engine compute exactly what the next turn will begin with, and
// saves it. In a hurry, an answer that takes long to compute is left out of states that can go back.
func (e *Engine) saveTurn(ctx context.Context, t *Turn, hurry bool) error {
	if e.forgotten < e.store.lastForget(e.model) {
		e.store.m.forgotten.Inc()
		return nil
	}
	if !e.awaitIdentity(ctx) || !filestate.Unchanged(e.files) {
		return ctx.Err()
	}
	perToken, err := e.secondsPerToken(ctx)
	if err != nil {
		return err
	}
	worth := func(tokens int) time.Duration {
		return time.Duration(float64(tokens) * perToken * float64(time.Second))
	}
	if e.store.cost(e.perToken*1000)*minGain > worth(1000) {
		e.store.m.worthless.Inc()
		e.store.dropMeasurement()
		return nil
	}
	whole := t.answered && (!hurry || e.sealed || worth(len(t.answer.content)/3) <= maxHurry)
	tokens, err := e.stableStart(ctx, t, whole)
	if err != nil {
		return err
	}
	if len(tokens) < minTokens {
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
	if err = e.ask(ctx, "/completion", request, &sealed); err != nil {
		return err
	}
	e.chats.mu.Lock()
	e.chats.interrupt = nil // saving takes a moment
	e.chats.mu.Unlock()
	if sealed.Slot == nil {
		return errors.New("the engine does not tell which slot holds the conversation")
	}
	f, err := e.saveSlot(ctx, *sealed.Slot)
	if err != nil {
		return err
	}
	f.Identity, f.Model, f.Forgotten, f.PromptMS = e.id, nameOf(e.model), e.forgotten, worth(len(tokens)).Seconds()*1000
	f.Tenant, f.Marks, f.SavedMS = t.tenant, t.savedMarks(e.sealed), t.ended.UnixMilli()
	text, _ := binary.Append(nil, binary.LittleEndian, tokens) // as a state contains them
	f.Sum = sha256.Sum256(text)
	f.replaces = t.has
	e.chats.mu.Lock()
	e.chats.savedFrom[*sealed.Slot] = len(tokens)
	e.chats.mu.Unlock()
	e.store.store(f)
	e.log.Debug("conversation saved", "tokens", f.Tokens)
	return nil
}

// stableStart returns the tokens that the conversation's next turn starts with, whatever it is; without the last answer
// unless whole is set.
func (e *Engine) stableStart(ctx context.Context, t *Turn, whole bool) ([]int32, error) {
	if t.tokens != nil {
		return t.tokens[:len(t.tokens)-1], nil
	}
	texts, err := e.render(ctx, t, whole)
	if err != nil {
		return nil, err
	}
	var same []int32
	for i, text := range texts {
		var got struct{ Tokens []int32 }
		err := e.ask(ctx, "/tokenize", map[string]any{"content": text, "add_special": true, "parse_special": true}, &got)
		if err != nil {
			return nil, err
		}
		n := 0
		for n < min(len(same), len(got.Tokens)) && same[n] == got.Tokens[n] {
			n++
		}
		if i == 0 {
			n = len(got.Tokens)
		}
		if n < minTokens && len(same) > 2*minTokens {
			return nil, errUnstable
		}
		same = got.Tokens[:n]
	}
	return same[:max(len(same)-1, 0)], nil // the last can merge with the next message's first
}

// render returns texts whose common start is that of the conversation's next turn.
func (e *Engine) render(ctx context.Context, t *Turn, whole bool) (texts []string, err error) {
	if t.list == nil {
		text := t.text
		if whole {
			text += string(t.answer.content)
		}
		return []string{text}, nil
	}
	bodies := [][]byte{t.body}
	if whole {
		a, errA := t.continued("A")
		b, errB := t.continued("7")
		if err := errors.Join(errA, errB); err != nil {
			return nil, err
		}
		bodies = [][]byte{a, b}
	}
	for _, body := range bodies {
		var rendered struct{ Prompt string }
		if err := e.ask(ctx, "/apply-template", json.RawMessage(body), &rendered); err != nil {
			return nil, err
		}
		texts = append(texts, rendered.Prompt)
	}
	return texts, nil
}
