package web_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttputil"

	"reveille/gateway/web"
)

// A panic of a stream, which runs on a goroutine of its own, does not end the process, and the client sees that its
// response is not complete.
func TestStreamPanics(t *testing.T) {
	panicked := make(chan any, 1)
	s := web.Server{OnPanic: func(_ string, v any) { panicked <- v }}
	in := fasthttputil.NewInmemoryListener()
	server := fasthttp.Server{Handler: func(ctx *fasthttp.RequestCtx) {
		r := web.Request{Server: &s, Ctx: ctx}
		r.Stream(func(w *bufio.Writer) {
			_, _ = w.WriteString("begun")
			_ = w.Flush()
			if string(ctx.Path()) == "/fault" {
				panic("a fault")
			}
		})
	}}
	go func() { _ = server.Serve(in) }()
	defer func() { _ = server.Shutdown() }()
	client := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return in.Dial() }}}
	defer client.CloseIdleConnections()
	get := func(path string) (string, error) {
		resp, err := client.Get("http://localhost" + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return string(body), err
	}
	if body, err := get("/whole"); body != "begun" || err != nil {
		t.Errorf("the client got %q, %v", body, err)
	}
	if body, err := get("/fault"); err != io.ErrUnexpectedEOF {
		t.Errorf("the client got %q, %v", body, err)
	}
	if v := <-panicked; v != "a fault" {
		t.Errorf("panicked with %v", v)
	}
}
