package batch

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/testenv/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is an engine in memory. The embedding of a text identifies the text. A token is a byte, and the model adds two.
type fake struct {
	limits Limits
	oom    int                 // calls with more tokens run out of memory; 0 means no limit
	poison string              // a call with this text is refused completely
	status int                 // of refusals and of calls that ran out of memory; 0 means 400 and 500
	words  string              // message when out of memory; "" means llama.cpp's
	coy    bool                // refuses to tokenize the empty text
	hold   chan struct{}       // if set, calls wait for a value or the end of ctx
	deaf   bool                // responds to a call that was canceled
	broken error               // if set, calls fail
	mute   func() error        // if set, the error of tokenizer calls
	answer func([]byte) []byte // if set, changes responses

	mu       sync.Mutex
	calls    [][]string
	inFlight int
	bad      []string // violated promises
}

const fakeSpecials = 2

func (f *fake) Tokens(_ context.Context, text string, special bool) ([]int64, error) {
	switch {
	case f.mute != nil:
		return nil, f.mute()
	case f.coy && len(text) == 0:
		return nil, &EngineError{Status: 422, Body: []byte(`{"error":"empty"}`)}
	}
	var out []int64
	for _, c := range []byte(text) {
		out = append(out, int64(c))
	}
	if special {
		out = append(append([]int64{1}, out...), 2)
	}
	return out, nil
}

func (f *fake) Embed(ctx context.Context, body, dst []byte) (int, []byte, error) {
	var q struct {
		Input    json.RawMessage
		Encoding string `json:"encoding_format"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return 400, append(dst, `{"error":"parse"}`...), nil
	}
	inputs := fakeInputs(q.Input)
	tokens := 0
	for _, in := range inputs {
		tokens += fakeTokens(in)
	}
	f.mu.Lock()
	f.calls = append(f.calls, inputs)
	f.inFlight += tokens
	if f.limits.NBatch > 0 && (tokens > f.limits.NBatch || f.inFlight > f.limits.Context) {
		f.bad = append(f.bad, fmt.Sprintf("%d tokens in a call, %d under way", tokens, f.inFlight))
	}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.inFlight -= tokens
		f.mu.Unlock()
	}()
	if f.hold != nil {
		select {
		case <-f.hold:
		case <-ctx.Done():
			if !f.deaf {
				return 0, dst, context.Cause(ctx)
			}
		}
	}
	switch {
	case f.broken != nil:
		return 0, dst, f.broken
	case f.oom > 0 && tokens > f.oom:
		return cmp.Or(f.status, 500), append(dst, cmp.Or(f.words, `{"error":{"message":"failed to allocate compute buffers"}}`)...), nil
	case f.poison != "" && slices.Contains(inputs, f.poison):
		return cmp.Or(f.status, 400), append(dst, `{"error":{"message":"cannot be embedded"}}`...), nil
	}
	out := fakeAnswer(inputs, q.Encoding == "base64")
	if f.answer != nil {
		out = f.answer(out)
	}
	return 200, append(dst, out...), nil
}

// fakeInputs reads any form of input as texts; the text of a list of tokens is its JSON.
func fakeInputs(raw json.RawMessage) (out []string) {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []string{one}
	}
	var ids []int
	if json.Unmarshal(raw, &ids) == nil {
		return []string{string(raw)}
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) == nil {
		for _, r := range list {
			out = append(out, fakeInputs(r)...)
		}
	}
	return out
}

func fakeTokens(in string) int {
	var ids []int
	if json.Unmarshal([]byte(in), &ids) == nil && len(ids) > 0 {
		return len(ids)
	}
	return len(in) + fakeSpecials
}

// Inputs that are too long are truncated, with the model's special tokens around what is left, if the request asks for
// it; the others of the request stay as they are.
func TestLongInputsAreTruncated(t *testing.T) {
	e := &fake{}
	b := newBatcher(t, e, Limits{NBatch: 8, NUBatch: 8, Context: 8})
	serve := func(body string) error { return b.Serve(t.Context(), EmbeddingRequest{Body: []byte(body)}, io.Discard) }
	if err := serve(`{"input":["ab","abcdefgh"]}`); err == nil {
		t.Error("a long input was taken without being asked to")
	}
	if err := serve(`{"input":["ab","abcdefgh",[1,2,3,4,5,6,7,8,9]],"truncate":true}`); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, call := range e.calls {
		for _, in := range call {
			got[in] = true
		}
	}
	for _, want := range []string{"ab", "[1,97,98,99,100,101,102,2]", "[1,2,3,4,5,6,7,8]"} {
		if !got[want] {
			t.Errorf("the engine got %v, not %s", got, want)
		}
	}
}

// fakeVector depends only on the text.
func fakeVector(text string) []float32 {
	r := rand.New(rand.NewPCG(uint64(len(text)), hash(text)))
	v := make([]float32, 4)
	for i := range v {
		v[i] = r.Float32() - 0.5
	}
	return v
}

func hash(s string) (h uint64) {
	for i := range len(s) {
		h = h*1099511628211 + uint64(s[i])
	}
	return h
}

// fakeAnswer lists the embeddings backwards, since only the index gives the order.
func fakeAnswer(inputs []string, coded bool) []byte {
	type item struct {
		Object    string `json:"object"`
		Embedding any    `json:"embedding"`
		Index     int    `json:"index"`
	}
	data := make([]item, 0, len(inputs))
	for i, in := range slices.Backward(inputs) {
		var e any = fakeVector(in)
		if coded {
			e = strings.Trim(string(appendBase64(nil, fakeVector(in))), `"`)
		}
		data = append(data, item{"embedding", e, i})
	}
	out, _ := json.Marshal(map[string]any{"object": "list", "model": "fake", "data": data, "usage": map[string]int{"prompt_tokens": 0}})
	return out
}

