package httpapi

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/completion"
	"reveille/infra/rpc"
	"reveille/infra/state"
)

// pause, among the pieces of sse, waits for the client to leave.
const pause = "\x00pause"

// sse returns an engine's stream, written piece by piece. It ends well after the last piece.
func sse(pieces ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, p := range pieces {
			switch {
			case p == pause:
				<-r.Context().Done()
				return
			case strings.HasPrefix(p, "sleep "):
				d, _ := time.ParseDuration(p[6:])
				time.Sleep(d)
			case p == "break":
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			default:
				_, _ = io.WriteString(w, p)
				w.(http.Flusher).Flush()
			}
		}
	}
}

func readUntil(t *testing.T, r io.Reader, text string) string {
	t.Helper()
	var all []byte
	buf := make([]byte, 1024)
	for !strings.Contains(string(all), text) {
		n, err := r.Read(buf)
		all = append(all, buf[:n]...)
		if err != nil {
			t.Fatalf("%v before %q came: %q", err, text, all)
		}
	}
	return string(all)
}

const (
	one  = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"a\"}}]}\n\n"
	last = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":22,\"prompt_tokens_details\":{\"cached_tokens\":5}}}\n\n"
	end  = "data: [DONE]\n\n"
)

func TestStreamIsRelayed(t *testing.T) {
	s := newStage(t).warm("chat").serve(sse(one, "sleep 20ms", one[:20], one[20:], last, end))
	r := s.ask("POST", chatPath, chatLive)
	if r.status != 200 || r.text != one+one+last+end {
		t.Fatalf("%d %q", r.status, r.text)
	}
	for name, want := range map[string]string{
		"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no", "Content-Length": "", "X-Model": "chat",
	} {
		if v := r.header.Get(name); v != want {
			t.Errorf("%s is %q", name, v)
		}
	}
	s.until("the usage was read", func() bool {
		return s.stat("input_tokens") == 11 && s.stat("output_tokens") == 22 && s.stat("cache_tokens") == 5 && s.stat("time_to_first_token") > 0
	})
}

func TestStreamChunksAreNotHeldBack(t *testing.T) {
	s := newStage(t).warm("chat").serve(sse(one, pause))
	resp := s.open(t.Context(), "POST", chatPath, chatLive)
	if text := readUntil(t, resp.Body, "\n\n"); text != one {
		t.Errorf("%q", text)
	}
	_ = resp.Body.Close()
}

// eager makes streams commit and comment at once.
func eager(_ *stage, c *Config) {
	c.CommitAfter = 40 * time.Millisecond
	c.Keepalive = 40 * time.Millisecond
}

func TestColdStream(t *testing.T) {
	s := newStage(t, eager).serve(sse(one, end))
	release := make(chan struct{})
	s.loading(func(string) state.Outcome { <-release; return state.Outcome{Fields: map[string]string{"cold": "1"}} })
	resp := s.open(t.Context(), "POST", chatPath, chatLive)
	defer resp.Body.Close()
	if resp.StatusCode != 200 || resp.Header.Get("X-Model") != "chat" || resp.Header.Get("X-Cold-Start") != "1" || resp.Header.Get("X-Model-State") == "loaded" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	text := readUntil(t, resp.Body, ": loading model=chat state=loading host=here waited=")
	close(release)
	rest, err := io.ReadAll(resp.Body)
	if text += string(rest); err != nil || !strings.HasSuffix(text, one+end) {
		t.Fatalf("%v %q", err, text)
	}
	for _, event := range strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n") {
		if !strings.HasPrefix(event, ": loading model=chat ") && event != ": ping" && !strings.HasPrefix(event, "data: ") {
			t.Errorf("event %q", event)
		}
	}
}

