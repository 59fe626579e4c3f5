package main

import (
	"bytes"
	"net/http"
	"os"
	"strconv"
)

// longLine is longer than any reader should accept, in bytes (the gateway's limit is
// 16 MiB).
const longLine = 17 << 20

// replyGarbage answers a plain request with the configured kind of garbage.
func (c *call) replyGarbage() {
	switch c.s.cfg.Garbage {
	case "content-type":
		c.rawReply("text/html", []byte("<html><body>It works!</body></html>"))
	case "line":
		c.rawReply("application/json", []byte(`{"id": "`+string(bytes.Repeat([]byte("x"), longLine))+`"}`))
	case "framing":
		c.breakFraming("application/json")
	}
}

func (c *call) rawReply(contentType string, body []byte) {
	c.w.Header().Set("Content-Type", contentType)
	c.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(http.StatusOK)
	_, _ = c.w.Write(body)
}

// breakFraming takes the connection over and sends a chunk whose size is no number.
// What was written before stays correctly framed.
func (c *call) breakFraming(contentType string) {
	c.w.Header().Set("Content-Type", contentType)
	c.w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(c.w).Flush() // sends the header, chunked, as the length is not known
	breakChunks(c.w)
}

// breakChunks takes a connection over and sends a chunk whose size is no number.
func breakChunks(w http.ResponseWriter) {
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = buf.WriteString("chunk?\r\nno chunk size above\r\n")
	_ = buf.Flush()
}

// replyRaw takes a connection over, sends a file's bytes and ends it.
func replyRaw(w http.ResponseWriter, file string) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	text, _ := os.ReadFile(file) // a missing one is a response without a byte
	_, _ = conn.Write(text)
}

// spoil writes the configured garbage into a stream that has sent its first event.
func (st *stream) spoil() {
	switch st.c.s.cfg.Garbage {
	case "line":
		st.raw([]byte("data: {\"x\": \""))
		block := bytes.Repeat([]byte("x"), 1<<20)
		for range longLine >> 20 {
			st.raw(block)
		}
		st.raw([]byte("\"}\n\n"))
	case "framing":
		breakChunks(st.c.w)
	}
}
