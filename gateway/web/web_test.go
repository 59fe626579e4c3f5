package web_test

import (
	"bufio"
	"io"
	"testing"

	"github.com/valyala/fasthttp"

	"reveille/gateway/web"
)

// A panic of a stream, which runs on a goroutine of its own, ends the response and not the process.
func TestStreamPanics(t *testing.T) {
	panicked := make(chan any, 1)
	s := web.Server{OnPanic: func(_ string, v any) { panicked <- v }}
	var ctx fasthttp.RequestCtx
	r := web.Request{Server: &s, Ctx: &ctx}
	r.Stream(func(w *bufio.Writer) {
		_, _ = w.WriteString("begun")
		_ = w.Flush()
		panic("a fault")
	})
	if body, _ := io.ReadAll(ctx.Response.BodyStream()); string(body) != "begun" {
		t.Errorf("the client got %q", body)
	}
	if v := <-panicked; v != "a fault" {
		t.Errorf("panicked with %v", v)
	}
}
