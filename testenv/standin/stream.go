package main

import (
	"fmt"
	"net/http"
)

// stream writes server-sent events. It exists once the first event is sent.
type stream struct {
	c     *call
	sent  int
	named bool // each event is named by its type, as Anthropic's are
}

// send writes one event and reports whether the stream goes on. The faults of a stream
// come after its first event, when a client has committed to the response.
func (st *stream) send(v map[string]any) bool {
	return st.event(v["type"], marshal(v))
}

// done writes the end marker.
func (st *stream) done() {
	st.event(nil, []byte("[DONE]"))
}

func (st *stream) event(name any, data []byte) bool {
	if st.sent == 0 {
		if st.c.s.cfg.Garbage == "content-type" {
			st.c.replyGarbage()
			return false
		}
		h := st.c.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-cache")
		st.c.w.WriteHeader(http.StatusOK)
	}
	line := append([]byte("data: "), data...)
	if st.named {
		line = append(fmt.Appendf(nil, "event: %v\n", name), line...)
	}
	if !st.raw(append(line, '\n', '\n')) {
		return false
	}
	st.sent++
	if st.sent > 1 {
		return true
	}
	if st.c.doomed {
		st.c.s.die()
	}
	if st.c.s.cfg.Garbage != "" {
		st.spoil()
		return false
	}
	return true
}

// raw writes and flushes bytes; false means the client has left.
func (st *stream) raw(b []byte) bool {
	if _, err := st.c.w.Write(b); err != nil {
		return false
	}
	return http.NewResponseController(st.c.w).Flush() == nil && st.c.r.Context().Err() == nil
}
