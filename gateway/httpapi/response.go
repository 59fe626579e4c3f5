package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/completion"
	"reveille/gateway/embedding"
	"reveille/gateway/web"
	"reveille/infra/jsonscan"
	"reveille/infra/relay"
	"reveille/infra/rpc"
)

// deliverResponse sets the runner's response on the client's response.
func (x *exchange) deliverResponse() error {
	resp, h := x.resp, &x.call.Ctx.Response.Header
	if x.upgrade {
		return x.deliverWebSocket()
	}
	if v := resp.Header(rpc.HeaderMedia); len(v) > 0 {
		h.SetBytesV(api.HeaderMediaCache, v)
	}
	if v := resp.Header(rpc.HeaderCache); len(v) > 0 {
		h.SetBytesV(api.HeaderCacheTokens, v)
	}
	switch {
	case x.translate != nil:
		return x.sendTranslated()
	case !x.raw && resp.Status() == fasthttp.StatusOK && resp.IsEvents():
		x.sendStream()
		return nil
	case x.translator != nil:
		return errNoStream()
	}
	b := &responseBody{x: x}
	size := resp.Size()
	if !x.raw && (x.embeddingCount > 0 || bytes.HasPrefix(resp.ContentType(), []byte("application/json"))) {
		held, ended, err := x.bufferResponse(maxBufferedJSON)
		if err == nil && ended {
			size, err = len(held), x.checkResponseBody(held)
		}
		if err != nil {
			return err
		}
		b.held = held
	}
	x.modelHeaders()
	x.call.CountResponse(resp.Status())
	x.call.Ctx.SetStatusCode(resp.Status())
	h.SetContentTypeBytes(resp.ContentType())
	if !x.raw && api.IsWebPage(resp.ContentType()) { // whisper-server's type of plain text
		h.SetContentType(web.TextPlain)
	}
	x.sendBody(b, size)
	return nil
}

// maxBufferedJSON bounds the JSON responses that are buffered until they end, so that a client gets an error and not a
// part if the engine dies. Longer ones are relayed from there on.
const maxBufferedJSON = 1 << 20

// bufferResponse reads the engine's response until it ends or is longer than limit. What it reads counts as held, like
// bodies, until the exchange ends, and is valid until the response is read again or closed.
func (x *exchange) bufferResponse(limit int) (body []byte, ended bool, err error) {
	for len(body) <= limit {
		p, err := x.resp.Next(time.Time{})
		if err == io.EOF {
			return body, true, nil
		} else if err != nil {
			return nil, false, err
		}
		if err := x.call.memory.Reserve(len(p)); err != nil {
			return nil, false, x.call.bodyError(err)
		}
		x.bufferedBytes += len(p)
		if len(body) == 0 && len(p) == x.resp.Size() { // the relay's buffer has it all, until the response is read again
			return p, true, nil
		}
		body = append(body, p...)
	}
	return body, false, nil
}

// checkResponseBody checks a response in one piece whose status is a success.
func (x *exchange) checkResponseBody(body []byte) error {
	if completion.IsError(body) {
		return api.NormalizeError(fasthttp.StatusBadGateway, body, x.routing.endpoint.Host)
	}
	if x.embeddingCount > 0 && !embedding.Valid(body, x.embeddingCount) {
		return api.InvalidEngineResponse().WithCause(errors.New("not an embedding for each input"))
	}
	return nil
}

func errNoStream() error {
	return api.New(api.BadEngineReply, "The engine's response is not a stream.")
}

// maxTranslated bounds responses that are rewritten instead of relayed.
const maxTranslated = 256 << 20

// sendTranslated responds with the translation of the engine's response.
func (x *exchange) sendTranslated() error {
	engine, ended, err := x.bufferResponse(maxTranslated)
	if err != nil {
		return err
	} else if !ended {
		return relay.ErrTooLarge
	}
	engine = jsonscan.TrimMark(engine)
	if err := x.checkResponseBody(engine); err != nil {
		return err
	}
	body, err := x.translate(engine)
	var eventErr *relay.EventError
	switch {
	case errors.As(err, &eventErr):
		return api.NormalizeError(fasthttp.StatusBadGateway, eventErr.Data, x.routing.endpoint.Host)
	case errors.Is(err, completion.ErrInvalidResponse):
		return api.InvalidEngineResponse().WithCause(err)
	case err != nil:
		return err
	}
	if body, err = jsonscan.Marshal(json.RawMessage(body)); err != nil {
		return err
	}
	if err := x.call.memory.Reserve(len(body) - x.bufferedBytes); err != nil {
		return x.call.bodyError(err)
	}
	x.bufferedBytes = 0
	x.responded = true
	x.recorder.record(engine)
	x.modelHeaders()
	x.call.Send(fasthttp.StatusOK, api.ContentType, nil)
	x.call.Ctx.Response.SetBodyStream(&translatedBody{*bytes.NewReader(body), x.call.memory}, len(body))
	return nil
}

