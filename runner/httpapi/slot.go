package httpapi

import (
	"strconv"
	"strings"

	"reveille/infra/jsonscan"
	"reveille/infra/rpc"
	"reveille/runner/engineslots"
)

// table returns the engine's slots if the request needs one of them, else nil.
func (x *exchange) table() *engineslots.Table {
	if e, apart := x.ref.Engine.(interface{ Slots() *engineslots.Table }); apart && !x.isReadOnly() && !slotless(x.path) {
		return e.Slots()
	}
	return nil
}

// acquireSlot waits for a slot of the engine that holds no conversation of another key, if the model keeps them apart,
// and makes the engine use it. A reply means that there is none.
func (x *exchange) acquireSlot() *reply {
	x.text = x.body
	table := x.table()
	if table == nil {
		return nil
	}
	steered := steerable(x.path, x.body)
	var prompt engineslots.Prompt
	if steered {
		prompt = engineslots.PromptOf(x.body)
	}
	life, done := x.waiting()
	defer done()
	slot, err := table.Acquire(life, engineslots.TenantOf(string(x.field(rpc.HeaderCacheTenant))), prompt, !steered)
	if err == nil {
		x.releaseSlot = func() { table.Release(slot) }
		if !steered {
			return nil
		}
		if x.text, err = jsonscan.Set(x.body, "id_slot", strconv.AppendInt(nil, int64(slot), 10)); err == nil {
			return nil
		}
	}
	return x.finishUnsent(err)
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
