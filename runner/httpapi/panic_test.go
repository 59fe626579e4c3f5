package httpapi

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttputil"
)

// A panic in one request becomes a response and does not end the runner.
func TestPanicGetsAResponse(t *testing.T) {
	s := &Server{cfg: Config{Log: slog.New(slog.DiscardHandler)}} // without a verifier: every handler that needs one fails
	ln := fasthttputil.NewInmemoryListener()
	srv := &fasthttp.Server{Handler: s.guard}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return ln.Dial() }}
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	for range 2 {
		resp, err := client.Get("http://h/runner/host")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != 500 || string(body) != string(errorBody("internal_error", "Internal error in the runner.")) {
			t.Errorf("%d %q", resp.StatusCode, body)
		}
	}
	transport.CloseIdleConnections()
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
	<-served
}
