package api

import (
	"slices"

	"reveille/infra/jsonscan"
	"reveille/infra/policy"
)

// Limits of lists in a request.
const (
	MaxMessages  = 1024 // of a dialogue
	MaxItems     = 4096 // of the input of a response; several can make one message
	MaxInputs    = 2048 // of an embedding request
	maxDocuments = 2048
)

var (
	modelField     = Field{Name: "model", Types: TypesOf(jsonscan.String)}
	modelOrName    = Field{Name: "model", Alt: "name", Types: TypesOf(jsonscan.String)}
	modelNameField = Field{Name: "model_name", Alt: "model", Types: TypesOf(jsonscan.String)}

	text       = TypesOf(jsonscan.String)
	list       = TypesOf(jsonscan.Array)
	textOrList = text | list
	number     = TypesOf(jsonscan.Number)
)

// required returns a field that must be there.
func required(name string, types JSONTypes) Field {
	return Field{Name: name, Types: types, Needed: true}
}

// requiredMax is required with a limit on a list's items.
func requiredMax(name string, types JSONTypes, most int) Field {
	return Field{Name: name, Types: types, Needed: true, Max: most}
}

// optional returns a field that is checked only when it is there.
func optional(name string, types JSONTypes) Field { return Field{Name: name, Types: types} }

// both is the mount of routes served with and without a prefix.
const both = Prefixed | Bare

