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
	"time"

	"reveille/infra/relay"
	"reveille/runner/engineslots"
	"reveille/runner/filestate"
)

const (
	askTimeout  = 500 * time.Millisecond // of a question to the engine
	stepTimeout = 2 * time.Second        // of saving, and of restoring, all conversations of an engine
	minGain     = 10                     // a conversation is saved and restored if computing it takes this many times longer
	minTokens   = 64                     // tokens of a conversation that is worth a file
	maxSlots    = 256
	maxAnswer   = 4 << 20 // bytes of an engine's answer
)

// Env are variables of llama-server's environment. It counts what it computes, which Save needs. It also leaves idle
// conversations in their slots: by default, every request moves those of the other slots into its prompt cache, from
// where they cannot be saved.
var Env = map[string]string{"LLAMA_ARG_ENDPOINT_METRICS": "1", "LLAMA_ARG_CACHE_IDLE_SLOTS": "0"}

// Process describes an engine process that is about to start.
type Process struct {
	Model      string   // its name in the catalog
	Checkpoint string   // path of the model file, or of any part of it
	Program    string   // path
	Argv, Env  []string // Env as NAME=value
	PerToken   int64    // bytes of the state of a token, as planned
}

// Engine is one engine process. Call Stage after its start, Restore once before its first request, and Save before its
// end, each at most once and one after the other. All methods do nothing on nil.
type Engine struct {
	store  *Store
	log    *slog.Logger
	staged chan []stagedFile
	dir    string

	// What makes the identity.
	files      []filestate.File // of the model and the program
	parts      []string         // the model's name, arguments and variables
	id         Identity         // set before identified is closed; zero: it cannot be known
	identified chan struct{}

	perToken int64 // bytes, as planned
	reuse    reuse

	forgotten uint64 // as in header

	model string

	// For Restore and Save.
	client           *relay.Client
	key              string
	table            *engineslots.Table
	restoredPerToken float64 // seconds, as measured when what was restored was computed; 0: nothing was
}

// stagedFile is a conversation that lies in the engine's folder.
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
		perToken: p.PerToken, model: p.Model, identified: make(chan struct{}), forgotten: s.lastForget(p.Model),
	}
	// Models of one file may be for keys that do not trust each other.
	e.parts = append([]string{"model " + p.Model}, numbersFrom(p.Argv)...)
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

// numbersFrom returns the arguments that may change what an engine computes: all but addresses, names and paths.
func numbersFrom(argv []string) []string {
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

// Stage begins to copy the conversations that are worth it into the engine's private folder, while the engine loads
// its model. There are at most slots of them. It ends with ctx.
func (e *Engine) Stage(ctx context.Context, dir string, slots int) {
	if e == nil {
		return
	}
	e.dir = dir
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
			if err := e.stage(c, name); err != nil {
				if errors.Is(err, errDamaged) {
					e.refuse(c, err)
					continue
				}
				e.log.Warn("conversations are not restored", "error", err)
				break
			}
			sum += cost
			out = append(out, stagedFile{c, name})
		}
	}()
}

// stage copies a conversation into the engine's folder, for the engine's user.
func (e *Engine) stage(c *entry, name string) error {
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

// refuse removes a conversation that cannot be restored.
func (e *Engine) refuse(c *entry, err error) {
	if errors.Is(err, errDamaged) {
		e.store.m.damaged.Inc()
	} else {
		e.store.m.rejected.Inc()
	}
	e.log.Warn("a saved conversation is dropped", "tokens", c.Tokens, "error", err)
	e.store.remove(c)
}

// Restore gives the engine, which serves by now, the conversations that were staged: the last used first, each in a
// slot of its own. A conversation that it refuses is removed. client, key and table are the engine's; a nil table
// keeps no owners apart.
func (e *Engine) Restore(ctx context.Context, client *relay.Client, key string, table *engineslots.Table) {
	if e == nil {
		return
	}
	e.client, e.key, e.table = client, key, table
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
		if e.store.forgets(c.entry) {
			continue
		}
		began := time.Now()
		var got struct {
			Restored int `json:"n_restored"`
		}
		if table != nil { // before the engine is asked: it may restore the slot without answering in time
			table.Restored(slot, c.Tenant, c.Prompt)
		}
		err := e.slot(ctx, slot, "restore", c.name, stepTimeout, &got)
		if err == nil && got.Restored != int(c.Tokens) {
			err = fmt.Errorf("%d of %d tokens were restored", got.Restored, c.Tokens)
		}
		if ctx.Err() == nil && err != nil {
			e.refuse(c.entry, err)
			continue
		}
		e.store.measured(int64(c.Bytes), time.Since(began))
		if err != nil {
			break
		}
		e.store.m.restored.Inc()
		tokens += got.Restored
		e.restoredPerToken = max(e.restoredPerToken, c.PromptMS/1000/float64(c.Tokens))
		e.reuse.restored(slot, c.entry)
		e.store.m.seconds.Add(max(c.worth()-time.Since(began), 0).Seconds())
	}
	e.store.m.tokens.Add(tokens)
	for _, c := range files {
		_ = os.Remove(filepath.Join(e.dir, c.name)) // the engine's folder goes with it anyway
	}
	if tokens > 0 {
		e.log.Info("conversations restored", "conversations", len(files), "tokens", tokens)
	}
}

