package conversations

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"reveille/infra/jsonscan"
	"reveille/runner/engineslots"
	"reveille/runner/filestate"
)

const (
	idleBeforeSave = time.Second            // without a request, until the engine saves its conversations
	idleFactor     = 20                     // at least this many times what saving takes
	maxHurry       = 250 * time.Millisecond // for the tokens of an answer that a save in a hurry computes
	sealTimeout    = 30 * time.Second       // for a conversation; its few tokens wait for other requests' prompts
	stateTimeout   = 10 * time.Second       // for saving or restoring a slot, which waits for the engine's batch

	// Where requests are no chats, saving each before the next delays it for nothing. After so many saves of first turns
	// that no request continued, only one in sparse of them is saved before its slot goes to another conversation. The
	// engine's prompt cache may have the others; where slots are erased for other keys, it has none, so all are saved.
	maxUnused = 32
	sparse    = 8

	minSystem  = 4 << 10 // bytes of tools and a system prompt that are worth a file of their own
	maxSystems = 64      // how many of them are remembered
)

// errUnstable: what the template makes of a conversation changes with the next message, or by itself.
var errUnstable = errors.New("the chat template renders the conversation anew for each message, so its state cannot be reused")

// chats are the conversations of a running engine, at most one in each slot.
type chats struct {
	mu        sync.Mutex
	running   int // requests
	slots     []slotChat
	erased    bool               // slots are erased for other keys
	systems   []Key              // of the last system prompts, oldest first
	unused    int                // first turns that were evicted since a conversation was last restored
	interrupt context.CancelFunc // of what is being saved while no request runs
	closed    bool
	timer     *time.Timer
	work      sync.WaitGroup // keep
	keeping   chan struct{}  // held by keep
}

// slotChat is what the last request made of a slot.
type slotChat struct {
	tenant  engineslots.Tenant
	keys    []Key // of the beginnings of the conversation in the slot, the longest last; none: of no use to another request
	unsaved *Turn // answered and not saved
	unsure  bool  // a request that could take any slot may have taken it
}

// Begin records the start of a request in a slot, [engineslots.Any] if the engine chooses. Call End when its response is
// complete.
func (e *Engine) Begin(t *Turn, tenant engineslots.Tenant, slot int) *Turn {
	if e == nil {
		return nil
	}
	t.e, t.tenant, t.slot = e, tenant, slot
	t.savable = t.savable && slot != engineslots.Any && !(e.onlyForward && t.list == nil)
	c := &e.chats
	c.mu.Lock()
	defer c.mu.Unlock()
	c.startLocked()
	if slot == engineslots.Any {
		c.loseTrackLocked()
	}
	return t
}

// startLocked counts a request, which interrupts what is being saved.
func (c *chats) startLocked() {
	c.running++
	if c.interrupt != nil {
		c.interrupt()
	}
}

// PrepareSlot makes the slot ready for the request. The engine saves the conversation that was in it, and restores the
// saved one that the request has the longest start in common with, unless it has one that is as long.
func (t *Turn) PrepareSlot(ctx context.Context) {
	if t == nil || t.slot == engineslots.Any {
		return
	}
	e := t.e
	e.evict(ctx, t.slot, t)
	if !t.savable {
		return
	}
	at := t.restore(ctx)
	if at < t.system-1 && e.onlyForward {
		t.saveSystem(ctx)
	}
	if !t.IsSteerable() || at >= t.own {
		return
	}
	tokens, err := e.stableStart(ctx, t, false)
	if err == nil && len(tokens) > 0 {
		err = e.compute(ctx, t.slot, tokens)
	}
	if err != nil {
		e.log.Debug("the engine chooses the request's slot", "error", err)
		e.chats.mu.Lock()
		defer e.chats.mu.Unlock()
		e.chats.loseTrackLocked()
	}
}

// loseTrackLocked records that a request may take any slot.
func (c *chats) loseTrackLocked() {
	for i := range c.slots {
		c.slots[i].keys, c.slots[i].unsure = nil, true
	}
}

// restore has the engine restore the saved conversation that the request has the longest start in common with. It
// returns the index of the mark up to which the slot has the conversation, -1 for none.
func (t *Turn) restore(ctx context.Context) int {
	e := t.e
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	soon, stop := context.WithTimeout(ctx, stepTimeout)
	defer stop()
	if !e.awaitIdentity(soon) {
		return -1
	}
	at, c := e.find(t)
	if at < t.own && e.store.await(ctx, t.places()) {
		at, c = e.find(t)
	}
	if c == nil {
		return at
	}
	if ctx.Err() != nil || !filestate.Unchanged(e.files) {
		return -1
	}
	if err := e.restoreSlot(ctx, t.slot, c); err != nil {
		e.log.Warn("conversation not restored", "error", err)
		return -1
	}
	t.restored = c
	e.chats.mu.Lock()
	defer e.chats.mu.Unlock()
	if at >= t.own {
		e.chats.unused = 0
	}
	e.chats.slots[t.slot] = slotChat{tenant: t.tenant, keys: c.keys()}
	return at
}

