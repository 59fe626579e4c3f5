package conversations

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"reveille/infra/relay"
	"reveille/runner/engineslots"
	"reveille/runner/filestate"
)

const (
	queryTimeout = 500 * time.Millisecond // of a query to the engine
	stepTimeout  = 2 * time.Second        // of saving or restoring all conversations of an engine
	minGain      = 10                     // a conversation is saved and restored only if computing it takes this many times longer
	minTokens    = 64                     // minimum tokens of a conversation that is worth a file
	maxSlots     = 256
	maxResponse  = 4 << 20 // bytes of an engine's response
)

// Env are variables for llama-server's environment. With them it counts what it computes, which Save needs, and leaves
// idle conversations in their slots. By default every request moves those of the other slots into its prompt cache,
// from where they cannot be saved.
var Env = map[string]string{"LLAMA_ARG_ENDPOINT_METRICS": "1", "LLAMA_ARG_CACHE_IDLE_SLOTS": "0"}

// Process describes an engine process that is about to start.
type Process struct {
	Model      string   // its name in the catalog
	Checkpoint string   // path of the model file, or of any part of it
	Program    string   // path
	Argv, Env  []string // Env as NAME=value
	PerToken   int64    // planned bytes of state for each token
	Sealed     bool     // its states cannot go back, so only those that end where the next turn goes on are of use
}

// Engine is one engine process. Call Stage after its start, Restore once before its first request, and Save before its
// end, each at most once and one after the other, and Close after its end. All methods do nothing on nil.
type Engine struct {
	store  *Store
	log    *slog.Logger
	staged chan []stagedFile
	dir    string

	// The parts of the identity.
	files      []filestate.File // of the model and the program
	parts      []string         // the model's name, arguments and variables
	id         Identity         // set before identified is closed; zero: unknown
	identified chan struct{}

	perToken int64 // bytes, as planned
	sealed   bool  // as in Process
	reuse    reuse
	chats    chats
	life     context.Context // of saving conversations while the engine runs
	end      context.CancelFunc

	forgotten uint64 // as in header

	model string

	// For Restore and Save.
	client           *relay.Client
	key              string
	table            *engineslots.Table
	restoredPerToken float64      // seconds to compute a token of what was restored; 0: nothing was; guarded by chats.mu
	saves            atomic.Int64 // calls of saveSlot
}

// stagedFile is a conversation in the engine's folder.
type stagedFile struct {
	*entry
	name string
}

// Prepare identifies an engine before it starts. It fails if a file cannot be inspected.
func (s *Store) Prepare(p Process) (*Engine, error) {
	files, err := filestate.OfEngine(p.Checkpoint, p.Program, p.Env)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		store: s, files: files, log: s.cfg.Log.With("model", p.Model), staged: make(chan []stagedFile, 1),
		perToken: p.PerToken, sealed: p.Sealed, model: p.Model, identified: make(chan struct{}), forgotten: s.lastForget(p.Model),
	}
	e.life, e.end = context.WithCancel(context.Background())
	// Several models can use one file for keys that do not trust each other.
	e.parts = append([]string{"model " + p.Model}, computeArgs(p.Argv)...)
	for _, kv := range slices.Sorted(slices.Values(p.Env)) {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasSuffix(name, "_VISIBLE_DEVICES") || hasAnyPrefix(name, "GGML_", "LLAMA_ARG_", "HSA_OVERRIDE_", "OMP_") {
			e.parts = append(e.parts, "variable "+kv)
		}
	}
	return e, nil
}