// slotState is what /slots says of a slot.
type slotState struct {
	ID     int  `json:"id"`
	Busy   bool `json:"is_processing"`
	Task   *int `json:"id_task"` // nil: the slot has served nobody since the engine started
	Tokens int  `json:"n_prompt_tokens"`

	// Of its last request.
	Computed  int `json:"n_prompt_tokens_processed"`
	Generated []struct {
		Decoded int `json:"n_decoded"`
	} `json:"next_token"`
}

// Save has the engine, which must be idle, save the conversations that it computed since its start, the last used
// first, if that takes much less time than computing them anew would. It returns after at most stepTimeout, or when
// ctx ends; what was saved by then is copied into the store later.
func (e *Engine) Save(ctx context.Context) {
	if e == nil || e.client == nil || !filestate.Unchanged(e.files) {
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
	list, perToken, err := e.listSlots(ctx)
	if err != nil {
		e.log.Warn("conversations are not saved", "error", err)
		return
	}
	if e.restoredPerToken > 0 { // the engine has only computed new turns since: short prompts take longer for each token
		perToken = min(perToken, e.restoredPerToken)
	}
	root, err := os.OpenRoot(e.dir)
	if err != nil {
		e.log.Warn("conversations are not saved", "error", err)
		return
	}
	defer root.Close()
	var out []saved
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
		began := time.Now()
		f, err := e.saveSlot(ctx, root, s, min(worth, stepTimeout))
		if err != nil {
			e.store.m.unsaved.Inc()
			e.store.measured(perSize*int64(s.Tokens), time.Since(began))
			e.log.Warn("a conversation is not saved", "tokens", s.Tokens, "error", err)
			break
		}
		perSize = int64(f.Bytes) / int64(f.Tokens)
		e.store.measured(int64(f.Bytes), time.Since(began))
		f.Identity, f.Model, f.Forgotten = e.id, nameOf(e.model), e.forgotten
		f.Tenant, f.Prompt, f.PromptMS = owner, prompt, float64(f.Tokens)*perToken*1000
		out = append(out, f)
	}
	if len(out) > 0 {
		e.log.Info("conversations saved", "conversations", len(out))
	}
	slices.Reverse(out) // the last used is the last kept, and the first to be restored
	e.store.storeAll(e.id, e.model, out)
}

// listSlots returns the slots that may be worth saving, the last used first, and the seconds that the engine takes to
// compute a token of a prompt, within askTimeout.
func (e *Engine) listSlots(ctx context.Context) (slots []slotState, perToken float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	text, err := e.ask(ctx, "GET", "/slots", nil, askTimeout)
	if err == nil {
		err = json.Unmarshal(text, &slots)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("slots: %w", err)
	}
	slots = slices.DeleteFunc(slots[:min(len(slots), maxSlots)], func(s slotState) bool { return s.Busy || s.Task == nil || s.Tokens < minTokens })
	slices.SortFunc(slots, func(a, b slotState) int { return cmp.Compare(*b.Task, *a.Task) })
	if len(slots) == 0 {
		return nil, 0, nil
	}
	if text, err = e.ask(ctx, "GET", "/metrics", nil, askTimeout); err != nil {
		return nil, 0, fmt.Errorf("metrics: %w", err)
	}
	tokens, seconds := metric(text, "llamacpp:prompt_tokens_total"), metric(text, "llamacpp:prompt_seconds_total")
	if tokens <= 0 || seconds <= 0 {
		return nil, 0, nil // it computed nothing
	}
	return slots, seconds / tokens, nil
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

// saveSlot has the engine save a slot, and opens the file.
func (e *Engine) saveSlot(ctx context.Context, root *os.Root, s slotState, limit time.Duration) (f saved, err error) {
	name := "save-" + strconv.Itoa(s.ID)
	var got struct {
		Saved   int   `json:"n_saved"`
		Written int64 `json:"n_written"`
	}
	if err = e.slot(ctx, s.ID, "save", name, limit, &got); err != nil {
		return saved{}, err
	}
	if got.Saved < minTokens || got.Written < 4*int64(got.Saved) {
		return saved{}, fmt.Errorf("%d tokens in %d bytes were saved", got.Saved, got.Written)
	}
	file, err := openUntrusted(root, name)
	if err != nil {
		return saved{}, err
	}
	info, err := file.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() != got.Written) {
		err = errForeign
	}
	if err != nil {
		return saved{}, errors.Join(err, file.Close())
	}
	f = saved{file: file}
	f.Bytes, f.Tokens = uint64(got.Written), uint32(got.Saved)
	return f, nil
}

// slot has the engine save or restore a slot, and decodes the answer.
func (e *Engine) slot(ctx context.Context, id int, action, file string, limit time.Duration, into any) error {
	body, err := json.Marshal(map[string]string{"filename": file})
	if err != nil {
		return err
	}
	answer, err := e.ask(ctx, "POST", fmt.Sprintf("/slots/%d?action=%s", id, action), body, limit)
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	return json.Unmarshal(answer, into)
}

func (e *Engine) ask(ctx context.Context, method, path string, body []byte, limit time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req := relay.Request{Method: method, Path: []byte(path), Body: body, FirstByte: limit, Silence: limit, Probe: true}
	status, answer, err := e.client.Fetch(ctx, &req, e.key, nil, maxAnswer)
	if err == nil && status != 200 {
		err = fmt.Errorf("status %d", status)
	}
	return answer, err
}
