package bodycheck

import (
	"maps"
	"math"
)

const (
	int32Max = 1<<31 - 1
	real     = 1e9     // bounds factors and penalties
	ring     = 1 << 17 // bounds what an engine allocates as many entries for
	topMost  = 20      // probabilities for each token
	maxRuns  = 16      // answers to one request
	coldest  = 1e-10   // temperature above 0: scores are divided by it, and have to stay finite as floats of 32 bits
)

// sampling are the fields that steer how text is generated. Engines of the
// llama.cpp family take them on every route that generates. "cache_prompt": true is their default; if it reached them, it
// would undo an owner's --no-cache-prompt, which keeps keys from testing guesses of others' prompts.
var sampling = map[string]rule{
	"model": {kind: text}, "stream": {kind: boolean}, "stream_options": {kind: object, members: map[string]rule{"include_usage": {kind: boolean}}},
	"temperature": {kind: number, low: -real, high: real, least: coldest, keptAs: temperatureSlot}, "top_p": between(-real, real), "top_k": between(-1, int32Max), "min_p": between(-real, real),
	"top_n_sigma": between(-real, real), "xtc_probability": between(-real, real).keepAs(excludeSlot), "xtc_threshold": between(-real, real).keepAs(thresholdSlot),
	"typical_p": between(0, real), "dynatemp_range": between(-real, real).keepAs(spreadSlot), "dynatemp_exponent": between(0, 100),
	"repeat_last_n": between(-1, ring), "repeat_penalty": between(0.01, real), "presence_penalty": between(-real, real),
	"frequency_penalty": between(-real, real), "dry_multiplier": between(0, 100).keepAs(drySlot), "dry_base": between(-100, 100),
	"dry_allowed_length": between(0, ring), "dry_penalty_last_n": between(-1, ring), "dry_sequence_breakers": {kind: few},
	"mirostat": between(0, 2), "mirostat_tau": between(-real, real), "mirostat_eta": between(-real, real),
	"adaptive_target": between(-real, real), "adaptive_decay": between(0, 0.99), "min_keep": between(0, ring),
	"samplers": {kind: samplers}, "seed": between(-1<<63, 1<<64), "logit_bias": {kind: biases, keptAs: biasSlot}, "ignore_eos": {kind: boolean, keptAs: endlessSlot},
	"stop": {kind: texts}, "n": between(1, maxRuns).keepAs(runsSlot), "n_cmpl": between(1, maxRuns).keepAs(runsTooSlot), "best_of": between(1, maxRuns),
	"n_probs": between(0, topMost), "logprobs": {kind: boolOrNum, high: topMost}, "top_logprobs": between(0, topMost),
	"post_sampling_probs": {kind: boolean}, "max_tokens": between(-1, int32Max), "max_completion_tokens": between(-1, int32Max),
	"n_predict": between(-1, int32Max), "n_keep": between(-1, int32Max), "n_discard": between(0, int32Max), "n_indent": between(0, ring),
	"t_max_predict_ms": between(-1, int32Max), "cache_prompt": {kind: boolean, drops: "true"}, "timings_per_token": {kind: boolean},
	"return_progress": {kind: boolean}, "return_tokens": {kind: boolean}, "echo": {kind: boolean},
	"reasoning_format": {kind: text}, "reasoning_budget_tokens": between(-1, int32Max).keepAs(budgetSlot), "thinking_budget_tokens": between(-1, int32Max).keepAs(thinkingBudgetSlot),
	"grammar": {kind: grammar, keptAs: grammarSlot}, "json_schema": {kind: schema, keptAs: schemaSlot},
	"response_format": {kind: schema, keptAs: formatSlot},
	// For the provider's own use; engines ignore them.
	"user": {kind: text}, "metadata": {kind: small}, "store": {kind: boolean}, "service_tier": {kind: text}, "safety_identifier": {kind: text},
	"prompt_cache_key": {kind: text}, "prompt_cache_retention": {kind: text}, "verbosity": {kind: text}, "modalities": {kind: texts},
}

// chatting are the fields of routes that take a dialogue.
var chatting = map[string]rule{
	"messages": {kind: content, keptAs: messagesSlot}, "tools": {kind: tools, keptAs: toolsSlot}, "tool_choice": {kind: small, keptAs: choiceSlot},
	"parallel_tool_calls": {kind: boolean}, "reasoning_effort": {kind: text}, "reasoning": {kind: small}, "enable_thinking": {kind: boolean},
	"chat_template_kwargs": {kind: object, keptAs: variablesSlot, members: map[string]rule{"enable_thinking": {kind: boolean}, "messages": {kind: elsewhere}, "tools": {kind: elsewhere}, "add_generation_prompt": {kind: elsewhere}}}, "add_generation_prompt": {kind: boolean, keptAs: promptedSlot}, "continue_final_message": {kind: anyScalar, keptAs: continuedSlot},
}

// dialect is the format of a route's content.
type dialect uint8

const (
	noContent dialect = iota
	openAI
	anthropic
)

// Spec holds the rules of a route. It is shared and never changed.
type Spec struct {
	dialect    dialect
	rules      map[string]rule
	translated bool // the engine gets another body: only refused fields matter here
}

func spec(d dialect, sets ...map[string]rule) *Spec {
	s := &Spec{dialect: d, rules: map[string]rule{}}
	for _, set := range sets {
		maps.Copy(s.rules, set)
	}
	return s
}