// find returns the saved conversation that the request has the longest start in common with, and the index of the mark
// where that ends. Without a conversation, the engine has one in the request's slot that is as long, or at is -1 and
// nothing saved is worth it.
func (e *Engine) find(t *Turn) (at int, c *entry) {
	e.chats.mu.Lock()
	held := e.chats.slots[t.slot]
	e.chats.mu.Unlock()
	for at, m := range slices.Backward(t.marks) {
		if held.tenant == t.tenant && slices.Contains(held.keys, m.Key) {
			return at, nil
		}
		c := e.store.find(place{e.id, t.tenant, m.Key})
		if c == nil {
			continue
		}
		share := c.share(m.Key)
		gain := time.Duration(float64(c.worth()) * share)
		if share*float64(c.Tokens) >= minTokens && e.store.cost(int64(c.Bytes))*minGain <= gain {
			return at, c
		}
	}
	return -1, nil
}

// saveSystem has the engine save the tools and the system prompt of a conversation if an earlier one had them too,
// because a state that cannot go back is of no use to another conversation that starts with them.
func (t *Turn) saveSystem(ctx context.Context) {
	first := t.marks[t.system-1]
	c := &t.e.chats
	c.mu.Lock()
	isKnown := slices.Contains(c.systems, first.Key)
	if !isKnown {
		c.systems = append(c.systems[max(len(c.systems)-maxSystems+1, 0):], first.Key)
	}
	c.mu.Unlock()
	if !isKnown || t.opening < minSystem {
		return
	}
	var all []json.RawMessage
	_ = json.Unmarshal(t.list, &all) // it was read before
	s := &Turn{
		e: t.e, tenant: t.tenant, slot: t.slot, body: t.body, list: quote(all[:t.instructions]), marks: t.marks[:t.system],
		end: first, ended: time.Now(), isSystem: true,
	}
	t.e.logUnsaved(t.e.saveTurn(ctx, s, false))
}

// Reused returns how many prompt tokens of the request came from the restored conversation, 0 if that is unknown.
func (t *Turn) Reused(ctx context.Context) int {
	if t == nil || t.restored == nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	s := t.e.slotState(ctx, t.slot)
	if s.Task == nil {
		return 0
	}
	return max(min(s.cached(), int(t.restored.Tokens)), 0)
}

// End records the end of the request; ok means that its response was complete. Only then is the turn that it continues
// out of date.
func (t *Turn) End(ok bool) {
	if t == nil {
		return
	}
	e, c := t.e, &t.e.chats
	ok = ok && t.savable && t.finish()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case t.slot == engineslots.Any:
		c.loseTrackLocked()
	case ok:
		keys := t.keys()
		if e.onlyForward { // without an answer, the state ends before it
			keys = keys[len(keys)-2:]
		}
		c.slots[t.slot] = slotChat{tenant: t.tenant, keys: keys, unsaved: t}
	default:
		if s := &c.slots[t.slot]; e.onlyForward || s.unsaved == nil { // else the slot has at least the turn before
			s.keys = nil
		}
	}
	e.endLocked()
}

// endLocked ends what startLocked began. After the last request, the engine saves what it was told once it has been idle
// for a while.
func (e *Engine) endLocked() {
	c := &e.chats
	c.running--
	last := c.newestLocked()
	if c.closed || c.erased || c.running > 0 || last == nil {
		return
	}
	if c.timer == nil {
		c.timer = time.AfterFunc(idleBeforeSave, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.closed {
				return
			}
			select {
			case c.keeping <- struct{}{}:
				c.work.Go(e.keep)
			default:
			}
		})
	}
	// Large states of long chats are not written after each of their turns.
	c.timer.Reset(max(idleBeforeSave, idleFactor*e.store.cost(e.bytesOf(len(last.body)/4))))
}

// newestLocked returns the turn that ended last of those not saved, nil for none.
func (c *chats) newestLocked() (last *Turn) {
	for i := range c.slots {
		if t := c.slots[i].unsaved; t != nil && (last == nil || t.ended.After(last.ended)) {
			last = t
		}
	}
	return last
}

// keep saves what is not saved, the newest first, while no request runs.
func (e *Engine) keep() {
	c := &e.chats
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { <-c.keeping }()
	for t := c.newestLocked(); t != nil && !c.closed && c.running == 0; t = c.newestLocked() {
		ctx, cancel := context.WithTimeout(e.life, sealTimeout)
		c.interrupt = cancel
		c.mu.Unlock()
		err := e.saveTurn(ctx, t, false)
		c.mu.Lock()
		c.interrupt = nil
		if err == nil || ctx.Err() != context.Canceled { // else saved later, or at the end
			c.savedLocked(t)
			e.logUnsaved(err)
		}
		cancel()
	}
}

// savedLocked records that a turn is saved, or cannot be.
func (c *chats) savedLocked(t *Turn) {
	if s := &c.slots[t.slot]; s.unsaved == t {
		s.unsaved = nil
	}
}

