package httpapi

import (
	"reveille/gateway/api"
	"reveille/gateway/batches"
	"reveille/gateway/bodycheck"
	"reveille/gateway/manage"
	"reveille/gateway/web"
	"reveille/infra/jsonscan"
	"reveille/infra/policy"
)

// handler serves one route. An error is returned in the dialect of the path.
type handler func(*Server, *request) error

// route is a route with what this package does for it.
type route struct {
	api.Route
	fields *bodycheck.Spec // what of a JSON body reaches the engine; nil: none does, or the handler knows
	serve  handler

	metrics bool // --free-metrics opens it, and it is served while the memory is full
}

// lemonade is a route of the management API, which is that of Lemonade Server, under the version prefixes and, with Mount both, without them.
func lemonade(r api.Route, serve func(*manage.Service, *web.Request) error) route {
	r.Dialect = api.Lemonade
	return managed(r, serve)
}

// ollamaManaged is a route of Ollama's API that the management service serves.
func ollamaManaged(r api.Route, serve func(*manage.Service, *web.Request) error) route {
	r.Dialect, r.Mount, r.PerModel = api.Ollama, bare, true
	return managed(r, serve)
}

// managed is a route that the management service serves.
func managed(r api.Route, serve func(*manage.Service, *web.Request) error) route {
	return route{Route: r, serve: func(s *Server, q *request) error { return serve(s.manage, &q.Request) }}
}

// inference is a route that runs a model, which its body names. fields says what of a JSON body reaches the engine;
// nil: none does, or the handler knows.
func inference(r api.Route, fields *bodycheck.Spec, serve handler) route {
	r.Scope, r.PerModel, r.Inference, r.Model = api.ScopeInfer, true, true, modelField
	if r.Body == api.BodyNone {
		r.Body = api.BodyJSON
	}
	return route{Route: r, fields: fields, serve: serve}
}

// batched is a route of files and batches.
func batched(r api.Route, serve func(*batches.Service, *web.Request) error) route {
	r.Scope, r.PerModel = api.ScopeInfer, true
	return route{Route: r, serve: func(s *Server, q *request) error {
		if s.batches == nil {
			return errNoFolder()
		}
		return serve(s.batches, &q.Request)
	}}
}

