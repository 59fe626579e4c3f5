package httpapi

import (
	"bytes"
	"context"
	"strconv"
	"strings"

	"reveille/infra/jsonscan"
	"reveille/infra/rpc"
	"reveille/runner/conversations"
	"reveille/runner/engineslots"
)

// slotTable returns the engine's slots if the request needs one of them and the runner chooses it, else nil.
func (a *activeRequest) slotTable() *engineslots.Table {
	if a.computes() && !needsNoSlot(a.path) {
		return a.ref.Engine.Features().Slots
	}
	return nil
}

// acquireSlot waits for the slot of the request's conversation, or one that holds no conversation of another key if the
// model isolates keys, makes the engine use it, and prepares it, for at most Config.FirstByte. It returns a reply if the
// request gets none.
func (a *activeRequest) acquireSlot() *reply {
	a.engineBody = a.body
	table := a.slotTable()
	if table == nil {
		return nil
	}
	turn := conversations.NewTurn(a.path, a.body)
	var tenant engineslots.Tenant
	if table.Isolates() {
		tenant = engineslots.TenantOf(string(a.field(rpc.HeaderCacheTenant)))
	}
	follows := acceptsSlot(a.path, a.body) && (table.Isolates() || !hasPrompts(a.body))
	engineChooses := !follows && (table.Isolates() || !turn.IsSteerable())
	ctx, done := a.startWaiting()
	defer done()
	slot, err := table.Acquire(ctx, tenant, turn.Prompt(), engineChooses)
	if err != nil {
		return a.completeUnsent(err)
	}
	a.releaseSlot = func() { table.Release(slot) }
	if follows {
		if a.engineBody, err = jsonscan.Set(a.body, "id_slot", strconv.AppendInt(nil, int64(slot), 10)); err != nil {
			return a.completeUnsent(err)
		}
	}
	if a.turn = a.ref.Engine.Features().Conversations.Begin(turn, tenant, slot); a.turn != nil {
		ctx, stop := context.WithTimeout(ctx, a.s.cfg.FirstByte)
		defer stop()
		a.turn.Prepare(ctx)
	}
	return nil
}

// hasPrompts reports whether a request is for several prompts, which the engine computes in parallel in slots of its choice.
func hasPrompts(body []byte) bool {
	var v [1]jsonscan.Value
	if jsonscan.Scan(body, []string{"prompt"}, v[:]) != nil || !v[0].Set() || v[0].Raw[0] != '[' {
		return false
	}
	first := bytes.TrimLeft(v[0].Raw[1:], " \t\r\n")
	return len(first) > 0 && (first[0] == '"' || first[0] == '[')
}

// needsNoSlot reports whether a POST to the path computes nothing in a slot.
func needsNoSlot(path string) bool {
	switch strings.TrimPrefix(path, "/v1") {
	case "/tokenize", "/detokenize", "/apply-template", "/messages/count_tokens", "/chat/completions/input_tokens", "/responses/input_tokens":
		return true
	}
	return false
}

// acceptsSlot reports whether llama-server follows id_slot in a request. It does not on Anthropic's route, nor for the
// copies of a request for several choices.
func acceptsSlot(path string, body []byte) bool {
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