func TestPingsDuringPrefill(t *testing.T) {
	begin, finish := make(chan struct{}), make(chan struct{})
	s := newStage(t, eager).warm("chat").serve(func(w http.ResponseWriter, r *http.Request) {
		<-begin
		sse(one)(w, r)
		<-finish
		sse(end)(w, r)
	})
	resp := s.open(t.Context(), "POST", chatPath, chatLive)
	defer resp.Body.Close()
	before := readUntil(t, resp.Body, ": ping\n\n")
	close(begin)
	between := readUntil(t, resp.Body, one)
	between += readUntil(t, resp.Body, ": ping\n\n")
	close(finish)
	after, err := io.ReadAll(resp.Body)
	if !strings.HasPrefix(before, ": ping\n\n") || strings.ReplaceAll(before+between+string(after), ": ping\n\n", "") != one+end || err != nil {
		t.Errorf("%q %q %q %v", before, between, after, err)
	}
}

// TestStreamErrors: an error after the commit is one event of the dialect, and nothing that looks like an end follows.
func TestStreamErrors(t *testing.T) {
	messages := `{"model":"chat","messages":[{}],"max_tokens":5,"stream":true}`
	failing := func(string) state.Outcome {
		return state.Outcome{Failed: true, Fields: map[string]string{"code": "model_file_not_found", "message": "The file is missing."}}
	}
	for name, c := range map[string]struct {
		path, body, want string
		late             bool // the following happens when the client has the header
		loader           func(string) state.Outcome
		engine           http.HandlerFunc
	}{
		"load fails":        {path: chatPath, body: chatLive, late: true, loader: failing, want: `data: {"error":{"message":"The file is missing.","type":"invalid_request_error","param":null,"code":"model_file_not_found"}}` + "\n\n"},
		"Anthropic":         {path: "/v1/messages", body: messages, late: true, loader: failing, want: `event: error` + "\n" + `data: {"type":"error","error":{"type":"not_found_error"`},
		"Responses":         {path: "/v1/responses", body: `{"model":"chat","input":"x","stream":true}`, late: true, loader: failing, want: "event: error\ndata: {"},
		"broken":            {path: chatPath, body: chatLive, engine: sse(one, "break"), want: one + `data: {"error":{`},
		"broken in a line":  {path: chatPath, body: chatLive, engine: sse(one, one[:9], "break"), want: one + one[:9] + "\n\n" + `data: {"error":{`},
		"late engine error": {path: chatPath, body: chatLive, late: true, engine: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(400) }, want: `data: {"error":{"message":"Bad Request"`},
		"late crash":        {path: chatPath, body: chatLive, late: true, engine: sse("break"), want: `data: {"error":{`},
		"no stream, late": {path: chatPath, body: chatLive, late: true, want: `"code":"bad_engine_reply"`, engine: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "{}")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			committed := make(chan struct{})
			if !c.late {
				close(committed)
			}
			s := newStage(t, eager)
			if c.loader != nil {
				s.loading(func(model string) state.Outcome { <-committed; return c.loader(model) })
			} else {
				s.warm("chat").serve(func(w http.ResponseWriter, r *http.Request) { <-committed; c.engine(w, r) })
			}
			resp := s.open(t.Context(), "POST", c.path, c.body)
			if c.late {
				close(committed)
			}
			r := s.read(resp)
			if r.status != 200 || !strings.Contains(r.text, c.want) || strings.Contains(r.text, "[DONE]") || strings.Contains(r.text, "BROKEN") || !strings.HasSuffix(r.text, "\n\n") {
				t.Errorf("%d %q", r.status, r.text)
			}
			if strings.Count(r.text, `error"`) == 0 {
				t.Error("no error event")
			}
		})
	}
}

