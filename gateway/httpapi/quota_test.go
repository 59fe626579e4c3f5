package httpapi

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"reveille/infra/state"
)

const ann, bob = "Authorization: Bearer ann-secret", "Authorization: Bearer bob-secret"

// keyed starts a stage on which ann has limits and bob has none.
func keyed(t *testing.T, limits string) *stage {
	set := keyFile(t, "ann-secret infer "+limits+" Ann\nbob-secret infer\n")
	return newStage(t, func(_ *stage, c *Config) { c.Keys = set })
}

// limited checks that a key's limit refused a request.
func limited(t *testing.T, r reply, code string) {
	t.Helper()
	if r.status != http.StatusTooManyRequests || r.code() != code || r.header.Get("Retry-After") == "" || r.header.Get("X-Queue-Length") == "" {
		t.Errorf("%d %v %s, want 429 %s", r.status, r.header, r.text, code)
	}
}

func (s *stage) well(r reply) {
	s.t.Helper()
	if r.status != http.StatusOK {
		s.t.Errorf("%d %s", r.status, r.text)
	}
}

func TestKeyOpenRequests(t *testing.T) {
	s := keyed(t, "open=1").warm("chat")
	hold := make(chan struct{})
	s.serve(func(w http.ResponseWriter, _ *http.Request) {
		<-hold
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("{}"))
	})
	answers := make(chan reply, 2)
	for _, key := range []string{ann, bob} {
		go func() { answers <- s.ask("POST", chatPath, chatBody, key) }()
	}
	s.until("two are answered", func() bool { return len(s.got()) == 2 })
	limited(t, s.ask("POST", chatPath, chatBody, ann), "rate_limit_exceeded")
	if r := s.ask("POST", "/v1/messages", `{"model":"chat","max_tokens":4,"messages":[{"role":"user","content":"hi"}]}`, ann); r.status != http.StatusTooManyRequests || !strings.Contains(r.text, `"rate_limit_error"`) {
		t.Errorf("%d %s", r.status, r.text)
	}
	close(hold)
	for range 2 {
		s.well(<-answers)
	}
	s.settled()
	s.well(s.ask("POST", chatPath, chatBody, ann))
}

func TestKeyRequests(t *testing.T) {
	s := keyed(t, "requests=2/h").warm("chat")
	bad := s.ask("POST", chatPath, `{"model":"nothing","messages":[{"role":"user","content":"hi"}]}`, ann)
	if bad.status != http.StatusNotFound { // requests refused earlier are not counted
		t.Errorf("%d %s", bad.status, bad.text)
	}
	for range 2 {
		s.well(s.ask("POST", chatPath, chatBody, ann))
	}
	r := s.ask("POST", chatPath, chatLive, ann)
	limited(t, r, "rate_limit_exceeded")
	if !strings.Contains(r.text, "2/h") {
		t.Error(r.text)
	}
	s.well(s.ask("GET", "/v1/models", "", ann))
	s.well(s.ask("POST", chatPath, chatBody, bob))
}

func TestKeyWaiting(t *testing.T) {
	s := keyed(t, "waiting=2")
	hold := make(chan struct{})
	s.loading(func(string) state.Outcome {
		<-hold
		return state.Outcome{Fields: map[string]string{"cold": "1"}}
	})
	answers := make(chan reply, 3)
	for i, key := range []string{ann, ann, bob} {
		go func() { answers <- s.ask("POST", chatPath, chatBody, key) }()
		s.until("it waits", func() bool { return s.gate.Waiting()["chat"] == i+1 })
	}
	limited(t, s.ask("POST", chatPath, chatBody, ann), "queue_full")
	if r := s.ask("POST", "/api/generate", `{"model":"chat"}`, ann); r.status != http.StatusTooManyRequests {
		t.Errorf("Ollama's load: %d %s", r.status, r.text)
	}
	close(hold)
	for range 3 {
		s.well(<-answers)
	}
	s.settled()
	s.loading(func(string) state.Outcome { return state.Outcome{Fields: map[string]string{"cold": "1"}} })
	s.well(s.ask("POST", chatPath, strings.Replace(chatBody, `"chat"`, `"spare"`, 1), ann)) // the key's waiting and open requests have ended
}

func TestKeyLoads(t *testing.T) {
	of := func(model string) string { return strings.Replace(chatBody, `"chat"`, `"`+model+`"`, 1) }
	for name, first := range map[string]func(*stage) reply{
		"a request": func(s *stage) reply { return s.ask("POST", chatPath, of("chat"), ann) },
		"one that does not wait": func(s *stage) reply {
			if r := s.ask("POST", chatPath, of("chat"), ann, "x-cold-wait: fail"); r.code() != "model_loading" {
				t.Errorf("%d %s", r.status, r.text)
			}
			return s.ask("POST", chatPath, of("chat"), ann)
		},
		"Ollama's load": func(s *stage) reply { return s.ask("POST", "/api/generate", `{"model":"chat"}`, ann) },
		"Ollama's context": func(s *stage) reply {
			return s.ask("POST", "/api/generate", `{"model":"chat","prompt":"hi","stream":false,"options":{"num_ctx":512}}`, ann)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := keyed(t, "loads=1/h")
			s.serve(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write([]byte(`{"choices":[{"index":0,"finish_reason":"stop","text":"x","message":{"role":"assistant","content":"x"}}]}`))
			})
			s.well(first(s))
			limited(t, s.ask("POST", chatPath, of("spare"), ann), "rate_limit_exceeded")
			s.well(s.ask("POST", chatPath, of("chat"), ann)) // a loaded model can be used
			s.well(s.ask("POST", chatPath, of("spare"), bob))
		})
	}
}

