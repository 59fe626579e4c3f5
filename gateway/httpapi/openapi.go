package httpapi

import (
	"maps"

	"github.com/google/jsonschema-go/jsonschema"

	"reveille/gateway/api"
	"reveille/gateway/cohere"
	"reveille/gateway/manage"
)

// openapi serves the description of all routes.
func (s *Server) openapi(r *request) error {
	r.Send(200, "application/json; charset=utf-8", s.document())
	return nil
}

// answerSchemas describes the answers that the gateway makes itself, from their types, and those parts of engines' answers
// that it reads.
func answerSchemas() api.Answers {
	status := api.SchemaOf[doneStatus]()
	count := &jsonschema.Schema{Type: "integer"}
	usage := api.OpenSchema(map[string]*jsonschema.Schema{"prompt_tokens": count, "completion_tokens": count})
	list := &jsonschema.Schema{Type: "array"}
	completion := api.OpenSchema(map[string]*jsonschema.Schema{"choices": list, "usage": usage})
	text := &jsonschema.Schema{Type: "string"}
	response := api.OpenSchema(map[string]*jsonschema.Schema{"id": text, "object": text, "status": text, "model": text, "output": list})
	ranked := &jsonschema.Schema{Types: []string{"object", "array"}}
	all := api.Answers{
		"live": status, "health_plain": status, "ready": status,
		"responses": response, "response": response, "chat": completion, "completions": completion, "embeddings": api.OpenSchema(map[string]*jsonschema.Schema{"data": list, "usage": usage}), "rerank": ranked,
		"response_delete": api.SchemaOf[deletedResponse](), "cohere_embed": api.SchemaOf[cohere.Embeddings](),
		"ui_session": api.SchemaOf[sessionAnswer](), "ui_login": api.SchemaOf[sessionAnswer](), "ui_logout": api.SchemaOf[sessionAnswer](),
	}
	maps.Copy(all, manage.Answers())
	return all
}

// doneStatus is the answer of probes.
type doneStatus struct {
	Status string `json:"status"`
}
