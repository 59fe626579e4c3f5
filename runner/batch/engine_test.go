package batch

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"reveille/infra/recipe"
	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/runner/plan"
	"reveille/testenv"
)

// process is a real engine on a unix socket.
type process struct {
	*HTTP
}

func start(t testing.TB, program string, args ...string) *process {
	t.Helper()
	dir, err := os.MkdirTemp("", "rv") // socket paths must be short
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "e.sock")
	cmd := exec.Command(program, append(args, "--host", socket)...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	ended, err := testenv.StartChild(cmd)
	if err != nil {
		t.Fatal(err)
	}
	client := relay.New(relay.Config{Network: "unix", Addr: socket})
	p := &process{&HTTP{Client: client, Family: recipe.LlamaCpp}}
	t.Cleanup(func() {
		client.Close()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
		_ = os.RemoveAll(dir)
		if t.Failed() {
			text := log.String()
			t.Log(text[max(0, len(text)-4000):])
		}
	})
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if status, _, err := p.get("/health"); err == nil && status == 200 {
			return p
		}
		if time.Now().After(end) {
			t.Fatalf("%s is not ready: %s", program, log.String())
		}
	}
}

func (p *process) get(path string) (int, []byte, error) {
	resp, err := p.Client.Do(nil, &relay.Request{Method: "GET", Path: []byte(path)})
	if err != nil {
		return 0, nil, err
	}
	defer resp.Close()
	body, err := resp.AppendBody(nil, 1<<20)
	return resp.Status(), body, err
}

func standin(t testing.TB, args ...string) *process {
	t.Helper()
	return start(t, testenv.Standin(t), args...)
}

