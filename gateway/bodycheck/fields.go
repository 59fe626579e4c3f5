package bodycheck

import (
	"maps"
	"slices"
	"strconv"

	"reveille/gateway/peek"
	"reveille/gateway/wire"
)

// kind is what a field may hold. Null is always accepted: it asks for the
// engine's default.
type kind uint8

const (
	anyScalar kind = iota // text, number or boolean
	boolean
	number    // between low and high
	boolOrNum // likewise
	text      // of at most 64 KiB
	long      // a text of any length
	texts     // a text, or a list of at most maxTexts
	few       // a list of at most 8, of at most 256 bytes in all
	small     // anything of at most 64 KiB that nests at most 16 levels
	plain     // texts and numbers in lists of any length, without an object
	content   // looked into by Finish, as all that follow
	tools
	format    // response_format
	schema    // a JSON schema
	grammar   // GBNF
	textShape // Responses: an object with a format
)

const (
	smallBytes = 64 << 10
	smallDepth = 16
	maxTexts   = 64
)

// rule says what a field may hold.
type rule struct {
	kind      kind
	low, high float64 // of a number
	slot      slot    // where Finish finds the value
}

// slot numbers the values that Finish looks into.
type slot uint8

const (
	noSlot slot = iota
	messagesSlot
	systemSlot
	inputSlot
	toolsSlot
	formatSlot
	schemaSlot
	grammarSlot
	textSlot
	outputSlot
	slots
)

func between(low, high float64) rule { return rule{kind: number, low: low, high: high} }

const (
	int32Max = 1<<31 - 1
	real     = 1e9     // bounds factors and penalties
	ring     = 1 << 17 // bounds what an engine allocates as many entries for
	topMost  = 20      // probabilities for each token
	mostRuns = 16      // answers to one request
)

// sampling are the fields that steer how text is generated. Engines of the
// llama.cpp family take them on every route that generates.
var sampling = map[string]rule{
	"model": {kind: text}, "stream": {kind: boolean}, "stream_options": {kind: small},
	"temperature": between(-real, real), "top_p": between(-real, real), "top_k": between(-1, int32Max), "min_p": between(-real, real),
	"top_n_sigma": between(-real, real), "xtc_probability": between(-real, real), "xtc_threshold": between(-real, real),
	"typical_p": between(-real, real), "dynatemp_range": between(-real, real), "dynatemp_exponent": between(-real, real),
	"repeat_last_n": between(-1, ring), "repeat_penalty": between(-real, real), "presence_penalty": between(-real, real),
	"frequency_penalty": between(-real, real), "dry_multiplier": between(-real, real), "dry_base": between(-real, real),
	"dry_allowed_length": between(0, ring), "dry_penalty_last_n": between(-1, ring), "dry_sequence_breakers": {kind: few},
	"mirostat": between(0, 2), "mirostat_tau": between(-real, real), "mirostat_eta": between(-real, real),
	"adaptive_target": between(-real, real), "adaptive_decay": between(-real, real), "min_keep": between(0, ring),
	"samplers": {kind: texts}, "seed": between(-1<<63, 1<<64), "logit_bias": {kind: small}, "ignore_eos": {kind: boolean},
	"stop": {kind: texts}, "n": between(0, mostRuns), "n_cmpl": between(0, mostRuns), "best_of": between(0, mostRuns),
	"n_probs": between(0, topMost), "logprobs": {kind: boolOrNum, high: topMost}, "top_logprobs": between(0, topMost),
	"post_sampling_probs": {kind: boolean}, "max_tokens": between(-1, int32Max), "max_completion_tokens": between(-1, int32Max),
	"n_predict": between(-1, int32Max), "n_keep": between(-1, int32Max), "n_discard": between(0, int32Max), "n_indent": between(0, ring),
	"t_max_predict_ms": between(-1, int32Max), "cache_prompt": {kind: boolean}, "timings_per_token": {kind: boolean},
	"return_progress": {kind: boolean}, "return_tokens": {kind: boolean}, "echo": {kind: boolean},
	"reasoning_format": {kind: text}, "reasoning_budget_tokens": between(-1, int32Max), "thinking_budget_tokens": between(-1, int32Max),
	"grammar": {kind: grammar, slot: grammarSlot}, "json_schema": {kind: schema, slot: schemaSlot},
	"response_format": {kind: format, slot: formatSlot},
	// For the provider's own use: engines pass over them.
	"user": {kind: text}, "metadata": {kind: small}, "store": {kind: boolean}, "service_tier": {kind: text}, "safety_identifier": {kind: text},
	"prompt_cache_key": {kind: text}, "prompt_cache_retention": {kind: text}, "verbosity": {kind: text}, "modalities": {kind: texts},
}

