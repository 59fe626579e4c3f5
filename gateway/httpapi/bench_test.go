package httpapi

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"reveille/gateway/bodycheck"
)

// benchStage starts a gateway whose runner verifies nothing and responds immediately.
func benchStage(b *testing.B, answer fasthttp.RequestHandler) string {
	s := newStage(b)
	runner := &fasthttp.Server{Handler: answer, NoDefaultServerHeader: true}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = runner.Serve(ln) }()
	b.Cleanup(func() { _ = runner.Shutdown() })
	s.moveTo(ln.Addr().String())
	s.warm("chat")
	return s.addr
}

func benchAsk(b *testing.B, addr string, request []byte) {
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Error(err)
			return
		}
		defer c.Close()
		r := bufio.NewReaderSize(c, 64<<10)
		var resp fasthttp.Response
		for pb.Next() {
			if _, err := c.Write(request); err != nil {
				b.Error(err)
				return
			}
			resp.Reset()
			if err := resp.Read(r); err != nil || resp.StatusCode() != 200 {
				b.Error(err, resp.StatusCode(), string(resp.Body()))
				return
			}
		}
	})
}

// BenchmarkWarm measures one warm request of 1 KB with a response of 1 KB: client, front and runner in one process.
func BenchmarkWarm(b *testing.B) {
	text := []byte(`{"choices":[{"message":{"content":"` + strings.Repeat("y", 900) + `"}}],"usage":{"prompt_tokens":3,"completion_tokens":4}}`)
	addr := benchStage(b, func(ctx *fasthttp.RequestCtx) {
		ctx.SetContentType("application/json")
		ctx.SetBody(text)
	})
	body := strings.Replace(chatBody, "hi", strings.Repeat("x", 960), 1)
	benchAsk(b, addr, []byte(post(chatPath, body, "Content-Type: application/json")))
}

// BenchmarkWarmStream measures a warm stream of 64 chunks.
func BenchmarkWarmStream(b *testing.B) {
	chunk := []byte("data: {\"choices\":[{\"delta\":{\"content\":\"" + strings.Repeat("y", 150) + "\"}}]}\n\n")
	addr := benchStage(b, func(ctx *fasthttp.RequestCtx) {
		ctx.SetContentType("text/event-stream")
		ctx.SetBodyStreamWriter(func(w *bufio.Writer) {
			for range 64 {
				_, _ = w.Write(chunk)
				_ = w.Flush()
			}
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
		})
	})
	benchAsk(b, addr, []byte(post(chatPath, chatLive)))
}

// BenchmarkDirect measures the lower bound: the same client and runner with nothing between them.
func BenchmarkDirect(b *testing.B) {
	text := bytes.Repeat([]byte("y"), 1000)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	runner := &fasthttp.Server{Handler: func(ctx *fasthttp.RequestCtx) { ctx.SetBody(text) }}
	go func() { _ = runner.Serve(ln) }()
	defer func() { _ = runner.Shutdown() }()
	body := strings.Replace(chatBody, "hi", strings.Repeat("x", 960), 1)
	benchAsk(b, ln.Addr().String(), []byte(post(chatPath, body)))
}

// BenchmarkImage measures the check of a body of 1 MB that is one data URL.
func BenchmarkImage(b *testing.B) {
	picture := "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg"
	body := []byte(`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + picture + strings.Repeat("A", 1<<20) + `"}}]}]}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		var check bodycheck.Check
		spec := bodycheck.Chat
		if err := check.Read(spec, body); err != nil {
			b.Fatal(err)
		}
		if _, _, err := check.Finish(spec, body, func() bodycheck.Model { return bodycheck.Model{} }); err != nil {
			b.Fatal(err)
		}
	}
}