// sizes returns how many embedding calls with each number of inputs a stand-in has seen, and the most tokens in a
// call.
func (p *process) sizes(t testing.TB) (calls map[int]int, most int) {
	t.Helper()
	_, body, err := p.get("/standin/stats")
	var s struct {
		Batches map[int]int `json:"batch_sizes"`
		Tokens  int         `json:"max_tokens"`
	}
	if err == nil {
		err = json.Unmarshal(body, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s.Batches, s.Tokens
}

// minilm starts the real engine with the real embedding model.
func minilm(t testing.TB, args ...string) *process {
	t.Helper()
	args = append([]string{"--model", testenv.Models(t).MiniLM, "--embedding", "--device", "none"}, args...)
	return start(t, testenv.Engines(t).LlamaServer, args...)
}

func words(t testing.TB) *WordPiece {
	t.Helper()
	tokens, err := plan.Vocabulary(testenv.Models(t).MiniLM)
	if err != nil || len(tokens) == 0 {
		t.Fatal(len(tokens), err)
	}
	return NewWordPiece(tokens)
}

// Texts of a rerank request are cut to nearly the maximum, by bytes that end a character.
func TestRerankCutter(t *testing.T) {
	p := start(t, testenv.Engines(t).LlamaServer, "--model", testenv.Models(t).Reranker, "--reranking", "--device", "none")
	cutter, err := NewRerankCutter(t.Context(), p.HTTP, nil, Limits{NUBatch: 100})
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("wörter und words, ", 300)
	for limit, want := range map[string][2]int{"": {100, 96}, `,"max_tokens_per_doc":40`: {48 + 4 + 40, 88}} {
		got, err := cutter.Cut(t.Context(), fmt.Appendf(nil, `{"query":%q,"documents":[%q],"truncate":true%s}`, long, long, limit))
		if err != nil || !utf8.Valid(got) {
			t.Fatalf("%s, %v", got, err)
		}
		_, response, err := p.post(t.Context(), "/v1/rerank", got, nil, time.Minute, 1<<20)
		var r struct{ Usage map[string]int }
		if err == nil {
			err = json.Unmarshal(response, &r)
		}
		if n := r.Usage["prompt_tokens"]; err != nil || n > want[0] || n < want[1] {
			t.Errorf("%d tokens, want %v: %s, %v", n, want, response, err)
		}
	}
}

// TestBatchesMatchSingleRequests checks that concurrent clients get, bit for bit, the embedding of each text alone.
func TestBatchesMatchSingleRequests(t *testing.T) {
	p := standin(t)
	b := newBatcher(t, p, Limits{NBatch: 256})
	naive := func(text string) []float32 {
		_, answer, err := p.Embed(t.Context(), body(t, text), nil)
		var r reply
		if err == nil {
			err = json.Unmarshal(answer, &r)
		}
		if err != nil || len(r.Data) != 1 {
			t.Errorf("%s: %v", answer, err)
			return nil
		}
		return floats(t, r.Data[0].Embedding)
	}
	var wg sync.WaitGroup
	for c := range 16 {
		var texts []string
		for i := range 1 + c*c {
			texts = append(texts, strings.Repeat(fmt.Sprintf("%d-%d ", c, i), 1+i%7))
		}
		wg.Go(func() {
			r, err := serve(t.Context(), b, EmbeddingRequest{Body: body(t, texts)})
			if err != nil || len(r.Data) != len(texts) {
				t.Errorf("client %d: %d of %d, %v", c, len(r.Data), len(texts), err)
				return
			}
			for i, d := range r.Data {
				if d.Index != i || !slices.Equal(floats(t, d.Embedding), naive(texts[i])) {
					t.Errorf("client %d, text %d differs", c, i)
				}
			}
		})
	}
	wg.Wait()
	if _, most := p.sizes(t); most > 256 {
		t.Errorf("%d tokens in a call", most)
	}
}

// floats reads a list of numbers.
func floats(t *testing.T, raw json.RawMessage) (v []float32) {
	if err := json.Unmarshal(raw, &v); err != nil || len(v) == 0 {
		t.Errorf("%s: %v", raw, err)
	}
	return v
}

// TestRealEngineRunsOutOfMemory checks that the engine sees halved calls, that the result is complete, and that the
// size is remembered.
func TestRealEngineRunsOutOfMemory(t *testing.T) {
	p := standin(t, "--oom-over", "300")
	b := newBatcher(t, p, Limits{NBatch: 1024})
	texts := make([]string, 64)
	for i := range texts {
		texts[i] = fmt.Sprintf("%048d", i) // 16 tokens of 3 bytes
	}
	// The second request is sent in the size that worked for the first.
	for _, want := range []map[int]int{{64: 1, 32: 1, 16: 4}, {64: 1, 32: 1, 16: 8}} {
		r, err := serve(t.Context(), b, EmbeddingRequest{Body: body(t, texts)})
		if err != nil || len(r.Data) != len(texts) {
			t.Fatal(len(r.Data), err)
		}
		if calls, _ := p.sizes(t); fmt.Sprint(calls) != fmt.Sprint(want) {
			t.Errorf("calls by size %v, want %v", calls, want)
		}
	}
	_, err := serve(t.Context(), b, EmbeddingRequest{Body: body(t, strings.Repeat("x", 1200))})
	var own *Error
	if !errors.As(err, &own) || own.Code != rpc.CodeEngineOutOfMemory {
		t.Error(err)
	}
	if _, err := serve(t.Context(), b, EmbeddingRequest{Body: body(t, "the engine lives")}); err != nil {
		t.Error(err)
	}
}

// TestRealModelGetsTheSameEmbeddings checks that packed embeddings point in the same direction as single ones, in every
// form, and that tokens are counted as the model does.
func TestRealModelGetsTheSameEmbeddings(t *testing.T) {
	p := minilm(t, "-b", "512", "-ub", "512", "-np", "64", "-c", "4096", "-kvu")
	b, err := New(t.Context(), Config{Limits: Limits{Positions: 512}, Engine: p, Words: words(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if b.counter.words == nil || b.counter.specials != 2 {
		t.Fatalf("counts in process: %v, special tokens %d", b.counter.words != nil, b.counter.specials)
	}
	texts := []string{
		"", "a", "The cat sat on the mat.", "Übergrößenträger für straße", "日本語のテキスト", "emoji 🙂 and tabs\tand\nlines",
		strings.Repeat("long text with many words ", 80), "[CLS] named [SEP]", "UPPER lower MiXeD 12345 3.14e-10 a_b-c/d", "zzyzx qwertyuiopasdfgh",
	}
	var wg sync.WaitGroup
	for i, text := range texts {
		wg.Go(func() {
			_, alone, err := p.Embed(t.Context(), body(t, text), nil)
			var one reply
			if err == nil {
				err = json.Unmarshal(alone, &one)
			}
			if err != nil || len(one.Data) != 1 {
				t.Errorf("%q: %s, %v", text, alone, err)
				return
			}
			format := []string{"float", "base64"}[i%2]
			r, err := serve(t.Context(), b, EmbeddingRequest{Body: body(t, []string{text, texts[(i+1)%len(texts)]}, "encoding_format", format)})
			if err != nil || len(r.Data) != 2 {
				t.Errorf("%q: %d, %v", text, len(r.Data), err)
				return
			}
			if c := cosine(vector(t, one.Data[0].Embedding), vector(t, r.Data[0].Embedding)); !(c >= 0.9999) {
				t.Errorf("%q: cosine %v", text, c)
			}
			counts, err := b.counter.count(t.Context(), []input{{text: text}})
			if err != nil || counts[0] != one.Usage.Prompt {
				t.Errorf("%q: %d tokens, the model has %d, %v", text, counts[0], one.Usage.Prompt, err)
			}
		})
	}
	wg.Wait()
	longest := strings.Repeat("word ", 510)
	if r, err := serve(t.Context(), b, EmbeddingRequest{Body: body(t, longest)}); err != nil || r.Usage.Prompt != 512 {
		t.Error("exactly the positions:", r.Usage, err)
	}
	_, err = serve(t.Context(), b, EmbeddingRequest{Body: body(t, longest+"word")})
	var own *Error
	if !errors.As(err, &own) || own.Code != rpc.CodeContextLength || !strings.Contains(own.Message, "513") || !strings.Contains(own.Message, "512") {
		t.Error(err)
	}
}

// TestWordPieceIsExact compares with the engine's own tokenizer.
func TestWordPieceIsExact(t *testing.T) {
	p, w := minilm(t), words(t)
	check := func(t interface{ Errorf(string, ...any) }, text string) {
		n, ok := w.Count(text)
		if !ok {
			return
		}
		if want, err := p.Tokens(context.Background(), text, true); err != nil || n+2 != len(want) {
			t.Errorf("%q: %d tokens, the engine says %d, %v", text, n+2, len(want), err)
		}
	}
	for _, text := range []string{
		"", " ", "unaffable", "Don't.", "a\tb\r\nc", "[unused1] [nothing] [ CLS ] [", "https://x.y/?q=1&r=%20", strings.Repeat("a", 300), "##ing ing", "@user #tag $5",
	} {
		check(t, text)
	}
	if _, ok := w.Count("x [SEP] y"); ok {
		t.Error("the name of a special token is counted as text")
	}
	if _, ok := w.Count("é"); ok {
		t.Error("text beyond ASCII is counted")
	}
	pieces := rapid.OneOf(
		rapid.StringMatching(`[ -~]{0,12}`), rapid.StringMatching(`[a-zA-Z]{1,14}`), rapid.SampledFrom([]string{" ", " ", "ing", "un", "\n", "'s", "2024"}),
	)
	rapid.Check(t, func(t *rapid.T) {
		check(t, strings.Join(rapid.SliceOfN(pieces, 0, 20).Draw(t, "text"), ""))
	})
}

// vector reads an embedding in either form.
func vector(t testing.TB, raw json.RawMessage) []float64 {
	t.Helper()
	var v []float64
	if raw[0] != '"' {
		if err := json.Unmarshal(raw, &v); err != nil {
			t.Error(err)
		}
		return v
	}
	b, err := base64.StdEncoding.DecodeString(strings.Trim(string(raw), `"`))
	if err != nil {
		t.Error(err)
	}
	for chunk := range slices.Chunk(b, 4) {
		v = append(v, float64(math.Float32frombits(binary.LittleEndian.Uint32(chunk))))
	}
	return v
}

func cosine(a, b []float64) float64 {
	var dot, x, y float64
	for i := range min(len(a), len(b)) {
		dot, x, y = dot+a[i]*b[i], x+a[i]*a[i], y+b[i]*b[i]
	}
	return dot / math.Sqrt(x*y)
}

// TestStalledEngineTimesOut checks that an engine that falls silent within a response does not block the queue.
func TestStalledEngineTimesOut(t *testing.T) {
	release := make(chan struct{})
	var calls atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch {
		case r.URL.Path == "/tokenize":
			_, _ = io.WriteString(w, `{"tokens":[1,2]}`)
		case calls.Add(1) == 1:
			_, _ = io.WriteString(w, `{"data":[`)
			w.(http.Flusher).Flush()
			<-release
		default:
			_, _ = w.Write(fakeAnswer([]string{"second"}, false))
		}
	}))
	defer s.Close()
	defer close(release)
	client := relay.New(relay.Config{Addr: s.Listener.Addr().String()})
	defer client.Close()
	b := newBatcher(t, &HTTP{Client: client, Timeout: 300 * time.Millisecond}, Limits{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := serve(ctx, b, EmbeddingRequest{Body: body(t, "first")}); !errors.Is(err, relay.ErrTimeout) {
		t.Errorf("the stalled call: %v", err)
	}
	if _, err := serve(ctx, b, EmbeddingRequest{Body: body(t, "second")}); err != nil {
		t.Errorf("the call after it: %v", err)
	}
}

// TestSpecialTokensAreCounted checks that they are also learnt from an engine that refuses the empty text, as Text
// Embeddings Inference does.
func TestSpecialTokensAreCounted(t *testing.T) {
	for _, coy := range []bool{false, true} {
		if b := newBatcher(t, &fake{coy: coy}, Limits{}); b.counter.specials != fakeSpecials {
			t.Errorf("refuses the empty text: %v: %d special tokens", coy, b.counter.specials)
		}
	}
}

// TestTokenizeAPIs checks how each engine is asked for special tokens.
func TestTokenizeAPIs(t *testing.T) {
	bodies := make(chan string, 1)
	answers := map[string]string{recipe.LlamaCpp: `{"tokens":[1,2]}`, recipe.VLLM: `{"count":2,"tokens":[1,2]}`, recipe.TEI: `[[{"id":1},{"id":2}]]`}
	var family string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		bodies <- string(raw)
		_, _ = io.WriteString(w, answers[family])
	}))
	defer s.Close()
	client := relay.New(relay.Config{Addr: s.Listener.Addr().String()})
	defer client.Close()
	for d, want := range map[string]string{
		recipe.LlamaCpp: `{"add_special":%v,"content":"x"}`, recipe.VLLM: `{"add_special_tokens":%v,"model":"m","prompt":"x"}`, recipe.TEI: `{"add_special_tokens":%v,"inputs":"x"}`,
	} {
		family = d
		for _, special := range []bool{false, true} {
			n, err := (&HTTP{Client: client, Model: "m", Family: d}).Tokens(t.Context(), "x", special)
			if got := <-bodies; len(n) != 2 || err != nil || got != fmt.Sprintf(want, special) {
				t.Errorf("%s: %d tokens, %v, asked with %s", d, len(n), err, got)
			}
		}
	}
}