// An error event from the engine or the runner reaches the client as one of the gateway's own, in the dialect of the
// path, and nothing after it does.
func TestErrorEvents(t *testing.T) {
	const (
		engine   = `data: {"error":{"code":500,"message":"Context size has been exceeded at 10.1.2.3:8080.","type":"server_error"}}` + "\n\n"
		full     = `"type":"server_error","param":null,"code":"overloaded"}}` + "\n\n"
		runner   = `data: {"error":{"code":"draining","message":"The model was unloaded.","param":null,"type":"server_error"}}` + "\n\n"
		messages = `{"model":"chat","messages":[{}],"max_tokens":5,"stream":true}`
	)
	for name, c := range map[string]struct {
		path, body, events string
		want               string
	}{
		"of an engine":         {chatPath, chatLive, engine, full},
		"of an engine, in two": {chatPath, chatLive, engine[:40] + "BREATH" + engine[40:], full},
		"of a runner":          {chatPath, chatLive, runner, `{"error":{"message":"The model was unloaded.","type":"server_error","param":null,"code":"draining"}}` + "\n\n"},
		"for Anthropic":        {"/v1/messages", messages, runner, `"error":{"type":"overloaded_error","message":"The model was unloaded."}`},
		"for Responses":        {"/v1/responses", `{"model":"chat","input":"x","stream":true}`, runner, `"error":{"message":"The model was unloaded.","type":"server_error","param":null,"code":"draining"}}` + "\n\nevent: response.failed\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t).warm("chat").serve(func(w http.ResponseWriter, r *http.Request) {
				for i, part := range strings.Split(c.events, "BREATH") {
					if i == 0 {
						part = one + part
					}
					sse(part)(w, r)
				}
				sse(end)(w, r)
			})
			r := s.ask("POST", c.path, c.body)
			if begins := strings.HasPrefix(r.text, one) || strings.HasPrefix(r.text, "event: response.created\n"); !begins || !strings.Contains(r.text, c.want) || strings.Contains(r.text, "DONE") || strings.Contains(r.text, "10.1.2.3") {
				t.Errorf("%q", r.text)
			}
		})
	}
	// A stream whose last event has come is whole, although its last chunk or what follows it is missing.
	for path, body := range map[string]string{chatPath: chatLive, "/v1/responses": `{"model":"chat","input":"x","stream":true}`, "/api/chat": `{"model":"chat","messages":[{"role":"user","content":"x"}]}`} {
		for _, after := range []string{"break", runner} {
			r := newStage(t).warm("chat").serve(sse(one, end, after)).ask("POST", path, body)
			if strings.Contains(r.text, "error\":{") || strings.Contains(r.text, "BROKEN") || !strings.Contains(r.text, `"a"`) {
				t.Errorf("%s: %q", path, r.text)
			}
		}
	}
	quoted := newStage(t).warm("chat").serve(sse(one, `data: {"choices":[{"delta":{"content":"[DONE]`, "break")).ask("POST", chatPath, chatLive)
	if !strings.HasSuffix(quoted.text, "}}\n\n") || !strings.Contains(quoted.text, `"error":{`) {
		t.Errorf("a text that quotes the end: %q", quoted.text)
	}
	text := `data: {"choices":[{"delta":{"content":"data: {\"error\":"}}]}` + "\n\n" + end // only text that the model quotes
	if r := newStage(t).warm("chat").serve(sse(text)).ask("POST", chatPath, chatLive); r.text != text {
		t.Errorf("%q", r.text)
	}
}

