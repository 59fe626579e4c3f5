package httpapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"reveille/infra/rpc"
	"reveille/runner/fairqueue"
	"reveille/runner/httpapi"
)

// longText is a body that is passed on while it arrives.
func longText() []byte {
	b := make([]byte, 1<<20+12345)
	rand.NewChaCha8([32]byte{7}).Read(b) // never fails
	return b
}

// upload begins a request for the model fake with a body of size bytes, which the caller writes.
func (b *bench) upload(ctx context.Context, size int) (*io.PipeWriter, <-chan answer) {
	req := b.request(ctx, "POST", chat, "fake", "")
	from, to := io.Pipe()
	req.Body, req.ContentLength = from, int64(size)
	req.Header.Set(rpc.HeaderAuth, b.signer.Sign(rpc.Call{Method: "POST", Path: chat, Host: "h", Model: "fake", Length: size}))
	got := make(chan answer, 1)
	go func() {
		resp, err := b.client.Do(req)
		_ = from.CloseWithError(errors.New("the request is over"))
		if err != nil {
			got <- answer{err: err}
			return
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		got <- answer{resp.StatusCode, resp.Header, string(body), err}
	}()
	return to, got
}

// TestLongBodyIsPassedOn: an engine has the first half of a long body before the gateway has sent the second.
func TestLongBodyIsPassedOn(t *testing.T) {
	b := start(t)
	b.load("fake")
	text := longText()
	half := make(chan struct{}, 1)
	var got bytes.Buffer
	b.engines.body = func(r io.Reader) error {
		got.Reset()
		_, err := io.CopyN(&got, r, int64(len(text)/4))
		half <- struct{}{}
		_, more := io.Copy(&got, r)
		return errors.Join(err, more)
	}
	b.engines.handle = func(c net.Conn, _ *http.Request) {
		_, _ = io.WriteString(c, sized("application/json", fmt.Sprint(bytes.Equal(got.Bytes(), text))))
	}
	for range 3 {
		to, answered := b.upload(t.Context(), len(text))
		if _, err := to.Write(text[:len(text)/2]); err != nil {
			t.Fatal(err)
		}
		select {
		case <-half:
		case <-time.After(20 * time.Second):
			t.Fatal("the engine has nothing of a body of which half has come")
		}
		if _, err := to.Write(text[len(text)/2:]); err != nil {
			t.Fatal(err)
		}
		_ = to.Close()
		if a := <-answered; a.status != 200 || a.body != "true" || a.err != nil {
			t.Fatalf("%+v", a)
		}
	}
	b.until("no request is open", func() bool { return b.open() == 0 })
}

// TestLongBodyWaits: a body whose turn has not come is read, so that its gateway is not held up.
func TestLongBodyWaits(t *testing.T) {
	b := start(t)
	b.load("fake")
	b.engines.fakes[0].permits = fairqueue.New(1)
	text, began, next := longText(), make(chan struct{}, 2), make(chan struct{})
	b.engines.handle = func(c net.Conn, _ *http.Request) {
		began <- struct{}{}
		<-next
		_, _ = io.WriteString(c, sized("application/json", "{}"))
	}
	to, first := b.upload(t.Context(), len(text))
	_, err := to.Write(text)
	b.must(err)
	<-began
	to, second := b.upload(t.Context(), len(text))
	written := make(chan error, 1)
	go func() {
		_, err := to.Write(text)
		written <- err
	}()
	select {
	case err := <-written:
		b.must(err)
	case <-time.After(20 * time.Second):
		t.Fatal("the body is not read")
	}
	for _, answered := range []<-chan answer{first, second} {
		next <- struct{}{}
		if a := <-answered; a.status != 200 || a.body != "{}" {
			t.Fatalf("%+v", a)
		}
	}
}

// TestLongBodyEnds: however a long body breaks off, the engine gets no whole request, and the request counts no longer.
func TestLongBodyEnds(t *testing.T) {
	b := start(t, func(c *httpapi.Config) { c.Intake.ReadTimeout = 300 * time.Millisecond })
	b.load("fake")
	text := longText()
	arrived, ended := make(chan struct{}, 1), make(chan error, 1)
	var answer string // of the engine, in the middle of the body
	b.engines.body = func(r io.Reader) error {
		_, _ = io.CopyN(io.Discard, r, 1000)
		arrived <- struct{}{}
		if answer != "" {
			return nil
		}
		_, err := io.Copy(io.Discard, r)
		ended <- err
		return err
	}
	b.engines.handle = func(c net.Conn, _ *http.Request) {
		if answer == "" {
			t.Error("a body that broke off was whole")
		}
		_, _ = io.WriteString(c, answer)
	}
	broken := func(name string) {
		t.Helper()
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%s: the engine has a whole body", name)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: the engine still waits", name)
		}
		b.until(name+": no request is open", func() bool { return b.open() == 0 })
	}

	ctx, leave := context.WithCancel(t.Context())
	to, answered := b.upload(ctx, len(text))
	_, err := to.Write(text[:len(text)/2])
	b.must(err)
	<-arrived
	leave()
	_ = to.CloseWithError(context.Canceled) // its client waits for it
	<-answered
	broken("the gateway left")

	to, answered = b.upload(t.Context(), len(text))
	_, err = to.Write(text[:len(text)/2])
	b.must(err)
	<-arrived
	if a := <-answered; a.status != 408 || a.header.Get(rpc.HeaderCode) != rpc.CodeInvalidRequest {
		t.Errorf("slow: %+v", a)
	}
	_ = to.Close()
	broken("slow")

	answer = "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
	to, answered = b.upload(t.Context(), len(text))
	go func() {
		_, _ = to.Write(text)
		_ = to.Close()
	}()
	<-arrived
	if a := <-answered; a.err == nil && a.status != 400 && a.status != 502 { // a reset may overtake the answer
		t.Errorf("refused by the engine: %+v", a)
	}
	b.until("no request is open", func() bool { return b.open() == 0 })
}

// TestLongBodyIsRefused: what a runner refuses, no engine sees, and its gateway may send it elsewhere.
func TestLongBodyIsRefused(t *testing.T) {
	b := start(t, func(c *httpapi.Config) { c.Intake.MaxHeld = 100 << 10 })
	b.load("fake")
	b.engines.handle = func(net.Conn, *http.Request) { t.Error("reached an engine") }
	text := strings.Repeat("x", 1<<20)
	if a := b.call("POST", chat, "slow", text); a.status != rpc.StatusRefused || a.header.Get(rpc.HeaderRefused) != rpc.RefusedNotLoaded {
		t.Errorf("not loaded: %+v", a)
	}
	if a := b.call("POST", chat, "fake", text); a.status != 503 || a.header.Get(rpc.HeaderCode) != rpc.CodeOverloaded {
		t.Errorf("no buffer left: %+v", a)
	}
	b.until("no request is open", func() bool { return b.open() == 0 })
}
