package conversations

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"reveille/infra/relay"
	"reveille/runner/engineslots"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stateOf is what llama-server writes for tokens.
func stateOf(tokens ...uint32) []byte {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, []uint32{0x67677371, 2, uint32(len(tokens))})
	_ = binary.Write(&b, binary.LittleEndian, tokens)
	b.Write(bytes.Repeat([]byte{7}, 100))
	return b.Bytes()
}

// count returns n tokens, the first being `first`.
func count(first uint32, n int) []uint32 {
	out := []uint32{first}
	for i := 1; i < n; i++ {
		out = append(out, uint32(i))
	}
	return out
}

// llama is a llama-server: what it saves is a slot's tokens, and what it restores becomes them.
type llama struct {
	*httptest.Server
	dir string

	mu    sync.Mutex
	slots [][]uint32
	task  []int // 0: served nobody
	link  string
	deny  bool // refuses to restore
	mute  bool // restores, and does not respond
	dies  bool // ends in the middle of saving

	saving  func()      // called before each save; may be nil
	done    map[int]int // tokens that a slot's last request computed
	decoded map[int]int // tokens that it generated
	clock   bool        // its chat template has a counter
	renders int
	speed   float64
}

func newLlama(t *testing.T, slots int) *llama {
	l := &llama{dir: t.TempDir(), slots: make([][]uint32, slots), task: make([]int, slots), speed: 0.01}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /slots", func(w http.ResponseWriter, _ *http.Request) {
		l.mu.Lock()
		defer l.mu.Unlock()
		var out []map[string]any
		for i, tokens := range l.slots {
			s := map[string]any{"id": i, "is_processing": false}
			if n := l.decoded[i]; n > 0 {
				s["next_token"] = []map[string]int{{"n_decoded": n}}
			}
			if l.task[i] > 0 {
				s["id_task"], s["n_prompt_tokens"], s["n_prompt_tokens_processed"] = l.task[i], len(tokens), l.done[i]
			}
			out = append(out, s)
		}
		_ = json.NewEncoder(w).Encode(out)
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		l.mu.Lock()
		defer l.mu.Unlock()
		fmt.Fprintf(w, "# HELP x\nllamacpp:prompt_tokens_total 1000\nllamacpp:prompt_seconds_total %g\n", 1000*l.speed)
	})
	mux.HandleFunc("POST /apply-template", func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		defer l.mu.Unlock()
		var q struct {
			Messages []struct{ Role, Content string }
		}
		_ = json.NewDecoder(r.Body).Decode(&q)
		text := ""
		if l.renders++; l.clock {
			text = fmt.Sprint(l.renders)
		}
		for _, m := range q.Messages {
			text += "<" + m.Role + ">" + m.Content + "</>"
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"prompt": text + "<assistant>"})
	})
	mux.HandleFunc("POST /tokenize", func(w http.ResponseWriter, r *http.Request) {
		var q struct{ Content string }
		_ = json.NewDecoder(r.Body).Decode(&q)
		_ = json.NewEncoder(w).Encode(map[string]any{"tokens": tokensOf(q.Content)})
	})
	mux.HandleFunc("POST /completion", func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		defer l.mu.Unlock()
		var q struct {
			Prompt []uint32
			Slot   int `json:"id_slot"`
		}
		_ = json.NewDecoder(r.Body).Decode(&q)
		l.slots[q.Slot] = q.Prompt
		l.task[q.Slot] = slices.Max(l.task) + 1
		fmt.Fprintf(w, `{"id_slot":%d}`, q.Slot)
	})
	mux.HandleFunc("POST /slots/{id}", func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		defer l.mu.Unlock()
		var id int
		var q struct{ Filename string }
		_, _ = fmt.Sscan(r.PathValue("id"), &id)
		_ = json.NewDecoder(r.Body).Decode(&q)
		path := filepath.Join(l.dir, q.Filename)
		if r.URL.Query().Get("action") == "restore" {
			text, err := os.ReadFile(path)
			if err != nil || l.deny || len(text) < 12 {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			n := binary.LittleEndian.Uint32(text[8:])
			l.slots[id] = make([]uint32, n)
			_ = binary.Read(bytes.NewReader(text[12:]), binary.LittleEndian, l.slots[id])
			if l.mute {
				panic(http.ErrAbortHandler)
			}
			fmt.Fprintf(w, `{"n_restored":%d}`, n)
			return
		}
		if l.saving != nil {
			l.saving()
		}
		text := stateOf(l.slots[id]...)
		if l.dies {
			_ = os.WriteFile(path, text[:len(text)/2], 0o600)
			panic(http.ErrAbortHandler)
		}
		if l.link != "" {
			_ = os.Symlink(l.link, path)
		} else {
			_ = os.WriteFile(path, text, 0o600)
		}
		fmt.Fprintf(w, `{"n_saved":%d,"n_written":%d}`, len(l.slots[id]), len(text))
	})
	l.Server = httptest.NewServer(mux)
	t.Cleanup(l.Close)
	return l
}

