package httpapi

import (
	"errors"
	"time"

	"reveille/gateway/api"
	"reveille/infra/relay"
)

// newStream makes the stream that carries the rest of the exchange: over the answer if there is one, otherwise over the
// rest of the wait, with comments for the client.
func (x *exchange) newStream(resp *relay.Response) *relay.Stream {
	return relay.NewStream(relay.StreamConfig{
		Response: resp,
		Ready:    x.awaitTurn,
		Open:     x.send,
		Check:    x.checkStreamResponse,
		Repeat:   x.shouldRepeat,
		Loading:  x.comment,
		Every:    x.s.cfg.Keepalive, Keepalive: x.s.cfg.Keepalive, Ping: x.Match.Dialect.Ping(),
		Errors:  true,
		OnBreak: x.breakEvent,
		OnEnd:   x.finish,
	})
}

// checkStreamResponse is checkResponse for a request whose stream is committed: the answer must now be a stream.
func (x *exchange) checkStreamResponse(resp *relay.Response) error {
	if err := x.checkResponse(resp); err != nil {
		return err
	}
	if !resp.IsEvents() {
		return errNoStream()
	}
	return nil
}

func errNoStream() error {
	return api.New(api.BadEngineReply, "The model answered with something other than a stream.")
}

// sendStream commits: it sends status 200 and the headers of an event stream, then the stream's content.
func (x *exchange) sendStream(st *relay.Stream) {
	x.modelHeaders()
	x.Answered(200)
	x.s.dir.Uses.Stream(x.model.ID, 1)
	x.open = true
	x.Ctx.SetStatusCode(200)
	x.Ctx.SetContentType(x.Match.Dialect.StreamType())
	x.setHeaders(streamHeaders)
	x.keepBody = true // until the first event, because the request may be repeated before it
	x.sendBody(st, -1)
}

// comment reports the progress of the load to a waiting client.
func (x *exchange) comment(dst []byte) []byte {
	w := x.waiter.Load()
	if w == nil { // loaded: the engine is computing
		return append(dst, api.Ping...)
	}
	st := w.Progress()
	return api.LoadingComment{
		Model: x.model.ID, State: st.Stage, Host: st.Host, Waited: time.Since(x.Began), Position: st.Position, ETA: st.ETA,
		BytesDone: st.BytesDone, BytesTotal: st.BytesTotal,
	}.Append(dst)
}

// breakEvent returns the error event that ends a broken stream.
func (x *exchange) breakEvent(err error) []byte {
	if clientGone(err) {
		return nil
	}
	x.s.m.streamErrors.Inc()
	e := x.asError(err)
	if errors.Is(e, api.EngineCrashed) {
		x.recordCrash()
	}
	return x.Match.Dialect.StreamError(e, x.ID)
}