func newBatcher(t testing.TB, e Engine, l Limits) *Batcher {
	t.Helper()
	b, err := New(t.Context(), Config{Limits: l, Engine: e, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// reply is a decoded response.
type reply struct {
	Object string
	Model  string
	Data   []struct {
		Object    string
		Index     int
		Embedding json.RawMessage
	}
	Usage struct {
		Prompt int `json:"prompt_tokens"`
		Total  int `json:"total_tokens"`
	}
}

func serve(ctx context.Context, b *Batcher, c EmbeddingRequest) (reply, error) {
	var buf bytes.Buffer
	err := b.Serve(ctx, c, &buf)
	var r reply
	if err == nil {
		err = json.Unmarshal(buf.Bytes(), &r)
	} else if buf.Len() > 0 {
		err = fmt.Errorf("an error with %d bytes written: %w", buf.Len(), err)
	}
	return r, err
}

func body(t testing.TB, input any, more ...any) []byte {
	t.Helper()
	m := map[string]any{"model": "m", "input": input}
	for i := 0; i < len(more); i += 2 {
		m[more[i].(string)] = more[i+1]
	}
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// check compares a response, bit for bit, with the engine's embedding of each text alone.
func (r reply) check(texts []string, coded bool) error {
	if len(r.Data) != len(texts) {
		return fmt.Errorf("%d embeddings for %d texts", len(r.Data), len(texts))
	}
	byIndex := make([]json.RawMessage, len(texts))
	for _, d := range r.Data {
		if d.Index < 0 || d.Index >= len(texts) || byIndex[d.Index] != nil {
			return fmt.Errorf("index %d", d.Index)
		}
		byIndex[d.Index] = d.Embedding
	}
	for i, text := range texts {
		got := byIndex[i]
		if coded != (got[0] == '"') {
			return fmt.Errorf("embedding %d is %s", i, got)
		}
		if v, err := embedding(got).values(); err != nil || !slices.Equal(v, fakeVector(text)) {
			return fmt.Errorf("embedding %d is %s, want %v of %q, %v", i, got, fakeVector(text), text, err)
		}
	}
	return nil
}

// TestRandomRequestsGetTheirOwnEmbeddings mixes many clients, sizes, failures and disconnects. Every response must
// equal the naive one.
func TestRandomRequestsGetTheirOwnEmbeddings(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := Limits{NBatch: rapid.IntRange(70, 300).Draw(rt, "n_batch")}.WithDefaults()
		l.NUBatch = rapid.IntRange(40, l.NBatch).Draw(rt, "n_ubatch")
		e := &fake{limits: l, oom: rapid.SampledFrom([]int{0, 0, l.NUBatch}).Draw(rt, "oom"), poison: "poison"}
		b, err := New(context.Background(), Config{Limits: l, Engine: e})
		if err != nil {
			rt.Fatal(err)
		}
		defer b.Close()
		var wg sync.WaitGroup
		errs := make(chan error, 100)
		for c := range rapid.IntRange(1, 12).Draw(rt, "clients") {
			var texts []string
			longest := 0
			for range rapid.IntRange(1, 30).Draw(rt, "texts") {
				n := rapid.IntRange(0, l.NUBatch).Draw(rt, "bytes")
				texts = append(texts, strings.Repeat(string(rune('a'+c)), n))
			}
			poisoned := rapid.IntRange(0, 9).Draw(rt, "poisoned") == 0
			if poisoned {
				texts[0] = e.poison
			}
			for _, text := range texts {
				longest = max(longest, len(text)+fakeSpecials)
			}
			coded := rapid.Bool().Draw(rt, "base64")
			leaves := rapid.IntRange(0, 4).Draw(rt, "leaves") == 0
			format := "float"
			if coded {
				format = "base64"
			}
			raw := body(t, texts, "encoding_format", format)
			wg.Go(func() {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				if leaves {
					time.AfterFunc(time.Duration(c*20)*time.Microsecond, cancel)
				}
				r, err := serve(ctx, b, EmbeddingRequest{Body: raw, Priority: rpc.Priority(c % 4)})
				var own *Error
				var engine *EngineError
				switch {
				case leaves && errors.Is(err, context.Canceled):
				case longest > l.NUBatch:
					if !errors.As(err, &own) || own.Code != rpc.CodeContextLength {
						errs <- fmt.Errorf("too long: %w", err)
					}
				case errors.As(err, &own) && own.Code == rpc.CodeEngineOutOfMemory && e.oom > 0: // the last try was too large as well
				case poisoned:
					if !errors.As(err, &engine) || engine.Status != 400 {
						errs <- fmt.Errorf("poisoned: %v", err)
					}
				case err != nil:
					errs <- err
				default:
					if err := r.check(texts, coded); err != nil {
						errs <- err
					}
				}
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			rt.Error(err)
		}
		if len(e.bad) > 0 {
			rt.Error(e.bad[0])
		}
		if b.packer.pending != 0 || len(b.jobs) != 0 {
			rt.Errorf("%d tokens and %d jobs are left", b.packer.pending, len(b.jobs))
		}
	})
}

func TestLoneRequestPassesUnchanged(t *testing.T) {
	e := &fake{}
	b := newBatcher(t, e, Limits{})
	var buf bytes.Buffer
	if err := b.Serve(t.Context(), EmbeddingRequest{Body: []byte(`{"input": "cat", "model":"x","user":"u"}`)}, &buf); err != nil {
		t.Fatal(err)
	}
	if want := fakeAnswer([]string{"cat"}, false); !bytes.Equal(buf.Bytes(), want) {
		t.Errorf("got %s, want the engine's own response %s", buf.Bytes(), want)
	}
}

func TestAllRequestFormsAreServed(t *testing.T) {
	l := Limits{NBatch: 100, NUBatch: 50}
	for _, tt := range []struct {
		name, body string
		texts      []string
		coded      bool
		tokens     int
	}{
		{"a text", `{"input":"cat"}`, []string{"cat"}, false, 5},
		{"an empty text", `{"input":[""]}`, []string{""}, false, 2},
		{"one token", `{"input":[7]}`, []string{"[7]"}, false, 1},
		{"lists of tokens", `{"input":[[1,2],[3]]}`, []string{"[1,2]", "[3]"}, false, 3},
		{"mixed", `{"input":["a",[3]]}`, []string{"a", "[3]"}, false, 4},
		{"escapes", `{"input":["a\"b\\","é\u00e9"]}`, []string{`a"b\`, "éé"}, false, 12},
		{"numbers", `{"input":["a","b"],"encoding_format":"float"}`, []string{"a", "b"}, false, 6},
		{"base64", `{"input":["a","b"],"encoding_format":"base64"}`, []string{"a", "b"}, true, 6},
		{"exactly n_ubatch", `{"input":"` + strings.Repeat("x", 48) + `"}`, []string{strings.Repeat("x", 48)}, false, 50},
		{"exactly n_batch", `{"input":["` + strings.Repeat("x", 48) + `","` + strings.Repeat("y", 48) + `"]}`,
			[]string{strings.Repeat("x", 48), strings.Repeat("y", 48)}, false, 100},
	} {
		for _, joined := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, joined %v", tt.name, joined), func(t *testing.T) {
				e := &fake{limits: l.WithDefaults()}
				b := newBatcher(t, e, l)
				calls := []EmbeddingRequest{{Body: []byte(tt.body)}}
				if joined {
					calls = append(calls, EmbeddingRequest{Body: body(t, "other")})
				}
				replies, errs := queue(t, b, e, calls)
				if err := errors.Join(errs...); err != nil {
					t.Fatal(err)
				}
				if err := replies[0].check(tt.texts, tt.coded); err != nil {
					t.Error(err)
				}
				if u := replies[0].Usage.Prompt; u != tt.tokens && u != 0 { // the fake reports 0 for a request that had its own call
					t.Errorf("usage %d, want %d", u, tt.tokens)
				}
				if len(e.bad) > 0 {
					t.Error(e.bad)
				}
			})
		}
	}
}

func TestUnusualRequestsAreNotBatched(t *testing.T) {
	b := newBatcher(t, &fake{}, Limits{})
	for _, raw := range []string{
		``, `[]`, `{}`, `{"input":[]}`, `{"input":null}`, `{"input":5}`, `{"input":{"a":1}}`, `{"input":["a",null]}`, `{"input":["a",[]]}`,
		`{"input":["a" "b"]}`, `{"input":["a",]}`, `{"input":"a"} x`, `{"input":"a","encoding_format":"int8"}`,
		`{"input":"a","user":tru}`, `{"input":[-1]}`, `{"input":[1,-1]}`, `{"input":[[-1]]}`,
		`{"input":"a","truncate_prompt_tokens":8}`, `{"input":"a","add_special_tokens":false}`, `{"input":"a","embed_dtype":"float16"}`,
		`{"input":[1,2.5]}`, `{"input":[01]}`, "{\"input\":\"a\nb\"}", `{"input":"\x"}`,
		"{\"input\":\"\xff\"}", `{"input":"a`, `{"input":[[1],[2]`, `{"input":["a",1]}`, `{"input":[1,null]}`,
	} {
		if _, err := serve(t.Context(), b, EmbeddingRequest{Body: []byte(raw)}); !errors.Is(err, ErrNotBatched) {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

func TestInputThatIsTooLongIsRefused(t *testing.T) {
	b := newBatcher(t, &fake{}, Limits{NBatch: 100, NUBatch: 60, Positions: 50})
	_, err := serve(t.Context(), b, EmbeddingRequest{Body: body(t, []string{"fits", strings.Repeat("x", 49)})})
	var own *Error
	if !errors.As(err, &own) || own.Status != 400 || own.Code != rpc.CodeContextLength {
		t.Fatal(err)
	}
	for _, part := range []string{"Input 1", "51 tokens", "50"} {
		if !strings.Contains(own.Message, part) {
			t.Errorf("%q lacks %q", own.Message, part)
		}
	}
	if _, err := serve(t.Context(), b, EmbeddingRequest{Body: body(t, strings.Repeat("x", 48))}); err != nil {
		t.Error("exactly the longest:", err)
	}
}

// TestTenThousandInputsAreSplit sends one request that needs many batches.
func TestTenThousandInputsAreSplit(t *testing.T) {
	e := &fake{limits: Limits{}.WithDefaults()}
	b := newBatcher(t, e, Limits{})
	texts := make([]string, 10_000)
	for i := range texts {
		texts[i] = fmt.Sprint("text ", i)
	}
	r, err := serve(t.Context(), b, EmbeddingRequest{Body: body(t, texts)})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.check(texts, false); err != nil {
		t.Error(err)
	}
	if n := len(e.calls); n > 70 || len(e.bad) > 0 {
		t.Errorf("%d calls, %v", n, e.bad)
	}
}

// queue starts a request that the engine holds, then all others, which gather in the queue, and then releases the
// engine.
func queue(t *testing.T, b *Batcher, e *fake, calls []EmbeddingRequest) ([]reply, []error) {
	t.Helper()
	e.hold = make(chan struct{})
	replies, errs := make([]reply, len(calls)), make([]error, len(calls))
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = serve(context.Background(), b, EmbeddingRequest{Body: body(t, "first")}) })
	kit.Eventually(t, "the call", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.calls) == 1 })
	for i, c := range calls {
		wg.Go(func() { replies[i], errs[i] = serve(context.Background(), b, c) })
		kit.Eventually(t, "the jobs", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.jobs) == i+2 })
	}
	close(e.hold)
	wg.Wait()
	return replies, errs
}

// TestWaitingRequestsShareACall checks that queued requests share one call and that each gets its own response in its
// own form.
func TestWaitingRequestsShareACall(t *testing.T) {
	e := &fake{}
	b := newBatcher(t, e, Limits{})
	replies, errs := queue(t, b, e, []EmbeddingRequest{
		{Body: body(t, "one")}, {Body: body(t, []string{"two", ""}, "encoding_format", "base64")}, {Body: []byte(`{"input":[[1,2,3]],"model":"other"}`)},
	})
	for i, texts := range [][]string{{"one"}, {"two", ""}, {"[1,2,3]"}} {
		if errs[i] != nil {
			t.Fatal(i, errs[i])
		}
		if err := replies[i].check(texts, i == 1); err != nil {
			t.Error(i, err)
		}
	}
	if want := [][]string{{"first"}, {"one", "two", "", "[1,2,3]"}}; fmt.Sprint(e.calls) != fmt.Sprint(want) {
		t.Errorf("calls %q, want %q", e.calls, want)
	}
	for i, want := range []int{5, 7, 3} {
		if u := replies[i].Usage; u.Prompt != want || u.Total != want {
			t.Errorf("usage of %d: %+v, want %d", i, u, want)
		}
	}
	if replies[0].Model != "m" || replies[2].Model != "other" {
		t.Errorf("models %q and %q", replies[0].Model, replies[2].Model)
	}
}

// TestGroupsDoNotShareACall checks that requests with different parameters do not share a call.
func TestGroupsDoNotShareACall(t *testing.T) {
	e := &fake{}
	b := newBatcher(t, e, Limits{})
	_, errs := queue(t, b, e, []EmbeddingRequest{
		{Body: body(t, "a")}, {Body: body(t, "b", "dimensions", 8)}, {Body: body(t, "c")}, {Body: body(t, "d", "dimensions", 8)},
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if want := "[[first] [a c] [b d]]"; fmt.Sprint(e.calls) != want {
		t.Errorf("calls %v, want %s", e.calls, want)
	}
}

// TestOneBadRequestDoesNotFailTheOthers checks that an engine's refusal affects only the request at fault.
func TestOneBadRequestDoesNotFailTheOthers(t *testing.T) {
	e := &fake{poison: "poison"}
	b := newBatcher(t, e, Limits{})
	replies, errs := queue(t, b, e, []EmbeddingRequest{{Body: body(t, "a")}, {Body: body(t, []string{"b", "poison"})}, {Body: body(t, "c")}})
	var engine *EngineError
	if errs[0] != nil || errs[2] != nil || !errors.As(errs[1], &engine) || engine.Status != 400 || !bytes.Contains(engine.Body, []byte("cannot be embedded")) {
		t.Fatal(errs)
	}
	if err := errors.Join(replies[0].check([]string{"a"}, false), replies[2].check([]string{"c"}, false)); err != nil {
		t.Error(err)
	}
}

// TestRefusedCallIsSplit checks that the request at fault in a refused call is found by halving.
func TestRefusedCallIsSplit(t *testing.T) {
	const clients = 64
	run := func(t *testing.T, e *fake) (replies []reply, errs []error) {
		t.Helper()
		calls := make([]EmbeddingRequest, clients)
		for i := range calls {
			calls[i].Body = body(t, fmt.Sprint("text ", i))
		}
		return queue(t, newBatcher(t, e, Limits{}), e, calls)
	}
	refused := func(err error, status int) bool {
		var engine *EngineError
		return errors.As(err, &engine) && engine.Status == status && string(engine.Body) == `{"error":{"message":"cannot be embedded"}}`
	}
	for _, status := range []int{400, 413, 422, 424, 500} {
		t.Run(fmt.Sprint("isolated by ", status), func(t *testing.T) {
			e := &fake{poison: "text 37", status: status}
			replies, errs := run(t, e)
			for i, err := range errs {
				if i == 37 {
					if !refused(err, status) {
						t.Error(err)
					}
				} else if err = cmp.Or(err, replies[i].check([]string{fmt.Sprint("text ", i)}, false)); err != nil {
					t.Error(i, err)
				}
			}
			if n := len(e.calls); n != 2+2*6 { // the first request, the shared call, and two for each halving
				t.Errorf("%d calls: %q", n, e.calls)
			}
		})
	}
	for _, status := range []int{301, 401, 403, 408, 429, 501, 503} {
		t.Run(fmt.Sprint("everybody's ", status), func(t *testing.T) {
			e := &fake{poison: "text 37", status: status}
			_, errs := run(t, e)
			for i, err := range errs {
				if !refused(err, status) {
					t.Error(i, err)
				}
			}
			if n := len(e.calls); n != 2 {
				t.Errorf("%d calls: %q", n, e.calls)
			}
		})
	}
}

func TestOutOfMemoryIsRetriedInSmallerCalls(t *testing.T) {
	texts := make([]string, 64)
	for i := range texts {
		texts[i] = fmt.Sprintf("%014d", i) // 16 tokens
	}
	for _, status := range []int{500, 503, 424} {
		t.Run(fmt.Sprint("halves on ", status), func(t *testing.T) {
			e := &fake{oom: 300, status: status}
			b := newBatcher(t, e, Limits{NBatch: 1024})
			r, err := serve(t.Context(), b, EmbeddingRequest{Body: body(t, texts)})
			if err == nil {
				err = r.check(texts, false)
			}
			if err != nil {
				t.Fatal(err)
			}
			var sizes []int
			for _, c := range e.calls {
				sizes = append(sizes, len(c)*16)
			}
			if want := []int{1024, 512, 256, 256, 256, 256}; !slices.Equal(sizes, want) {
				t.Errorf("sizes %v, want %v", sizes, want)
			}
		})
	}
	t.Run("reaches 64 tokens from 2048 and gives up below", func(t *testing.T) {
		for oom, want := range map[int]error{64: nil, 63: &Error{}} {
			e := &fake{oom: oom}
			b := newBatcher(t, e, Limits{NBatch: 2048})
			r, err := serve(t.Context(), b, EmbeddingRequest{Body: body(t, slices.Concat(texts, texts))})
			if want == nil {
				if err = cmp.Or(err, r.check(slices.Concat(texts, texts), false)); err != nil {
					t.Error(err)
				}
				continue
			}
			var own *Error
			if !errors.As(err, &own) || own.Status != 503 || own.Code != rpc.CodeEngineOutOfMemory || !strings.Contains(own.Message, "failed to allocate") {
				t.Fatal(err)
			}
			if n := len(e.calls); n != maxTries || len(e.calls[n-1]) != 4 {
				t.Errorf("%d calls, the last of %d", n, len(e.calls[n-1]))
			}
		}
	})
	t.Run("one sequence's fault teaches nothing", func(t *testing.T) {
		e := &fake{oom: 900}
		b := newBatcher(t, e, Limits{NBatch: 1024})
		_, errs := queue(t, b, e, []EmbeddingRequest{{Body: body(t, strings.Repeat("x", 950))}, {Body: body(t, texts[:4])}})
		var own *Error
		if !errors.As(errs[0], &own) || own.Code != rpc.CodeEngineOutOfMemory || errs[1] != nil {
			t.Fatal(errs)
		}
		if got := b.packer.ceiling.tokens; got != 1024 {
			t.Errorf("ceiling %d", got)
		}
	})
	t.Run("a client that left teaches nothing", func(t *testing.T) {
		e := &fake{oom: 300}
		b := newBatcher(t, e, Limits{NBatch: 1024})
		ctx, leave := context.WithCancel(t.Context())
		e.answer = func(a []byte) []byte {
			leave()
			kit.Eventually(t, "the jobs", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.jobs) == 0 })
			return a
		}
		if _, err := serve(ctx, b, EmbeddingRequest{Body: body(t, texts)}); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		kit.Eventually(t, "no call under way", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.running) == 0 })
		if got := b.packer.ceiling.tokens; got != 1024 {
			t.Errorf("ceiling %d", got)
		}
	})
	t.Run("one large", func(t *testing.T) {
		e := &fake{oom: 300}
		b := newBatcher(t, e, Limits{NBatch: 1024})
		_, errs := queue(t, b, e, []EmbeddingRequest{{Body: body(t, strings.Repeat("x", 400))}, {Body: body(t, texts[:8])}})
		var own *Error
		if !errors.As(errs[0], &own) || own.Code != rpc.CodeEngineOutOfMemory || errs[1] != nil {
			t.Fatal(errs)
		}
	})
}

// TestCeilingRemembersOutOfMemory sends full batches, one after the other, to an engine whose memory holds less than
// n_batch. Whatever the sizes, only a few calls are too large after the first batch, and each text gets the same
// embedding as alone, bit for bit.
func TestCeilingRemembersOutOfMemory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const rounds = 20
		e := &fake{limits: Limits{NBatch: rapid.IntRange(128, 2048).Draw(rt, "n_batch")}.WithDefaults()}
		e.oom = rapid.IntRange(minTokens, e.limits.NBatch).Draw(rt, "memory")
		b, err := New(context.Background(), Config{Limits: e.limits, Engine: e})
		if err != nil {
			rt.Fatal(err)
		}
		defer b.Close()
		longest := rapid.IntRange(fakeSpecials, e.oom).Draw(rt, "longest")
		tooLarge := func() (n int) {
			for _, c := range e.calls {
				tokens := 0
				for _, text := range c {
					tokens += fakeTokens(text)
				}
				if tokens > e.oom {
					n++
				}
			}
			return n
		}
		sizes := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		first := 0
		for round := range rounds {
			var texts []string
			for total := 0; total < e.limits.NBatch; total += len(texts[len(texts)-1]) + fakeSpecials {
				texts = append(texts, strings.Repeat(string(rune('a'+round)), sizes.IntN(longest-fakeSpecials+1)))
			}
			r, err := serve(context.Background(), b, EmbeddingRequest{Body: body(t, texts)})
			if err = cmp.Or(err, r.check(texts, false)); err != nil {
				rt.Fatal(err)
			}
			if round == 0 {
				first = tooLarge()
			}
		}
		// A raise by an eighth comes after 16 full batches, so at most every 16th batch is too large, and then in one
		// call.
		if n, batches := tooLarge()-first, len(e.calls); n > 2+batches/raiseAfter {
			rt.Fatalf("%d of %d calls were too large after the first batch, which had %d", n, batches, first)
		}
	})
}

