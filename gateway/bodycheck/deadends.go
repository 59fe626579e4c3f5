package bodycheck

import (
	"regexp"
	"strconv"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// minThreshold is above the rounding error of 0, the probability that llama.cpp gives a token that a grammar forbids.
const minThreshold = 1e-6

// minSpread keeps the lowest temperature of a range, which llama.cpp computes in 32-bit floats, away from 0.
const minSpread = 0.01

// deadEnds refuses options that can leave a constrained answer without a possible next token. llama.cpp gives every unwanted
// token a score of minus infinity. If a grammar allows only such tokens, the samplers choose any token, and llama.cpp aborts if
// it is one that ends the answer.
func (c *Check) deadEnds() *api.Error {
	number := func(s valueID, absent float64) float64 {
		if f, err := strconv.ParseFloat(string(c.values[s].Raw), 64); err == nil {
			return f
		}
		return absent
	}
	refuse := func(param, message string) *api.Error {
		return api.New(api.UnsupportedParameter, message+" The generation could get stuck.").WithParam(param)
	}
	if bans(c.values[biasSlot]) {
		return refuse("logit_bias", "A token may not be banned by 'false' where a grammar, a schema or tools constrain the answer; use a bias such as -100.")
	}
	if v := c.values[endlessSlot]; v.Kind == jsonscan.Bool && v.Bool() {
		return refuse("ignore_eos", "'ignore_eos' is not accepted together with a grammar, a schema or tools, which end.")
	}
	if number(drySlot, 0) > 0 {
		return refuse("dry_multiplier", "'dry_multiplier' is not accepted together with a grammar, a schema or tools: its penalties grow without bounds.")
	}
	if number(excludeSlot, 0) > 0 && number(thresholdSlot, 1) < minThreshold {
		return refuse("xtc_threshold", "Together with a grammar, a schema or tools 'xtc_threshold' must be at least 0.000001: below that, tokens that they forbid count as likely ones.")
	}
	if spread := number(spreadSlot, 0); spread > 0 && number(temperatureSlot, 0)-spread < minSpread {
		return refuse("dynatemp_range", "Together with a grammar, a schema or tools 'temperature' must be at least 0.01 above 'dynatemp_range'.")
	}
	if max(number(budgetSlot, -1), number(thinkingBudgetSlot, -1)) >= 0 || isType(c.values[thinkingSlot], "enabled") {
		if c.fromTheStart() {
			return refuse("reasoning_budget_tokens", "A budget for thinking is not accepted together with a grammar, a schema or a forced call of a tool: its end would be forced where they forbid it.")
		}
	}
	if (c.formatted || c.forced()) && tokenLike.Match(c.values[variablesSlot].Raw) { // templates write them where the answer begins
		return refuse("chat_template_kwargs", "'chat_template_kwargs' may not hold '<' or '[A' where a schema or a forced call of a tool constrains the answer.")
	}
	if (c.formatted || c.forced()) && tokenLike.Match(c.begun()) {
		return api.New(api.UnsupportedParameter, "An answer that is to go on may not hold '<' or '[A' where a schema or a forced call of a tool constrains it: "+
			"a token that ends answers would end the engine.").WithParam("messages")
	}
	return nil
}

// tokenLike matches, in JSON, the beginnings of names of tokens that end an answer, such as <|im_end|>, </s> and [EOS].
var tokenLike = regexp.MustCompile(`<|\[[A-Z]|\\u003|\\u005`)

// begun returns the last message, as JSON, if the answer continues it. An engine then parses its text by the grammar.
func (c *Check) begun() []byte {
	var last jsonscan.Value
	w := jsonscan.WalkOf(c.values[messagesSlot].Raw)
	w.Array(func() bool { last = w.Raw(); return true })
	if v := c.values[continuedSlot]; v.Set() && !(v.Kind == jsonscan.Bool && !v.Bool()) || has(last, "role", "assistant") {
		return last.Raw
	}
	return nil
}

// fromTheStart reports whether the whole answer is constrained, not only the tool calls in it.
func (c *Check) fromTheStart() bool { return c.shaped || c.forced() }

// forced reports whether the answer must be a tool call.
func (c *Check) forced() bool {
	choice := c.values[choiceSlot]
	return oneOf(choice, []string{"required"}) || isType(choice, "any") || isType(choice, "tool")
}

// bans reports whether one of the biases is a boolean: false bans a token.
func bans(v jsonscan.Value) (found bool) {
	w := jsonscan.WalkOf(v.Raw)
	look := func(bias jsonscan.Value) bool {
		found = found || bias.Kind == jsonscan.Bool
		return !found
	}
	switch v.Kind {
	case jsonscan.Object:
		w.Object(func([]byte) bool { return look(w.Raw()) })
	case jsonscan.Array:
		w.Array(func() bool { return isList(w.Raw(), look) })
	}
	return found
}

// isType reports whether v is an object of a type.
func isType(v jsonscan.Value, want string) bool { return has(v, "type", want) }

// has reports whether v is an object whose member has the wanted value.
func has(v jsonscan.Value, member, want string) (is bool) {
	if v.Kind != jsonscan.Object {
		return false
	}
	w := jsonscan.WalkOf(v.Raw)
	w.Object(func(name []byte) bool {
		if value := w.Raw(); string(name) == member {
			is = oneOf(value, []string{want})
		}
		return true
	})
	return is
}
