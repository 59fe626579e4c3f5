package system

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"reveille/infra/rpc"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// zipped is a text as engines send it that compress though nobody asked for it.
func zipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(text))
	_ = z.Close()
	return b.String()
}

// TestEnginesOfManyWays: what an engine's HTTP leaves out or adds does not change the response, and what is no whole
// response is an error in every dialect.
func TestEnginesOfManyWays(t *testing.T) {
	t.Parallel()
	const (
		ok     = "HTTP/1.1 200 OK\r\n"
		events = "Content-Type: text/event-stream\r\n"
		chunks = "Transfer-Encoding: chunked\r\n"
		piece  = `data: {"choices":[{"index":0,"delta":{"content":"hello"}}]}` + "\n\n"
		rest   = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"
		answer = `{"choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}`
		native = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"usage\":{\"input_tokens\":1,\"output_tokens\":1}}}\n\n"
	)
	chunk := func(text, after string) string { return fmt.Sprintf("%x%s\r\n%s\r\n", len(text), after, text) }
	long := "X-Long: " + strings.Repeat("x", 20<<10) + "\r\n"
	lines := func(text string) string { return strings.ReplaceAll(text, "\r\n", "\n") }
	whole := chunk(piece, "") + chunk(rest, "") + "0\r\n\r\n"
	streamed := []string{"chat", "ollama", "responses"}
	rows := []struct {
		name   string
		wire   string
		as     []string // kinds of requests
		whole  bool
		plain  bool // the request asks for no stream
		status int  // of a response that is refused before its head is sent, 0 for 200
	}{
		{name: "as it should be", wire: ok + events + chunks + "\r\n" + whole, as: streamed, whole: true},
		{name: "line feeds in the head", wire: lines(ok+events+chunks+"\r\n") + whole, as: streamed, whole: true},
		{name: "line feeds in the chunks", wire: lines(ok + events + chunks + "\r\n" + whole), as: streamed, whole: true},
		{name: "no content type", wire: ok + chunks + "\r\n" + whole, as: streamed, whole: true},
		{name: "a long head", wire: ok + events + chunks + long + "\r\n" + whole, as: streamed, whole: true},
		{name: "blanks behind sizes", wire: ok + events + chunks + "\r\n" + chunk(piece, "  ") + chunk(rest, " ; q") + "0 \r\n\r\n", as: streamed, whole: true},
		{name: "until the connection ends", wire: ok + events + "\r\n" + piece + rest, as: streamed, whole: true},
		{name: "zipped events", wire: ok + events + "Content-Encoding: gzip\r\n\r\n" + zipped(piece+rest), as: streamed, status: 502},
		{name: "no event", wire: ok + events + chunks + "\r\n0\r\n\r\n", as: streamed},
		{name: "no event but the end", wire: ok + events + chunks + "\r\n" + chunk("data: [DONE]\n\n", "") + "0\r\n\r\n", as: streamed},
		{name: "no last chunk", wire: ok + events + chunks + "\r\n" + chunk(piece, ""), as: streamed},
		{name: "no last chunk in a message", wire: ok + events + chunks + "\r\n" + chunk(native, ""), as: []string{"messages"}},
		{name: "a whole answer", wire: ok + "Content-Type: application/json\r\n" + chunks + "\r\n" + chunk(answer, " ") + "0\r\n\r\n", as: streamed, plain: true, whole: true},
		{name: "a zipped answer", wire: ok + "Content-Type: application/json\r\nContent-Encoding: gzip\r\n\r\n" + zipped(answer), as: streamed, plain: true, status: 502},
		{name: "no last chunk in an answer", wire: ok + "Content-Type: application/json\r\n" + chunks + "\r\n" + chunk(answer, ""), as: streamed, plain: true, status: 502},
	}
	models, dir := calls.Catalogue{}, t.TempDir()
	for i, r := range rows {
		file := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(file, []byte(r.wire), 0o600); err != nil {
			t.Fatal(err)
		}
		models[fmt.Sprint("m", i)] = "llm, " + calls.Options("--raw "+file)
	}
	const limits = "--max-loaded-models=-1"
	for name, w := range map[string]*worlds.World{
		"one process": worlds.Start(t, models, limits),
		"two":         worlds.StartFleet(t, worlds.Fleet{Models: models, Hosts: []worlds.Host{{Name: "h", Flags: []string{limits}}}}),
	} {
		for i, r := range rows {
			for _, as := range r.as {
				path, body, end := "/v1/chat/completions", `"messages":[{"role":"user","content":"hi"}],"max_tokens":9`, "data: [DONE]\n\n"
				switch as {
				case "ollama":
					path, end = "/api/chat", `"done":true`
				case "messages":
					path, end = "/v1/messages", "message_stop"
				case "responses":
					path, body, end = "/v1/responses", `"input":"hi"`, "response.completed"
				}
				began := time.Now()
				a := w.Post(path, fmt.Sprintf(`{"model":"m%d","stream":%v,%s}`, i, !r.plain, body))
				text := string(a.Body)
				ended := r.plain && a.Status == 200 || strings.Contains(text, end) && strings.Contains(text, "hello")
				switch {
				case a.Err != nil || time.Since(began) > 10*time.Second:
					t.Errorf("%s, %s, %s: after %v: %v", name, r.name, as, time.Since(began), a)
				case r.whole && (a.Status != 200 || !ended || strings.Contains(text, `"error":{`)):
					t.Errorf("%s, %s, %s is not whole: %v", name, r.name, as, a)
				case !r.whole && (strings.Contains(text, end) || !strings.Contains(text, "error") || a.Status != 200 && a.Status != r.status):
					t.Errorf("%s, %s, %s is no error: %v", name, r.name, as, a)
				}
			}
		}
	}
}

