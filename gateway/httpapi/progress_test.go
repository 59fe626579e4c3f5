package httpapi

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"reveille/infra/rpc"
	"reveille/infra/state"
)

// comment reads a stream's comments until the first that contains want, formatted as the status route would. It leaves
// out waited, which grows between two looks.
func comment(t *testing.T, resp *http.Response, want string) string {
	t.Helper()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		text, is := strings.CutPrefix(lines.Text(), ": loading ")
		if !is || !strings.Contains(text, want) {
			continue
		}
		said := map[string]string{}
		for field := range strings.FieldsSeq(text) {
			name, value, _ := strings.Cut(field, "=")
			said[name] = value
		}
		if said["waited"] == "" {
			t.Errorf("no waited in %q", text)
		}
		return describeLoad(func(name string) string { return said[name] })
	}
	t.Fatalf("the stream ended before a comment with %q", want)
	return ""
}

// describeLoad returns in one line what is reported of a load.
func describeLoad(of func(name string) string) string {
	var out []string
	for _, name := range []string{"model", "state", "host", "position", "eta", "bytes_done", "bytes_total"} {
		out = append(out, name+"="+of(name))
	}
	return strings.Join(out, " ")
}

// status returns in one line what GET /models/{id} says of a load.
func (s *stage) status(model string) string {
	s.t.Helper()
	r := s.ask("GET", "/v1/models/"+model, "")
	if r.status != 200 {
		s.t.Fatalf("%d %s", r.status, r.text)
	}
	status := r.json["status"].(map[string]any)
	status["model"], status["state"] = r.json["id"], status["value"]
	return describeLoad(func(name string) string {
		if v := status[name]; v != nil {
			return fmt.Sprint(v)
		}
		return ""
	})
}

// While a model is loaded, its status says what the comments of a stream waiting for it say: for a load in progress,
// one queued behind it, and one whose weights are being pulled.
func TestStatusReportsWhatCommentsReport(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) { c.CommitAfter, c.Keepalive = time.Millisecond, 5*time.Millisecond })
	took := state.Outcome{Fields: map[string]string{"cold": "1", "load_ms": "300"}}
	s.loading(func(string) state.Outcome { return took })
	if got := s.status("chat"); got != "model=chat state=unloaded host= position= eta= bytes_done= bytes_total=" {
		t.Errorf("before: %s", got)
	}
	body := map[string]string{"chat": chatLive, "spare": strings.Replace(chatLive, "chat", "spare", 1)}
	for _, model := range []string{"chat", "spare"} { // their load times are known from here on
		if r := s.ask("POST", chatPath, strings.Replace(body[model], "true", "false", 1)); r.status != 200 {
			t.Fatalf("%s: %d %s", model, r.status, r.text)
		}
		want := "model=" + model + " state=loaded host=here position= eta= bytes_done= bytes_total="
		s.until(want, func() bool { return s.status(model) == want }) // the response may be ahead of the mirror
		if err := s.store.DropModel(t.Context(), "here", s.gen, model, "test", false); err != nil {
			t.Fatal(err)
		}
		s.until(model+" is gone", func() bool { _, there := s.gate.Endpoint(model); return !there })
	}

	s.serve(sse(one, last, end))
	hold := make(chan struct{})
	s.loading(func(string) state.Outcome { <-hold; return took })
	streams := map[string]*http.Response{}
	defer func() { // all loads have ended when the test ends
		close(hold)
		for _, resp := range streams {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	}()
	for _, want := range []string{
		"model=chat state=loading host=here position= eta=1 bytes_done= bytes_total=",
		"model=spare state=queued host=here position=1 eta=1 bytes_done= bytes_total=",
		"model=spare state=pulling host=here position=1 eta= bytes_done=3 bytes_total=9",
	} {
		model, rest, _ := strings.Cut(strings.TrimPrefix(want, "model="), " ")
		begin, _, _ := strings.Cut(rest, " position") // from when it has its position
		if streams[model] == nil {
			streams[model] = s.open(t.Context(), "POST", chatPath, body[model])
		}
		if strings.Contains(want, "pulling") {
			s.pull(model, 3, 9)
		}
		if got := comment(t, streams[model], begin); got != want {
			t.Errorf("comment:\ngot  %s\nwant %s", got, want)
		}
		if got := s.status(model); got != want {
			t.Errorf("status:\ngot  %s\nwant %s", got, want)
		}
		if got, on := s.gate.ProgressOf(model); !on || got.Waited <= 0 {
			t.Errorf("waited: %+v, %v", got, on)
		}
	}
}