// specs are the rules by route name.
var specs = map[string]*Spec{
	"chat": chatSpec, "completions": completionsSpec,
	"responses": translated, "input_tokens": translated,
	"ollama_chat": translated, "ollama_generate": translated, "ollama_embed": translated, "ollama_embeddings": translated,
	"messages":     anthropicSpec,
	"count_tokens": anthropicSpec,
	"embeddings": spec(noContent, map[string]rule{
		"model": {kind: text}, "input": {kind: inputs, keptAs: embedSlot}, "content": {kind: prompts}, "encoding_format": {kind: text}, "dimensions": between(0, int32Max),
		"embd_normalize": between(-1, int32Max), "user": {kind: text}, "truncate": {kind: anyScalar}, "normalize": {kind: boolean},
		"input_type": {kind: text}, "task": {kind: text}, "output_dimension": between(0, int32Max), "output_dtype": {kind: text},
		"embedding_type": {kind: small}, "late_chunking": {kind: boolean}, "return_multivector": {kind: boolean}, "normalized": {kind: boolean},
	}),
	"tei_embed": translated, "cohere_embed": translated,
	"rerank": spec(noContent, ranking, map[string]rule{
		"texts": {kind: documents, keptAs: textsSlot}, "top_n": {kind: number, high: math.MaxFloat64}, "top_k": {kind: number, high: math.MaxFloat64},
		"return_documents": {kind: anyScalar}, "return_text": {kind: anyScalar}, "raw_scores": {kind: anyScalar}, "truncation": {kind: anyScalar},
		"max_tokens_per_doc": {kind: anyScalar},
	}),
	"tokenize": spec(noContent, map[string]rule{
		"model": {kind: text}, "content": {kind: mixed, bytes: maxToSplit}, "add_special": {kind: boolean}, "add_special_tokens": {kind: boolean},
		"parse_special": {kind: boolean}, "with_pieces": {kind: boolean},
	}),
	"apply_template": chatSpec, "infill": completionsSpec,
	"detokenize": spec(noContent, map[string]rule{"model": {kind: text}, "tokens": {kind: tokens}}),
	"speech": spec(noContent, map[string]rule{
		"model": {kind: text}, "input": {kind: long}, "voice": {kind: small}, "response_format": {kind: text}, "speed": between(0, 100),
		"instructions": {kind: long}, "stream_format": {kind: text}, "stream": {kind: boolean}, "language": {kind: text}, "lang_code": {kind: text}, "user": {kind: text},
	}),
	"image_generations": spec(noContent, map[string]rule{
		"model": {kind: text}, "prompt": {kind: imageText}, "negative_prompt": {kind: imageText}, "n": between(0, maxRuns), "size": {kind: imageSize}, "width": between(0, 16384),
		"height": between(0, 16384), "response_format": {kind: text}, "output_format": {kind: text}, "output_compression": between(0, 100),
		"quality": {kind: text}, "style": {kind: text}, "background": {kind: text}, "moderation": {kind: text}, "user": {kind: text},
		"steps": between(0, 1000), "cfg_scale": between(-real, real), "guidance": between(-real, real), "seed": between(-1<<63, 1<<64),
		"sample_method": {kind: text}, "scheduler": {kind: text}, "stream": {kind: boolean},
	}),
}

var chatSpec = spec(openAI, sampling, chatting)

var completionsSpec = spec(noContent, sampling, map[string]rule{
	"prompt": {kind: prompts, keptAs: promptSlot}, "suffix": {kind: long}, "input_prefix": {kind: long}, "input_suffix": {kind: long}, "input_extra": {kind: small},
})

var translated = &Spec{translated: true}

var anthropicSpec = spec(anthropic, sampling, chatting, map[string]rule{
	"system": {kind: content, keptAs: systemSlot}, "stop_sequences": {kind: texts}, "thinking": {kind: small, keptAs: thinkingSlot},
	"output_config": {kind: schema, keptAs: outputSlot},
})

// ranking are the fields of rerank requests that engines receive.
var ranking = map[string]rule{
	"model": {kind: text}, "query": {kind: long, keptAs: querySlot}, "documents": {kind: documents, keptAs: documentsSlot}, "user": {kind: text},
	"truncate": {kind: anyScalar},
}

// refused are fields that reach into a shared engine (its slots, files, adapters and parsers) or make it fetch or run
// something.
var refused = map[string]bool{
	"id_slot": true, "slot_id": true, "slot_save_path": true, "prompt_cache": true, "path_prompt_cache": true,
	"lora": true, "lora_path": true, "lora_adapters": true, "control_vector": true, "kv_transfer_params": true,
	"chat_parser": true, "chat_format": true, "chat_template": true, "generation_prompt": true, "parse_tool_calls": true,
	"grammar_lazy": true, "grammar_triggers": true, "grammar_type": true, "preserved_tokens": true,
	"multimodal_data": true, "mm_processor_kwargs": true, "media_io_kwargs": true, "logits_processors": true, "mcp_servers": true,
	// Constraints in formats that are not checked; response_format is checked.
	"structured_outputs": true, "guided_json": true, "guided_regex": true, "guided_choice": true, "guided_grammar": true,
	"guided_decoding_backend": true, "guided_whitespace_pattern": true, "structural_tag": true,
}

// tokenFields are fields of token ids that recipes may allow for their engines.
var tokenFields = map[string]rule{"stop_token_ids": {kind: tokens}, "allowed_token_ids": {kind: tokens}}

// ForRoute returns the rules of a route by its name in the route table, nil if no engine receives its JSON body unchanged.
func ForRoute(name string) *Spec { return specs[name] }