// A client that leaves returns what its request took, whether the request waits or is being served.
func TestLeavingClientsFreeTheirKey(t *testing.T) {
	s := keyed(t, "open=1 waiting=1")
	hold := make(chan struct{})
	s.loading(func(string) state.Outcome {
		<-hold
		return state.Outcome{Fields: map[string]string{"cold": "1"}}
	})
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.addr+chatPath, strings.NewReader(chatBody))
		req.Header.Set("Authorization", "Bearer ann-secret")
		if resp, err := s.http.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}()
	s.until("it waits", func() bool { return s.gate.Waiting()["chat"] == 1 })
	limited(t, s.ask("POST", chatPath, chatBody, ann), "rate_limit_exceeded")
	leave()
	<-gone
	s.settled()
	close(hold)
	s.until("it is loaded", func() bool { _, warm := s.gate.Endpoint("chat"); return warm })

	s.serve(sse("data: {}\n\n", pause))
	ctx, leave = context.WithCancel(t.Context())
	resp := s.open(ctx, "POST", chatPath, chatLive, ann)
	limited(t, s.ask("POST", chatPath, chatBody, ann), "rate_limit_exceeded")
	leave()
	_ = resp.Body.Close()
	s.settled()
	s.serve(sse("data: {}\n\n"))
	s.well(s.ask("POST", chatPath, chatLive, ann))
}

// A load that is already in progress is charged to nobody who joins it.
func TestKeyJoinsALoad(t *testing.T) {
	s := keyed(t, "loads=1/h")
	of := func(model string) string { return strings.Replace(chatBody, `"chat"`, `"`+model+`"`, 1) }
	s.well(s.ask("POST", chatPath, of("spare"), ann))
	hold := make(chan struct{})
	s.loading(func(string) state.Outcome {
		<-hold
		return state.Outcome{Fields: map[string]string{"cold": "1"}}
	})
	if r := s.ask("POST", "/api/generate", `{"model":"same","prompt":"hi","stream":false,"options":{"num_ctx":512}}`, ann); r.status != http.StatusTooManyRequests || s.loads["same"] != 0 {
		t.Errorf("%d %s, %v", r.status, r.text, s.loads)
	}
	answers := make(chan reply, 2)
	go func() { answers <- s.ask("POST", "/api/generate", `{"model":"chat"}`, bob) }() // waits apart from other requests
	s.until("it is under way", func() bool { return s.server.registry.StateOf("chat") != "unloaded" })
	go func() { answers <- s.ask("POST", chatPath, of("chat"), ann) }()
	s.until("ann waits", func() bool { return s.gate.Waiting()["chat"] >= 2 })
	close(hold)
	for range 2 {
		s.well(<-answers)
	}
}

// Runners learn which key a request belongs to, so that keys take turns. The name is the same for each request of a
// key, and reveals nothing about it.
func TestTenantsAreSeparate(t *testing.T) {
	tenants := func(s *stage, head ...string) (names []string) {
		for _, line := range head {
			s.well(s.ask("POST", chatPath, chatBody, line))
		}
		for _, r := range s.got() {
			names = append(names, r.tenant)
		}
		return names
	}
	got := tenants(keyed(t, "").warm("chat"), ann, bob, ann)
	if len(got) != 3 || len(got[0]) != 32 || got[0] != got[2] || got[0] == got[1] {
		t.Errorf("tenants of two keys: %q", got)
	}
	if got := tenants(newStage(t).warm("chat"), "X-Reveille-Tenant: me"); len(got) != 1 || got[0] != "" {
		t.Errorf("without keys: %q", got)
	}
}

// A client that leaves before the engine reports what it used pays for its prompt, and so does one whose response has
// no report.
func TestLeavingIsNotFree(t *testing.T) {
	const event = "data: {\"choices\":[{\"delta\":{\"content\":\"all of it\"}}]}\n\n"
	for name, c := range map[string]struct {
		path, body, begun string
		ends              bool
	}{
		"before the response": {path: chatPath, body: chatBody},
		"before the stream":   {path: chatPath, body: chatLive},
		"during the stream":   {path: chatPath, body: chatLive, begun: event},
		"without a report":    {path: chatPath, body: chatLive, begun: event + "data: [DONE]\n\n", ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := keyed(t, "budget=500").warm("chat")
			got := make(chan struct{}, 1)
			s.serve(func(w http.ResponseWriter, r *http.Request) {
				if c.begun != "" {
					w.Header().Set("Content-Type", "text/event-stream")
					_, _ = w.Write([]byte(c.begun))
					w.(http.Flusher).Flush()
				}
				got <- struct{}{}
				if !c.ends {
					<-r.Context().Done()
				}
			})
			ctx, leave := context.WithCancel(t.Context())
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				body := strings.Replace(c.body, "hi", strings.Repeat("many words ", 200), 1)
				req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.addr+c.path, strings.NewReader(body))
				req.Header.Set("Authorization", "Bearer ann-secret")
				if resp, err := s.http.Do(req); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
			}()
			<-got
			if c.ends {
				<-gone
			}
			leave()
			<-gone
			s.settled()
			if r := s.ask("POST", chatPath, chatBody, ann); r.code() != "insufficient_quota" {
				t.Errorf("%d %s", r.status, r.text)
			}
		})
	}
}
