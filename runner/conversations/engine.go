package conversations

import (
	"bytes"
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
	"reveille/runner/filestate"
)

const (
	queryTimeout = 500 * time.Millisecond // of a query to the engine
	stepTimeout  = 2 * time.Second        // of saving all conversations of an engine before its end, and for its identity
	minGain      = 10                     // a conversation is saved and restored only if computing it takes this many times longer
	minTokens    = 64                     // minimum tokens of a conversation that is worth a file
	maxResponse  = 16 << 20               // bytes of an engine's response
)

// Env are variables for llama-server's environment. With them it counts what it computes, and leaves idle conversations
// in their slots. By default every request moves those of the other slots into its prompt cache.
var Env = map[string]string{"LLAMA_ARG_ENDPOINT_METRICS": "1", "LLAMA_ARG_CACHE_IDLE_SLOTS": "0"}

// Process describes an engine process that is about to start.
type Process struct {
	Model       string   // its name in the catalog
	Checkpoint  string   // path of the model file, or of any part of it
	Program     string   // path
	Argv, Env   []string // Env as NAME=value
	PerToken    int64    // planned bytes of state for each token
	OnlyForward bool     // its states cannot go back, so only those that end where the next turn goes on are of use
}

// Engine is one engine process. Call Serve once before its first request, Save before its end, and Close after its end.
// All methods do nothing on nil.
type Engine struct {
	store *Store
	log   *slog.Logger
	model string

	// The parts of the identity.
	files      []filestate.File // of the model and the program
	parts      []string         // the model's name, arguments and variables
	id         Identity         // set before identified is closed; zero: unknown
	identified chan struct{}

	perToken    int64        // bytes, as planned
	fixed       atomic.Int64 // bytes of a state besides, as in the last file
	onlyForward bool         // as in Process
	forgotten   uint64       // as in header
	chats       chats
	life        context.Context // of saving conversations while the engine runs
	end         context.CancelFunc

	// Set by Serve.
	client   *relay.Client
	key, dir string

	names            atomic.Int64 // of files in dir
	restoredPerToken float64      // seconds to compute a token of what was restored; 0: nothing was; guarded by chats.mu
}

// NewEngine identifies an engine before it starts. It fails if a file cannot be inspected.
func (s *Store) NewEngine(p Process) (*Engine, error) {
	files, err := filestate.OfEngine(p.Checkpoint, p.Program, p.Env)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		store: s, files: files, log: s.cfg.Log.With("model", p.Model), perToken: p.PerToken, onlyForward: p.OnlyForward, model: p.Model,
		identified: make(chan struct{}), forgotten: s.lastForget(p.Model),
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		close(e.identified)
		return e, nil
	}
	s.work.Go(func() {
		defer close(e.identified)
		e.identify(s.life)
	})
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

// Serve begins to save and restore conversations of the serving engine with so many slots. client, key and dir, its
// private folder, are the engine's. If slots are erased for other keys, nothing is saved while the engine is idle, because
// that computes in slots that no request holds.
func (e *Engine) Serve(client *relay.Client, key, dir string, slots int, erased bool) {
	if e != nil {
		e.chats.erased = erased
		e.client, e.key, e.dir = client, key, dir
		e.chats.slots, e.chats.keeping = make([]slotChat, slots), make(chan struct{}, 1)
	}
}