func (e *Engine) logUnsaved(err error) {
	if err != nil {
		e.store.m.unsaved.Inc()
		e.log.Warn("conversation not saved", "error", err)
	}
}

// stopKeeping ends keep, and returns what is not saved, the last used first.
func (e *Engine) stopKeeping() (list []*Turn) {
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
	for t := c.newestLocked(); t != nil; t = c.newestLocked() {
		list = append(list, t)
		c.savedLocked(t)
	}
	return list
}

// Close ends what Serve started. Call it when the engine has exited.
func (e *Engine) Close() {
	if e != nil {
		e.stopKeeping()
	}
}

// Evict saves the conversation in a slot that the caller holds and is about to erase, if it is not saved.
func (e *Engine) Evict(ctx context.Context, slot int) {
	if e == nil {
		return
	}
	c := &e.chats
	c.mu.Lock()
	c.startLocked()
	c.mu.Unlock()
	e.evict(ctx, slot, nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	e.endLocked()
}

// evict saves the conversation in the slot of the request next, if it is not saved and next does not go on with it.
func (e *Engine) evict(ctx context.Context, slot int, next *Turn) {
	c := &e.chats
	ctx, cancel := context.WithTimeout(ctx, sealTimeout)
	defer cancel()
	select { // keep may be saving it
	case c.keeping <- struct{}{}:
		<-c.keeping
	case <-ctx.Done():
		return
	}
	c.mu.Lock()
	s := &c.slots[slot]
	t, unsure := s.unsaved, s.unsure
	if t == nil || c.closed || next != nil && next.tenant == t.tenant && next.has(t.end.Key) {
		c.mu.Unlock()
		return
	}
	s.unsaved = nil
	skip := false
	if t.isFirst {
		c.unused++
		skip = !c.erased && c.unused > maxUnused && c.unused%sparse != 0
	}
	c.mu.Unlock()
	switch {
	case unsure:
		e.store.m.unsaved.Inc()
	case !skip:
		err := e.saveTurn(ctx, t, true)
		if !errors.Is(ctx.Err(), context.Canceled) {
			e.logUnsaved(err)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if s.unsaved == nil { // the client left before its request could change the slot
			s.unsaved = t
		}
	}
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
	if n := max(len(t.body)/4, 1000); e.store.cost(e.bytesOf(n))*minGain > worth(n) { // some 4 bytes a token
		e.store.m.worthless.Inc()
		e.store.dropMeasurement()
		return nil
	}
	whole := t.isSystem || t.answered && (!hurry || e.onlyForward || worth(len(t.answer.content)/3) <= maxHurry)
	tokens, err := e.stableStart(ctx, t, whole)
	if err != nil {
		return err
	}
	if len(tokens) < minTokens {
		return nil
	}
	if hurry && e.slotState(ctx, t.slot).Tokens < (len(tokens)-len(t.answer.content))/2 { // it empties idle slots when its context is full
		return errors.New("the engine no longer has the conversation")
	}
	if err := e.compute(ctx, t.slot, tokens); err != nil {
		return err
	}
	e.chats.mu.Lock()
	e.chats.interrupt = nil // saving takes a moment
	e.chats.mu.Unlock()
	f, err := e.saveSlot(ctx, t.slot)
	if err != nil {
		return err
	}
	e.fixed.Store(max(int64(f.Bytes)-e.perToken*int64(f.Tokens), 0))
	f.Identity, f.Model, f.Forgotten, f.PromptMS = e.id, nameOf(e.model), e.forgotten, worth(len(tokens)).Seconds()*1000
	f.Tenant, f.Marks, f.SavedMS = t.tenant, t.savedMarks(e.onlyForward), t.ended.UnixMilli()
	text, _ := binary.Append(nil, binary.LittleEndian, tokens) // as a state contains them
	f.Sum = sha256.Sum256(text)
	f.replaces = t.continues
	e.store.store(f)
	e.log.Debug("conversation saved", "tokens", f.Tokens)
	return nil
}

// compute has the engine compute tokens in a slot.
func (e *Engine) compute(ctx context.Context, slot int, tokens []int32) error {
	// The engine samples a token and parses it; one that is no text would be an error.
	request := map[string]any{"prompt": tokens, "n_predict": 0, "cache_prompt": true, "grammar": "root ::= [a-z]", "id_slot": slot}
	return e.ask(ctx, "/completion", request, &struct{}{})
}

// stableStart returns the tokens that the conversation's next turn starts with, whatever it is; without the last answer
// unless whole is set.
func (e *Engine) stableStart(ctx context.Context, t *Turn, whole bool) ([]int32, error) {
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
	body, err := jsonscan.Set(t.body, "add_generation_prompt", []byte("false"))
	bodies := [][]byte{body}
	if whole {
		a, errA := t.continued("A")
		b, errB := t.continued("7")
		bodies, err = [][]byte{a, b}, errors.Join(errA, errB)
	}
	if err != nil {
		return nil, err
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