// translatedBody is a translated response. It counts as held until it is written.
type translatedBody struct {
	bytes.Reader
	memory memory
}

// SupportsBodyWriteTo makes fasthttp use WriteTo instead of Read.
func (b *translatedBody) SupportsBodyWriteTo() bool { return true }

// Close ends the count.
func (b *translatedBody) Close() error {
	b.memory.Release(int(b.Size()))
	return nil
}

// sendStream commits: it sends status 200 and the headers of an event stream. Its body is the runner's response, or the
// rest of the wait for it.
func (x *exchange) sendStream() {
	x.modelHeaders()
	x.call.CountResponse(fasthttp.StatusOK)
	x.call.Ctx.SetStatusCode(fasthttp.StatusOK)
	x.call.Ctx.SetContentType(x.call.Match.Dialect.StreamType())
	x.call.setHeaders(streamHeaders)
	x.call.keepBody = true // until the first event, because the request can be repeated before it
	x.sendBody(&responseBody{x: x, events: true, streaming: x.resp != nil && x.resp.Status() > 0}, -1)
}

// sendBody makes b the body of the client's response. If its first bytes are still to come, the head is sent
// immediately.
func (x *exchange) sendBody(b *responseBody, size int) {
	x.responded, x.endsWithResponse = true, true
	x.call.observed.setEndsWithResponse()
	x.call.Ctx.Response.SetBodyStream(b, size)
	x.call.Ctx.Response.ImmediateHeaderFlush = size < 0 && len(b.held) == 0 && (!b.events || b.streaming) && x.resp.Buffered() == 0
}

// responseBody is the body of the client's response. fasthttp's goroutine for the connection writes it, and closes it,
// which finishes the exchange. A stream of events has comments while its model loads, pings while the engine is silent,
// and an error event if it breaks off.
type responseBody struct {
	x              *exchange
	held           []byte       // its beginning, already read
	events         bool         // it is a stream of events
	streaming      bool         // the runner has responded with a stream
	engineEvents   relay.Events // of the engine
	hasObject      bool         // there was an object in an event
	firstEvent     []byte       // the beginning of the stream's first event, until it has an object
	nextPing       time.Time    // the next comment or ping; zero for a ping until the stream waits
	errorEventData []byte       // the beginning of an event with an error
	readErr        error        // returned once all bytes are read
	err            error        // why the exchange failed

	translatorEnded bool   // the translator has ended
	scratch         []byte // for comments and error events
	out             []byte // for translations
}

// next returns the next bytes as the engine writes them, valid until the following call, or the error that ends the
// body: io.EOF at its proper end.
func (b *responseBody) next() (p []byte, err error) {
	for b.readErr == nil {
		switch {
		case len(b.held) > 0:
			p, b.held = b.held, nil
			b.recordBytes(p)
		case !b.events:
			if p, err = b.x.resp.Next(time.Time{}); err != nil {
				b.readErr = err
			}
			b.recordBytes(p)
		case b.streaming:
			p, err = b.nextEvents()
		default:
			p, err = b.awaitResponse()
		}
		if err != nil && b.events {
			p = b.retryOrBreak(err)
		}
		if len(p) > 0 {
			return p, nil
		}
	}
	if b.readErr != io.EOF && b.err == nil {
		b.err = b.readErr
	}
	return nil, b.readErr
}

// awaitResponse waits for the runner's response until the next comment is due, or returns the comment.
func (b *responseBody) awaitResponse() ([]byte, error) {
	if now := time.Now(); !now.Before(b.nextPing) {
		b.nextPing = now.Add(b.x.call.s.cfg.Keepalive)
		b.scratch = b.x.appendProgress(b.scratch[:0])
		return b.scratch, nil
	}
	err := b.x.attemptUntilResponse(b.nextPing)
	switch {
	case err == relay.ErrPending:
		return nil, nil
	case err == nil && !b.x.resp.IsEvents():
		err = errNoStream()
	}
	b.streaming, b.nextPing = err == nil, time.Time{}
	if x := b.x; err == nil && x.routing.endpoint.Host != x.routing.host { // the head, which is sent, names another
		x.routing.host = x.routing.endpoint.Host
		answers := api.LoadingProgress{Model: x.call.model.ID, Stage: "loaded", Host: x.routing.host, Waited: time.Since(x.call.Began)}
		b.scratch = answers.AppendComment(b.scratch[:0])
		return b.scratch, nil
	}
	return nil, err
}