// TestComputeErrorCountsAsOutOfMemory covers llama-server's message for a graph that it could not allocate, and for
// other failures of a computation.
func TestComputeErrorCountsAsOutOfMemory(t *testing.T) {
	const words = `{"error":{"code":500,"message":"Compute error.","type":"server_error"}}`
	texts := []string{strings.Repeat("a", 98), strings.Repeat("b", 98), strings.Repeat("c", 98), strings.Repeat("d", 98)}
	t.Run("of memory", func(t *testing.T) {
		e := &fake{oom: 200, words: words}
		r, err := serve(t.Context(), newBatcher(t, e, Limits{}), EmbeddingRequest{Body: body(t, texts)})
		if err = cmp.Or(err, r.check(texts, false)); err != nil || len(e.calls) != 3 {
			t.Error(len(e.calls), err)
		}
	})
	t.Run("of one text", func(t *testing.T) {
		e := &fake{oom: 150, words: words}
		b := newBatcher(t, e, Limits{})
		replies, errs := queue(t, b, e, []EmbeddingRequest{{Body: body(t, strings.Repeat("x", 180))}, {Body: body(t, texts[0])}})
		var engine *EngineError
		if !errors.As(errs[0], &engine) || engine.Status != 500 || string(engine.Body) != words {
			t.Errorf("the engine's response is lost: %v", errs[0])
		}
		if err := cmp.Or(errs[1], replies[1].check(texts[:1], false)); err != nil {
			t.Error(err)
		}
		if got := b.packer.ceiling.tokens; got != DefaultNBatch {
			t.Errorf("ceiling %d", got)
		}
	})
}

