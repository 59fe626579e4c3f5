package httpapi

import (
	"encoding/json"
	"errors"
	"io"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/completion"
	"reveille/infra/relay"
)

// maxBuffered bounds answers that are rewritten instead of relayed.
const maxBuffered = 256 << 20

// sendTranslated answers with the translation of the engine's answer.
func (x *exchange) sendTranslated(resp *relay.Response, translate func(engine []byte) ([]byte, error)) error {
	engine, err := resp.AppendBody(nil, maxBuffered)
	if err != nil {
		return err
	}
	answer, err := translate(engine)
	switch {
	case errors.Is(err, completion.ErrAnswer):
		return api.NotUnderstood().WithCause(err)
	case err != nil:
		return err
	}
	x.tap = &x.tapped
	x.tap.keep(engine) // for the statistics
	x.modelHeaders()
	return x.Reply(fasthttp.StatusOK, json.RawMessage(answer))
}

// translator turns an engine's events into a client's, such as a completion.Stream. Both methods append to dst.
type translator interface {
	Append(dst, events []byte) []byte
	End(dst []byte) []byte // after the last event
}

// translation is the body of a stream translated into another dialect.
type translation struct {
	*tap
	to   translator
	w    io.Writer // of WriteTo
	buf  []byte
	rest []byte // of buf, not yet read
	over bool
}

// Read returns the translation.
func (t *translation) Read(p []byte) (int, error) {
	var events [4 << 10]byte
	for len(t.rest) == 0 {
		if t.over {
			return 0, io.EOF
		}
		n, err := t.tap.Read(events[:])
		t.buf = t.to.Append(t.buf[:0], events[:n])
		if err == io.EOF {
			t.buf, t.over = t.to.End(t.buf), true
		} else if err != nil {
			return 0, err
		}
		t.rest = t.buf
	}
	n := copy(p, t.rest)
	t.rest = t.rest[n:]
	return n, nil
}

// WriteTo writes the translation as it is made.
func (t *translation) WriteTo(w io.Writer) (int64, error) {
	t.w = w
	n, err := t.tap.WriteTo(progressWriter{t})
	if err != nil {
		return n, err
	}
	if t.buf = t.to.End(t.buf[:0]); len(t.buf) > 0 {
		_, err = w.Write(t.buf)
	}
	return n, err
}

// progressWriter receives events and writes the translation.
type progressWriter struct{ t *translation }

func (l progressWriter) Write(events []byte) (int, error) {
	t := l.t
	if t.buf = t.to.Append(t.buf[:0], events); len(t.buf) > 0 {
		if _, err := t.w.Write(t.buf); err != nil {
			return 0, err
		}
	}
	return len(events), nil
}

// Flush flushes the client's connection, as a relayed response asks before it waits.
func (l progressWriter) Flush() error { return teeTail{w: l.t.w}.Flush() }
