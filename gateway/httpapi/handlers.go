package httpapi

import (
	"maps"

	"reveille/gateway/api"
	"reveille/gateway/manage"
)

// handler serves one route of the table. An error is answered in the dialect of the path.
type handler func(*Server, *request) error

// handlers holds the handlers of this package, by the names of their routes in the route table.
var handlers = map[string]handler{
	// Routes that run models.
	"chat":              infer("/v1/chat/completions"),
	"completions":       (*Server).completions,
	"responses":         (*Server).responses,
	"response":          (*Server).responseGet,
	"response_items":    (*Server).responseItems,
	"response_delete":   (*Server).responseDelete,
	"input_tokens":      (*Server).inputTokens,
	"messages":          infer("/v1/messages"),
	"count_tokens":      infer("/v1/messages/count_tokens"),
	"embeddings":        (*Server).embeddings,
	"rerank":            (*Server).rerank,
	"transcriptions":    infer("/v1/audio/transcriptions"),
	"realtime":          (*Server).realtime,
	"translations":      infer("/v1/audio/translations"),
	"speech":            infer("/v1/audio/speech"),
	"image_generations": infer("/v1/images/generations"),
	"image_edits":       infer("/v1/images/edits"),
	"image_variations":  infer("/v1/images/variations"),
	"tokenize":          infer("/tokenize"),
	"detokenize":        infer("/detokenize"),
	"apply_template":    infer("/apply-template"),
	"ollama_chat":       (*Server).ollamaChat,
	"ollama_generate":   (*Server).ollamaGenerate,
	"ollama_embed":      (*Server).ollamaEmbed,
	"ollama_embeddings": (*Server).ollamaEmbeddings,
	"tei_embed":         (*Server).teiEmbed,
	"cohere_embed":      (*Server).cohereEmbed,

	// Probes, listings, management and operator routes. Those that only read do not use a model and wake nothing.
	"root":         (*Server).root,
	"live":         (*Server).live,
	"ready":        (*Server).ready,
	"health_plain": (*Server).live,
	"metrics":      (*Server).metrics,
	"openapi":      (*Server).openapi,

	"upstream": (*Server).upstream,

	"tei_info": (*Server).teiInfo,

	// The page.
	"ui":         (*Server).page,
	"ui_file":    (*Server).pageFile,
	"ui_stream":  (*Server).pageStream,
	"ui_session": (*Server).session,
	"ui_login":   (*Server).login,
	"ui_logout":  (*Server).logout,
}

// allHandlers returns the handlers, those of m included. Every route has one.
func allHandlers(m *manage.Service) map[string]handler {
	all := maps.Clone(handlers)
	for name, handle := range m.Handlers() {
		all[name] = func(_ *Server, r *request) error { return handle(&r.Request) }
	}
	for _, r := range api.Routes() {
		if all[r.Name] == nil {
			panic("httpapi: there is no handler for the route " + r.Name)
		}
	}
	return all
}