// TestClientErrorIsNotOutOfMemory checks that a refusal that quotes a text does not count as out of memory.
func TestClientErrorIsNotOutOfMemory(t *testing.T) {
	for _, status := range []int{400, 413, 422} {
		e := &fake{oom: 1, status: status, words: `{"error":"CUDA error: out of memory is not a text that I like"}`}
		_, err := serve(t.Context(), newBatcher(t, e, Limits{}), EmbeddingRequest{Body: body(t, []string{"CUDA error: out of memory", "another"})})
		var engine *EngineError
		if !errors.As(err, &engine) || engine.Status != status || len(e.calls) != 1 {
			t.Errorf("%d: %v after %d calls", status, err, len(e.calls))
		}
	}
}

// TestDisconnectedClientLeavesTheQueue checks that a client that leaves takes its sequences with it, and that a call
// that serves no other request is canceled.
func TestDisconnectedClientLeavesTheQueue(t *testing.T) {
	e := &fake{hold: make(chan struct{})}
	b := newBatcher(t, e, Limits{})
	under, leaveCall := context.WithCancel(t.Context())
	queued, leaveQueue := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	errs := make([]error, 3)
	start := func(i int, ctx context.Context, text string) {
		wg.Go(func() { _, errs[i] = serve(ctx, b, EmbeddingRequest{Body: body(t, text)}) })
	}
	start(0, under, "under way")
	kit.Eventually(t, "the call", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.calls) == 1 })
	start(1, queued, "queued")
	kit.Eventually(t, "the jobs that wait", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.packer.byID) == 1 })
	start(2, t.Context(), "stays")
	kit.Eventually(t, "the jobs that wait", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.packer.byID) == 2 })
	leaveQueue()
	kit.Eventually(t, "the jobs that wait", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.packer.byID) == 1 })
	leaveCall() // the engine is free again, without a value from hold
	kit.Eventually(t, "the call", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.calls) == 2 })
	close(e.hold)
	wg.Wait()
	if !errors.Is(errs[0], context.Canceled) || !errors.Is(errs[1], context.Canceled) || errs[2] != nil {
		t.Error(errs)
	}
	if want := "[[under way] [stays]]"; fmt.Sprint(e.calls) != want {
		t.Errorf("calls %v, want %s", e.calls, want)
	}
}

