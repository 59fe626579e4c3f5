package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// maxBody bounds a request body, in bytes.
const maxBody = 256 << 20

// call is one inference request. All faults that hit single requests happen in here, so
// the handlers know nothing of them.
type call struct {
	s      *server
	w      http.ResponseWriter
	r      *http.Request
	body   []byte
	begun  time.Time
	doomed bool // the process dies before this call is answered
}

// infer wraps a route's handler: type and readiness checks, counting, faults.
func (s *server) infer(rt route) http.Handler {
	return s.whenReady(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.cfg.Type != "" && s.cfg.Type != rt.typ {
			writeError(w, http.StatusNotImplemented, "not_supported_error",
				fmt.Sprintf("This server does not support %s: it serves type %s", rt.name, s.cfg.Type))
			return
		}
		// The whole body is read first: only then does net/http watch the
		// connection, and end the request's context when the client leaves.
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			writeError(w, http.StatusBadRequest, "invalid_request_error", "failed to read the request body")
			return
		}
		n := s.stats.begin(rt.name)
		if s.cfg.CrashOn != "" && bytes.Contains(body, []byte(s.cfg.CrashOn)) {
			s.die()
		}
		defer func() { s.stats.end(r.Context().Err() != nil) }()
		if s.cfg.Hang == "infer" {
			<-r.Context().Done()
			return
		}
		if s.cfg.HangOn != "" && bytes.Contains(body, []byte(s.cfg.HangOn)) {
			s.hangOnce.Do(func() { close(s.hung) })
		}
		if s.hangs(r) {
			return
		}
		if s.cfg.Raw != "" {
			replyRaw(w, s.cfg.Raw)
			return
		}
		c := &call{s: s, w: w, r: r, body: body, begun: time.Now(), doomed: n == s.cfg.ExitAfter.requests}
		rt.serve(c)
		if c.doomed {
			s.die() // it was an error, or had no response to die in the middle of
		}
	}))
}

// decode reads the JSON body into v, or answers 400 and returns false.
func (c *call) decode(v any) bool {
	if err := json.Unmarshal(c.body, v); err != nil {
		c.fail(http.StatusBadRequest, "invalid_request_error", "failed to parse the request: "+err.Error())
		return false
	}
	return true
}

// admit notes n input tokens, or answers "out of memory" and returns false.
func (c *call) admit(n int) bool {
	c.s.stats.tokens(n)
	if c.s.cfg.OOMOver > 0 && n > c.s.cfg.OOMOver {
		c.fail(http.StatusInternalServerError, "server_error", "failed to allocate compute buffers: out of memory")
		return false
	}
	return true
}

// generate waits as long as n tokens take; false means the client has left.
func (c *call) generate(n int) bool {
	if c.s.cfg.Step {
		for range n {
			select {
			case <-c.s.steps:
			case <-c.s.hung:
			case <-c.r.Context().Done():
				return false
			}
		}
	}
	return sleep(c.r.Context(), time.Duration(n)*c.s.cfg.TokenDelay) && !c.s.hangs(c.r)
}

// reply answers 200 with v as JSON.
func (c *call) reply(v any) {
	c.replyBytes("application/json; charset=utf-8", marshal(v))
}

// replyBytes answers 200 with body, unless the process is to die or to answer garbage.
func (c *call) replyBytes(contentType string, body []byte) {
	if c.doomed {
		c.s.die()
	}
	if c.s.cfg.Garbage != "" {
		c.replyGarbage()
		return
	}
	c.w.Header().Set("Content-Type", contentType)
	c.w.WriteHeader(http.StatusOK)
	_, _ = c.w.Write(body) // a client that left is counted when the call ends
}

// fail answers an error in llama-server's form.
func (c *call) fail(status int, kind, message string) {
	writeError(c.w, status, kind, message)
}

// writeError answers an error in llama-server's form, whose code is a number.
func writeError(w http.ResponseWriter, status int, kind, message string) {
	writeJSON(w, status, map[string]any{"error": map[string]any{"code": status, "message": message, "type": kind}})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(marshal(v))
}

// marshal encodes values of our own making, which cannot fail.
func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("standin: answer is not JSON: " + err.Error())
	}
	return b
}