// routes is the route table, in the order of the contract. It is compiled
// once and never changed.
var routes = compiled([]Route{
	// Probes.
	{Name: "root", Method: "GET", Path: "/", Mount: Bare},
	{Name: "live", Method: "GET", Path: "/live", Mount: both, Dialect: Lemonade},
	{Name: "ready", Method: "GET", Path: "/ready", Mount: both, Dialect: Lemonade},
	{Name: "health_plain", Method: "GET", Path: "/health", Mount: Bare, Dialect: Lemonade},
	{Name: "metrics", Method: "GET", Path: "/metrics", Mount: both, Scope: ScopeAnyKey, WholePool: true},
	{Name: "openapi", Method: "GET", Path: "/openapi.json", Mount: Bare, Scope: ScopeAnyKey},

	// Management.
	{Name: "health", Method: "GET", Path: "/health", Mount: Prefixed, Dialect: Lemonade, Scope: ScopeAnyKey},
	{Name: "load", Method: "POST", Path: "/load", Mount: Prefixed, Dialect: Lemonade, Scope: ScopeManage, Body: BodyJSON, Model: modelNameField},
	{Name: "unload", Method: "POST", Path: "/unload", Mount: both, Dialect: Lemonade, Scope: ScopeManage, Body: BodyOptional, Model: modelNameField},
	{Name: "register", Method: "POST", Path: "/models/register", Mount: Prefixed, Dialect: Lemonade, Scope: ScopeAdmin, Body: BodyJSON, Model: modelNameField},
	{Name: "pull", Method: "POST", Path: "/pull", Mount: Prefixed, Dialect: Lemonade, Scope: ScopeManage, Body: BodyJSON, Model: modelNameField},
	{Name: "delete", Method: "POST", Path: "/delete", Mount: Prefixed, Dialect: Lemonade, Scope: ScopeAdmin, Body: BodyJSON, Model: modelNameField},
	{Name: "options_get", Method: "GET", Path: "/models/{id}/options", Mount: Prefixed, Dialect: Lemonade, Scope: ScopeAnyKey},
	{Name: "options_set", Method: "POST", Path: "/models/{id}/options", Mount: Prefixed, Dialect: Lemonade, Scope: ScopeAdmin, Body: BodyJSON},
	{Name: "options_delete", Method: "DELETE", Path: "/models/{id}/options", Mount: Prefixed, Dialect: Lemonade, Scope: ScopeAdmin},
	{Name: "stats", Method: "GET", Path: "/stats", Mount: Prefixed, Dialect: Lemonade, Scope: ScopeAnyKey, WholePool: true},
	{Name: "system_info", Method: "GET", Path: "/system-info", Mount: Prefixed, Dialect: Lemonade, Scope: ScopeAnyKey},
	{Name: "pin", Method: "POST", Path: "/internal/pin", Mount: both, Dialect: Lemonade, Scope: ScopeManage, Body: BodyJSON, Model: modelNameField, Fields: []Field{required("pinned", TypesOf(jsonscan.Bool))}},
	{Name: "config_set", Method: "POST", Path: "/internal/set", Mount: both, Dialect: Lemonade, Scope: ScopeAdmin, Body: BodyJSON},
	{Name: "config_get", Method: "GET", Path: "/internal/config", Mount: both, Dialect: Lemonade, Scope: ScopeAnyKey, WholePool: true},
	{Name: "aliases", Method: "GET", Path: "/internal/aliases", Mount: both, Dialect: Lemonade, Scope: ScopeAnyKey, WholePool: true},
	{Name: "alias_set", Method: "POST", Path: "/internal/aliases", Mount: both, Dialect: Lemonade, Scope: ScopeAdmin, Body: BodyJSON, Fields: []Field{required("alias", text), required("target", text)}},
	{Name: "alias_get", Method: "GET", Path: "/internal/aliases/{id}", Mount: both, Dialect: Lemonade, Scope: ScopeAnyKey, WholePool: true},
	{Name: "alias_set_one", Method: "POST", Path: "/internal/aliases/{id}", Mount: both, Dialect: Lemonade, Scope: ScopeAdmin, Body: BodyJSON, Fields: []Field{required("target", text)}},
	{Name: "alias_delete", Method: "DELETE", Path: "/internal/aliases/{id}", Mount: both, Dialect: Lemonade, Scope: ScopeAdmin},
	{Name: "keys_list", Method: "GET", Path: "/internal/keys", Mount: both, Dialect: Lemonade, Scope: ScopeAdmin},
	{Name: "keys_add", Method: "POST", Path: "/internal/keys", Mount: both, Dialect: Lemonade, Scope: ScopeAdmin, Body: BodyJSON, Fields: []Field{required("digest", text), required("grant", text)}},
	{Name: "keys_revoke", Method: "DELETE", Path: "/internal/keys/{id}", Mount: both, Dialect: Lemonade, Scope: ScopeAdmin},
	{Name: "host_wake", Method: "POST", Path: "/internal/hosts/{id}/wake", Mount: both, Dialect: Lemonade, Scope: ScopeManage, Body: BodyOptional},
	{Name: "host_forget", Method: "POST", Path: "/internal/hosts/{id}/forget", Mount: both, Dialect: Lemonade, Scope: ScopeManage, Body: BodyOptional},
	{Name: "conversations", Method: "GET", Path: "/internal/conversations", Mount: both, Dialect: Lemonade, Scope: ScopeManage, WholePool: true},
	{Name: "conversations_forget_all", Method: "DELETE", Path: "/internal/conversations", Mount: both, Dialect: Lemonade, Scope: ScopeManage, WholePool: true},
	{Name: "conversations_forget", Method: "DELETE", Path: "/internal/conversations/{id}", Mount: both, Dialect: Lemonade, Scope: ScopeManage},
	{Name: "host_sleep", Method: "POST", Path: "/internal/hosts/{id}/sleep", Mount: both, Dialect: Lemonade, Scope: ScopeManage, Body: BodyOptional},

	// The page.
	{Name: "ui", Method: "GET", Path: "/ui", Mount: Bare},
	{Name: "ui_file", Method: "GET", Path: "/ui/{id}", Mount: Bare},
	{Name: "ui_stream", Method: "GET", Path: "/ui/stream", Mount: Bare, Scope: ScopeAnyKey, WholePool: true},
	{Name: "ui_session", Method: "GET", Path: "/ui/session", Mount: Bare},
	{Name: "ui_login", Method: "POST", Path: "/ui/session", Mount: Bare, Body: BodyJSON, Fields: []Field{required("key", text)}},
	{Name: "ui_logout", Method: "DELETE", Path: "/ui/session", Mount: Bare},

	// OpenAI.
	{Name: "models", Method: "GET", Path: "/models", Mount: both, Scope: ScopeAnyKey},
	{Name: "model", Method: "GET", Path: "/models/{id}", Mount: Prefixed, Scope: ScopeAnyKey},
	{Name: "chat", Method: "POST", Path: "/chat/completions", Mount: Prefixed, Type: policy.LLM, Scope: ScopeInfer, Body: BodyJSON, Inference: true, CanStream: true, Model: modelField, Fields: []Field{requiredMax("messages", list, MaxMessages)}},
	{Name: "completions", Method: "POST", Path: "/completions", Mount: Prefixed, Type: policy.LLM, Scope: ScopeInfer, Body: BodyJSON, Inference: true, CanStream: true, Model: modelField, Fields: []Field{required("prompt", textOrList)}},
	{Name: "responses", Method: "POST", Path: "/responses", Mount: Prefixed, Dialect: Responses, Type: policy.LLM, Scope: ScopeInfer, Body: BodyJSON, Inference: true, CanStream: true, Model: modelField, Fields: []Field{requiredMax("input", textOrList, MaxItems)}},
	{Name: "response", Method: "GET", Path: "/responses/{id}", Mount: Prefixed, Dialect: Responses, Scope: ScopeInfer},
	{Name: "response_items", Method: "GET", Path: "/responses/{id}/input_items", Mount: Prefixed, Dialect: Responses, Scope: ScopeInfer},
	{Name: "response_delete", Method: "DELETE", Path: "/responses/{id}", Mount: Prefixed, Dialect: Responses, Scope: ScopeInfer},
	{Name: "input_tokens", Method: "POST", Path: "/responses/input_tokens", Mount: Prefixed, Dialect: Responses, Type: policy.LLM, Scope: ScopeInfer, Body: BodyJSON, Inference: true, Model: modelField, Fields: []Field{requiredMax("input", textOrList, MaxItems)}},
	{Name: "embeddings", Method: "POST", Path: "/embeddings", Mount: Prefixed, Type: policy.Embedding, Scope: ScopeInfer, Body: BodyJSON, Inference: true, Model: modelField, Fields: []Field{requiredMax("input", textOrList, MaxInputs)}},
	{Name: "transcriptions", Method: "POST", Path: "/audio/transcriptions", Mount: Prefixed, Type: policy.Audio, Scope: ScopeInfer, Body: BodyForm, Inference: true, Model: modelField, Fields: []Field{required("file", 0)}},
	{Name: "translations", Method: "POST", Path: "/audio/translations", Mount: Prefixed, Type: policy.Audio, Scope: ScopeInfer, Body: BodyForm, Inference: true, Model: modelField, Fields: []Field{required("file", 0)}},
	{Name: "realtime", Method: "GET", Path: "/realtime", Mount: Prefixed, Scope: ScopeInfer, Inference: true},
	{Name: "speech", Method: "POST", Path: "/audio/speech", Mount: Prefixed, Type: policy.TTS, Scope: ScopeInfer, Body: BodyJSON, Inference: true, Model: modelField, Fields: []Field{required("input", text), required("voice", text)}},
	{Name: "image_generations", Method: "POST", Path: "/images/generations", Mount: Prefixed, Type: policy.Image, Scope: ScopeInfer, Body: BodyJSON, Inference: true, Model: modelField, Fields: []Field{required("prompt", text)}},
	{Name: "image_edits", Method: "POST", Path: "/images/edits", Mount: Prefixed, Type: policy.Image, Scope: ScopeInfer, Body: BodyForm, Inference: true, Model: modelField, Fields: []Field{{Name: "image", Alt: "image[]", Needed: true}, required("prompt", 0)}},
	{Name: "image_variations", Method: "POST", Path: "/images/variations", Mount: Prefixed, Type: policy.Image, Scope: ScopeInfer, Body: BodyForm, Inference: true, Model: modelField, Fields: []Field{{Name: "image", Alt: "image[]", Needed: true}, {Name: "prompt"}}},

	// llama-server's own.
	{Name: "tokenize", Method: "POST", Path: "/tokenize", Mount: both, Type: policy.LLM, Scope: ScopeInfer, Body: BodyJSON, Inference: true, InQuery: true, Model: modelField, Fields: []Field{required("content", text)}},
	{Name: "detokenize", Method: "POST", Path: "/detokenize", Mount: both, Type: policy.LLM, Scope: ScopeInfer, Body: BodyJSON, Inference: true, InQuery: true, Model: modelField, Fields: []Field{required("tokens", list)}},
	{Name: "apply_template", Method: "POST", Path: "/apply-template", Mount: both, Type: policy.LLM, Scope: ScopeInfer, Body: BodyJSON, Inference: true, InQuery: true, Model: modelField, Fields: []Field{requiredMax("messages", list, MaxMessages)}},

	// Anthropic.
	{Name: "messages", Method: "POST", Path: "/messages", Mount: Prefixed, Dialect: Anthropic, Type: policy.LLM, Scope: ScopeInfer, Body: BodyJSON, Inference: true, CanStream: true, Model: modelField, Fields: []Field{{Name: "max_tokens", Types: number, Needed: true, Min1: true}, requiredMax("messages", list, MaxMessages)}},
	{Name: "count_tokens", Method: "POST", Path: "/messages/count_tokens", Mount: Prefixed, Dialect: Anthropic, Type: policy.LLM, Scope: ScopeInfer, Body: BodyJSON, Inference: true, Model: modelField, Fields: []Field{requiredMax("messages", list, MaxMessages)}},

	// Embeddings of Text Embeddings Inference and of Cohere.
	{Name: "tei_embed", Method: "POST", Path: "/embed", Mount: Bare, Type: policy.Embedding, Scope: ScopeInfer, Body: BodyJSON, Inference: true, Model: modelField, Fields: []Field{requiredMax("inputs", textOrList, MaxInputs), {Name: "prompt_name", Refused: true}}},
	{Name: "tei_info", Method: "GET", Path: "/info", Mount: Bare, Scope: ScopeAnyKey},
	{Name: "cohere_embed", Method: "POST", Path: "/v2/embed", Mount: Bare, Type: policy.Embedding, Scope: ScopeInfer, Body: BodyJSON, Inference: true, Model: modelField, Fields: []Field{requiredMax("texts", list, MaxInputs), {Name: "images", Refused: true}, {Name: "inputs", Refused: true}}},

	// Rerank.
	rerank("/rerank", both),
	rerank("/reranking", both),
	rerank("/reranker", Prefixed),
	rerank("/v2/rerank", Bare),

	// Ollama.
	{Name: "ollama_version", Method: "GET", Path: "/api/version", Mount: Bare, Dialect: Ollama, Scope: ScopeAnyKey},
	{Name: "ollama_tags", Method: "GET", Path: "/api/tags", Mount: Bare, Dialect: Ollama, Scope: ScopeAnyKey},
	{Name: "ollama_ps", Method: "GET", Path: "/api/ps", Mount: Bare, Dialect: Ollama, Scope: ScopeAnyKey},
	{Name: "ollama_show", Method: "POST", Path: "/api/show", Mount: Bare, Dialect: Ollama, Scope: ScopeAnyKey, Body: BodyJSON, Model: modelOrName},
	{Name: "ollama_chat", Method: "POST", Path: "/api/chat", Mount: Bare, Dialect: Ollama, Type: policy.LLM, Scope: ScopeInfer, Body: BodyJSON, Inference: true, CanStream: true, Streams: true, Model: modelField, Fields: []Field{{Name: "messages", Types: list, Max: MaxMessages}}},
	{Name: "ollama_generate", Method: "POST", Path: "/api/generate", Mount: Bare, Dialect: Ollama, Type: policy.LLM, Scope: ScopeInfer, Body: BodyJSON, Inference: true, CanStream: true, Streams: true, Model: modelField, Fields: []Field{optional("prompt", text)}},
	{Name: "ollama_embed", Method: "POST", Path: "/api/embed", Mount: Bare, Dialect: Ollama, Type: policy.Embedding, Scope: ScopeInfer, Body: BodyJSON, Inference: true, Model: modelField, Fields: []Field{{Name: "input", Types: textOrList, Max: MaxInputs}}},
	{Name: "ollama_embeddings", Method: "POST", Path: "/api/embeddings", Mount: Bare, Dialect: Ollama, Type: policy.Embedding, Scope: ScopeInfer, Body: BodyJSON, Inference: true, Model: modelField, Fields: []Field{optional("prompt", text)}},
	{Name: "ollama_pull", Method: "POST", Path: "/api/pull", Mount: Bare, Dialect: Ollama, Scope: ScopeManage, Body: BodyJSON, Streams: true, Model: modelOrName},
	{Name: "ollama_delete", Method: "DELETE", Path: "/api/delete", Mount: Bare, Dialect: Ollama, Scope: ScopeAdmin, Body: BodyJSON, Model: modelOrName},

	// Operator routes.
	{Name: "running", Method: "GET", Path: "/running", Mount: both, Scope: ScopeAnyKey},
	{Name: "unload_all", Method: "GET", Path: "/unload", Mount: both, Scope: ScopeManage},
	{Name: "upstream", Method: anyMethod, Path: "/upstream/{id}", Mount: Bare, Scope: ScopeAdmin, Body: BodyRaw, Inference: true},
	{Name: "logs", Method: "GET", Path: "/logs", Mount: both, Scope: ScopeAdmin, WholePool: true},
	{Name: "logs_stream", Method: "GET", Path: "/logs/stream", Mount: both, Scope: ScopeAdmin, WholePool: true},
	{Name: "logs_stream_model", Method: "GET", Path: "/logs/stream/{id}", Mount: both, Scope: ScopeAdmin, WholePool: true},
})

func rerank(path string, mount Mount) Route {
	return Route{
		Name: "rerank", Method: "POST", Path: path, Mount: mount, Type: policy.Reranking, Scope: ScopeInfer, Body: BodyJSON,
		Inference: true, Model: modelField,
		Fields: []Field{
			required("query", text), {Name: "documents", Alt: "texts", Types: list, Needed: true, Max: maxDocuments},
			{Name: "top_n", Alt: "top_k", Types: number, Min1: true}, {Name: "max_tokens_per_doc", Types: number, Min1: true},
		},
	}
}

func compiled(table []Route) []Route {
	for i := range table {
		table[i].compile()
	}
	return table
}

// Routes returns the route table.
func Routes() []Route { return slices.Clone(routes) }