// TestCloseFailsWaitingRequests checks that requests that were partly sent fail with another error than unsent ones.
func TestCloseFailsWaitingRequests(t *testing.T) {
	for name, c := range map[string]struct {
		deaf bool
		want error // for a request that is completely in flight
	}{"calls are canceled": {false, ErrIncomplete}, "calls are answered all the same": {true, nil}} {
		t.Run(name, func(t *testing.T) {
			e := &fake{hold: make(chan struct{}), deaf: c.deaf}
			b := newBatcher(t, e, Limits{NBatch: 20})
			var wg sync.WaitGroup
			errs := make([]error, 4)
			start := func(i int, texts ...string) {
				wg.Go(func() { _, errs[i] = serve(context.Background(), b, EmbeddingRequest{Body: body(t, texts)}) })
				kit.Eventually(t, "the jobs", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.jobs) == i+1 })
			}
			start(0, "one batch")
			start(1, "the other one", "waits")
			start(2, "waits as well")
			b.Close()
			wg.Wait()
			_, errs[3] = serve(t.Context(), b, EmbeddingRequest{Body: body(t, "comes late")})
			for i, want := range []error{c.want, ErrIncomplete, ErrUnsent, ErrUnsent} {
				if !errors.Is(errs[i], want) {
					t.Errorf("request %d: %v, want %v", i, errs[i], want)
				}
			}
		})
	}
}