// Short names for the table.
const (
	bare = api.Bare
	both = api.Prefixed | api.Bare

	anyKey  = api.ScopeAnyKey
	manages = api.ScopeManage
	admin   = api.ScopeAdmin

	bodyJSON = api.BodyJSON
	form     = api.BodyForm
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

// required returns the only field of a route besides the model: it must be there. A list has at most so many items, 0
// for no limit.
func required(name string, types api.JSONTypes, max int) []api.Field {
	return []api.Field{{Name: name, Types: types, Required: true, Max: max}}
}

// requiredTexts are texts that must be there, and not be empty.
func requiredTexts(names ...string) (fields []api.Field) {
	for _, name := range names {
		fields = append(fields, api.Field{Name: name, Types: text, Required: true})
	}
	return fields
}

var messages = required("messages", list, api.MaxMessages)

// routes is the route table: each route's pattern, who may use it, its body, and what serves it.
var routes = []route{
	// Probes.
	{Route: api.Route{Name: "root", Pattern: "GET /", Mount: bare}, serve: (*Server).root},
	{Route: api.Route{Name: "live", Pattern: "GET /live", Mount: both, Dialect: api.Lemonade},
		serve: (*Server).live},
	{Route: api.Route{Name: "ready", Pattern: "GET /ready", Mount: both, Dialect: api.Lemonade},
		serve: (*Server).ready},
	{Route: api.Route{Name: "health_plain", Pattern: "GET /health", Mount: bare, Dialect: api.Lemonade},
		serve: (*Server).live},
	{Route: api.Route{Name: "metrics", Pattern: "GET /metrics", Mount: both, Scope: anyKey},
		serve: (*Server).metrics, metrics: true},
	{Route: api.Route{Name: "openapi", Pattern: "GET /openapi.json", Mount: bare, Scope: anyKey, PerModel: true},
		serve: (*Server).openapi},

	// Management.
	lemonade(api.Route{Name: "health", Pattern: "GET /health", Scope: anyKey, PerModel: true},
		(*manage.Service).Health),
	lemonade(api.Route{Name: "load", Pattern: "POST /load", Scope: manages, PerModel: true, Body: bodyJSON,
		Model: modelNameField}, (*manage.Service).Load),
	lemonade(api.Route{Name: "unload", Pattern: "POST /unload", Mount: both, Scope: manages, PerModel: true,
		Body: api.BodyOptional, Model: modelNameField, Fields: []api.Field{{Name: "force", Types: api.TypesOf(jsonscan.Bool)}}},
		(*manage.Service).Unload),
	lemonade(api.Route{Name: "register", Pattern: "POST /models/register", Scope: admin, Body: bodyJSON,
		Model: modelNameField}, (*manage.Service).Register),
	lemonade(api.Route{Name: "pull", Pattern: "POST /pull", Scope: manages, PerModel: true, Body: bodyJSON,
		Model: modelNameField}, (*manage.Service).Pull),
	lemonade(api.Route{Name: "delete", Pattern: "POST /delete", Scope: admin, PerModel: true, Body: bodyJSON,
		Model: modelNameField}, (*manage.Service).Delete),
	lemonade(api.Route{Name: "options_get", Pattern: "GET /models/{id}/options", Scope: anyKey, PerModel: true},
		(*manage.Service).OptionsGet),
	lemonade(api.Route{Name: "options_set", Pattern: "POST /models/{id}/options", Scope: admin, PerModel: true,
		Body: bodyJSON}, (*manage.Service).OptionsSet),
	lemonade(api.Route{Name: "options_delete", Pattern: "DELETE /models/{id}/options", Scope: admin, PerModel: true},
		(*manage.Service).OptionsDelete),
	lemonade(api.Route{Name: "stats", Pattern: "GET /stats", Scope: anyKey}, (*manage.Service).Stats),
	lemonade(api.Route{Name: "system_info", Pattern: "GET /system-info", Scope: anyKey, PerModel: true},
		(*manage.Service).SystemInfo),
	lemonade(api.Route{Name: "pin", Pattern: "POST /internal/pin", Mount: both, Scope: manages, PerModel: true,
		Body: bodyJSON, Model: modelNameField, Fields: required("pinned", api.TypesOf(jsonscan.Bool), 0)},
		(*manage.Service).Pin),
	lemonade(api.Route{Name: "config_set", Pattern: "POST /internal/set", Mount: both, Scope: admin, Body: bodyJSON},
		(*manage.Service).ConfigSet),
	lemonade(api.Route{Name: "config_get", Pattern: "GET /internal/config", Mount: both, Scope: anyKey},
		(*manage.Service).ConfigGet),
	lemonade(api.Route{Name: "aliases", Pattern: "GET /internal/aliases", Mount: both, Scope: anyKey},
		(*manage.Service).Aliases),
	lemonade(api.Route{Name: "alias_set", Pattern: "POST /internal/aliases", Mount: both, Scope: admin,
		Body: bodyJSON, Fields: requiredTexts("alias", "target")}, (*manage.Service).AliasSet),
	lemonade(api.Route{Name: "alias_delete", Pattern: "DELETE /internal/aliases/{id}", Mount: both, Scope: admin},
		(*manage.Service).AliasDelete),
	lemonade(api.Route{Name: "keys_list", Pattern: "GET /internal/keys", Mount: both, Scope: admin},
		(*manage.Service).KeysList),
	lemonade(api.Route{Name: "keys_add", Pattern: "POST /internal/keys", Mount: both, Scope: admin, Body: bodyJSON,
		Fields: requiredTexts("digest", "grant")}, (*manage.Service).KeysAdd),
	lemonade(api.Route{Name: "keys_revoke", Pattern: "DELETE /internal/keys/{id}", Mount: both, Scope: admin},
		(*manage.Service).KeysRevoke),
	lemonade(api.Route{Name: "host_wake", Pattern: "POST /internal/hosts/{id}/wake", Mount: both, Scope: manages,
		Body: api.BodyOptional}, (*manage.Service).HostWake),
	lemonade(api.Route{Name: "host_forget", Pattern: "POST /internal/hosts/{id}/forget", Mount: both, Scope: manages,
		Body: api.BodyOptional}, (*manage.Service).HostForget),
	lemonade(api.Route{Name: "conversations", Pattern: "GET /internal/conversations", Mount: both, Scope: manages},
		(*manage.Service).Conversations),
	lemonade(api.Route{Name: "conversations_forget_all", Pattern: "DELETE /internal/conversations", Mount: both,
		Scope: manages}, (*manage.Service).ConversationsForget),
	lemonade(api.Route{Name: "conversations_forget", Pattern: "DELETE /internal/conversations/{id}", Mount: both,
		Scope: manages, PerModel: true}, (*manage.Service).ConversationsForget),
	lemonade(api.Route{Name: "costs", Pattern: "GET /internal/costs", Mount: both, Scope: manages},
		(*manage.Service).Costs),
	lemonade(api.Route{Name: "host_sleep", Pattern: "POST /internal/hosts/{id}/sleep", Mount: both, Scope: manages,
		Body: api.BodyOptional}, (*manage.Service).HostSleep),

	// The page.
	{Route: api.Route{Name: "ui", Pattern: "GET /ui", Mount: bare}, serve: (*Server).page},
	{Route: api.Route{Name: "ui_file", Pattern: "GET /ui/{id}", Mount: bare}, serve: (*Server).pageFile},
	{Route: api.Route{Name: "ui_stream", Pattern: "GET /ui/stream", Mount: bare, Scope: anyKey},
		serve: (*Server).pageStream},
	{Route: api.Route{Name: "ui_session", Pattern: "GET /ui/session", Mount: bare}, serve: (*Server).session},
	{Route: api.Route{Name: "ui_login", Pattern: "POST /ui/session", Mount: bare, Body: bodyJSON,
		Fields: requiredTexts("key")}, serve: (*Server).login},
	{Route: api.Route{Name: "ui_logout", Pattern: "DELETE /ui/session", Mount: bare}, serve: (*Server).logout},

	// OpenAI.
	managed(api.Route{Name: "models", Pattern: "GET /models", Mount: both, Scope: anyKey, PerModel: true},
		(*manage.Service).Models),
	managed(api.Route{Name: "model", Pattern: "GET /models/{id}", Scope: anyKey, PerModel: true},
		(*manage.Service).Model),
	inference(api.Route{Name: "chat", Pattern: "POST /chat/completions", Type: policy.LLM, CanStream: true,
		Fields: messages}, bodycheck.Chat, infer("/v1/chat/completions")),
	inference(api.Route{Name: "completions", Pattern: "POST /completions", Type: policy.LLM, CanStream: true,
		Fields: required("prompt", textOrList, 0)}, bodycheck.Completions, (*Server).completions),
	inference(api.Route{Name: "responses", Pattern: "POST /responses", Dialect: api.Responses, Type: policy.LLM,
		CanStream: true, Fields: required("input", textOrList, api.MaxItems)}, nil, (*Server).responses),
	{Route: api.Route{Name: "response", Pattern: "GET /responses/{id}", Dialect: api.Responses,
		Scope: api.ScopeInfer, PerModel: true}, serve: (*Server).responseGet},
	{Route: api.Route{Name: "response_items", Pattern: "GET /responses/{id}/input_items", Dialect: api.Responses,
		Scope: api.ScopeInfer, PerModel: true}, serve: (*Server).responseItems},
	{Route: api.Route{Name: "response_delete", Pattern: "DELETE /responses/{id}", Dialect: api.Responses,
		Scope: api.ScopeInfer, PerModel: true}, serve: (*Server).responseDelete},
	inference(api.Route{Name: "input_tokens", Pattern: "POST /responses/input_tokens", Dialect: api.Responses,
		Type: policy.LLM, Fields: required("input", textOrList, api.MaxItems)}, nil, (*Server).inputTokens),
	inference(api.Route{Name: "embeddings", Pattern: "POST /embeddings", Type: policy.Embedding,
		Fields: required("input", textOrList, api.MaxInputs)}, bodycheck.Embeddings, (*Server).embeddings),
	inference(api.Route{Name: "transcriptions", Pattern: "POST /audio/transcriptions", Type: policy.Audio, Body: form,
		Fields: required("file", 0, 0)}, nil, infer("/v1/audio/transcriptions")),
	inference(api.Route{Name: "translations", Pattern: "POST /audio/translations", Type: policy.Audio, Body: form,
		Fields: required("file", 0, 0)}, nil, (*Server).translations),
	{Route: api.Route{Name: "realtime", Pattern: "GET /realtime", Scope: api.ScopeInfer, PerModel: true,
		Inference: true}, serve: (*Server).realtime},
	inference(api.Route{Name: "speech", Pattern: "POST /audio/speech", Type: policy.TTS,
		Fields: requiredTexts("input", "voice")}, bodycheck.Speech, infer("/v1/audio/speech")),
	inference(api.Route{Name: "image_generations", Pattern: "POST /images/generations", Type: policy.Image,
		Fields: requiredTexts("prompt")}, bodycheck.Image, (*Server).imageGenerations),
	inference(api.Route{Name: "image_edits", Pattern: "POST /images/edits", Type: policy.Image, Body: form,
		Fields: []api.Field{{Name: "image", Alt: "image[]", Required: true}, {Name: "prompt", Required: true}}}, nil,
		(*Server).imageEdits),
	inference(api.Route{Name: "image_variations", Pattern: "POST /images/variations", Type: policy.Image, Body: form,
		Fields: []api.Field{{Name: "image", Alt: "image[]", Required: true}, {Name: "prompt"}}}, nil,
		infer("/v1/images/variations")),

	// OpenAI's files and batches, and Anthropic's batches.
	{Route: api.Route{Name: "file_create", Pattern: "POST /files", Scope: api.ScopeInfer, PerModel: true,
		Body: api.BodyFile}, serve: (*Server).fileCreate},
	batched(api.Route{Name: "file_list", Pattern: "GET /files"}, (*batches.Service).FileList),
	batched(api.Route{Name: "file_get", Pattern: "GET /files/{id}"}, (*batches.Service).FileGet),
	batched(api.Route{Name: "file_content", Pattern: "GET /files/{id}/content"}, (*batches.Service).FileContent),
	batched(api.Route{Name: "file_delete", Pattern: "DELETE /files/{id}"}, (*batches.Service).FileDelete),
	batched(api.Route{Name: "batch_create", Pattern: "POST /batches", Body: bodyJSON,
		Fields: requiredTexts("input_file_id", "endpoint", "completion_window")}, (*batches.Service).BatchCreate),
	batched(api.Route{Name: "batch_list", Pattern: "GET /batches"}, (*batches.Service).BatchList),
	batched(api.Route{Name: "batch_get", Pattern: "GET /batches/{id}"}, (*batches.Service).BatchGet),
	batched(api.Route{Name: "batch_cancel", Pattern: "POST /batches/{id}/cancel"}, (*batches.Service).BatchCancel),
	batched(api.Route{Name: "message_batch_create", Pattern: "POST /messages/batches", Dialect: api.Anthropic, Body: bodyJSON, Large: true,
		Fields: required("requests", list, batches.MaxMessages)}, (*batches.Service).MessagesCreate),
	batched(api.Route{Name: "message_batch_list", Pattern: "GET /messages/batches", Dialect: api.Anthropic},
		(*batches.Service).MessagesList),
	batched(api.Route{Name: "message_batch_get", Pattern: "GET /messages/batches/{id}", Dialect: api.Anthropic},
		(*batches.Service).MessagesGet),
	batched(api.Route{Name: "message_batch_cancel", Pattern: "POST /messages/batches/{id}/cancel", Dialect: api.Anthropic},
		(*batches.Service).MessagesCancel),
	batched(api.Route{Name: "message_batch_delete", Pattern: "DELETE /messages/batches/{id}", Dialect: api.Anthropic},
		(*batches.Service).MessagesDelete),
	batched(api.Route{Name: "message_batch_results", Pattern: "GET /messages/batches/{id}/results", Dialect: api.Anthropic},
		(*batches.Service).MessagesResults),

	// llama-server's own.
	inference(api.Route{Name: "tokenize", Pattern: "POST /tokenize", Mount: both, Type: policy.LLM, InQuery: true,
		Fields: requiredTexts("content")}, bodycheck.Tokenize, infer("/tokenize")),
	inference(api.Route{Name: "detokenize", Pattern: "POST /detokenize", Mount: both, Type: policy.LLM, InQuery: true,
		Fields: required("tokens", list, 0)}, bodycheck.Detokenize, infer("/detokenize")),
	inference(api.Route{Name: "apply_template", Pattern: "POST /apply-template", Mount: both, Type: policy.LLM,
		InQuery: true, Fields: messages}, bodycheck.Chat, infer("/apply-template")),

	// Anthropic.
	inference(api.Route{Name: "messages", Pattern: "POST /messages", Dialect: api.Anthropic, Type: policy.LLM,
		CanStream: true, Fields: []api.Field{{Name: "max_tokens", Types: number, Required: true, AtLeastOne: true},
			{Name: "messages", Types: list, Required: true, Max: api.MaxMessages}}}, bodycheck.Messages,
		infer("/v1/messages")),
	inference(api.Route{Name: "count_tokens", Pattern: "POST /messages/count_tokens", Dialect: api.Anthropic,
		Type: policy.LLM, Fields: messages}, bodycheck.Messages, infer("/v1/messages/count_tokens")),

	// Embeddings of Text Embeddings Inference and of Cohere.
	inference(api.Route{Name: "tei_embed", Pattern: "POST /embed", Mount: bare, Type: policy.Embedding,
		Fields: []api.Field{{Name: "inputs", Types: textOrList, Required: true, Max: api.MaxInputs},
			{Name: "prompt_name", Unsupported: true}}}, nil, (*Server).teiEmbed),
	{Route: api.Route{Name: "tei_info", Pattern: "GET /info", Mount: bare, Scope: anyKey, PerModel: true},
		serve: (*Server).teiInfo},
	inference(api.Route{Name: "cohere_embed", Pattern: "POST /v2/embed", Mount: bare, Type: policy.Embedding,
		Fields: []api.Field{{Name: "texts", Types: list, Required: true, Max: api.MaxInputs},
			{Name: "images", Unsupported: true}, {Name: "inputs", Unsupported: true}}}, nil, (*Server).cohereEmbed),

	// Rerank.
	rerankRoute("/rerank", both),
	rerankRoute("/reranking", both),
	rerankRoute("/reranker", api.Prefixed),
	rerankRoute("/v2/rerank", bare),

	// Ollama.
	ollamaManaged(api.Route{Name: "ollama_version", Pattern: "GET /api/version", Scope: anyKey},
		(*manage.Service).OllamaVersion),
	ollamaManaged(api.Route{Name: "ollama_tags", Pattern: "GET /api/tags", Scope: anyKey}, (*manage.Service).OllamaTags),
	ollamaManaged(api.Route{Name: "ollama_ps", Pattern: "GET /api/ps", Scope: anyKey}, (*manage.Service).OllamaPS),
	ollamaManaged(api.Route{Name: "ollama_show", Pattern: "POST /api/show", Scope: anyKey, Body: bodyJSON,
		Model: modelOrName}, (*manage.Service).OllamaShow),
	inference(api.Route{Name: "ollama_chat", Pattern: "POST /api/chat", Mount: bare, Dialect: api.Ollama,
		Type: policy.LLM, CanStream: true, Streams: true,
		Fields: []api.Field{{Name: "messages", Types: list, Max: api.MaxMessages}}}, nil, (*Server).ollamaChat),
	inference(api.Route{Name: "ollama_generate", Pattern: "POST /api/generate", Mount: bare, Dialect: api.Ollama,
		Type: policy.LLM, CanStream: true, Streams: true, Fields: []api.Field{{Name: "prompt", Types: text}}}, nil,
		(*Server).ollamaGenerate),
	inference(api.Route{Name: "ollama_embed", Pattern: "POST /api/embed", Mount: bare, Dialect: api.Ollama,
		Type: policy.Embedding, Fields: []api.Field{{Name: "input", Types: textOrList, Max: api.MaxInputs}}}, nil,
		(*Server).ollamaEmbed),
	inference(api.Route{Name: "ollama_embeddings", Pattern: "POST /api/embeddings", Mount: bare, Dialect: api.Ollama,
		Type: policy.Embedding, Fields: []api.Field{{Name: "prompt", Types: text}}}, nil,
		(*Server).ollamaEmbeddings),
	ollamaManaged(api.Route{Name: "ollama_pull", Pattern: "POST /api/pull", Scope: manages, Body: bodyJSON, Streams: true,
		Model: modelOrName}, (*manage.Service).OllamaPull),
	ollamaManaged(api.Route{Name: "ollama_delete", Pattern: "DELETE /api/delete", Scope: admin, Body: bodyJSON,
		Model: modelOrName}, (*manage.Service).OllamaDelete),

	// Operator routes.
	managed(api.Route{Name: "running", Pattern: "GET /running", Mount: both, Scope: anyKey, PerModel: true},
		(*manage.Service).Running),
	managed(api.Route{Name: "unload_all", Pattern: "GET /unload", Mount: both, Scope: manages},
		(*manage.Service).UnloadAll),
	{Route: api.Route{Name: "upstream", Pattern: "ANY /upstream/{id}", Mount: bare, Scope: admin, PerModel: true,
		Body: api.BodyRaw, Inference: true}, serve: (*Server).upstream},
	managed(api.Route{Name: "logs", Pattern: "GET /logs", Mount: both, Scope: admin}, (*manage.Service).Logs),
	managed(api.Route{Name: "logs_stream", Pattern: "GET /logs/stream", Mount: both, Scope: admin},
		(*manage.Service).LogsStream),
	managed(api.Route{Name: "logs_stream_model", Pattern: "GET /logs/stream/{id}", Mount: both, Scope: admin},
		(*manage.Service).LogsStreamModel),
}

func rerankRoute(path string, mount api.Mount) route {
	r := api.Route{Name: "rerank", Pattern: "POST " + path, Mount: mount, Type: policy.Reranking, Fields: []api.Field{
		{Name: "query", Types: text, Required: true}, {Name: "documents", Alt: "texts", Types: list, Required: true, Max: api.MaxDocuments},
		{Name: "top_n", Alt: "top_k", Types: number, AtLeastOne: true}, {Name: "max_tokens_per_doc", Types: number, AtLeastOne: true},
	}}
	return inference(r, bodycheck.Rerank, (*Server).rerank)
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
