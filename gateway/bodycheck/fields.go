package bodycheck

import "maps"

// rule is what becomes of a top-level member that its route knows.
type rule uint8

const (
	passThrough rule = iota // passed on
	onlyFalse               // passed on only where it is false
	noObjects               // refused where it holds an object: some engines take media in objects there
	imagePrompt             // refused where it holds settings of the engine
	// Finish checks the following, which a body may hold once.
	messages
	system
	embeddingInput
	tools
	responseFormat
	jsonSchema
	outputConfig
	grammar
	ruleCount
)

// Spec holds the rules of a route. It is shared and never changed.
type Spec struct {
	rules map[string]rule
	parts map[string]part // of its messages
}

func spec(parts map[string]part, sets ...map[string]rule) *Spec {
	s := &Spec{parts: parts, rules: map[string]rule{}}
	for _, set := range sets {
		maps.Copy(s.rules, set)
	}
	return s
}

func plain(names ...string) map[string]rule {
	set := map[string]rule{}
	for _, name := range names {
		set[name] = passThrough
	}
	return set
}

// samplingFields are the members that steer how text is generated. Engines of the llama.cpp family take them on every
// route that generates. "cache_prompt": true is their default; if it reached them, it would undo an owner's
// --no-cache-prompt, which keeps keys from testing guesses of others' prompts.
var samplingFields = func() map[string]rule {
	set := plain("model", "stream", "stream_options", "temperature", "top_p", "top_k", "min_p", "top_n_sigma", "xtc_probability",
		"xtc_threshold", "typical_p", "dynatemp_range", "dynatemp_exponent", "repeat_last_n", "repeat_penalty", "presence_penalty",
		"frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers",
		"mirostat", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay", "min_keep", "samplers", "seed",
		"logit_bias", "ignore_eos", "stop", "n", "n_cmpl", "best_of", "n_probs", "logprobs", "top_logprobs", "post_sampling_probs",
		"max_tokens", "max_completion_tokens", "n_predict", "n_keep", "n_discard", "n_indent", "t_max_predict_ms",
		"timings_per_token", "return_progress", "return_tokens", "echo", "reasoning_format", "reasoning_budget_tokens",
		"thinking_budget_tokens",
		// Engines ignore these.
		"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
		"verbosity", "modalities")
	set["cache_prompt"] = onlyFalse
	set["grammar"], set["json_schema"], set["response_format"] = grammar, jsonSchema, responseFormat
	return set
}()

// chatFields are the members of routes that take a dialogue.
var chatFields = func() map[string]rule {
	set := plain("tool_choice", "parallel_tool_calls", "reasoning_effort", "reasoning", "enable_thinking", "chat_template_kwargs",
		"add_generation_prompt", "continue_final_message")
	set["messages"], set["tools"] = messages, tools
	return set
}()

// The rules of JSON bodies that engines receive.
var (
	Chat        = spec(openAIParts, samplingFields, chatFields)
	Messages    = spec(anthropicParts, samplingFields, chatFields, plain("stop_sequences", "thinking"), map[string]rule{"system": system, "output_config": outputConfig})
	Completions = spec(nil, samplingFields, plain("suffix", "input_prefix", "input_suffix", "input_extra"), map[string]rule{"prompt": noObjects})
	Embeddings  = spec(nil, plain("model", "encoding_format", "dimensions", "embd_normalize", "user", "truncate", "truncation",
		"truncate_prompt_tokens", "normalize", "input_type", "task",
		"output_dimension", "output_dtype", "embedding_type", "late_chunking", "return_multivector", "normalized"),
		map[string]rule{"input": embeddingInput, "content": noObjects})
	// The gateway's own route reads documents as texts, and applies top_n, return_documents and the like itself.
	Rerank = spec(nil, plain("model", "query", "documents", "texts", "user", "truncate", "truncation", "top_n", "top_k", "return_documents",
		"return_text", "raw_scores", "max_tokens_per_doc"))
	engineRerankSpec = spec(nil, plain("model", "query", "user", "truncate", "top_n", "return_documents", "max_tokens_per_doc",
		"raw_scores", "return_text"), map[string]rule{"documents": noObjects, "texts": noObjects})
	Tokenize   = spec(nil, plain("model", "add_special", "add_special_tokens", "parse_special", "with_pieces"), map[string]rule{"content": noObjects})
	Detokenize = spec(nil, plain("model"), map[string]rule{"tokens": noObjects})
	Speech     = spec(nil, plain("model", "input", "voice", "response_format", "speed", "instructions", "stream_format", "stream", "language",
		"lang_code", "user"))
	Image = spec(nil, plain("model", "n", "size", "width", "height", "response_format", "output_format", "output_compression", "quality", "style",
		"background", "moderation", "user", "steps", "cfg_scale", "guidance", "seed", "sample_method", "scheduler", "stream"),
		map[string]rule{"prompt": imagePrompt, "negative_prompt": imagePrompt})
)

// forbidden are members that reach into a shared engine (its slots, files, adapters and parsers) or make it fetch or
// run something. They are not passed on, as all that the rules do not name; a request with one gets to know.
var forbidden = map[string]bool{
	"id_slot": true, "slot_id": true, "slot_save_path": true, "prompt_cache": true, "path_prompt_cache": true,
	"lora": true, "lora_path": true, "lora_adapters": true, "control_vector": true, "kv_transfer_params": true,
	"chat_parser": true, "chat_format": true, "chat_template": true, "generation_prompt": true, "parse_tool_calls": true,
	"grammar_lazy": true, "grammar_triggers": true, "grammar_type": true, "preserved_tokens": true,
	"multimodal_data": true, "mm_processor_kwargs": true, "media_io_kwargs": true, "logits_processors": true, "mcp_servers": true,
	// Constraints in other places than response_format, json_schema and grammar.
	"structured_outputs": true, "guided_json": true, "guided_regex": true, "guided_choice": true, "guided_grammar": true,
	"guided_decoding_backend": true, "guided_whitespace_pattern": true, "structural_tag": true,
}