// A stream with an error, or without its last event, is an error in every dialect.
func TestFailedStreams(t *testing.T) {
	const half = `data: {"choices":[{"delta":{},"finish_rea`
	s := newStage(t).warm("chat")
	for path, body := range streamRequests {
		for _, events := range []string{
			one, one + half, half[:20], one + `data: {"object":"error","message":"boom","type":"BadRequestError","code":400}` + "\n\n" + end,
			one + `data: {"message":"boom","code":500}` + "\n\n" + end, `data: {"detail":"boom"}` + "\n\n" + end,
			one + "event: error\n" + `data: {"message":"boom"}` + "\n\n" + end, one + `error: {"message":"boom"}` + "\n\n" + end,
			one + `data: { "error" : {"message":"boom"}}` + "\n\n" + end, one + `data: {"choices":[],"error":{"message":"boom"}}` + "\n\n" + end,
		} {
			s.serve(sse(events))
			r := s.ask("POST", path, body)
			if !failedStream.MatchString(r.text) || completeStream.MatchString(r.text) || strings.Contains(events, "boom") != strings.Contains(r.text, "boom") {
				t.Errorf("%s %q: %d %q", path, events, r.status, r.text)
			}
		}
		s.serve(sse(`data: {"error":null,"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],"usage":[]}` + "\n\n" + end))
		if r := s.ask("POST", path, body); failedStream.MatchString(r.text) || !completeStream.MatchString(r.text) {
			t.Errorf("%s: %q", path, r.text)
		}
		if path == chatPath || path == "/v1/messages" {
			continue // they pass the engine's choices on
		}
		for _, choice := range []string{`{"delta":{},"finish_reason":"error"}`, `{"delta":{},"finish_reason":"abort","error":{"message":"boom"}}`} {
			s.serve(sse(one + `data: {"choices":[` + choice + `]}` + "\n\n" + end))
			if r := s.ask("POST", path, body); !failedStream.MatchString(r.text) || completeStream.MatchString(r.text) {
				t.Errorf("%s %s: %q", path, choice, r.text)
			}
		}
	}
}

var (
	streamRequests = map[string]string{
		chatPath: chatLive, "/api/chat": `{"model":"chat","messages":[{"role":"user","content":"x"}]}`, "/api/generate": `{"model":"chat","prompt":"x"}`,
		"/v1/responses": `{"model":"chat","input":"x","stream":true}`, "/v1/messages": `{"model":"chat","messages":[{"role":"user","content":"x"}],"max_tokens":5,"stream":true}`,
	}
	failedStream   = regexp.MustCompile(`"error":[{"]`)
	completeStream = regexp.MustCompile(`"done":true|response\.completed|\[DONE\]`)
)

// A stream of Anthropic's with some content is kept alive by its own pings.
func TestAnthropicPings(t *testing.T) {
	finish := make(chan struct{})
	s := newStage(t, eager).warm("chat").serve(func(w http.ResponseWriter, r *http.Request) {
		sse("event: message_start\ndata: {}\n\n")(w, r)
		<-finish
	})
	resp := s.open(t.Context(), "POST", "/v1/messages", `{"model":"chat","messages":[{}],"max_tokens":5,"stream":true}`)
	text := readUntil(t, resp.Body, "ping")
	close(finish)
	if text += s.read(resp).text; !strings.HasPrefix(strings.TrimLeft(text, ": ping\n"), "event: message_start\ndata: {}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n") {
		t.Errorf("%.300q", text)
	}
}

func TestNoStreamForStreamTrue(t *testing.T) {
	if r := newStage(t).warm("chat").ask("POST", chatPath, chatLive); r.status != 200 || r.header.Get("Content-Type") != "application/json" || r.json["ok"] != true {
		t.Errorf("%d %v %q", r.status, r.header, r.text)
	}
	// On a route without streams, the flag commits nothing.
	s := newStage(t, eager).warm("vec").serve(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(150 * time.Millisecond)
		_, _ = io.WriteString(w, `{"data":[{"embedding":[1]}]}`)
	})
	if r := s.ask("POST", "/v1/embeddings", `{"model":"vec","input":"x","stream":true}`); r.status != 200 || r.text != `{"data":[{"embedding":[1]}]}` {
		t.Errorf("%d %q", r.status, r.text)
	}
}

func TestColdStreamIsRefusedOnce(t *testing.T) {
	tries := 0
	s := newStage(t, eager).warm("chat").serve(func(w http.ResponseWriter, r *http.Request) {
		if tries++; tries <= 2 {
			time.Sleep(60 * time.Millisecond)
			refuse(rpc.RefusedDraining)(w, r)
			return
		}
		sse(one, end)(w, r)
	})
	if r := s.ask("POST", chatPath, chatLive); r.status != 200 || !strings.HasSuffix(r.text, one+end) {
		t.Errorf("%d %q", r.status, r.text)
	}
}

