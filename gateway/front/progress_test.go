package front

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"reveille/infra/state"
)

// comment reads the first comment of a stream that says what is wanted, as the status route would tell it; waited,
// which goes on between two looks, left out.
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
		return told(func(name string) string { return said[name] })
	}
	t.Fatalf("the stream ended before a comment with %q", want)
	return ""
}

// told is what is told of a load, in one line.
func told(of func(name string) string) string {
	var out []string
	for _, name := range []string{"model", "state", "host", "position", "eta", "bytes_done", "bytes_total"} {
		out = append(out, name+"="+of(name))
	}
	return strings.Join(out, " ")
}

// status is GET /models/{id}/status in one line.
func (s *stage) status(model string) string {
	s.t.Helper()
	r := s.ask("GET", "/v1/models/"+model+"/status", "")
	if r.status != 200 || len(r.json) != 8 {
		s.t.Fatalf("%d %s", r.status, r.text)
	}
	return told(func(name string) string {
		if v := r.json[name]; v != nil {
			return fmt.Sprint(v)
		}
		return ""
	})
}

// While a model is loaded, its status says what the comments of a stream that waits for it say: one load under way with
// the bytes that its runner counts, one queued behind it.
func TestStatusTellsWhatCommentsTell(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) { c.CommitAfter, c.Keepalive = time.Millisecond, 5*time.Millisecond })
	s.loading(func(string) state.Outcome {
		return state.Outcome{Fields: map[string]string{"cold": "1", "load_ms": "300"}}
	})
	if got := s.status("chat"); got != "model=chat state=unloaded host= position= eta= bytes_done= bytes_total=" {
		t.Errorf("before: %s", got)
	}
	body := map[string]string{"chat": chatLive, "spare": strings.Replace(chatLive, "chat", "spare", 1)}
	for _, model := range []string{"chat", "spare"} { // how long they take is known from here on
		if r := s.ask("POST", chatPath, strings.Replace(body[model], "true", "false", 1)); r.status != 200 {
			t.Fatalf("%s: %d %s", model, r.status, r.text)
		}
		if got, want := s.status(model), "model="+model+" state=loaded host=here position= eta= bytes_done= bytes_total="; got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
		if err := s.store.DropModel(t.Context(), "here", s.gen, model, "", "test", false); err != nil {
			t.Fatal(err)
		}
		s.until(model+" is gone", func() bool { _, there := s.gate.Route(model); return !there })
	}

	s.serve(sse(one, last, end))
	hold := make(chan struct{})
	s.loading(func(model string) state.Outcome {
		fields := map[string]string{"type": "llm", "state": "pulling", "device": "cpu", "bytes_done": "3", "bytes_total": "9"}
		if err := s.store.PutModel(t.Context(), "here", s.gen, state.ModelPut{ID: model, Fields: fields}, 0, ""); err != nil {
			t.Error(err)
		}
		<-hold
		return state.Outcome{Fields: map[string]string{"cold": "1", "load_ms": "300"}}
	})
	var streams []*http.Response
	defer func() { // all loads are over when the test is
		close(hold)
		for _, resp := range streams {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	}()
	for _, want := range []string{
		"model=chat state=pulling host=here position= eta=1 bytes_done=3 bytes_total=9",
		"model=spare state=queued host=here position=1 eta=1 bytes_done= bytes_total=",
	} {
		model, rest, _ := strings.Cut(strings.TrimPrefix(want, "model="), " ")
		begin, _, _ := strings.Cut(rest, " position") // from when it has its place
		resp := s.open(t.Context(), "POST", chatPath, body[model])
		streams = append(streams, resp)
		if got := comment(t, resp, begin); got != want {
			t.Errorf("comment:\ngot  %s\nwant %s", got, want)
		}
		if got := s.status(model); got != want {
			t.Errorf("status:\ngot  %s\nwant %s", got, want)
		}
		if got, on := s.gate.StageOf(model); !on || got.Waited <= 0 {
			t.Errorf("waited: %+v, %v", got, on)
		}
	}
}