// chatting are the fields of routes that take a dialogue.
var chatting = map[string]rule{
	"messages": {kind: content, slot: messagesSlot}, "tools": {kind: tools, slot: toolsSlot}, "tool_choice": {kind: small},
	"parallel_tool_calls": {kind: boolean}, "reasoning_effort": {kind: text}, "reasoning": {kind: small}, "enable_thinking": {kind: boolean},
	"chat_template_kwargs": {kind: small}, "add_generation_prompt": {kind: boolean}, "continue_final_message": {kind: anyScalar},
}

// dialect says in which form a route's content is.
type dialect uint8

const (
	noContent dialect = iota
	openAI
	anthropic
	responses
)

// Spec is the rules of a route. It is shared and never changed.
type Spec struct {
	dialect    dialect
	rules      map[string]rule
	translated bool // the body is not the engine's: of its fields only the refused ones matter
}

func spec(d dialect, sets ...map[string]rule) *Spec {
	s := &Spec{dialect: d, rules: map[string]rule{}}
	for _, set := range sets {
		maps.Copy(s.rules, set)
	}
	return s
}

// specs are the rules by the names of the route table.
var specs = map[string]*Spec{
	"chat": spec(openAI, sampling, chatting),
	"completions": spec(noContent, sampling, map[string]rule{
		"prompt": {kind: plain}, "suffix": {kind: long}, "input_prefix": {kind: long}, "input_suffix": {kind: long}, "input_extra": {kind: small},
	}),
	"responses": spec(responses, sampling, chatting, map[string]rule{
		"input": {kind: content, slot: inputSlot}, "instructions": {kind: long}, "max_output_tokens": between(-1, int32Max),
		"max_tool_calls": between(0, int32Max), "text": {kind: textShape, slot: textSlot}, "truncation": {kind: text}, "include": {kind: texts},
		"background": {kind: boolean}, "previous_response_id": {kind: text},
	}),
	"ollama_chat": translated, "ollama_generate": translated, "ollama_embed": translated, "ollama_embeddings": translated,
	"messages":     anthropicSpec,
	"count_tokens": anthropicSpec,
	"embeddings": spec(noContent, map[string]rule{
		"model": {kind: text}, "input": {kind: plain}, "content": {kind: plain}, "encoding_format": {kind: text}, "dimensions": between(0, int32Max),
		"embd_normalize": between(-1, int32Max), "user": {kind: text}, "truncate": {kind: anyScalar}, "normalize": {kind: boolean},
		"input_type": {kind: text}, "task": {kind: text},
	}),
	"rerank": spec(noContent, map[string]rule{
		"model": {kind: text}, "query": {kind: long}, "documents": {kind: content}, "texts": {kind: plain}, "top_n": {kind: anyScalar},
		"return_documents": {kind: anyScalar}, "max_tokens_per_doc": {kind: anyScalar}, "user": {kind: text}, "truncate": {kind: anyScalar},
	}),
	"tokenize": spec(noContent, map[string]rule{
		"model": {kind: text}, "content": {kind: plain}, "add_special": {kind: boolean}, "add_special_tokens": {kind: boolean},
		"parse_special": {kind: boolean}, "with_pieces": {kind: boolean},
	}),
	"detokenize": spec(noContent, map[string]rule{"model": {kind: text}, "tokens": {kind: plain}}),
	"speech": spec(noContent, map[string]rule{
		"model": {kind: text}, "input": {kind: long}, "voice": {kind: small}, "response_format": {kind: text}, "speed": between(0, 100),
		"instructions": {kind: long}, "stream_format": {kind: text}, "stream": {kind: boolean}, "language": {kind: text}, "lang_code": {kind: text}, "user": {kind: text},
	}),
	"image_generations": spec(noContent, map[string]rule{
		"model": {kind: text}, "prompt": {kind: long}, "negative_prompt": {kind: long}, "n": between(0, mostRuns), "size": {kind: text}, "width": between(0, 16384),
		"height": between(0, 16384), "response_format": {kind: text}, "output_format": {kind: text}, "output_compression": between(0, 100),
		"quality": {kind: text}, "style": {kind: text}, "background": {kind: text}, "moderation": {kind: text}, "user": {kind: text},
		"steps": between(0, 1000), "cfg_scale": between(-real, real), "guidance": between(-real, real), "seed": between(-1<<63, 1<<64),
		"sample_method": {kind: text}, "scheduler": {kind: text}, "stream": {kind: boolean},
	}),
}