// TestUnreachableEngineFailsRequestsUnsent checks that a request may be made elsewhere unless a sequence of it was
// sent.
func TestUnreachableEngineFailsRequestsUnsent(t *testing.T) {
	e := &fake{broken: &relay.Error{Kind: relay.ErrUnreachable}}
	b := newBatcher(t, e, Limits{NBatch: 10})
	if _, err := serve(t.Context(), b, EmbeddingRequest{Body: body(t, "x")}); !errors.Is(err, ErrUnsent) {
		t.Error("nothing was sent:", err)
	}
	e.broken = nil
	e.answer = func(a []byte) []byte { e.broken = &relay.Error{Kind: relay.ErrUnreachable}; return a }
	if _, err := serve(t.Context(), b, EmbeddingRequest{Body: body(t, []string{"full", "batches"})}); !errors.Is(err, ErrIncomplete) {
		t.Error("a part was sent:", err)
	}
}

// TestExitingEngineLosesNoUnsentRequest checks that after a broken call nothing is sent until the engine responds or
// cannot be reached.
func TestExitingEngineLosesNoUnsentRequest(t *testing.T) {
	e := &fake{hold: make(chan struct{}), broken: &relay.Error{Kind: relay.ErrBroken, Sent: true}}
	b := newBatcher(t, e, Limits{})
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i := range errs {
		wg.Go(func() { _, errs[i] = serve(context.Background(), b, EmbeddingRequest{Body: body(t, "x")}) })
		kit.Eventually(t, "the jobs", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.jobs) == i+1 })
	}
	questions := 0
	e.mute = func() error {
		if questions++; questions == 3 {
			e.broken = &relay.Error{Kind: relay.ErrUnreachable}
		}
		return e.broken
	}
	close(e.hold)
	wg.Wait()
	if !errors.Is(errs[0], relay.ErrBroken) || !errors.Is(errs[1], ErrUnsent) {
		t.Error(errs)
	}
}

