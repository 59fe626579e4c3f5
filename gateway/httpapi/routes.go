package httpapi

import (
	"reveille/gateway/api"
	"reveille/gateway/bodycheck"
	"reveille/gateway/manage"
	"reveille/gateway/web"
	"reveille/infra/jsonscan"
	"reveille/infra/policy"
)

// handler serves one route. An error is answered in the dialect of the path.
type handler func(*Server, *request) error

// route is a route with what this package does for it.
type route struct {
	api.Route
	fields *bodycheck.Spec // what of a JSON body reaches the engine; nil: none does, or the handler knows
	serve  handler

	metrics bool // --free-metrics opens it, and it is served while the memory is full
}

// managed serves a route by the management service.
func managed(serve func(*manage.Service, *web.Request) error) handler {
	return func(s *Server, r *request) error { return serve(s.manage, &r.Request) }
}

// Short names for the table.
const (
	bare = api.Bare
	both = api.Prefixed | api.Bare

	anyKey  = api.ScopeAnyKey
	infers  = api.ScopeInfer
	manages = api.ScopeManage
	admin   = api.ScopeAdmin

	lemonade  = api.Lemonade
	ollamaAPI = api.Ollama
	bodyJSON  = api.BodyJSON
)

var (
	modelField     = api.Field{Name: "model", Types: text}
	modelOrName    = api.Field{Name: "model", Alt: "name", Types: text}
	modelNameField = api.Field{Name: "model_name", Alt: "model", Types: text}

	text       = api.TypesOf(jsonscan.String)
	list       = api.TypesOf(jsonscan.Array)
	textOrList = text | list
	number     = api.TypesOf(jsonscan.Number)
)

// required returns a field that must be there.
func required(name string, types api.JSONTypes) api.Field {
	return api.Field{Name: name, Types: types, Needed: true}
}

// requiredMax is required with a limit on a list's items.
func requiredMax(name string, types api.JSONTypes, most int) api.Field {
	return api.Field{Name: name, Types: types, Needed: true, Max: most}
}

// optional returns a field that is checked only when it is there.
func optional(name string, types api.JSONTypes) api.Field { return api.Field{Name: name, Types: types} }