var translated = &Spec{translated: true}

var anthropicSpec = spec(anthropic, sampling, chatting, map[string]rule{
	"system": {kind: content, slot: systemSlot}, "stop_sequences": {kind: texts}, "thinking": {kind: small},
	"output_config": {kind: textShape, slot: outputSlot},
})

// refused are fields that reach into an engine others share: its slots, files,
// adapters and parsers, or that make it fetch or run something.
var refused = map[string]bool{
	"id_slot": true, "slot_id": true, "slot_save_path": true, "prompt_cache": true, "path_prompt_cache": true,
	"lora": true, "lora_path": true, "lora_adapters": true, "control_vector": true, "kv_transfer_params": true,
	"chat_parser": true, "chat_format": true, "chat_template": true, "generation_prompt": true, "parse_tool_calls": true,
	"grammar_lazy": true, "grammar_triggers": true, "grammar_type": true, "preserved_tokens": true,
	"multimodal_data": true, "mm_processor_kwargs": true, "media_io_kwargs": true, "logits_processors": true, "mcp_servers": true,
	// Constraints in forms that are not checked; response_format is.
	"structured_outputs": true, "guided_json": true, "guided_regex": true, "guided_choice": true, "guided_grammar": true,
	"guided_decoding_backend": true, "guided_whitespace_pattern": true, "structural_tag": true,
}

// ForRoute returns the rules of a route by its name in the route table, nil for
// one whose JSON body no engine sees as it is.
func ForRoute(name string) *Spec { return specs[name] }

// field is a member that no rule names.
type field struct {
	name  string
	place peek.Place
}

// Check is the check of one body. The zero value is ready for use.
type Check struct {
	values  [slots]peek.Value
	unknown []field
	err     *wire.Error

	// Constrained is set by Finish for a body that asks for constrained output.
	Constrained bool
}

// See takes in a top-level member. The last of several of one name wins, as
// with engines; yet each must keep the rules.
func (c *Check) See(s *Spec, name []byte, m *peek.Members) {
	r, known := s.rules[string(name)]
	if !known {
		v := m.Value()
		if refused[string(name)] && v.Set() && c.err == nil {
			c.err = reaches(name)
		}
		if s.translated {
			return
		}
		if len(c.unknown) < maxUnknown {
			c.unknown = append(c.unknown, field{string(name), m.Place()})
		} else if c.err == nil {
			c.err = wire.Newf(wire.UnsupportedParameter, "The request has more than %d fields that are not known here.", maxUnknown)
		}
		return
	}
	v := m.Value()
	if r.slot != noSlot {
		c.values[r.slot] = v
	}
	if e := r.check(name, v); e != nil && c.err == nil {
		c.err = e
	}
}

// maxUnknown bounds the fields of a body that are taken out.
const maxUnknown = 256

