package httpapi

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/infra/logring"
	"reveille/infra/relay"
	"reveille/infra/rpc"
)

// sendJSON returns v as JSON.
func (s *Server) sendJSON(ctx *fasthttp.RequestCtx, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		s.fail(ctx, fasthttp.StatusInternalServerError, rpc.CodeInternalError, "The host's state could not be encoded.")
		return
	}
	ctx.SetContentType("application/json")
	ctx.SetBody(body)
}

// handleConversations lists the saved conversations of this host by model. With DELETE it forgets those of the model in
// the query, or all.
func (s *Server) handleConversations(ctx *fasthttp.RequestCtx) {
	var result any = s.cfg.Conversations.Kept()
	if ctx.IsDelete() {
		model := string(ctx.QueryArgs().Peek("model"))
		at, err := strconv.ParseUint(string(ctx.QueryArgs().Peek("at")), 10, 64)
		if err != nil || at > uint64(time.Now().Add(24*time.Hour).UnixMicro()) {
			s.fail(ctx, fasthttp.StatusBadRequest, rpc.CodeInvalidRequest, "The query must have 'at', a time in microseconds.")
			return
		}
		loaded := s.cfg.Host.ForgetConversations(model, at)
		saved := s.cfg.Conversations.Forget(model, at)
		out := rpc.Forgotten{Copies: loaded.Copies, Requests: loaded.Open}
		if saved != nil {
			out.Partly = saved.Wait() != nil
			out.Conversations = saved.Conversations
		}
		result = out
	}
	s.sendJSON(ctx, result)
}

// handleSendBack sends requests that wait for their turn at an engine back to their gateways.
func (s *Server) handleSendBack(ctx *fasthttp.RequestCtx) {
	n, err := ctx.QueryArgs().GetUint("n")
	if !ctx.IsPost() || err != nil {
		s.fail(ctx, fasthttp.StatusBadRequest, rpc.CodeInvalidRequest, "Use POST, with 'model' and the number 'n' in the query.")
		return
	}
	if e := s.cfg.Host.EngineOf(string(ctx.QueryArgs().Peek("model"))); e != nil && e.Features().Permits != nil {
		e.Features().Permits.SendBack(n)
	}
}

// logged is an engine that keeps its output.
type logged interface{ Log() *logring.Ring }

// handleEngineLog returns the output of a model's engine, or of its last one if the model is not loaded.
func (s *Server) handleEngineLog(ctx *fasthttp.RequestCtx, model string) {
	log := s.cfg.EngineLog(model)
	if e, ok := s.cfg.Host.EngineOf(model).(logged); ok {
		log = e.Log()
	}
	if log == nil {
		s.fail(ctx, fasthttp.StatusNotFound, rpc.CodeModelNotLoaded, "The model is not loaded here.")
		return
	}
	s.sendLog(ctx, log)
}

// sendLog returns a log as text. With ?follow=1 new lines follow until the log is closed or the client disconnects.
func (s *Server) sendLog(ctx *fasthttp.RequestCtx, log *logring.Ring) {
	past, next, cancel := log.Subscribe(-1)
	ctx.SetContentType("text/plain; charset=utf-8")
	if !ctx.QueryArgs().GetBool("follow") {
		cancel()
		for _, l := range past {
			fmt.Fprintln(ctx, l.Text)
		}
		return
	}
	if ctx.QueryArgs().GetBool("no-history") {
		past = nil
	}
	f := &follower{next: next, cancel: cancel, gone: make(chan struct{})}
	for _, l := range past {
		f.add(l)
	}
	f.watch = s.watcher.Arm(ctx.Conn(), func() { close(f.gone) })
	ctx.SetBodyStream(f, -1)
	ctx.Response.ImmediateHeaderFlush = len(past) == 0
}

// follower is the body of a response that follows a log until the log is closed or the client disconnects.
type follower struct {
	next   <-chan logring.Line
	cancel func()
	watch  *relay.Watch
	gone   chan struct{} // closed when the client has disconnected
	buf    []byte
}

func (f *follower) add(l logring.Line) { f.buf = append(append(f.buf, l.Text...), '\n') }

// Read waits for lines and returns all available ones.
func (f *follower) Read(p []byte) (int, error) {
	for len(f.buf) == 0 {
		select {
		case l, open := <-f.next:
			if !open {
				return 0, io.EOF
			}
			f.add(l)
		case <-f.gone:
			return 0, relay.ErrClientGone
		}
	}
	n := copy(p, f.buf)
	f.buf = f.buf[n:]
	return n, nil
}

// Close ends the subscription. fasthttp calls it once, however the response ended.
func (f *follower) Close() error {
	f.watch.Stop()
	f.cancel()
	return nil
}
