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
	done  []int // tokens that a slot's last request computed
	link  string
	deny  bool // refuses to restore
	dies  bool // ends in the middle of saving

	saving  func() // called before each save; may be nil
	clock   bool   // its chat template has a counter
	renders int
	speed   float64
	most    int // the most tokens of an answer that it computed for a save
}

func newLlama(t *testing.T, slots int) *llama {
	l := &llama{dir: t.TempDir(), slots: make([][]uint32, slots), task: make([]int, slots), done: make([]int, slots), speed: 0.01}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /slots", func(w http.ResponseWriter, _ *http.Request) {
		l.mu.Lock()
		defer l.mu.Unlock()
		var out []map[string]any
		for i, tokens := range l.slots {
			s := map[string]any{"id": i, "is_processing": false}
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
	type chat struct {
		Messages       []struct{ Role, Content string }
		Prompt, Answer string
		Slot           *int `json:"id_slot"`
	}
	render := func(q chat) string {
		text := q.Prompt
		if l.renders++; l.clock {
			text = fmt.Sprint(l.renders)
		}
		for _, m := range q.Messages {
			text += "<" + m.Role + ">" + m.Content + "</>"
		}
		if q.Prompt == "" {
			text += "<assistant>"
		}
		return text
	}
	mux.HandleFunc("POST /apply-template", func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		defer l.mu.Unlock()
		var q chat
		_ = json.NewDecoder(r.Body).Decode(&q)
		_ = json.NewEncoder(w).Encode(map[string]string{"prompt": render(q)})
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
			Slot   *int `json:"id_slot"`
		}
		_ = json.NewDecoder(r.Body).Decode(&q)
		slot := l.compute(q.Slot, q.Prompt)
		l.most = max(l.most, l.done[slot])
		fmt.Fprintf(w, `{"id_slot":%d}`, slot)
	})
	mux.HandleFunc("POST /turn", func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		defer l.mu.Unlock()
		var q chat
		_ = json.NewDecoder(r.Body).Decode(&q)
		l.compute(q.Slot, tokensOf(render(q)))
		_, _ = w.Write([]byte("{}"))
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

// compute computes a prompt in a slot, if that is nil in the one with the most of it or, of several, the one used
// longest ago.
func (l *llama) compute(slot *int, prompt []uint32) int {
	common := func(i int) (n int) {
		for n < min(len(prompt), len(l.slots[i])) && prompt[n] == l.slots[i][n] {
			n++
		}
		return n
	}
	if slot == nil {
		best := 0
		for i := range l.slots {
			a, b := common(i), common(best)
			if a = a / 16; a > b/16 || a == b/16 && l.task[i] < l.task[best] {
				best = i
			}
		}
		slot = &best
	}
	l.done[*slot] = len(prompt) - common(*slot)
	l.slots[*slot], l.task[*slot] = prompt, slices.Max(l.task)+1
	return *slot
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

// tables are those of the running engines.
var tables sync.Map

// run starts an engine, has it use and save. table may be nil: all requests are of one tenant.
func run(t *testing.T, s *Store, p Process, l *llama, table *engineslots.Table, use func(*Engine)) {
	t.Helper()
	e, err := s.NewEngine(p)
	if err != nil {
		t.Fatal(err)
	}
	client := relay.New(relay.Config{Addr: strings.TrimPrefix(l.URL, "http://")})
	defer client.Close()
	e.Serve(client, "key", l.dir, len(l.slots), table != nil)
	if table == nil {
		table = engineslots.New(len(l.slots), nil)
	}
	tables.Store(e, table)
	defer tables.Delete(e)
	use(e)
	<-e.identified
	e.Save(t.Context())
	s.work.Wait()
}

// asked returns a long first message of a chat.
func asked(name string) string { return strings.Repeat(name+" asks what happened. ", 10) }

// begin has an engine answer the first turns of chats and save them.
func begin(t *testing.T, s *Store, p Process, l *llama, names ...string) {
	t.Helper()
	run(t, s, p, l, nil, func(e *Engine) {
		for _, name := range names {
			answerChat(t, e, engineslots.Tenant{}, "Nothing.", asked(name))
		}
	})
}

// goOn has an engine answer the next turns of chats, and returns how many tokens of each were restored.
func goOn(t *testing.T, s *Store, p Process, l *llama, names ...string) (restored []int) {
	t.Helper()
	run(t, s, p, l, nil, func(e *Engine) {
		for _, name := range names {
			restored = append(restored, answerChat(t, e, engineslots.Tenant{}, "Nothing.", asked(name), "Nothing.", "And then?"))
		}
	})
	return restored
}

// A conversation that was restored is worth what computing it took, whatever its short new turns take.
func TestRestoredConversationsKeepTheirWorth(t *testing.T) {
	s, p, l := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf")), newLlama(t, 1)
	begin(t, s, p, l, "Ada")
	again := newLlama(t, 1)
	again.speed = 100 * l.speed
	goOn(t, s, p, again, "Ada")
	s.Close()
	list := slices.Collect(maps.Values(s.entries))
	if len(list) != 1 || list[0].worth().Seconds() > 1.01*float64(list[0].Tokens)*l.speed {
		t.Errorf("worth %v", list)
	}
}

// A later state of a conversation replaces an earlier one, not that of another branch.
func TestStateOfTheNextTurnReplacesTheEarlierOne(t *testing.T) {
	s, p := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf"))
	begin(t, s, p, newLlama(t, 1), "Ada")
	for i, answer := range []string{"Nothing.", "Nothing.", "Something else."} {
		run(t, s, p, newLlama(t, 1), nil, func(e *Engine) {
			answerChat(t, e, engineslots.Tenant{}, "Who knows?", asked("Ada"), answer, "And then?")
		})
		if got, want := len(s.entries), []int{1, 1, 2}[i]; got != want {
			t.Errorf("step %d: %d states are kept, want %d", i, got, want)
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

// The next engine restores each conversation before its next turn, more than it has slots.
func TestNextEngineRestoresConversations(t *testing.T) {
	dir, model := t.TempDir(), filepath.Join(t.TempDir(), "m.gguf")
	p := process(t, model, "--ctx-size", "4096")
	s := open(t, dir, 1<<20)
	all := []string{"Ada", "Bob", "Cid"}
	begin(t, s, p, newLlama(t, 2), all...)
	run(t, s, p, newLlama(t, 2), nil, func(e *Engine) {
		answerChat(t, e, engineslots.Tenant{}, "No.", "Too short?")
	})
	if got := len(names(t, dir)); got != 3 {
		t.Fatalf("%d conversations are kept, want 3", got)
	}
	s.Close()
	s = open(t, dir, 1<<20) // the runner starts again
	l := newLlama(t, 2)
	for i, n := range goOn(t, s, p, l, all...) {
		if n < len(asked(all[i])) {
			t.Errorf("%d tokens of %s were restored", n, all[i])
		}
	}
	if got := len(names(t, dir)); got != 3 { // a turn later each conversation has one file
		t.Errorf("%d conversations are kept after the next turn, want 3", got)
	}
	if left := names(t, l.dir); slices.ContainsFunc(left, func(n string) bool { return strings.Contains(n, "restore") }) {
		t.Errorf("left in the engine's folder: %v", left)
	}
}

func TestOtherEnginesRestoreNothing(t *testing.T) {
	dir, model := t.TempDir(), filepath.Join(t.TempDir(), "m.gguf")
	p := process(t, model, "--ctx-size", "4096")
	s := open(t, dir, 1<<20)
	begin(t, s, p, newLlama(t, 1), "Ada")

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
		if got := goOn(t, s, other(), newLlama(t, 1), "Ada"); got[0] != 0 {
			t.Errorf("%s: restored %d tokens", name, got[0])
		}
	}
}

// A file that is cut short or changed anywhere is never given to an engine, and does not stay.
func TestDamagedFilesAreDropped(t *testing.T) {
	dir, model := t.TempDir(), filepath.Join(t.TempDir(), "m.gguf")
	p := process(t, model)
	s := open(t, dir, 1<<20)
	l := newLlama(t, 1)
	begin(t, s, p, l, "Ada")
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
			at := rand.IntN(len(text) - 8)
			text[8+at] ^= byte(1 + rand.IntN(255))
		}
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
		s := open(t, dir, 1<<20)
		l.mu.Lock() // what the end of its last engine canceled may still run
		l.slots[0], l.task[0] = nil, 0
		l.mu.Unlock()
		if got := goOn(t, s, p, l, "Ada"); got[0] != 0 {
			t.Fatalf("restored %d tokens of a damaged file", got[0])
		}
		s.Close()
		for _, left := range names(t, dir) {
			if err := os.Remove(left); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestConversationRefusedByTheEngineIsDropped(t *testing.T) {
	dir, model := t.TempDir(), filepath.Join(t.TempDir(), "m.gguf")
	p := process(t, model)
	s := open(t, dir, 1<<20)
	begin(t, s, p, newLlama(t, 1), "Ada")
	name := names(t, dir)[0]
	l := newLlama(t, 1)
	l.deny = true
	goOn(t, s, p, l, "Ada")
	if left := names(t, dir); len(left) != 1 || left[0] == name {
		t.Errorf("%v stays though the engine refuses it", left)
	}
}

// An engine that dies while it saves leaves what was saved before.
func TestEngineThatDiesWhileSavingKeepsEarlierFiles(t *testing.T) {
	s, p := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf"))
	begin(t, s, p, newLlama(t, 2), "Ada")
	l := newLlama(t, 2)
	l.dies = true
	begin(t, s, p, l, "Bob")
	if got := goOn(t, s, p, newLlama(t, 2), "Ada", "Bob"); got[0] == 0 || got[1] != 0 {
		t.Errorf("restored %d and %d tokens", got[0], got[1])
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
		begin(t, s, process(t, filepath.Join(t.TempDir(), "m.gguf")), l, "Ada")
	}
	if left := names(t, dir); len(left) != 0 {
		t.Errorf("%v was kept", left)
	}
}

func TestOldestConversationsMakeRoom(t *testing.T) {
	dir, p := t.TempDir(), process(t, filepath.Join(t.TempDir(), "m.gguf"))
	s := open(t, dir, 1<<20)
	begin(t, s, p, newLlama(t, 1), "Ada")
	one := s.total
	s.cfg.Bytes = 3 * one
	for i := range 10 {
		begin(t, s, p, newLlama(t, 1), fmt.Sprint("A", i))
	}
	if s.total > 3*one || len(names(t, dir)) != 3 {
		t.Errorf("%d bytes in %d files, want %d in 3", s.total, len(names(t, dir)), 3*one)
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
	begin(t, s, process(t, model), newLlama(t, 1), "Ada")
	if left := names(t, dir); len(left) != 0 {
		t.Fatalf("%v was saved", left)
	}
	var text bytes.Buffer
	s.cfg.Metrics.WritePrometheus(&text)
	if !bytes.Contains(text.Bytes(), []byte(`refused_total{reason="not_worth_it"} 1`)) {
		t.Errorf("the metrics are %s", text.Bytes())
	}
	s.perByte = []float64{1} // one slow disk access does not count, not even the first
	begin(t, s, process(t, model), newLlama(t, 1), "Ada")
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

// A save ends in time even if the engine hangs, so that the unload of the model is not delayed.
func TestHangingEngineDoesNotDelayTheStop(t *testing.T) {
	s, p := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf"))
	hang := make(chan struct{})
	defer close(hang)
	l := newLlama(t, 2)
	l.saving = func() { <-hang }
	begin(t, s, p, l, "Ada")
	if left := names(t, s.cfg.Dir); len(left) != 0 {
		t.Errorf("%v was kept", left)
	}
	var text bytes.Buffer
	s.cfg.Metrics.WritePrometheus(&text)
	if !bytes.Contains(text.Bytes(), []byte(`refused_total{reason="engine_did_not_save"} 1`)) {
		t.Errorf("the metrics are %s", text.Bytes())
	}
}