// faulty is a sink that panics.
type faulty struct{ event bool }

func (f faulty) Event(dst []byte, c *completion.Completion) []byte {
	if f.event {
		panic("boom")
	}
	return append(dst, c.Raw...)
}

func (faulty) Comment(dst, text []byte) []byte { return append(dst, text...) }
func (faulty) Fail(dst, data []byte) []byte    { return append(dst, data...) }
func (faulty) End([]byte) []byte               { panic("boom") }

func TestPanicInAStream(t *testing.T) {
	s := newStage(t).warm("chat").serve(sse(one, strings.TrimSpace(end))) // whose last line ends with the stream
	for _, f := range []faulty{{event: true}, {}} {
		s.handle("chat", func(_ *Server, r *request) error {
			c, err := r.parse()
			if err != nil {
				return err
			}
			x := &exchange{call: c, path: []byte(chatPath), translator: completion.NewStream(f)}
			return x.serveInference()
		})
		c := s.dial()
		if _, err := io.WriteString(c.c, post(chatPath, chatLive)); err != nil {
			t.Fatal(err)
		}
		if text, _ := io.ReadAll(c.r); strings.HasSuffix(string(text), "0\r\n\r\n") {
			t.Errorf("it looks whole: %q", text)
		}
		s.settled()
		if !strings.Contains(s.log.String(), "recovered from a panic") {
			t.Error("not logged")
		}
		if r := s.ask("GET", "/health", ""); r.status != 200 {
			t.Error("the server is gone")
		}
	}
}

// With StreamErrors, a request for a stream gets every error as an event; others get its status.
func TestStreamErrorsAsEvents(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) { c.StreamErrors = true }).loading(func(string) state.Outcome {
		return state.Outcome{Failed: true, Fields: map[string]string{"code": "model_file_not_found", "message": "The file is missing."}}
	})
	const sse = "text/event-stream; charset=utf-8"
	for name, c := range map[string]struct {
		path, body        string
		status            int
		contentType, text string // how the response begins and what it contains
	}{
		"chat":          {chatPath, chatLive, 200, sse, `data: {"error":{"message":"The file is missing.","type":"invalid_request_error","param":null,"code":"model_file_not_found"}}` + "\n\n"},
		"no stream":     {chatPath, chatBody, 404, api.ContentType, `{"error":`},
		"unknown model": {chatPath, strings.Replace(chatLive, `"chat"`, `"nothing"`, 1), 200, sse, `data: {"error":`},
		"Anthropic's":   {"/v1/messages", `{"model":"chat","max_tokens":1,"stream":true,"messages":[{"role":"user","content":"hi"}]}`, 200, sse, "event: error\ndata: {"},
		"Ollama's":      {"/api/chat", `{"model":"chat","messages":[{"role":"user","content":"hi"}]}`, 200, api.Ollama.StreamType(), `{"error":"The file is missing."}` + "\n"},
		"no messages":   {chatPath, `{"model":"chat","stream":true}`, 200, sse, `data: {"error":`},
		"no such route": {"/v1/nothing", chatLive, 404, api.ContentType, `{"error":`},
		"embeddings":    {"/v1/embeddings", `{"model":"nothing","input":"x","stream":true}`, 404, api.ContentType, `{"error":`},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.ask("POST", c.path, c.body)
			if c.contentType != api.ContentType && r.header.Get("Cache-Control") != "no-cache" {
				t.Errorf("%v", r.header)
			}
			if r.status != c.status || r.header.Get("Content-Type") != c.contentType || !strings.HasPrefix(r.text, c.text) {
				t.Errorf("%d %v %q", r.status, r.header, r.text)
			}
		})
	}
}
