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
	follows := acceptsSlot(a.path, a.body, table.Isolates())
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
		a.turn.PrepareSlot(ctx)
	}
	return nil
}

// needsNoSlot reports whether a POST to the path computes nothing in a slot.
func needsNoSlot(path string) bool {
	switch strings.TrimPrefix(path, "/v1") {
	case "/tokenize", "/detokenize", "/apply-template", "/messages/count_tokens", "/chat/completions/input_tokens", "/responses/input_tokens":
		return true
	}
	return false
}

// acceptsSlot reports whether a request gets an id_slot. llama-server does not follow it on Anthropic's route, nor for the
// copies of a request for several choices. Several prompts would be computed one after the other in it, so they get one
// only if the table isolates keys.
func acceptsSlot(path string, body []byte, isolates bool) bool {
	switch strings.TrimPrefix(path, "/v1") {
	case "/chat/completions", "/completions", "/completion", "/infill", "/responses":
	default:
		return false
	}
	var v [4]jsonscan.Value
	if jsonscan.Scan(body, []string{"n", "n_cmpl", "best_of", "prompt"}, v[:]) != nil {
		return false
	}
	for _, v := range v[:3] {
		if v.Set() && string(v.Raw) != "1" {
			return false
		}
	}
	list, isList := bytes.CutPrefix(v[3].Raw, []byte("["))
	list = bytes.TrimLeft(list, " \t\r\n")
	return isolates || !isList || len(list) == 0 || list[0] != '"' && list[0] != '['
}
