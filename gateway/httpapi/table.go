package httpapi

import (
	"maps"

	"reveille/gateway/api"
)

// table is every route that this gateway serves, by the route table's name.
func (s *Server) table() map[string]handler {
	t := map[string]handler{}
	maps.Copy(t, s.inferenceRoutes())
	maps.Copy(t, s.managementRoutes())
	for _, r := range api.Routes() {
		if t[r.Name] == nil {
			t[r.Name] = notServed
		}
	}
	return t
}

// notServed answers a route of another dialect that means nothing here, such as Ollama's create.
func notServed(*request) error {
	return api.New(api.NotSupported, "This route is known but not served by this gateway.")
}

// inferenceRoutes maps the routes that run models to the engine's paths.
func (s *Server) inferenceRoutes() map[string]handler {
	return map[string]handler{
		"chat":              s.infer("/v1/chat/completions"),
		"completions":       s.infer("/v1/completions"),
		"responses":         s.responses,
		"input_tokens":      s.inputTokens,
		"messages":          s.infer("/v1/messages"),
		"count_tokens":      s.infer("/v1/messages/count_tokens"),
		"embeddings":        s.embeddings,
		"rerank":            s.rerank,
		"transcriptions":    s.infer("/v1/audio/transcriptions"),
		"translations":      s.infer("/v1/audio/translations"),
		"speech":            s.infer("/v1/audio/speech"),
		"image_generations": s.infer("/v1/images/generations"),
		"image_edits":       s.infer("/v1/images/edits"),
		"image_variations":  s.infer("/v1/images/variations"),
		"tokenize":          s.infer("/tokenize"),
		"detokenize":        s.infer("/detokenize"),
		"ollama_chat":       s.ollamaChat,
		"ollama_generate":   s.ollamaGenerate,
		"ollama_embed":      s.ollamaEmbed,
		"ollama_embeddings": s.ollamaEmbeddings,
	}
}

// streams are the routes whose answer may be a stream of events or lines. An engine's stream can be held open with comments
// only there: elsewhere a stream flag means nothing, or another form of answer.
var streams = map[string]bool{
	"chat": true, "completions": true, "responses": true, "messages": true, "ollama_chat": true, "ollama_generate": true,
}

// touch notes a use of a model.
func (s *Server) touch(host, model string) {
	s.cfg.Usage.Touch(host, model)
	s.uses.note(host, model)
}

// stateOf is a model's state in the pool under the name that the API uses.
func (s *Server) stateOf(model string) string {
	state := "unloaded"
	for _, h := range s.cfg.Mirror.Snapshot().Hosts {
		if m := h.Models[model]; m != nil {
			if h.Loaded(model) != nil {
				return "loaded"
			}
			state = string(m.State)
		}
		for _, t := range h.Queue {
			if t.Model == model && t.Kind == "load" && state == "unloaded" {
				state = ticketState(h, t)
			}
		}
	}
	return state
}