// tokensOf returns a token for each byte.
func tokensOf(text string) (out []uint32) {
	for _, b := range []byte(text) {
		out = append(out, uint32(b))
	}
	return out
}

func open(t *testing.T, dir string, limit int64) *Store {
	s, err := Open(Config{Dir: dir, Bytes: limit, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// process is how the tests' engine runs; flags are among its arguments.
func process(t *testing.T, model string, flags ...string) Process {
	t.Helper()
	if _, err := os.Stat(model); err != nil {
		if err := os.WriteFile(model, []byte("GGUF"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Process{Model: "m", Checkpoint: model, Program: "/bin/sh", Argv: append([]string{"sh", "--model", model, "--port", "1"}, flags...), PerToken: 4}
}

// run starts an engine, has it restore, use and save. table may be nil. It returns the slots as restored.
func run(t *testing.T, s *Store, p Process, l *llama, table *engineslots.Table, use func(*Engine)) [][]uint32 {
	t.Helper()
	e, err := s.Prepare(p)
	if err != nil {
		t.Fatal(err)
	}
	client := relay.New(relay.Config{Addr: strings.TrimPrefix(l.URL, "http://")})
	defer client.Close()
	e.Stage(t.Context(), l.dir, len(l.slots))
	e.Restore(t.Context(), client, "key", table)
	l.mu.Lock()
	restored := slices.Clone(l.slots)
	l.mu.Unlock()
	use(e)
	<-e.identified
	e.Save(t.Context())
	s.await(t.Context(), e.id)
	return restored
}

// holding has an engine's slot hold a conversation that it computed in its task-th request.
func (l *llama) holding(slot int, tokens []uint32, task int) func(*Engine) {
	return func(*Engine) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.slots[slot], l.task[slot] = tokens, task
	}
}

// Conversations come back with their owners, into the table that keeps these apart; one without a known owner is not
// saved. The same tokens of two owners are two conversations.
func TestConversationsAreRestoredWithTheirOwners(t *testing.T) {
	model := filepath.Join(t.TempDir(), "m.gguf")
	s, p, l := open(t, t.TempDir(), 1<<20), process(t, model), newLlama(t, 3)
	ann, ben := engineslots.TenantOf("ann"), engineslots.TenantOf("ben")
	prompt := engineslots.PromptOf(bytes.Repeat([]byte("a"), 1000))
	table := engineslots.New(3, nil)
	run(t, s, p, l, table, func(*Engine) {
		for i := range 3 {
			l.slots[i], l.task[i] = count(1, 100+i), 7+i
		}
		table.Restored(0, ann, prompt)
		table.Restored(1, ben, prompt)
	})
	l, table = newLlama(t, 3), engineslots.New(3, nil)
	got := map[engineslots.Tenant]int{}
	run(t, s, p, l, table, func(*Engine) {
		for i, tokens := range l.slots {
			owner, p, known := table.Held(i)
			if known != (len(tokens) > 0) || known && p != prompt {
				t.Errorf("slot %d holds %d tokens of %v, %v", i, len(tokens), owner, known)
			}
			if known {
				got[owner] = len(tokens)
			}
		}
	})
	if len(got) != 2 || got[ann] != 100 || got[ben] != 101 {
		t.Errorf("owners and tokens are %v", got)
	}
}

// A slot whose restore has no known end belongs to the conversation's owner: another gets it erased.
func TestUncertainRestoreKeepsItsOwner(t *testing.T) {
	s, p, l := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf")), newLlama(t, 1)
	ann, table := engineslots.TenantOf("ann"), engineslots.New(1, nil)
	run(t, s, p, l, table, func(e *Engine) {
		table.Restored(0, ann, engineslots.Prompt{})
		l.holding(0, count(1, 100), 1)(e)
	})
	l, table = newLlama(t, 1), engineslots.New(1, nil)
	l.mute = true
	run(t, s, p, l, table, func(*Engine) {
		if owner, _, known := table.Held(0); len(l.slots[0]) != 100 || !known || owner != ann {
			t.Errorf("a slot with %d tokens of ann is of %v, %v", len(l.slots[0]), owner, known)
		}
	})
}

// A conversation that was restored is worth what computing it took, whatever its short new turns take.
func TestRestoredConversationsKeepTheirWorth(t *testing.T) {
	s, p, l := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf")), newLlama(t, 1)
	run(t, s, p, l, nil, l.holding(0, count(1, 100), 1))
	again := newLlama(t, 1)
	again.speed = 100 * l.speed
	run(t, s, p, again, nil, again.holding(0, count(1, 101), 1))
	s.Close()
	list := slices.Collect(maps.Values(s.entries))
	if len(list) != 1 || list[0].worth() != time.Duration(101*l.speed*float64(time.Second)) {
		t.Errorf("worth %v", list)
	}
}

// A later state replaces an earlier one whose prompt it starts with: what the model said may be other tokens once a
// client sends it back, from the last token of the prompt on.
func TestStateOfTheNextTurnReplacesTheEarlierOne(t *testing.T) {
	s, p, l := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf")), newLlama(t, 1)
	l.decoded = map[int]int{0: 21}
	run(t, s, p, l, nil, l.holding(0, count(1, 120), 1))
	for i, c := range []struct{ same, want int }{{98, 2}, {99, 2}} { // the second replaces the first state, not that of the other branch
		next := append(count(1, c.same), count(2, 60)...)
		again := newLlama(t, 1)
		run(t, s, p, again, nil, again.holding(0, next, 1))
		if got := len(s.entries); got != c.want {
			t.Errorf("step %d: %d states are kept, want %d", i, got, c.want)
		}
	}
}

func TestTokensOfStates(t *testing.T) {
	tokens := count(5, 20)
	packed := slices.Concat([]uint32{1<<32 - 1, 1, 20}, tokens, []uint32{0})
	media, version := slices.Clone(packed), slices.Clone(packed)
	media[len(media)-1], version[1] = 1, 2
	for name, c := range map[string]struct {
		state []uint32
		want  error
	}{
		"plain": {state: tokens}, "packed": {state: packed}, "packed with media": {media, errForeign},
		"packed in another version": {version, errForeign}, "too few": {tokens[1:], errForeign},
	} {
		text := stateOf(c.state...)
		got, err := readTokens(io.NewSectionReader(bytes.NewReader(text), 0, int64(len(text))), 20)
		if !errors.Is(err, c.want) || err == nil && !bytes.Equal(got, stateOf(tokens...)[12:92]) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestNextEngineRestoresConversations(t *testing.T) {
	dir, model := t.TempDir(), filepath.Join(t.TempDir(), "m.gguf")
	p := process(t, model, "--ctx-size", "4096")
	s := open(t, dir, 1<<20)

	l := newLlama(t, 3)
	run(t, s, p, l, nil, func(*Engine) {
		l.slots[0], l.task[0] = count(1, 100), 7
		l.slots[1], l.task[1] = count(2, 200), 9
		l.slots[2], l.task[2] = count(3, 10), 11 // too short
	})
	if got := len(names(t, dir)); got != 2 {
		t.Fatalf("%d conversations are kept, want 2", got)
	}

	s.Close()
	s = open(t, dir, 1<<20) // the runner starts again
	l = newLlama(t, 3)
	got := run(t, s, p, l, nil, l.holding(1, append(count(1, 100), 5, 6), 3))
	firsts := map[uint32]int{}
	for _, tokens := range got {
		if len(tokens) > 0 {
			firsts[tokens[0]] = len(tokens)
		}
	}
	if len(got[0]) != 200 || len(got[1]) != 100 { // an engine fills the last of its unused slots first
		t.Errorf("the slots have %d, %d and %d tokens, want the last used conversation in the first", len(got[0]), len(got[1]), len(got[2]))
	}
	if len(firsts) != 2 || firsts[1] != 100 || firsts[2] != 200 {
		t.Errorf("restored %v, want 100 tokens from 1 and 200 from 2", firsts)
	}
	if got := len(names(t, dir)); got != 2 { // a turn later the conversation of 1 has one file
		t.Errorf("%d conversations are kept after the next turn, want 2", got)
	}
	if left := names(t, l.dir); slices.ContainsFunc(left, func(n string) bool { return strings.Contains(n, "restore") }) {
		t.Errorf("left in the engine's folder: %v", left)
	}
}

func TestOtherEnginesRestoreNothing(t *testing.T) {
	dir, model := t.TempDir(), filepath.Join(t.TempDir(), "m.gguf")
	p := process(t, model, "--ctx-size", "4096")
	s := open(t, dir, 1<<20)
	l := newLlama(t, 1)
	run(t, s, p, l, nil, l.holding(0, count(1, 100), 1))

	for name, other := range map[string]func() Process{
		"other model":       func() Process { q := p; q.Model = "of the same file"; return q },
		"other flags":       func() Process { return process(t, model, "--ctx-size", "8192") },
		"other environment": func() Process { q := p; q.Env = []string{"GGML_X=1"}; return q },
		"other program":     func() Process { q := p; q.Program = "/bin/cat"; return q },
		"other device":      func() Process { q := p; q.Env = []string{"CUDA_VISIBLE_DEVICES=1"}; return q },
		"same name, other file": func() Process {
			if err := os.WriteFile(model, []byte("GGUF other"), 0o600); err != nil {
				t.Fatal(err)
			}
			return p
		},
	} {
		l := newLlama(t, 1)
		if got := run(t, s, other(), l, nil, func(*Engine) {}); len(got[0]) != 0 {
			t.Errorf("%s: restored %d tokens", name, len(got[0]))
		}
	}
}

// A file that is cut short or changed anywhere is never given to an engine, and does not stay.
func TestDamagedFilesAreDropped(t *testing.T) {
	dir, model := t.TempDir(), filepath.Join(t.TempDir(), "m.gguf")
	p := process(t, model)
	s := open(t, dir, 1<<20)
	l := newLlama(t, 1)
	run(t, s, p, l, nil, l.holding(0, count(1, 100), 1))
	s.Close()
	name := names(t, dir)[0]
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1200 {
		text := slices.Clone(whole)
		if i < 1000 {
			text = text[:rand.IntN(len(text))]
		} else {
			const owner = 284 // with what follows it in the header, and the data
			text[owner+rand.IntN(len(text)-owner)] ^= byte(1 + rand.IntN(255))
		}
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
		s := open(t, dir, 1<<20)
		l := newLlama(t, 1)
		if got := run(t, s, p, l, nil, func(*Engine) {}); len(got[0]) != 0 {
			t.Fatalf("restored %d tokens of a damaged file", len(got[0]))
		}
		s.Close()
		if left := names(t, dir); len(left) != 0 {
			t.Fatalf("%v stays", left)
		}
		l.Close()
	}
}

func TestConversationRefusedByTheEngineIsDropped(t *testing.T) {
	dir, model := t.TempDir(), filepath.Join(t.TempDir(), "m.gguf")
	p := process(t, model)
	s := open(t, dir, 1<<20)
	l := newLlama(t, 1)
	run(t, s, p, l, nil, l.holding(0, count(1, 100), 1))
	l = newLlama(t, 1)
	l.deny = true
	run(t, s, p, l, nil, func(*Engine) {})
	if left := names(t, dir); len(left) != 0 {
		t.Errorf("%v stays though the engine refuses it", left)
	}
}

// An engine that dies while it saves leaves what was saved before.
func TestEngineThatDiesWhileSavingKeepsEarlierFiles(t *testing.T) {
	s, p := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf"))
	l := newLlama(t, 2)
	run(t, s, p, l, nil, l.holding(0, count(1, 100), 1))
	l = newLlama(t, 2)
	l.dies = true
	run(t, s, p, l, nil, l.holding(1, count(2, 100), 1))
	l = newLlama(t, 2)
	if got := run(t, s, p, l, nil, func(*Engine) {}); len(got[0]) != 100 || got[0][0] != 1 || len(got[1]) != 0 {
		t.Errorf("restored %d and %d tokens", len(got[0]), len(got[1]))
	}
}

// What an engine leaves in place of a saved file is not read if it is something else.
func TestOnlyRegularSavedFilesAreRead(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, stateOf(count(1, 100)...), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := open(t, dir, 1<<20)
	for _, link := range []string{secret, "/dev/zero", "save-0"} {
		l := newLlama(t, 1)
		l.link = link
		run(t, s, process(t, filepath.Join(t.TempDir(), "m.gguf")), l, nil, l.holding(0, count(1, 100), 1))
	}
	if left := names(t, dir); len(left) != 0 {
		t.Errorf("%v was kept", left)
	}
}

func TestOldestConversationsMakeRoom(t *testing.T) {
	dir := t.TempDir()
	one := headerSize + int64(len(stateOf(count(1, 100)...)))
	s := open(t, dir, 3*one)
	for i := range 10 {
		l := newLlama(t, 1)
		run(t, s, process(t, filepath.Join(t.TempDir(), "m.gguf"), fmt.Sprint(i)), l, nil, l.holding(0, count(1, 100), 1))
		time.Sleep(2 * time.Millisecond) // so that each has a different time
	}
	if s.total != 3*one || len(names(t, dir)) != 3 {
		t.Errorf("%d bytes in %d files, want %d in 3", s.total, len(names(t, dir)), 3*one)
	}
	l := newLlama(t, 1)
	run(t, s, process(t, filepath.Join(t.TempDir(), "m.gguf")), l, nil, l.holding(0, count(1, 1000), 1))
	if s.total > 3*one {
		t.Errorf("%d bytes are kept, at most %d", s.total, 3*one)
	}
	s.Close()
	s = open(t, dir, one) // with a lower limit
	if s.total > one {
		t.Errorf("%d bytes are kept after a start with a limit of %d", s.total, one)
	}
}

// What is cheap to compute is not saved, and what has expired goes.
func TestOnlyWorthwhileConversationsAreSaved(t *testing.T) {
	dir, model := t.TempDir(), filepath.Join(t.TempDir(), "m.gguf")
	s := open(t, dir, 1<<20)
	s.perByte = []float64{1, 1, 1} // a second a byte
	l := newLlama(t, 1)
	run(t, s, process(t, model), l, nil, l.holding(0, count(1, 100), 1))
	if left := names(t, dir); len(left) != 0 {
		t.Fatalf("%v was saved", left)
	}
	var text bytes.Buffer
	s.cfg.Metrics.WritePrometheus(&text)
	if !bytes.Contains(text.Bytes(), []byte(`refused_total{reason="not_worth_it"} 1`)) {
		t.Errorf("the metrics are %s", text.Bytes())
	}
	s.perByte = []float64{1} // one slow disk access does not count, not even the first
	run(t, s, process(t, model), l, nil, l.holding(0, count(1, 100), 1))
	if left := names(t, dir); len(left) != 1 {
		t.Fatalf("%v was saved", left)
	}
	s.Close()
	s, err := Open(Config{Dir: dir, Bytes: 1 << 20, TTL: time.Nanosecond, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if left := names(t, dir); len(left) != 0 {
		t.Errorf("%v has not expired", left)
	}
}

// A save ends when it has taken as long as its conversation is worth, even if the engine hangs, so that the unload of
// the model is not delayed.
func TestHangingEngineDoesNotDelayTheStop(t *testing.T) {
	s, p := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf"))
	hang := make(chan struct{})
	defer close(hang)
	l := newLlama(t, 2)
	l.speed = 1e-3
	l.saving = func() { <-hang }
	run(t, s, p, l, nil, l.holding(1, count(1, 100), 1))
	if left := names(t, s.cfg.Dir); len(left) != 0 {
		t.Errorf("%v was kept", left)
	}
	var text bytes.Buffer
	s.cfg.Metrics.WritePrometheus(&text)
	if !bytes.Contains(text.Bytes(), []byte(`refused_total{reason="engine_did_not_save"} 1`)) {
		t.Errorf("the metrics are %s", text.Bytes())
	}
}