// TestInvalidResponsesAreRefused checks that only complete responses with finite values are relayed.
func TestInvalidResponsesAreRefused(t *testing.T) {
	for name, change := range map[string]func([]byte) []byte{
		"not JSON":     func([]byte) []byte { return []byte("oops") },
		"cut":          func(b []byte) []byte { return b[:len(b)/2] },
		"one missing":  func([]byte) []byte { return fakeAnswer([]string{"a"}, false) },
		"one too many": func([]byte) []byte { return fakeAnswer([]string{"a", "b", "c"}, false) },
		"twice":        func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(`"index":1`), []byte(`"index":0`)) },
		"null": func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"embedding":[`), []byte(`"embedding":[null,`), 1)
		},
		"NaN": func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"embedding":[`), []byte(`"embedding":[NaN,`), 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBatcher(t, &fake{answer: change}, Limits{})
			_, err := serve(t.Context(), b, EmbeddingRequest{Body: body(t, []string{"a", "b"})})
			var own *Error
			if !errors.As(err, &own) || own.Status != 502 || own.Code != rpc.CodeBadEngineReply {
				t.Error(err)
			}
		})
	}
}

func TestBrokenConnectionsFailRequests(t *testing.T) {
	broken := errors.New("connection reset")
	b := newBatcher(t, &fake{broken: broken}, Limits{})
	if _, err := serve(t.Context(), b, EmbeddingRequest{Body: body(t, "x")}); !errors.Is(err, broken) {
		t.Error(err)
	}
}

func TestEmbeddingValuesAreDecoded(t *testing.T) {
	inf := base64.StdEncoding.EncodeToString([]byte{0, 0, 0x80, 0x7f})
	for text, want := range map[string]bool{
		`[1,-2.5e-3]`: true, `[ 0, 1E+3 ,-0.5e2]`: true, `[` + strings.Repeat("9", 38) + `]`: true, `"AACAPw=="`: true,
		`[]`: false, `[true]`: false, `["1"]`: false, `[[1]]`: false, `[1e39]`: false, `[1,]`: false, `[01]`: false, `[1,null]`: false,
		`[NaN]`: false, `[-Infinity]`: false, `"` + inf + `"`: false, `"AAA"`: false, `""`: false, `5`: false, `null`: false, `{"n":1}`: false,
	} {
		if v, err := embedding(text).values(); (err == nil) != want || (len(v) > 0) != want {
			t.Errorf("%s: %v, %v", text, v, err)
		}
	}
}