// copyIn copies a conversation into the engine's folder and gives it to the engine's user.
func (e *Engine) copyIn(ctx context.Context, c *entry, name string) error {
	root, err := os.OpenRoot(e.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = e.store.copyTo(ctx, f, c)
	if err == nil {
		err = giveTo(f, root)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = root.Remove(name)
	}
	return err
}

// restoreSlot has the engine restore a conversation into a slot. One that is damaged or that the engine refuses is
// removed.
func (e *Engine) restoreSlot(ctx context.Context, slot int, c *entry) error {
	name := fmt.Sprint("restore-", e.names.Add(1))
	start := time.Now()
	if err := e.copyIn(ctx, c, name); err != nil {
		if errors.Is(err, errDamaged) {
			e.store.m.damaged.Inc()
			e.store.drop(c)
		}
		return err
	}
	defer os.Remove(filepath.Join(e.dir, name)) // otherwise removed with the engine's folder
	copied := time.Now()
	var got struct {
		Restored int `json:"n_restored"`
		Timings  struct {
			Restore float64 `json:"restore_ms"`
		} `json:"timings"`
	}
	err := e.ask(ctx, fmt.Sprintf("/slots/%d?action=restore", slot), map[string]string{"filename": name}, &got)
	if err == nil && got.Restored != int(c.Tokens) {
		err = fmt.Errorf("%d of %d tokens were restored", got.Restored, c.Tokens)
	}
	if ctx.Err() == nil && err != nil {
		e.store.m.rejected.Inc()
		e.store.drop(c)
		return err
	}
	if !errors.Is(ctx.Err(), context.Canceled) {
		e.store.recordSpeed(int64(c.Bytes), copied.Sub(start)+engineTime(got.Timings.Restore, copied))
	}
	if err != nil {
		return err
	}
	e.store.use(c)
	e.store.m.restored.Inc()
	e.store.m.tokens.Add(got.Restored)
	e.store.m.seconds.Add(max(c.worth()-time.Since(start), 0).Seconds())
	e.chats.mu.Lock()
	e.restoredPerToken = max(e.restoredPerToken, c.PromptMS/1000/float64(c.Tokens))
	e.chats.mu.Unlock()
	return nil
}

// slotState is a slot as /slots reports it.
type slotState struct {
	ID     int  `json:"id"`
	Task   *int `json:"id_task"` // nil: the slot has served no request since the engine started
	Tokens int  `json:"n_prompt_tokens"`

	// Of its last request.
	Computed  int `json:"n_prompt_tokens_processed"`
	Generated []struct {
		Decoded int `json:"n_decoded"`
	} `json:"next_token"`
}

// cached returns how many tokens of its last request's prompt a slot did not compute. llama-server counts what it
// generated among the tokens, but for the last one.
func (s *slotState) cached() int {
	n := s.Tokens - s.Computed
	for _, g := range s.Generated {
		n -= max(g.Decoded-1, 0)
	}
	return n
}

// Save makes the engine save the conversations that are not saved yet, the last used first. It returns after at most
// stepTimeout, or when ctx ends. What was saved by then is copied into the store later.
func (e *Engine) Save(ctx context.Context) {
	if e == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	for _, t := range e.stopKeeping() {
		if ctx.Err() != nil {
			break
		}
		e.logUnsaved(e.saveTurn(ctx, t, true))
	}
}

// bytesOf estimates the size of a conversation's state.
func (e *Engine) bytesOf(tokens int) int64 { return e.fixed.Load() + e.perToken*int64(tokens) }

// slotState returns the state of a slot, zero if it is unknown. The engine responds between two batches.
func (e *Engine) slotState(ctx context.Context, slot int) slotState {
	text, err := e.roundTrip(ctx, "GET", "/slots", nil)
	var list []slotState
	if err != nil || json.Unmarshal(text, &list) != nil {
		return slotState{}
	}
	for _, s := range list {
		if s.ID == slot {
			return s
		}
	}
	return slotState{}
}

// secondsPerToken returns the time that the engine takes to compute a token of a prompt, 0 if it has computed none.
func (e *Engine) secondsPerToken(ctx context.Context) (float64, error) {
	text, err := e.roundTrip(ctx, "GET", "/metrics", nil)
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
func (e *Engine) saveSlot(ctx context.Context, slot int) (f savedFile, err error) {
	root, err := os.OpenRoot(e.dir)
	if err != nil {
		return savedFile{}, err
	}
	defer root.Close()
	name := fmt.Sprint("save-", e.names.Add(1)) // another than before, which may still be copied
	var got struct {
		Saved   int   `json:"n_saved"`
		Written int64 `json:"n_written"`
		Timings struct {
			Save float64 `json:"save_ms"`
		} `json:"timings"`
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	if err = e.ask(ctx, fmt.Sprintf("/slots/%d?action=save", slot), map[string]string{"filename": name}, &got); err != nil {
		return savedFile{}, err
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
	f.Bytes, f.Tokens = uint64(got.Written), uint32(got.Saved)
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

// ask posts a request to the engine and decodes the response.
func (e *Engine) ask(ctx context.Context, path string, request, response any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	text, err := e.roundTrip(ctx, "POST", path, body)
	if err == nil {
		err = json.Unmarshal(text, response)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// roundTrip asks the engine, for as long as ctx allows or sealTimeout.
func (e *Engine) roundTrip(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	limit := sealTimeout
	if end, ok := ctx.Deadline(); ok {
		limit = time.Until(end)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req := relay.Request{Method: method, Path: []byte(path), Body: body, FirstByte: limit, Silence: limit, Probe: true}
	status, response, err := e.client.Fetch(ctx, &req, e.key, nil, maxResponse)
	if err == nil && status != 200 {
		err = fmt.Errorf("status %d", status)
	}
	return response, err
}
