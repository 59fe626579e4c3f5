package ollama_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"reveille/gateway/completion"
	"reveille/gateway/ollama"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// form is a form whose clock stands 3 s after the beginning, 1 s of them having gone into the load.
func form(generate bool) *ollama.ResponseWriter {
	return &ollama.ResponseWriter{
		Model: "x", Generate: generate, Began: began, Now: func() time.Time { return began.Add(3 * time.Second) }, Load: func() time.Duration { return time.Second },
	}
}

const at = `"model":"x","created_at":"2026-01-02T03:04:08Z"`

func TestResponse(t *testing.T) {
	for name, c := range map[string]struct {
		generate     bool
		engine, want string
	}{
		"chat": {
			engine: `{"choices":[{"message":{"content":"hi <b>","reasoning_content":"hm"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":2},
				"timings":{"prompt_ms":1.5,"predicted_ms":20}}`,
			want: `{` + at + `,"message":{"role":"assistant","content":"hi <b>","thinking":"hm"},"done":true,"done_reason":"stop","total_duration":3000000000,
				"load_duration":1000000000,"prompt_eval_count":5,"prompt_eval_duration":1500000,"eval_count":2,"eval_duration":20000000}`,
		},
		"tools": {
			engine: `{"choices":[{"message":{"content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},
				{"id":"c2","function":{"name":"g","arguments":""}},{"id":"c3","function":{"name":"h","arguments":"{oops"}}]},"finish_reason":"tool_calls"}]}`,
			want: `{` + at + `,"message":{"role":"assistant","content":"","tool_calls":[{"id":"c1","function":{"index":0,"name":"f","arguments":{"a":1}}},
				{"id":"c2","function":{"index":1,"name":"g","arguments":{}}},{"id":"c3","function":{"index":2,"name":"h","arguments":"{oops"}}]},
				"done":true,"done_reason":"stop","total_duration":3000000000,"load_duration":1000000000,"prompt_eval_count":0,"prompt_eval_duration":2000000000,
				"eval_count":0,"eval_duration":0}`,
		},
		"generate": {
			generate: true,
			engine:   `{"choices":[{"text":"hi","finish_reason":"length"}],"usage":{"prompt_tokens":5,"completion_tokens":2},"timings":{"prompt_ms":1,"predicted_ms":2}}`,
			want: `{` + at + `,"response":"hi","done":true,"done_reason":"length","total_duration":3000000000,"load_duration":1000000000,"prompt_eval_count":5,
				"prompt_eval_duration":1000000,"eval_count":2,"eval_duration":2000000}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := form(c.generate).Response([]byte(c.engine))
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, c.want)
		})
	}
	for _, engine := range []string{``, `[]`, `{}`, `{"choices":[]}`, `<html>`} {
		if _, err := form(false).Response([]byte(engine)); !errors.Is(err, completion.ErrInvalidResponse) {
			t.Errorf("%q: %v", engine, err)
		}
	}
	same(t, form(false).EmptyResponse("load"), `{`+at+`,"message":{"role":"assistant","content":""},"done":true,"done_reason":"load"}`)
	same(t, form(true).EmptyResponse("unload"), `{`+at+`,"response":"","done":true,"done_reason":"unload"}`)
}

func TestEmbeddings(t *testing.T) {
	const engine = `{"data":[{"index":1,"embedding":[3,4]},{"index":0,"embedding":[1e-7,2.50]}],"usage":{"prompt_tokens":9}}`
	got, err := form(false).Embeddings([]byte(engine))
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, `{"model":"x","embeddings":[[1e-7,2.50],[3,4]],"total_duration":3000000000,"load_duration":1000000000,"prompt_eval_count":9}`)
	if got, err = form(false).Embeddings(nil); err != nil {
		t.Fatal(err)
	}
	same(t, got, `{"model":"x","embeddings":[],"total_duration":3000000000,"load_duration":1000000000,"prompt_eval_count":0}`)
	for engine, want := range map[string]string{`{"data":[{"index":0,"embedding":[5]}]}`: `{"embedding":[5]}`, ``: `{"embedding":[]}`} {
		raw := []byte(engine)
		if engine == "" {
			raw = nil
		}
		if got, err = form(false).Embedding(raw); err != nil {
			t.Fatal(err)
		}
		same(t, got, want)
	}
	for _, engine := range []string{`{}`, `{"data":[]}`, `{"data":[{"index":1,"embedding":[5]}]}`, `{"data":[{"index":0,"embedding":[5]},{"index":0,"embedding":[5]}]}`, `{"data":[{}]}`, `{"data":[{"embedding":null}]}`} {
		if _, err := form(false).Embeddings([]byte(engine)); !errors.Is(err, completion.ErrInvalidResponse) {
			t.Errorf("%s: %v", engine, err)
		}
	}
}

// told feeds a stream in pieces of n bytes and returns its lines.
func told(f *ollama.ResponseWriter, events string, n int) []string {
	s := ollama.NewStream(f)
	var out []byte
	for len(events) > 0 {
		k := min(n, len(events))
		out = s.Append(out, []byte(events[:k]))
		events = events[k:]
	}
	out = s.End(s.End(out))
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

func TestStream(t *testing.T) {
	part := func(content string) string {
		return `{` + at + `,"message":{"role":"assistant","content":"` + content + `"},"done":false}`
	}
	last := func(reason, counts string) string {
		return `{` + at + `,"message":{"role":"assistant","content":""},"done":true,"done_reason":"` + reason + `","total_duration":3000000000,"load_duration":1000000000,` + counts + `}`
	}
	const none = `"prompt_eval_count":0,"prompt_eval_duration":2000000000,"eval_count":0,"eval_duration":0`
	for name, c := range map[string]struct {
		events string
		want   []string
	}{
		"words": {
			": loading\n\n" + `data: {"choices":[{"delta":{"role":"assistant","content":null}}]}` + "\n\n" + `data: {"choices":[{"delta":{"content":"a"}}]}` + "\r\n\r\n" +
				`data: {"choices":[{"delta":{"content":"b"},"finish_reason":null}]}` + "\n\n" + `data: {"choices":[{"delta":{},"finish_reason":"length"}]}` + "\n\n" +
				`data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2},"timings":{"prompt_ms":1,"predicted_ms":2}}` + "\n\ndata: [DONE]\n\n",
			[]string{part(""), part("a"), part("b"), last("length", `"prompt_eval_count":3,"prompt_eval_duration":1000000,"eval_count":2,"eval_duration":2000000`)},
		},
		"thoughts": {
			`data: {"choices":[{"delta":{"reasoning_content":"t"}}]}` + "\n\ndata: [DONE]\n\n",
			[]string{`{` + at + `,"message":{"role":"assistant","content":"","thinking":"t"},"done":false}`, last("stop", none)},
		},
		"calls in pieces": {
			`data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{\"a\""}}]}}]}` + "\n\n" +
				`data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":":1}"}},{"index":1,"id":"d","function":{"name":"g"}}]},"finish_reason":"tool_calls"}]}` +
				"\n\ndata: [DONE]\n\n",
			[]string{`{` + at + `,"message":{"role":"assistant","content":"","tool_calls":[{"id":"c","function":{"index":0,"name":"f","arguments":{"a":1}}},
				{"id":"d","function":{"index":1,"name":"g","arguments":{}}}]},"done":false}`, last("stop", none)},
		},
		"of two choices without an index, the first": {
			`data: {"choices":[{"delta":{"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}}]}},` +
				`{"delta":{"tool_calls":[{"id":"b","function":{"name":"f","arguments":"{}"}}]}}]}` + "\n\n" +
				`data: {"choices":[{"delta":{"tool_calls":[{"id":"c","index":1,"function":{"name":"g","arguments":"{}"}}]}}]}` + "\n\ndata: [DONE]\n\n",
			[]string{`{` + at + `,"message":{"role":"assistant","content":"","tool_calls":[{"id":"a","function":{"index":0,"name":"f","arguments":{}}},
				{"id":"c","function":{"index":1,"name":"g","arguments":{}}}]},"done":false}`, last("stop", none)},
		},
		"the gateway's error": {`data: {"choices":[{"delta":{"content":"a"}}]}` + "\n\n" + `{"error":"gone"}` + "\n", []string{part("a"), `{"error":"gone"}`}},
		"the engine's error":  {`data: {"error":{"message":"no","code":500}}` + "\n\ndata: [DONE]\n\n", []string{`{"error":"no"}`}},
		"an error event":      {"event: error\n" + `data: {"type":"error","error":{"message":"no"}}` + "\n\n", []string{`{"error":"no"}`}},
		"another error event": {
			`data: {"choices":[{"delta":{"content":"a"}}]}` + "\n\nevent: error\n" + `data: {"message":"no"}` + "\n\ndata: [DONE]\n\n",
			[]string{part("a"), `{"error":"no"}`},
		},
		"a message, an index and counts in other forms": {
			`data: {"choices":[{"index":0.0,"message":{"content":"a"}}]}` + "\n\n" + `data: {"choices":[{"index":"0","delta":null,"message":{"content":"b"}}],` +
				`"usage":{"prompt_tokens":"3","completion_tokens":2.0},"timings":{"prompt_ms":1,"predicted_ms":2}}` + "\n\ndata: [DONE]\n\n",
			[]string{part("a"), part("b"), last("stop", `"prompt_eval_count":3,"prompt_eval_duration":1000000,"eval_count":2,"eval_duration":2000000`)},
		},
		"an old error":    {`error: {"message":"no"}` + "\n\n", []string{`{"error":"no"}`}},
		"cut in an event": {"data: {oops\n\n" + `{"error":"gone"}` + "\n", []string{`{"error":"gone"}`}},
		"nonsense":        {"data: {oops\n\n", []string{`{"error":"The engine's response is invalid."}`}},
		"nothing":         {"id: 1\n\n", []string{`{"error":"The engine's response is invalid."}`}},
		"only an end":     {"data: [DONE]\n\n", []string{`{"error":"The engine's response is invalid."}`}},
		"one line end between events, a mark, empty data, a list, text behind the end": {
			"\ufeff" + `data: {"choices":[{"delta":{"content":"a"}}]}` + "\ndata:\n" + `data: {"choices":[{"delta":{"content":[{"type":"text","text":"b"}]}}]}` +
				"\ndata: [DONE]\nmore\n", []string{part("a"), part("b"), last("stop", none)},
		},
		"a last line without its end": {`data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}`, []string{part("a"), last("stop", none)}},
		"half a last line": {
			`data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"`, []string{`{"error":"The engine's response is invalid."}`},
		},
		"two lines of data": {
			`data: {"choices":[{"delta":` + "\n" + `data: {"content":"a"}}]}` + "\n\ndata: [DONE]\n\n", []string{part("a"), last("stop", none)},
		},
		"two responses": {
			`data: {"choices":[{"index":0,"delta":{"content":"a"}}]}` + "\n\n" + `data: {"choices":[{"index":1,"delta":{"content":"b"}}]}` + "\n\ndata: [DONE]\n\n",
			[]string{part("a"), last("stop", none)},
		},
		"calls without an index": {
			`data: {"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":{"a":1}}}]}}]}` + "\n\n" +
				`data: {"choices":[{"delta":{"tool_calls":[{"function":{"name":"g","arguments":"{}"}}]}}]}` + "\n\ndata: [DONE]\n\n",
			[]string{`{` + at + `,"message":{"role":"assistant","content":"","tool_calls":[{"function":{"index":0,"name":"f","arguments":{"a":1}}},
				{"function":{"index":1,"name":"g","arguments":{}}}]},"done":false}`, last("stop", none)},
		},
		"calls with one id": {
			`data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}},{"index":1,"id":"c","function":{"name":"g","arguments":"{}"}}]}}]}` +
				"\n\ndata: [DONE]\n\n",
			[]string{`{` + at + `,"message":{"role":"assistant","content":"","tool_calls":[{"id":"c","function":{"index":0,"name":"f","arguments":{}}},
				{"id":"c","function":{"index":1,"name":"g","arguments":{}}}]},"done":false}`, last("stop", none)},
		},
		"calls with one index, and names told again": {
			`data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{\"a\""}}]}}]}` + "\n\n" +
				`data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":":1}"}}]}}]}` + "\n\n" +
				`data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"d","function":{"name":"f","arguments":"{}"}}]}}]}` + "\n\ndata: [DONE]\n\n",
			[]string{`{` + at + `,"message":{"role":"assistant","content":"","tool_calls":[{"id":"c","function":{"index":0,"name":"f","arguments":{"a":1}}},
				{"id":"d","function":{"index":1,"name":"f","arguments":{}}}]},"done":false}`, last("stop", none)},
		},
	} {
		for _, n := range []int{1, 7, 1 << 20} {
			got := told(form(false), c.events, n)
			if len(got) != len(c.want) {
				t.Errorf("%s by %d: %q", name, n, got)
				continue
			}
			for i := range got {
				same(t, []byte(got[i]), c.want[i])
			}
		}
	}
}

// FuzzStream: whatever an engine streams, the lines are objects and the last one ends the response.
func FuzzStream(f *testing.F) {
	f.Add("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n", 3)
	f.Add("error: x\n: c\n{\"error\":\"e\"}\n", 1)
	f.Fuzz(func(t *testing.T, events string, n int) {
		if n < 1 {
			return
		}
		lines := told(form(true), events, n)
		if end := lines[len(lines)-1]; !strings.Contains(end, `"done":true`) && !strings.Contains(end, "error") && !strings.HasPrefix(end, "{") {
			t.Fatalf("%q ended with %q", events, end)
		}
		for _, l := range lines {
			if !strings.HasPrefix(l, "{") {
				t.Fatalf("%q gave %q", events, l)
			}
		}
	})
}