func hasAnyPrefix(name string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// computeArgs returns the arguments that can change what an engine computes: all but addresses, names and paths.
func computeArgs(argv []string) []string {
	var out []string
	for i := 1; i < len(argv); i++ {
		switch argv[i] {
		case "--model", "--alias", "--host", "--port", "--slot-save-path":
			i++
		default:
			out = append(out, argv[i])
		}
	}
	return out
}

// Stage starts copying the conversations that are worth it into the engine's private folder while the engine loads its
// model, at most one for each slot. The copy ends with ctx.
func (e *Engine) Stage(ctx context.Context, dir string, slots int) {
	if e == nil {
		return
	}
	e.dir, e.chats.slots = dir, max(slots, 1)
	e.store.mu.Lock()
	if e.store.closed {
		close(e.identified)
	} else {
		e.store.work.Go(func() {
			defer close(e.identified)
			e.identify(e.store.life)
		})
	}
	e.store.mu.Unlock()
	go func() {
		var out []stagedFile
		defer func() { e.staged <- out }()
		if !e.awaitIdentity(ctx) {
			return
		}
		e.store.await(ctx, e.id)
		e.store.mu.Lock()
		newest := e.store.newestLocked(e.id)
		e.store.mu.Unlock()
		var sum time.Duration
		for _, c := range newest {
			cost := e.store.cost(int64(c.Bytes))
			if len(out) == slots || sum+cost > stepTimeout || ctx.Err() != nil {
				break
			}
			if cost*minGain > c.worth() {
				e.store.m.worthless.Inc()
				e.store.dropMeasurement()
				continue
			}
			name := "restore-" + strconv.Itoa(len(out))
			if err := e.stageOne(c, name); err != nil {
				if errors.Is(err, errDamaged) {
					e.dropBad(c, err)
					continue
				}
				e.log.Warn("conversations not restored", "error", err)
				break
			}
			sum += cost
			out = append(out, stagedFile{c, name})
		}
	}()
}

// stageOne copies a conversation into the engine's folder and gives it to the engine's user.
func (e *Engine) stageOne(c *entry, name string) error {
	root, err := os.OpenRoot(e.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = e.store.copyTo(f, c)
	if err == nil {
		err = giveTo(f, root)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = root.Remove(name)
	}
	return err
}

// dropBad removes a conversation that cannot be restored.
func (e *Engine) dropBad(c *entry, err error) {
	if errors.Is(err, errDamaged) {
		e.store.m.damaged.Inc()
	} else {
		e.store.m.rejected.Inc()
	}
	e.log.Warn("saved conversation dropped", "tokens", c.Tokens, "error", err)
	e.store.remove(c)
}

// Restore restores the staged conversations in the serving engine, the last used first, each into a separate slot. A
// conversation that the engine refuses is removed. client, key and table are the engine's. A nil table does not isolate
// owners.
func (e *Engine) Restore(ctx context.Context, client *relay.Client, key string, table *engineslots.Table) {
	if e == nil {
		return
	}
	e.client, e.key, e.table = client, key, table
	e.chats.restoredAt = map[int]int{}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	var files []stagedFile
	select {
	case files = <-e.staged:
	case <-ctx.Done():
		return
	}
	if !filestate.Unchanged(e.files) {
		return
	}
	tokens := 0
	for i, c := range files {
		slot := i // the engine fills the last of its unused slots first
		if ctx.Err() != nil {
			break
		}
		if e.store.isForgotten(c.entry) {
			continue
		}
		if table != nil { // before the call: the engine may restore the slot and not respond in time
			table.Restored(slot, c.Tenant, c.Prompt)
		}
		n, err := e.restoreSlot(ctx, slot, c)
		if err != nil && ctx.Err() != nil {
			break
		}
		tokens += n
	}
	for slot, c := range slices.Backward(files) {
		_ = os.Remove(filepath.Join(e.dir, c.name)) // otherwise removed with the engine's folder
		if c.Key != (Key{}) {
			e.chats.nowLive(liveChat{[]Key{c.Key}, c.Tenant, slot})
		}
		e.chats.restoredAt[slot] = len(files) - slot
	}
	if tokens > 0 {
		e.log.Info("conversations restored", "conversations", len(files), "tokens", tokens)
	}
}

// restoreSlot restores a file in the engine's folder, and returns its number of tokens. A conversation that the engine
// refuses is removed.
func (e *Engine) restoreSlot(ctx context.Context, slot int, c stagedFile) (tokens int, err error) {
	start := time.Now()
	var got struct {
		Restored int `json:"n_restored"`
		Timings  struct {
			Restore float64 `json:"restore_ms"`
		} `json:"timings"`
	}
	err = e.slotAction(ctx, slot, "restore", c.name, stepTimeout, &got)
	if err == nil && got.Restored != int(c.Tokens) {
		err = fmt.Errorf("%d of %d tokens were restored", got.Restored, c.Tokens)
	}
	if ctx.Err() == nil && err != nil {
		e.dropBad(c.entry, err)
		return 0, err
	}
	e.store.recordSpeed(int64(c.Bytes), engineTime(got.Timings.Restore, start))
	if err != nil {
		return 0, err
	}
	e.store.m.restored.Inc()
	e.store.m.tokens.Add(got.Restored)
	e.store.m.seconds.Add(max(c.worth()-time.Since(start), 0).Seconds())
	e.chats.mu.Lock()
	e.restoredPerToken = max(e.restoredPerToken, c.PromptMS/1000/float64(c.Tokens))
	e.chats.mu.Unlock()
	e.reuse.restored(slot, c.entry)
	return got.Restored, nil
}

// slotState is a slot as /slots reports it.
type slotState struct {
	ID     int  `json:"id"`
	Busy   bool `json:"is_processing"`
	Task   *int `json:"id_task"` // nil: the slot has served no request since the engine started
	Tokens int  `json:"n_prompt_tokens"`

	// Of its last request.
	Computed  int `json:"n_prompt_tokens_processed"`
	Generated []struct {
		Decoded int `json:"n_decoded"`
	} `json:"next_token"`
}

// Save makes the engine, which must be idle, save the conversations that it has computed since its start, the last used
// first, if that takes much less time than computing them again. It returns after at most stepTimeout, or when ctx
// ends. What was saved by then is copied into the store later.
func (e *Engine) Save(ctx context.Context) {
	if e == nil {
		return
	}
	pending := e.stopKeeping()
	if e.client == nil || !filestate.Unchanged(e.files) {
		return
	}
	if e.forgotten < e.store.lastForget(e.model) {
		e.store.m.forgotten.Inc()
		return
	}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if !e.awaitIdentity(ctx) {
		return
	}
	if e.sealed {
		for _, t := range pending {
			if ctx.Err() != nil {
				break
			}
			if err := e.saveTurn(ctx, t); err != nil {
				e.logUnsaved(err)
			}
		}
		return
	}
	// States that can go back are saved as they are, which takes less time.
	list, perToken, err := e.listSlots(ctx)
	if err != nil {
		e.log.Warn("conversations not saved", "error", err)
		return
	}
	root, err := os.OpenRoot(e.dir)
	if err != nil {
		e.log.Warn("conversations not saved", "error", err)
		return
	}
	defer root.Close()
	var out []savedFile
	perSize := e.perToken
	for _, s := range list {
		var owner engineslots.Tenant
		var prompt engineslots.Prompt
		if e.table != nil {
			var known bool
			if owner, prompt, known = e.table.Held(s.ID); !known {
				continue
			}
		}
		worth := time.Duration(float64(s.Tokens) * perToken * float64(time.Second))
		if e.store.cost(perSize*int64(s.Tokens))*minGain > worth {
			e.store.m.worthless.Inc()
			e.store.dropMeasurement()
			continue
		}
		start := time.Now()
		f, err := e.saveSlot(ctx, root, s, min(worth, stepTimeout))
		if err != nil {
			e.store.m.unsaved.Inc()
			e.store.recordSpeed(perSize*int64(s.Tokens), time.Since(start))
			e.log.Warn("conversation not saved", "tokens", s.Tokens, "error", err)
			break
		}
		perSize = int64(f.Bytes) / int64(f.Tokens)
		f.Identity, f.Model, f.Forgotten = e.id, nameOf(e.model), e.forgotten
		f.Tenant, f.Prompt, f.PromptMS = owner, prompt, float64(f.Tokens)*perToken*1000
		out = append(out, f)
	}
	if len(out) > 0 {
		e.log.Info("conversations saved", "conversations", len(out))
	}
	slices.Reverse(out) // the last used conversation is stored last, and restored first
	e.store.storeAll(e.id, e.model, out)
}

// listSlots returns the slots that can be worth saving, the last used first, and the seconds that the engine takes to
// compute a token of a prompt. The engine may first have to end the batch of an interrupted call.
func (e *Engine) listSlots(ctx context.Context) (slots []slotState, perToken float64, err error) {
	if slots, err = e.slotList(ctx); err != nil {
		return nil, 0, err
	}
	slots = slices.DeleteFunc(slots, func(s slotState) bool { return s.Busy || s.Task == nil || s.Tokens < minTokens })
	slices.SortFunc(slots, func(a, b slotState) int { return cmp.Compare(*b.Task, *a.Task) })
	if len(slots) == 0 {
		return nil, 0, nil
	}
	if perToken, err = e.secondsPerToken(ctx); err != nil || perToken == 0 {
		return nil, 0, err // it computed nothing
	}
	return slots, perToken, nil
}

// slotList returns the engine's slots. The engine responds between two batches.
func (e *Engine) slotList(ctx context.Context) (slots []slotState, err error) {
	text, err := e.roundTrip(ctx, "GET", "/slots", nil, sealTimeout)
	if err == nil {
		err = json.Unmarshal(text, &slots)
	}
	if err != nil {
		return nil, fmt.Errorf("slots: %w", err)
	}
	return slots[:min(len(slots), maxSlots)], nil
}

// secondsPerToken returns the time that the engine takes to compute a token of a prompt, 0 if it has computed none.
func (e *Engine) secondsPerToken(ctx context.Context) (float64, error) {
	text, err := e.roundTrip(ctx, "GET", "/metrics", nil, sealTimeout)
	if err != nil {
		return 0, fmt.Errorf("metrics: %w", err)
	}
	tokens, seconds := metric(text, "llamacpp:prompt_tokens_total"), metric(text, "llamacpp:prompt_seconds_total")
	if tokens <= 0 || seconds <= 0 {
		return 0, nil
	}
	perToken := seconds / tokens
	e.chats.mu.Lock()
	defer e.chats.mu.Unlock()
	if e.restoredPerToken > 0 { // since then the engine has computed only new turns, and short prompts take longer for each token
		perToken = min(perToken, e.restoredPerToken)
	}
	return perToken, nil
}

// metric returns a metric without labels, or 0.
func metric(text []byte, name string) float64 {
	for line := range bytes.Lines(text) {
		if value, ok := bytes.CutPrefix(line, []byte(name+" ")); ok {
			v, err := strconv.ParseFloat(string(bytes.TrimSpace(value)), 64)
			if err == nil && v > 0 && v < 1e12 {
				return v
			}
		}
	}
	return 0
}

// saveSlot makes the engine save a slot, and opens the file.
func (e *Engine) saveSlot(ctx context.Context, root *os.Root, s slotState, limit time.Duration) (f savedFile, err error) {
	name := fmt.Sprint("save-", e.saves.Add(1)) // another than before, which may still be copied
	var got struct {
		Saved   int   `json:"n_saved"`
		Written int64 `json:"n_written"`
		Timings struct {
			Save float64 `json:"save_ms"`
		} `json:"timings"`
	}
	start := time.Now()
	if err = e.slotAction(ctx, s.ID, "save", name, limit, &got); err != nil {
		return savedFile{}, err
	}
	if got.Saved < minTokens || got.Written < 4*int64(got.Saved) {
		return savedFile{}, fmt.Errorf("%d tokens in %d bytes were saved", got.Saved, got.Written)
	}
	file, err := openUntrusted(root, name)
	_ = root.Remove(name) // otherwise removed with the engine's folder
	if err != nil {
		return savedFile{}, err
	}
	info, err := file.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() != got.Written) {
		err = errForeign
	}
	if err != nil {
		return savedFile{}, errors.Join(err, file.Close())
	}
	e.store.recordSpeed(got.Written, engineTime(got.Timings.Save, start))
	f = savedFile{file: file}
	f.Bytes, f.Tokens, f.Prompted = uint64(got.Written), uint32(got.Saved), uint32(got.Saved)
	// The last token of a prompt can merge with the response's first, when the next turn repeats both as text.
	if n := s.prompted() - 1; n >= minTokens && n < got.Saved {
		f.Prompted = uint32(n)
	}
	return f, nil
}

// engineTime returns the time in ms that the engine reports for a step, without the batch that it waited for; if it
// reports none, the time since start.
func engineTime(ms float64, start time.Time) time.Duration {
	if ms > 0 {
		return time.Duration(ms * float64(time.Millisecond))
	}
	return time.Since(start)
}

// slotAction makes the engine save or restore a slot, and decodes the response.
func (e *Engine) slotAction(ctx context.Context, id int, action, file string, limit time.Duration, into any) error {
	body, err := json.Marshal(map[string]string{"filename": file})
	if err != nil {
		return err
	}
	response, err := e.roundTrip(ctx, "POST", fmt.Sprintf("/slots/%d?action=%s", id, action), body, limit)
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	return json.Unmarshal(response, into)
}

func (e *Engine) roundTrip(ctx context.Context, method, path string, body []byte, limit time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req := relay.Request{Method: method, Path: []byte(path), Body: body, FirstByte: limit, Silence: limit, Probe: true}
	status, response, err := e.client.Fetch(ctx, &req, e.key, nil, maxResponse)
	if err == nil && status != 200 {
		err = fmt.Errorf("status %d", status)
	}
	return response, err
}
