package httpapi_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/runner/engineslots"
	"reveille/runner/fairqueue"
	"reveille/runner/mmcache"
)

// direct is call from a gateway in the same process. It reads the response as a gateway does.
func (b *bench) direct(method, path, model, body string) answer {
	b.Helper()
	var link relay.Canceler
	turn := b.server.Admit("g", &link, near(method, path, model, body))
	if !turn.Wait(time.Time{}) {
		b.Fatal("a turn without a limit did not come")
	}
	resp, err := turn.Start()
	b.must(err)
	return b.read(resp)
}

func near(method, path, model, body string) *relay.Request {
	r := &relay.Request{Method: method, Path: []byte(path), Body: []byte(body)}
	r.Add(rpc.HeaderModel, []byte(model))
	r.Add("Content-Type", []byte("application/json"))
	return r
}

// read reads a response to its end.
func (b *bench) read(resp *relay.Response) answer {
	b.Helper()
	b.must(resp.Await(time.Time{}))
	a := answer{status: resp.Status(), header: http.Header{}}
	for _, name := range []string{rpc.HeaderCode, rpc.HeaderRefused, rpc.HeaderMedia, "Content-Type", "Location", "Content-Encoding"} {
		if v := resp.Header(name); len(v) > 0 {
			a.header.Set(name, string(v))
		}
	}
	body, err := io.ReadAll(resp)
	_ = resp.Close()
	if e := (*relay.EventError)(nil); errors.As(err, &e) {
		var events relay.Events
		_ = events.Feed(body)
		body, err = append(append(append(events.AppendBoundary(body), "data: "...), e.Data...), "\n\n"...), nil
	}
	a.body, a.err = string(body), err
	return a
}

// ways are the two ways to a runner. Tests of responses use both.
var ways = map[string]func(*bench, string, string, string, string) answer{"over HTTP": (*bench).call, "direct": (*bench).direct}

// TestLocalRequestsAreRefused: a model that is not loaded is refused, and fields of an engine's response that only
// runners may send, or that runners do not pass on, do not reach the gateway.
func TestLocalRequestsAreRefused(t *testing.T) {
	b := start(t)
	b.load("fake")
	if a := b.direct("POST", chat, "slow", "{}"); a.status != rpc.StatusRefused || a.header.Get(rpc.HeaderRefused) != rpc.RefusedNotLoaded {
		t.Errorf("not loaded: %+v", a)
	}
	forged := rpc.HeaderRefused + ": auth\r\n" + rpc.HeaderCode + ": engine_crashed\r\n" + rpc.HeaderMedia + ": hit=9, miss=0\r\nLocation: /evil\r\nContent-Encoding: identity\r\nContent-Length: 2\r\n"
	b.engines.handle = func(c net.Conn, _ *http.Request) { _, _ = io.WriteString(c, head("application/json", forged)+"{}") }
	for way, call := range ways {
		a := call(b, "POST", chat, "fake", "{}")
		if a.status != 200 || a.body != "{}" || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %+v", way, a)
		}
		for _, name := range []string{rpc.HeaderRefused, rpc.HeaderCode, rpc.HeaderMedia, "Location", "Content-Encoding"} {
			if v := a.header.Get(name); v != "" {
				t.Errorf("%s: an engine's %s: %s", way, name, v)
			}
		}
	}
	b.until("no request is open", func() bool { return b.open() == 0 })
}