// TestStreamsToHTTP10: who speaks HTTP/1.0 gets each kind of stream as it is, piece by piece, until the connection ends.
func TestStreamsToHTTP10(t *testing.T) {
	t.Parallel()
	w := worlds.StartFleet(t, worlds.Fleet{
		Models: calls.Catalogue{"m": "llm, " + calls.Options("--token-delay 5ms")}, Hosts: []worlds.Host{{Name: "h"}}, Admin: true,
	})
	signed := func(path string) string {
		return rpc.NewSigner([]byte(worlds.Secret)).Sign(rpc.Call{Method: http.MethodGet, Path: path, Host: "h"})
	}
	const chat = `{"model":"m","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`
	const endless = ""
	for _, r := range []struct{ path, body, ends string }{
		{"/v1/chat/completions", chat, "data: [DONE]\n\n"},
		{"/v1/completions", `{"model":"m","stream":true,"prompt":"hi"}`, "data: [DONE]\n\n"},
		{"/api/chat", chat, "}\n"},
		{"/v1/responses", `{"model":"m","stream":true,"input":"hi"}`, "}\n\n"},
		{"/v1/messages", chat, "}\n\n"},
		{"/v1/pull", `{"model_name":"m","stream":true}`, "}\n\n"},
		{"/api/pull", `{"model":"m"}`, "}\n"},
		{"/logs/stream", "", endless},
		{"/ui/stream", "", endless},
		{rpc.PathLog + "?follow=1", "", endless},
		{rpc.PathLogs + "m?follow=1", "", endless},
	} {
		method, addr, auth := http.MethodPost, strings.TrimPrefix(w.URL, "http://"), "Authorization: Bearer "+w.Key
		if r.body == "" {
			method = http.MethodGet
		}
		if strings.HasPrefix(r.path, "/runner/") {
			addr, auth = w.Addrs["h"], rpc.HeaderAuth+": "+signed(r.path)
		}
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(kit.Patience))
		fmt.Fprintf(conn, "%s %s HTTP/1.0\r\n%s\r\nContent-Length: %d\r\n\r\n%s", method, r.path, auth, len(r.body), r.body)
		lines, head, line := bufio.NewReader(conn), "", ""
		for ; line != "\r\n" && err == nil; head += line {
			line, err = lines.ReadString('\n')
		}
		first, lineErr := lines.ReadString('\n')
		text := first
		if r.ends != endless {
			rest, _ := io.ReadAll(lines)
			text += string(rest)
		}
		size, _ := strconv.ParseUint(strings.TrimSpace(first), 16, 32)
		if err != nil || lineErr != nil || strings.Contains(head, "Transfer-Encoding") || !strings.Contains(head, "Connection: close\r\n") ||
			!strings.Contains(head, " 200 ") || size > 0 || !strings.HasSuffix(text, r.ends) {
			t.Errorf("%s: %v %v\n%s%s", r.path, err, lineErr, head, text)
		}
	}
}