func (r rule) check(name []byte, v peek.Value) *wire.Error {
	if !v.Set() {
		return nil
	}
	switch r.kind {
	case anyScalar:
		if v.Kind == peek.Array || v.Kind == peek.Object {
			return wrong(name, "a text, a number or a boolean")
		}
		return r.limit(name, v)
	case boolean:
		if v.Kind != peek.Bool {
			return wrong(name, "a boolean")
		}
	case boolOrNum:
		if v.Kind == peek.Bool {
			return nil
		}
		return r.inRange(name, v)
	case number:
		return r.inRange(name, v)
	case text:
		if v.Kind != peek.String {
			return wrong(name, "a text")
		}
		return r.limit(name, v)
	case long, grammar:
		if v.Kind != peek.String {
			return wrong(name, "a text")
		}
	case texts:
		if v.Kind != peek.String && v.Kind != peek.Array || v.Depth() > 1 {
			return wrong(name, "a text or a list of texts")
		}
		if v.Len() > maxTexts {
			return wire.Newf(wire.InvalidType, "'%s' has %d items; at most %d are accepted.", name, v.Len(), maxTexts).With(string(name))
		}
		return r.limit(name, v)
	case few:
		if v.Kind != peek.Array || v.Depth() > 1 || v.Len() > 8 || len(v.Raw) > 256 {
			return wrong(name, "a list of at most 8 short texts")
		}
	case small:
		return r.limit(name, v)
	case plain:
		if v.HasObject() || v.Depth() > 2 {
			return wire.Newf(wire.UnsupportedParameter, "'%s' must be a text or a list of texts or tokens.", name).With(string(name))
		}
	case format, textShape:
		if v.Kind != peek.Object {
			return wrong(name, "an object")
		}
	case tools:
		if v.Kind != peek.Array {
			return wrong(name, "a list")
		}
	}
	return nil
}

func (r rule) limit(name []byte, v peek.Value) *wire.Error {
	if len(v.Raw) > smallBytes || v.Depth() > smallDepth {
		return wire.Newf(wire.InvalidType, "'%s' is too large; at most %d bytes and %d levels are accepted.", name, smallBytes, smallDepth).With(string(name))
	}
	return nil
}

func (r rule) inRange(name []byte, v peek.Value) *wire.Error {
	if v.Kind != peek.Number {
		return wrong(name, "a number")
	}
	f, err := strconv.ParseFloat(string(v.Raw), 64)
	if err == nil && f < 0 && string(name) == "n_discard" {
		return reaches(name)
	}
	if err != nil || f < r.low || f > r.high {
		return wire.Newf(wire.InvalidType, "'%s' must be between %.10g and %.10g.", name, r.low, r.high).With(string(name))
	}
	return nil
}

func reaches(name []byte) *wire.Error {
	return wire.Newf(wire.UnsupportedParameter, "'%s' reaches into an engine that others share and is not accepted here.", name).With(string(name))
}

func wrong(name []byte, want string) *wire.Error {
	return wire.Newf(wire.InvalidType, "'%s' must be %s.", name, want).With(string(name))
}

// Model is what Finish needs to know of the model.
type Model struct {
	Fields []string // further fields that its engine takes
	Llama  bool     // its engine turns schemas into grammars as llama.cpp does
}

// Read sees all members of a body. Its error is a [*peek.SyntaxError].
func (c *Check) Read(s *Spec, body []byte) error {
	m, err := peek.Open(body)
	if err != nil {
		return err
	}
	for m.Next() {
		c.See(s, m.Name(), &m)
	}
	return m.Err()
}

// Finish checks what needs more than one look, and overwrites in body the
// fields that neither the rules nor the model name with blanks. dropped is
// their number. body is the one whose members were seen.
func (c *Check) Finish(s *Spec, body []byte, model func() Model) (dropped int, err error) {
	if c.err != nil {
		return 0, c.err
	}
	if err := c.look(s, model); err != nil {
		return 0, err
	}
	if len(c.unknown) == 0 {
		return 0, nil
	}
	fields := model().Fields
	places := make([]peek.Place, 0, len(c.unknown))
	for _, f := range c.unknown {
		if slices.Contains(fields, f.name) {
			continue
		}
		places = append(places, f.place)
	}
	peek.Blank(body, places)
	return len(places), nil
}

// look checks content, tools and constraints.
func (c *Check) look(s *Spec, model func() Model) error {
	p := parts{dialect: s.dialect}
	if v := c.values[messagesSlot]; v.Set() {
		p.param = "messages"
		if e := p.messages(v); e != nil {
			return e
		}
	}
	if v := c.values[systemSlot]; v.Kind == peek.Array && v.HasObject() {
		p.param = "system"
		w := peek.WalkOf(v.Raw)
		if e := p.list(&w, systemParts); e != nil {
			return e
		}
	} else if v.Set() && v.Kind != peek.String && v.Kind != peek.Array {
		return wrong([]byte("system"), "a text or a list of blocks")
	}
	if v := c.values[inputSlot]; v.Kind == peek.Array {
		p.param = "input"
		if e := p.items(v); e != nil {
			return e
		}
	}
	return c.constraints(model)
}