// TestLocalRequestsWaitTheirTurn: a request waits for its permit without holding up its gateway, and leaves the queue
// with its client.
func TestLocalRequestsWaitTheirTurn(t *testing.T) {
	b := start(t)
	b.load("fake")
	permits := fairqueue.New(1)
	b.engines.fakes[0].permits = permits
	b.engines.handle = func(c net.Conn, _ *http.Request) { _, _ = io.WriteString(c, sized("application/json", "{}")) }
	if !permits.TryAcquire("somebody") {
		t.Fatal("no permit")
	}
	var link, gone relay.Canceler
	turn, left := b.server.Admit("g", &link, near("POST", chat, "fake", "{}")), b.server.Admit("g", &gone, near("POST", chat, "fake", "{}"))
	for range 2 {
		if turn.Wait(time.Now().Add(time.Millisecond)) || left.Wait(time.Now().Add(time.Millisecond)) {
			t.Fatal("a turn came without a permit")
		}
	}
	gone.Cancel(nil)
	if !left.Wait(time.Now().Add(time.Minute)) {
		t.Fatal("a request that was canceled still waits")
	}
	if _, err := left.Start(); !errors.Is(err, relay.ErrClientGone) {
		t.Errorf("a canceled request: %v", err)
	}
	dropped := b.server.Admit("g", &gone, near("POST", chat, "fake", "{}")) // canceled before
	dropped.Drop()
	var other relay.Canceler
	dropped = b.server.Admit("g", &other, near("POST", chat, "fake", "{}"))
	if dropped.Wait(time.Now().Add(time.Millisecond)) {
		t.Fatal("a turn came without a permit")
	}
	dropped.Drop()
	permits.Release("somebody")
	if !turn.Wait(time.Now().Add(time.Minute)) {
		t.Fatal("no turn")
	}
	resp, err := turn.Start()
	b.must(err)
	if a := b.read(resp); a.status != 200 || a.body != "{}" {
		t.Errorf("%+v", a)
	}
	if !permits.TryAcquire("somebody") {
		t.Error("a permit was lost")
	}
	b.until("no request is open", func() bool { return b.open() == 0 })
}

// A client that disconnects before the header of the response is no longer counted in the encoder cache.
func TestCanceledLocalRequestLeavesTheEncoderCache(t *testing.T) {
	b := start(t)
	b.load("fake")
	media := &mmcache.Attachment{}
	b.engines.fakes[0].media = media
	came := make(chan struct{})
	b.engines.handle = func(c net.Conn, _ *http.Request) {
		close(came)
		_, _ = io.Copy(io.Discard, c)
	}
	var link relay.Canceler
	turn := b.server.Admit("g", &link, near("POST", chat, "fake", `{"messages":[{"type":"image_url"}]}`))
	turn.Wait(time.Time{})
	resp, err := turn.Start()
	b.must(err)
	<-came
	if err := resp.Await(time.Now().Add(time.Millisecond)); !errors.Is(err, relay.ErrPending) {
		t.Fatal(err)
	}
	link.Cancel(nil)
	_ = resp.Close()
	b.until("no request is open", func() bool { return b.open() == 0 })
	next := media.Begin("", true)
	if _, _, exact := next.End(); !exact {
		t.Error("the request of a client that left is still counted")
	}
}

// A panic while a request waits for its turn becomes a response, wherever it waits.
func TestPanicWhileWaitingGetsAResponse(t *testing.T) {
	for name, until := range map[string]func() time.Time{"without limit": func() time.Time { return time.Time{} }, "in the background": func() time.Time { return time.Now().Add(time.Minute) }} {
		t.Run(name, func(t *testing.T) {
			b := start(t)
			b.load("fake")
			table := engineslots.New(1, func(context.Context, int) error { panic("erase") })
			if slot, err := table.Acquire(t.Context(), engineslots.TenantOf("another"), engineslots.Prompt{}, false); err == nil {
				table.Release(slot)
			}
			b.engines.fakes[0].slots = table
			var link relay.Canceler
			turn := b.server.Admit("g", &link, near("POST", chat, "fake", `{"prompt":"x"}`))
			for !turn.Wait(until()) {
			}
			resp, err := turn.Start()
			b.must(err)
			if a := b.read(resp); a.status != 500 || !strings.Contains(a.body, `"internal_error"`) {
				t.Errorf("%+v", a)
			}
			b.until("no request is open", func() bool { return b.open() == 0 })
		})
	}
}
