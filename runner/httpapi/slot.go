package httpapi

import (
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/infra/jsonscan"
	"reveille/infra/rpc"
	"reveille/runner/slots"
)

// acquireSlot waits for a slot of the engine that holds no conversation of another key, if the model keeps them apart,
// and returns the body that tells the engine to use it. It returns false, after it answered the request, if there is none.
func (s *Server) acquireSlot(ctx *fasthttp.RequestCtx, x *exchange) (body []byte, ok bool) {
	body = ctx.PostBody()
	e, apart := x.pass.Engine.(interface{ Slots() *slots.Table })
	if !apart || e.Slots() == nil || reads(ctx) || slotless(string(ctx.Path())) {
		return body, true
	}
	steered := steerable(string(ctx.Path()), body)
	var prompt slots.Prompt
	if steered {
		prompt = slots.PromptOf(body)
	}
	s.m.waiting.Add(1)
	defer s.m.waiting.Add(-1)
	life, cancel := x.life()
	defer cancel(nil)
	limit := time.AfterFunc(LongAnswer*s.cfg.FirstByte, func() { cancel(errQueueTimeout) })
	defer limit.Stop()
	slot, err := e.Slots().Acquire(life, slots.OwnerOf(string(ctx.Request.Header.Peek(rpc.HeaderScope))), prompt, !steered)
	if err == nil {
		x.leave = func() { e.Slots().Release(slot) }
		if !steered {
			return body, true
		}
		if body, err = jsonscan.Set(body, "id_slot", strconv.AppendInt(nil, int64(slot), 10)); err == nil {
			return body, true
		}
	}
	s.unserved(ctx, x, err)
	return nil, false
}

// slotless reports whether an engine's path (POST) computes nothing in a slot.
func slotless(path string) bool {
	switch strings.TrimPrefix(path, "/v1") {
	case "/tokenize", "/detokenize", "/apply-template", "/messages/count_tokens", "/chat/completions/input_tokens", "/responses/input_tokens":
		return true
	}
	return false
}

// steerable reports whether llama-server heeds id_slot in a request: not on Anthropic's route, and not for the copies of a
// request for several answers.
func steerable(path string, body []byte) bool {
	switch strings.TrimPrefix(path, "/v1") {
	case "/chat/completions", "/completions", "/completion", "/infill", "/responses":
	default:
		return false
	}
	var v [3]jsonscan.Value
	if jsonscan.Scan(body, []string{"n", "n_cmpl", "best_of"}, v[:]) != nil {
		return false
	}
	for _, v := range v {
		if v.Set() && string(v.Raw) != "1" {
			return false
		}
	}
	return true
}