// A stream that is committed while its model loads reports the host, and the time waited until then.
func TestHeadersOfAStreamThatWaits(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) { c.CommitAfter, c.Keepalive = 500*time.Millisecond, 5*time.Millisecond })
	begun, hold := make(chan struct{}), make(chan struct{})
	s.serve(sse(one, last, end)).loading(func(string) state.Outcome {
		close(begun)
		<-hold
		return state.Outcome{Fields: map[string]string{"cold": "1", "load_ms": "300"}}
	})
	first := s.open(t.Context(), "POST", chatPath, chatLive)
	<-begun
	s.until("the gateway knows that the load is under way", func() bool {
		st, _ := s.gate.ProgressOf("chat")
		return st.Stage == "loading" && s.server.registry.StateOf("chat") == "loading"
	})
	second := s.open(t.Context(), "POST", chatPath, chatLive)
	for name, want := range map[string]string{"X-Runner": "here", "X-Queue-Ms": "0", "X-Cold-Start": "1", "X-Model-State": "loading"} {
		if got := second.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if ms, err := strconv.Atoi(second.Header.Get("X-Load-Ms")); err != nil || ms == 0 {
		t.Errorf("X-Load-Ms is %q", second.Header.Get("X-Load-Ms"))
	}
	close(hold)
	for _, resp := range []*http.Response{first, second} {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}

// A stream whose head names the host of a load says so when another host responds.
func TestAnotherHostThanTheHeadNames(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) { c.CommitAfter = time.Millisecond })
	there := httptest.NewServer(sse(one, last, end))
	t.Cleanup(there.Close)
	hold, moved := make(chan struct{}), make(chan struct{})
	s.loading(func(string) state.Outcome {
		<-hold
		return state.Outcome{Fields: map[string]string{"cold": "1"}}
	}).serve(func(w http.ResponseWriter, r *http.Request) {
		<-moved
		refuse(rpc.RefusedSentBack)(w, r)
	})
	first := s.open(t.Context(), "POST", chatPath, chatLive)
	s.until("the load is under way", func() bool { st, _ := s.gate.ProgressOf("chat"); return st.Stage == "loading" })
	second := s.open(t.Context(), "POST", chatPath, chatLive)
	close(hold)
	s.until("the model is loaded", func() bool { _, ok := s.gate.Endpoint("chat"); return ok })
	_, _, err := s.store.Register(t.Context(), state.HostInfo{
		Name: "there", Boot: "1", Addr: there.Listener.Addr().String(), Devices: "cpu", Limits: "-1",
		Models: []state.ModelPut{{ID: "chat", Fields: map[string]string{"type": "llm", "state": "loaded", "device": "cpu"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.until("the gateway knows the other copy", func() bool { return len(s.mirror.Snapshot().Copies("chat")) == 2 })
	close(moved)
	for _, resp := range []*http.Response{first, second} {
		if got := s.read(resp); !strings.Contains(got.text, ": loading model=chat state=loaded host=there waited=") || !strings.Contains(got.text, "[DONE]") {
			t.Error(got.text)
		}
	}
	if host := second.Header.Get("X-Runner"); host != "here" {
		t.Errorf("the head names %q", host)
	}
}

// pull reports that the weights of a model whose load is queued are being pulled.
func (s *stage) pull(model string, done, total int64) {
	s.t.Helper()
	s.until("a load of "+model+" is queued", func() bool {
		queue := s.mirror.Snapshot().Hosts["here"].Queue
		at := slices.IndexFunc(queue, func(t state.TicketRecord) bool { return t.Model == model && t.State == "queued" })
		return at >= 0 && s.store.PutPulled(s.t.Context(), "here", s.gen, queue[at].ID, &state.Pulled{Done: done, Total: total}) == nil
	})
}

// TestLoadingReasoning: chat clients are shown each stage of a load once, as reasoning before the response.
func TestLoadingReasoning(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) {
		c.LoadingReasoning, c.CommitAfter, c.Keepalive = true, time.Millisecond, 10*time.Millisecond
	})
	s.engine = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}]}\n\ndata: [DONE]\n\n")
	}
	release := make(chan struct{})
	finish := sync.OnceFunc(func() { close(release) })
	defer finish()
	s.loading(func(string) state.Outcome { <-release; return state.Outcome{} })
	resp := s.open(t.Context(), "POST", chatPath, chatLive)
	defer resp.Body.Close()
	const loading = `"choices":[{"index":0,"delta":{"role":"assistant","reasoning_content":"The model chat is loading.\n"},"finish_reason":null}]}`
	text, shown := "", 0
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); text += lines.Text() + "\n" {
		if strings.Contains(lines.Text(), loading) {
			shown++
			time.AfterFunc(100*time.Millisecond, finish) // some reports later
		}
	}
	if shown != 1 || !strings.Contains(text, `"object":"chat.completion.chunk"`) || !strings.HasSuffix(text, "{\"content\":\"hi\"}}]}\n\ndata: [DONE]\n\n") {
		t.Errorf("shown %d times: %s", shown, text)
	}
	if r := s.ask("POST", chatPath, chatLive); strings.Contains(r.text, "reasoning_content") {
		t.Errorf("a loaded model: %s", r.text)
	}
}