// nextEvents returns what the engine writes, or a ping. An event with an error ends the stream.
func (b *responseBody) nextEvents() ([]byte, error) {
	resp := b.x.resp
	if b.errorEventData != nil {
		return nil, b.readErrorEvent()
	}
	if b.nextPing.IsZero() && resp.Buffered() == 0 {
		b.nextPing = time.Now().Add(b.x.call.s.cfg.Keepalive)
	}
	p, err := resp.Next(b.nextPing)
	switch {
	case err == relay.ErrPending && b.engineEvents.Boundary():
		b.nextPing = time.Time{}
		return b.ping(), nil
	case err == relay.ErrPending:
		b.nextPing = time.Time{}
		return nil, nil
	case err != nil:
		return nil, err
	}
	b.nextPing = time.Time{}
	if !b.hasObject { // the response starts with the first object
		b.firstEvent = append(b.firstEvent, p...)
		switch i := bytes.LastIndex(b.firstEvent, eventEnd); {
		case bytes.IndexByte(b.firstEvent, '{') >= 0:
			b.hasObject, p, b.firstEvent = true, b.firstEvent, nil
		case i >= 0:
			b.firstEvent = b.firstEvent[i+len(eventEnd):]
			return nil, nil
		case len(b.firstEvent) > relay.MaxLine:
			return nil, relay.ErrTooLarge
		default:
			return nil, nil
		}
	}
	if i := b.errorAt(p); i >= 0 {
		b.errorEventData, p = bytes.Clone(p[i:]), p[:i]
	}
	b.recordBytes(p)
	return p, b.engineEvents.Feed(p)
}

// recordBytes records bytes of the engine's response.
func (b *responseBody) recordBytes(p []byte) {
	if len(p) > 0 && b.x.recorder.record(p) {
		b.x.releaseBody() // the request cannot be sent again
	}
}

// appendProgress reports the progress of the load to a waiting client.
func (x *exchange) appendProgress(dst []byte) []byte {
	w := x.routing.waiter.Load()
	if w == nil { // loaded: the engine is computing
		return append(dst, api.Ping...)
	}
	progress := w.Progress()
	progress.Waited = time.Since(x.call.Began)
	if x.call.s.cfg.LoadingReasoning && x.call.Match.Route.Name == "chat" && x.translator == nil && progress.Stage != x.routing.shown {
		x.routing.shown = progress.Stage
		return progress.AppendReasoning(dst, x.call.ID)
	}
	return progress.AppendComment(dst)
}

// ping returns the dialect's ping, or a comment before the first event.
func (b *responseBody) ping() []byte {
	if p := b.x.call.Match.Dialect.Ping(); p != nil && b.engineEvents.Started() {
		return p
	}
	return append(b.scratch[:0], api.Ping...)
}

var eventEnd = []byte("\n\n")

// errorAt returns where an event with an error starts in p, or a negative number if none does. Engines write whole
// events, so it finds one that starts in p and ends in later bytes, but not one whose first line is split.
func (b *responseBody) errorAt(p []byte) int {
	if !completion.MayHaveError(p) {
		return -1
	}
	at := 0
	for line := range bytes.SplitAfterSeq(p, []byte("\n")) {
		if (at > 0 || b.engineEvents.Boundary()) && beginsError(line) {
			return at
		}
		at += len(line)
	}
	return -1
}

// beginsError reports whether an event with an error begins with a line, which may be incomplete.
func beginsError(line []byte) bool {
	name, data, _ := bytes.Cut(line, []byte(":"))
	data = bytes.TrimSpace(data)
	switch string(name) {
	case "event":
		return string(data) == "error"
	case "error":
		return true
	case "data":
		value, ok := bytes.CutPrefix(data, []byte(`{"error":`))
		return completion.IsError(data) || ok && !bytes.HasPrefix(value, []byte("null")) && !json.Valid(data)
	}
	return false
}

const (
	maxErrorEvent  = 64 << 10        // maximum bytes read of an event with an error
	errorEventWait = 5 * time.Second // timeout for its end
)

