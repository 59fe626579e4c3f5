package httpapi

import (
	"strconv"
	"strings"

	"reveille/infra/jsonscan"
	"reveille/infra/rpc"
	"reveille/runner/conversations"
	"reveille/runner/engineslots"
)

// slotTable returns the engine's slots if the request needs one of them, else nil.
func (a *activeRequest) slotTable() *engineslots.Table {
	if e, ok := a.ref.Engine.(interface{ Slots() *engineslots.Table }); ok && a.computes() && !needsNoSlot(a.path) {
		return e.Slots()
	}
	return nil
}

// acquireSlot waits for a slot that holds no conversation of another key, if the model isolates keys, and makes the
// engine use it. It returns a reply if the request gets none.
func (a *activeRequest) acquireSlot() *reply {
	a.engineBody = a.body
	table := a.slotTable()
	if table == nil {
		return nil
	}
	var prompt engineslots.Prompt
	canChoose := acceptsSlot(a.path, a.body)
	if canChoose {
		prompt = engineslots.PromptOf(a.body)
	}
	ctx, done := a.startWaiting()
	defer done()
	slot, err := table.Acquire(ctx, a.cacheTenant(), prompt, !canChoose)
	if err == nil {
		a.slot = slot
		a.releaseSlot = func() { table.Release(slot) }
		if !canChoose {
			return nil
		}
		if a.engineBody, err = jsonscan.Set(a.body, "id_slot", strconv.AppendInt(nil, int64(slot), 10)); err == nil {
			return nil
		}
	}
	return a.completeUnsent(err)
}

func (a *activeRequest) cacheTenant() engineslots.Tenant {
	return engineslots.TenantOf(string(a.field(rpc.HeaderCacheTenant)))
}

// beginTurn has the engine save the conversation that was in the request's slot and restore the one that the request
// continues, and prepares to save that after its next turn.
func (a *activeRequest) beginTurn(e *conversations.Engine) {
	slot := engineslots.Any
	if a.releaseSlot != nil {
		slot = a.slot
	}
	if a.turn = e.Begin(a.cacheTenant(), slot, a.path, a.body); a.turn == nil {
		return
	}
	ctx, cancel := a.waitContext()
	defer cancel(nil)
	a.turn.Restore(ctx)
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
