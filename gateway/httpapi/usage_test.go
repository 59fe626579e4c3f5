package httpapi

import (
	"strings"
	"testing"
	"time"

	"reveille/infra/state"
)

func TestReadUsage(t *testing.T) {
	for text, want := range map[string]state.ResponseUsage{
		`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2}}}`:            {Input: 3, Output: 4, Cached: 2},
		`{"timings":{"cache_n":5,"prompt_n":6,"predicted_n":7,"predicted_per_second":8.5}}`:                                       {Input: 11, Output: 7, Cached: 5, PerSecond: 8.5},
		"data: {\"usage\":{\"prompt_tokens\":1}}\n\ndata: {\"usage\":null}\n\n":                                                   {Input: 1},
		"data: {\"message\":{\"usage\":{\"input_tokens\":9}}}\n\n" + strings.Repeat("x", 5000) + `{"usage":{"output_tokens":2}}`:  {Input: 9, Output: 2},
		`{"usage":{"prompt_tokens":7},"data":"` + strings.Repeat("x", 5000) + `"}`:                                                {Input: 7},
		`{"usage":{"prompt_tokens":-4,"completion_tokens":1e3}}`:                                                                  {Output: 1000},
		`{"usage":{"prompt_tokens":"3","completion_tokens":4.0}}`:                                                                 {Input: 3, Output: 4},
		"data: {\"message\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\ndata: {\"usage\":{\"output_tokens\":2}}\n\n": {Input: 9, Output: 2},
	} {
		tp := new(recorder)
		for len(text) > 0 {
			n := min(len(text), 700)
			tp.record([]byte(text[:n]))
			text = text[n:]
		}
		want.Reported = true
		if got := readUsage(tp.kept.head, tp.kept.tail); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	for _, text := range []string{``, `{"usage":`, `{"usage":{"a":1`, `{"usage":3}`, `usage`} {
		if got := readUsage(nil, []byte(text)); got.Reported {
			t.Errorf("%s: %+v", text, got)
		}
	}
}

// What the gateway itself writes while a model loads is no part of its response.
func TestUsageAfterComments(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) { c.CommitAfter, c.Keepalive = time.Millisecond, time.Millisecond })
	s.loading(func(string) state.Outcome { time.Sleep(100 * time.Millisecond); return state.Outcome{} })
	s.serve(sse("event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":9}}}\n\n",
		"data: {\"text\":\""+strings.Repeat("x", headSize)+"\"}\n\n", "data: {\"usage\":{\"output_tokens\":2}}\n\n"))
	r := s.ask("POST", "/v1/messages", `{"model":"chat","messages":[{}],"max_tokens":1,"stream":true}`)
	if r.status != 200 || strings.Count(r.text, ": ") < 10 {
		t.Fatalf("%d %s", r.status, r.text)
	}
	s.until("the usage was read", func() bool { return s.stat("input_tokens") == 9 && s.stat("output_tokens") == 2 })
}