// routes is the route table: each route's pattern, who may use it, its body, and what serves it.
var routes = []route{
	// Probes.
	{Route: api.Route{Name: "root", Pattern: "GET /", Mount: bare}, serve: (*Server).root},
	{Route: api.Route{Name: "live", Pattern: "GET /live", Mount: both, Dialect: lemonade}, serve: (*Server).live},
	{Route: api.Route{Name: "ready", Pattern: "GET /ready", Mount: both, Dialect: lemonade},
		serve: (*Server).ready},
	{Route: api.Route{Name: "health_plain", Pattern: "GET /health", Mount: bare, Dialect: lemonade},
		serve: (*Server).live},
	{Route: api.Route{Name: "metrics", Pattern: "GET /metrics", Mount: both, Scope: anyKey},
		serve: (*Server).metrics, metrics: true},
	{Route: api.Route{Name: "openapi", Pattern: "GET /openapi.json", Mount: bare, Scope: anyKey, PerModel: true},
		serve: (*Server).openapi},

	// Management.
	{Route: api.Route{Name: "health", Pattern: "GET /health", Dialect: lemonade, Scope: anyKey, PerModel: true},
		serve: managed((*manage.Service).Health)},
	{Route: api.Route{Name: "load", Pattern: "POST /load", Dialect: lemonade, Scope: manages, PerModel: true,
		Body: bodyJSON, Model: modelNameField}, serve: managed((*manage.Service).Load)},
	{Route: api.Route{Name: "unload", Pattern: "POST /unload", Mount: both, Dialect: lemonade, Scope: manages,
		PerModel: true, Body: api.BodyOptional, Model: modelNameField}, serve: managed((*manage.Service).Unload)},
	{Route: api.Route{Name: "register", Pattern: "POST /models/register", Dialect: lemonade, Scope: admin,
		Body: bodyJSON, Model: modelNameField}, serve: managed((*manage.Service).Register)},
	{Route: api.Route{Name: "pull", Pattern: "POST /pull", Dialect: lemonade, Scope: manages, PerModel: true,
		Body: bodyJSON, Model: modelNameField}, serve: managed((*manage.Service).Pull)},
	{Route: api.Route{Name: "delete", Pattern: "POST /delete", Dialect: lemonade, Scope: admin, PerModel: true,
		Body: bodyJSON, Model: modelNameField}, serve: managed((*manage.Service).Delete)},
	{Route: api.Route{Name: "options_get", Pattern: "GET /models/{id}/options", Dialect: lemonade, Scope: anyKey,
		PerModel: true}, serve: managed((*manage.Service).OptionsGet)},
	{Route: api.Route{Name: "options_set", Pattern: "POST /models/{id}/options", Dialect: lemonade, Scope: admin,
		PerModel: true, Body: bodyJSON}, serve: managed((*manage.Service).OptionsSet)},
	{Route: api.Route{Name: "options_delete", Pattern: "DELETE /models/{id}/options", Dialect: lemonade,
		Scope: admin, PerModel: true}, serve: managed((*manage.Service).OptionsDelete)},
	{Route: api.Route{Name: "stats", Pattern: "GET /stats", Dialect: lemonade, Scope: anyKey},
		serve: managed((*manage.Service).Stats)},
	{Route: api.Route{Name: "system_info", Pattern: "GET /system-info", Dialect: lemonade, Scope: anyKey,
		PerModel: true}, serve: managed((*manage.Service).SystemInfo)},
	{Route: api.Route{Name: "pin", Pattern: "POST /internal/pin", Mount: both, Dialect: lemonade, Scope: manages,
		PerModel: true, Body: bodyJSON, Model: modelNameField,
		Fields: []api.Field{required("pinned", api.TypesOf(jsonscan.Bool))}}, serve: managed((*manage.Service).Pin)},
	{Route: api.Route{Name: "config_set", Pattern: "POST /internal/set", Mount: both, Dialect: lemonade,
		Scope: admin, Body: bodyJSON}, serve: managed((*manage.Service).ConfigSet)},
	{Route: api.Route{Name: "config_get", Pattern: "GET /internal/config", Mount: both, Dialect: lemonade,
		Scope: anyKey}, serve: managed((*manage.Service).ConfigGet)},
	{Route: api.Route{Name: "aliases", Pattern: "GET /internal/aliases", Mount: both, Dialect: lemonade,
		Scope: anyKey}, serve: managed((*manage.Service).Aliases)},
	{Route: api.Route{Name: "alias_set", Pattern: "POST /internal/aliases", Mount: both, Dialect: lemonade,
		Scope: admin, Body: bodyJSON, Fields: []api.Field{required("alias", text), required("target", text)}},
		serve: managed((*manage.Service).AliasSet)},
	{Route: api.Route{Name: "alias_get", Pattern: "GET /internal/aliases/{id}", Mount: both, Dialect: lemonade,
		Scope: anyKey}, serve: managed((*manage.Service).AliasGet)},
	{Route: api.Route{Name: "alias_set_one", Pattern: "POST /internal/aliases/{id}", Mount: both,
		Dialect: lemonade, Scope: admin, Body: bodyJSON, Fields: []api.Field{required("target", text)}},
		serve: managed((*manage.Service).AliasSet)},
	{Route: api.Route{Name: "alias_delete", Pattern: "DELETE /internal/aliases/{id}", Mount: both,
		Dialect: lemonade, Scope: admin}, serve: managed((*manage.Service).AliasDelete)},
	{Route: api.Route{Name: "keys_list", Pattern: "GET /internal/keys", Mount: both, Dialect: lemonade,
		Scope: admin}, serve: managed((*manage.Service).KeysList)},
	{Route: api.Route{Name: "keys_add", Pattern: "POST /internal/keys", Mount: both, Dialect: lemonade,
		Scope: admin, Body: bodyJSON, Fields: []api.Field{required("digest", text), required("grant", text)}},
		serve: managed((*manage.Service).KeysAdd)},
	{Route: api.Route{Name: "keys_revoke", Pattern: "DELETE /internal/keys/{id}", Mount: both, Dialect: lemonade,
		Scope: admin}, serve: managed((*manage.Service).KeysRevoke)},
	{Route: api.Route{Name: "host_wake", Pattern: "POST /internal/hosts/{id}/wake", Mount: both,
		Dialect: lemonade, Scope: manages, Body: api.BodyOptional}, serve: managed((*manage.Service).HostWake)},
	{Route: api.Route{Name: "host_forget", Pattern: "POST /internal/hosts/{id}/forget", Mount: both,
		Dialect: lemonade, Scope: manages, Body: api.BodyOptional}, serve: managed((*manage.Service).HostForget)},
	{Route: api.Route{Name: "conversations", Pattern: "GET /internal/conversations", Mount: both,
		Dialect: lemonade, Scope: manages}, serve: managed((*manage.Service).Conversations)},
	{Route: api.Route{Name: "conversations_forget_all", Pattern: "DELETE /internal/conversations", Mount: both,
		Dialect: lemonade, Scope: manages}, serve: managed((*manage.Service).ConversationsForget)},
	{Route: api.Route{Name: "conversations_forget", Pattern: "DELETE /internal/conversations/{id}", Mount: both,
		Dialect: lemonade, Scope: manages, PerModel: true}, serve: managed((*manage.Service).ConversationsForget)},
	{Route: api.Route{Name: "host_sleep", Pattern: "POST /internal/hosts/{id}/sleep", Mount: both,
		Dialect: lemonade, Scope: manages, Body: api.BodyOptional}, serve: managed((*manage.Service).HostSleep)},

	// The page.
	{Route: api.Route{Name: "ui", Pattern: "GET /ui", Mount: bare}, serve: (*Server).page},
	{Route: api.Route{Name: "ui_file", Pattern: "GET /ui/{id}", Mount: bare}, serve: (*Server).pageFile},
	{Route: api.Route{Name: "ui_stream", Pattern: "GET /ui/stream", Mount: bare, Scope: anyKey},
		serve: (*Server).pageStream},
	{Route: api.Route{Name: "ui_session", Pattern: "GET /ui/session", Mount: bare}, serve: (*Server).session},
	{Route: api.Route{Name: "ui_login", Pattern: "POST /ui/session", Mount: bare, Body: bodyJSON,
		Fields: []api.Field{required("key", text)}}, serve: (*Server).login},
	{Route: api.Route{Name: "ui_logout", Pattern: "DELETE /ui/session", Mount: bare}, serve: (*Server).logout},

	// OpenAI.
	{Route: api.Route{Name: "models", Pattern: "GET /models", Mount: both, Scope: anyKey, PerModel: true},
		serve: managed((*manage.Service).Models)},
	{Route: api.Route{Name: "model", Pattern: "GET /models/{id}", Scope: anyKey, PerModel: true},
		serve: managed((*manage.Service).Model)},
	{Route: api.Route{Name: "chat", Pattern: "POST /chat/completions", Type: policy.LLM, Scope: infers,
		PerModel: true, Body: bodyJSON, Inference: true, CanStream: true, Model: modelField,
		Fields: []api.Field{requiredMax("messages", list, api.MaxMessages)}},
		fields: bodycheck.Chat, serve: infer("/v1/chat/completions")},
	{Route: api.Route{Name: "completions", Pattern: "POST /completions", Type: policy.LLM, Scope: infers,
		PerModel: true, Body: bodyJSON, Inference: true, CanStream: true, Model: modelField,
		Fields: []api.Field{required("prompt", textOrList)}},
		fields: bodycheck.Completions, serve: (*Server).completions},
	{Route: api.Route{Name: "responses", Pattern: "POST /responses", Dialect: api.Responses, Type: policy.LLM,
		Scope: infers, PerModel: true, Body: bodyJSON, Inference: true, CanStream: true, Model: modelField,
		Fields: []api.Field{requiredMax("input", textOrList, api.MaxItems)}}, serve: (*Server).responses},
	{Route: api.Route{Name: "response", Pattern: "GET /responses/{id}", Dialect: api.Responses, Scope: infers,
		PerModel: true}, serve: (*Server).responseGet},
	{Route: api.Route{Name: "response_items", Pattern: "GET /responses/{id}/input_items", Dialect: api.Responses,
		Scope: infers, PerModel: true}, serve: (*Server).responseItems},
	{Route: api.Route{Name: "response_delete", Pattern: "DELETE /responses/{id}", Dialect: api.Responses,
		Scope: infers, PerModel: true}, serve: (*Server).responseDelete},
	{Route: api.Route{Name: "input_tokens", Pattern: "POST /responses/input_tokens", Dialect: api.Responses,
		Type: policy.LLM, Scope: infers, PerModel: true, Body: bodyJSON, Inference: true, Model: modelField,
		Fields: []api.Field{requiredMax("input", textOrList, api.MaxItems)}}, serve: (*Server).inputTokens},
	{Route: api.Route{Name: "embeddings", Pattern: "POST /embeddings", Type: policy.Embedding, Scope: infers,
		PerModel: true, Body: bodyJSON, Inference: true, Model: modelField,
		Fields: []api.Field{requiredMax("input", textOrList, api.MaxInputs)}},
		fields: bodycheck.Embeddings, serve: (*Server).embeddings},
	{Route: api.Route{Name: "transcriptions", Pattern: "POST /audio/transcriptions", Type: policy.Audio,
		Scope: infers, PerModel: true, Body: api.BodyForm, Inference: true, Model: modelField,
		Fields: []api.Field{required("file", 0)}}, serve: infer("/v1/audio/transcriptions")},
	{Route: api.Route{Name: "translations", Pattern: "POST /audio/translations", Type: policy.Audio,
		Scope: infers, PerModel: true, Body: api.BodyForm, Inference: true, Model: modelField,
		Fields: []api.Field{required("file", 0)}}, serve: infer("/v1/audio/translations")},
	{Route: api.Route{Name: "realtime", Pattern: "GET /realtime", Scope: infers, PerModel: true, Inference: true},
		serve: (*Server).realtime},
	{Route: api.Route{Name: "speech", Pattern: "POST /audio/speech", Type: policy.TTS, Scope: infers,
		PerModel: true, Body: bodyJSON, Inference: true, Model: modelField,
		Fields: []api.Field{required("input", text), required("voice", text)}},
		fields: bodycheck.Speech, serve: infer("/v1/audio/speech")},
	{Route: api.Route{Name: "image_generations", Pattern: "POST /images/generations", Type: policy.Image,
		Scope: infers, PerModel: true, Body: bodyJSON, Inference: true, Model: modelField,
		Fields: []api.Field{required("prompt", text)}},
		fields: bodycheck.Image, serve: infer("/v1/images/generations")},
	{Route: api.Route{Name: "image_edits", Pattern: "POST /images/edits", Type: policy.Image, Scope: infers,
		PerModel: true, Body: api.BodyForm, Inference: true, Model: modelField,
		Fields: []api.Field{{Name: "image", Alt: "image[]", Needed: true}, required("prompt", 0)}},
		serve: infer("/v1/images/edits")},
	{Route: api.Route{Name: "image_variations", Pattern: "POST /images/variations", Type: policy.Image,
		Scope: infers, PerModel: true, Body: api.BodyForm, Inference: true, Model: modelField,
		Fields: []api.Field{{Name: "image", Alt: "image[]", Needed: true}, {Name: "prompt"}}},
		serve: infer("/v1/images/variations")},

	// llama-server's own.
	{Route: api.Route{Name: "tokenize", Pattern: "POST /tokenize", Mount: both, Type: policy.LLM, Scope: infers,
		PerModel: true, Body: bodyJSON, Inference: true, InQuery: true, Model: modelField,
		Fields: []api.Field{required("content", text)}}, fields: bodycheck.Tokenize, serve: infer("/tokenize")},
	{Route: api.Route{Name: "detokenize", Pattern: "POST /detokenize", Mount: both, Type: policy.LLM,
		Scope: infers, PerModel: true, Body: bodyJSON, Inference: true, InQuery: true, Model: modelField,
		Fields: []api.Field{required("tokens", list)}}, fields: bodycheck.Detokenize, serve: infer("/detokenize")},
	{Route: api.Route{Name: "apply_template", Pattern: "POST /apply-template", Mount: both, Type: policy.LLM,
		Scope: infers, PerModel: true, Body: bodyJSON, Inference: true, InQuery: true, Model: modelField,
		Fields: []api.Field{requiredMax("messages", list, api.MaxMessages)}},
		fields: bodycheck.Chat, serve: infer("/apply-template")},

	// Anthropic.
	{Route: api.Route{Name: "messages", Pattern: "POST /messages", Dialect: api.Anthropic, Type: policy.LLM,
		Scope: infers, PerModel: true, Body: bodyJSON, Inference: true, CanStream: true, Model: modelField,
		Fields: []api.Field{{Name: "max_tokens", Types: number, Needed: true, Min1: true}, requiredMax("messages", list, api.MaxMessages)}},
		fields: bodycheck.Messages, serve: infer("/v1/messages")},
	{Route: api.Route{Name: "count_tokens", Pattern: "POST /messages/count_tokens", Dialect: api.Anthropic,
		Type: policy.LLM, Scope: infers, PerModel: true, Body: bodyJSON, Inference: true, Model: modelField,
		Fields: []api.Field{requiredMax("messages", list, api.MaxMessages)}},
		fields: bodycheck.Messages, serve: infer("/v1/messages/count_tokens")},

	// Embeddings of Text Embeddings Inference and of Cohere.
	{Route: api.Route{Name: "tei_embed", Pattern: "POST /embed", Mount: bare, Type: policy.Embedding,
		Scope: infers, PerModel: true, Body: bodyJSON, Inference: true, Model: modelField,
		Fields: []api.Field{requiredMax("inputs", textOrList, api.MaxInputs), {Name: "prompt_name", Refused: true}}},
		serve: (*Server).teiEmbed},
	{Route: api.Route{Name: "tei_info", Pattern: "GET /info", Mount: bare, Scope: anyKey, PerModel: true},
		serve: (*Server).teiInfo},
	{Route: api.Route{Name: "cohere_embed", Pattern: "POST /v2/embed", Mount: bare, Type: policy.Embedding,
		Scope: infers, PerModel: true, Body: bodyJSON, Inference: true, Model: modelField,
		Fields: []api.Field{requiredMax("texts", list, api.MaxInputs), {Name: "images", Refused: true}, {Name: "inputs", Refused: true}}},
		serve: (*Server).cohereEmbed},

	// Rerank.
	rerankRoute("/rerank", both),
	rerankRoute("/reranking", both),
	rerankRoute("/reranker", api.Prefixed),
	rerankRoute("/v2/rerank", bare),

	// Ollama.
	{Route: api.Route{Name: "ollama_version", Pattern: "GET /api/version", Mount: bare, Dialect: ollamaAPI,
		Scope: anyKey, PerModel: true}, serve: managed((*manage.Service).OllamaVersion)},
	{Route: api.Route{Name: "ollama_tags", Pattern: "GET /api/tags", Mount: bare, Dialect: ollamaAPI,
		Scope: anyKey, PerModel: true}, serve: managed((*manage.Service).OllamaTags)},
	{Route: api.Route{Name: "ollama_ps", Pattern: "GET /api/ps", Mount: bare, Dialect: ollamaAPI, Scope: anyKey,
		PerModel: true}, serve: managed((*manage.Service).OllamaPS)},
	{Route: api.Route{Name: "ollama_show", Pattern: "POST /api/show", Mount: bare, Dialect: ollamaAPI,
		Scope: anyKey, PerModel: true, Body: bodyJSON, Model: modelOrName},
		serve: managed((*manage.Service).OllamaShow)},
	{Route: api.Route{Name: "ollama_chat", Pattern: "POST /api/chat", Mount: bare, Dialect: ollamaAPI,
		Type: policy.LLM, Scope: infers, PerModel: true, Body: bodyJSON, Inference: true, CanStream: true,
		Streams: true, Model: modelField,
		Fields: []api.Field{{Name: "messages", Types: list, Max: api.MaxMessages}}}, serve: (*Server).ollamaChat},
	{Route: api.Route{Name: "ollama_generate", Pattern: "POST /api/generate", Mount: bare, Dialect: ollamaAPI,
		Type: policy.LLM, Scope: infers, PerModel: true, Body: bodyJSON, Inference: true, CanStream: true,
		Streams: true, Model: modelField, Fields: []api.Field{optional("prompt", text)}},
		serve: (*Server).ollamaGenerate},
	{Route: api.Route{Name: "ollama_embed", Pattern: "POST /api/embed", Mount: bare, Dialect: ollamaAPI,
		Type: policy.Embedding, Scope: infers, PerModel: true, Body: bodyJSON, Inference: true, Model: modelField,
		Fields: []api.Field{{Name: "input", Types: textOrList, Max: api.MaxInputs}}}, serve: (*Server).ollamaEmbed},
	{Route: api.Route{Name: "ollama_embeddings", Pattern: "POST /api/embeddings", Mount: bare, Dialect: ollamaAPI,
		Type: policy.Embedding, Scope: infers, PerModel: true, Body: bodyJSON, Inference: true, Model: modelField,
		Fields: []api.Field{optional("prompt", text)}}, serve: (*Server).ollamaEmbeddings},
	{Route: api.Route{Name: "ollama_pull", Pattern: "POST /api/pull", Mount: bare, Dialect: ollamaAPI,
		Scope: manages, PerModel: true, Body: bodyJSON, Streams: true, Model: modelOrName},
		serve: managed((*manage.Service).OllamaPull)},
	{Route: api.Route{Name: "ollama_delete", Pattern: "DELETE /api/delete", Mount: bare, Dialect: ollamaAPI,
		Scope: admin, PerModel: true, Body: bodyJSON, Model: modelOrName},
		serve: managed((*manage.Service).OllamaDelete)},

	// Operator routes.
	{Route: api.Route{Name: "running", Pattern: "GET /running", Mount: both, Scope: anyKey, PerModel: true},
		serve: managed((*manage.Service).Running)},
	{Route: api.Route{Name: "unload_all", Pattern: "GET /unload", Mount: both, Scope: manages},
		serve: managed((*manage.Service).UnloadAll)},
	{Route: api.Route{Name: "upstream", Pattern: "ANY /upstream/{id}", Mount: bare, Scope: admin, PerModel: true,
		Body: api.BodyRaw, Inference: true}, serve: (*Server).upstream},
	{Route: api.Route{Name: "logs", Pattern: "GET /logs", Mount: both, Scope: admin},
		serve: managed((*manage.Service).Logs)},
	{Route: api.Route{Name: "logs_stream", Pattern: "GET /logs/stream", Mount: both, Scope: admin},
		serve: managed((*manage.Service).LogsStream)},
	{Route: api.Route{Name: "logs_stream_model", Pattern: "GET /logs/stream/{id}", Mount: both, Scope: admin},
		serve: managed((*manage.Service).LogsStreamModel)},
}

func rerankRoute(path string, mount api.Mount) route {
	return route{
		Route: api.Route{
			Name: "rerank", Pattern: "POST " + path, Mount: mount, Type: policy.Reranking, Scope: infers, PerModel: true,
			Body: bodyJSON, Inference: true, Model: modelField,
			Fields: []api.Field{
				required("query", text), {Name: "documents", Alt: "texts", Types: list, Needed: true, Max: api.MaxDocuments},
				{Name: "top_n", Alt: "top_k", Types: number, Min1: true}, {Name: "max_tokens_per_doc", Types: number, Min1: true},
			},
		},
		fields: bodycheck.Rerank,
		serve:  (*Server).rerank,
	}
}

// router finds routes of the table.
var router = api.NewRouter(Routes())

// Routes returns the routes of the table.
func Routes() []*api.Route {
	out := make([]*api.Route, len(routes))
	for i := range routes {
		out[i] = &routes[i].Route
	}
	return out
}