// readErrorEvent reads an event with an error to its end and returns it as an error.
func (b *responseBody) readErrorEvent() error {
	until := time.Now().Add(errorEventWait)
	for len(b.errorEventData) < maxErrorEvent && !bytes.Contains(b.errorEventData, eventEnd) {
		p, err := b.x.resp.Next(until)
		if err != nil {
			break
		}
		b.errorEventData = append(b.errorEventData, p...)
	}
	data, _, _ := bytes.Cut(b.errorEventData, eventEnd)
	if bytes.HasPrefix(data, []byte("event:")) {
		_, data, _ = bytes.Cut(data, []byte("\n"))
	}
	_, data, _ = bytes.Cut(data, []byte(":"))
	return &relay.EventError{Data: bytes.TrimSpace(data)}
}

// retryOrBreak ends a stream with err, or makes another attempt. It returns the last bytes for the client, if any. A
// stream whose last event has come is complete, whatever follows.
func (b *responseBody) retryOrBreak(err error) []byte {
	if b.hasObject && (err == io.EOF || b.x.recorder.sawLastEvent()) {
		b.readErr = io.EOF
		return nil
	} else if err == io.EOF {
		err = api.InvalidEngineResponse().WithCause(errors.New("a stream without an event"))
	}
	if b.streaming && !b.engineEvents.Started() && b.x.shouldRepeat(err) {
		b.x.closeResponse()
		b.streaming, b.errorEventData, b.nextPing = false, nil, time.Time{}
		return nil
	}
	b.readErr, b.err = err, err
	if clientGone(err) {
		return nil
	}
	b.readErr = io.EOF
	b.scratch = append(b.engineEvents.AppendBoundary(b.scratch[:0]), b.x.breakEvent(err)...)
	return b.scratch
}

// breakEvent returns the error event that ends a broken stream.
func (x *exchange) breakEvent(err error) []byte {
	x.call.s.m.streamErrors.Inc()
	e := x.call.hideModels(x.asError(err))
	if errors.Is(e, api.EngineCrashed) {
		x.recordCrash()
	}
	return x.call.Match.Dialect.StreamError(e, x.call.ID)
}

// nextTranslated is next, in the client's dialect.
func (b *responseBody) nextTranslated() ([]byte, error) {
	for {
		p, err := b.next()
		to := b.x.translator
		switch {
		case to == nil, b.translatorEnded, err != nil && err != io.EOF:
			return p, err
		case err == nil:
			b.out = to.Append(b.out[:0], p)
		default:
			b.out, b.translatorEnded = to.End(b.out[:0]), true
		}
		if len(b.out) > 0 {
			return b.out, nil
		}
	}
}

// SupportsBodyWriteTo makes fasthttp use WriteTo instead of Read.
func (b *responseBody) SupportsBodyWriteTo() bool { return true }

// WriteTo writes all available bytes at a time, and holds none back while it waits.
func (b *responseBody) WriteTo(w io.Writer) (total int64, err error) {
	defer b.recoverPanic(&err)
	f, buffered := w.(interface{ Flush() error })
	for {
		if buffered && total > 0 && b.x.resp != nil && b.x.resp.Buffered() == 0 {
			if err := f.Flush(); err != nil {
				return total, b.setClientGone(err)
			}
		}
		p, err := b.nextTranslated()
		if err == io.EOF {
			return total, nil
		} else if err != nil {
			return total, err
		}
		n, err := w.Write(p)
		if total += int64(n); err != nil {
			return total, b.setClientGone(err)
		}
	}
}

func (b *responseBody) setClientGone(err error) error {
	b.err = fmt.Errorf("%w: %w", relay.ErrClientGone, err)
	return b.err
}

// Read is not called: fasthttp uses WriteTo.
func (b *responseBody) Read([]byte) (int, error) { return 0, errors.ErrUnsupported }

// Close completes the exchange.
func (b *responseBody) Close() (err error) {
	defer b.recoverPanic(&err)
	if resp := b.x.resp; b.err == nil && b.readErr == nil && (resp == nil || resp.Outcome() != nil) { // not read to its end
		b.err = &relay.Error{Kind: relay.ErrCanceled, Cause: relay.ErrClientGone}
	}
	b.x.completeRequest(b.err)
	return nil
}

// recoverPanic ends the body after a panic, which cuts the connection to the client. Close completes the exchange.
func (b *responseBody) recoverPanic(err *error) {
	if v := recover(); v != nil {
		*err = fmt.Errorf("panic in a response: %v", v)
		b.err, b.readErr = *err, *err
		b.x.call.s.panicked("response of "+b.x.call.ID, v)
	}
}
