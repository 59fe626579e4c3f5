package httpapi

import (
	"encoding/json"
	"reflect"

	"github.com/google/jsonschema-go/jsonschema"

	"reveille/gateway/api"
	"reveille/infra/recipe"
)

// openapi serves the description of all routes.
func (s *Server) openapi(r *request) error {
	r.send(200, "application/json; charset=utf-8", s.document())
	return nil
}

// answerSchemas describes the answers that the gateway makes itself, from their types, and those parts of engines' answers
// that it reads.
func answerSchemas() api.Answers {
	status := schemaOf[doneStatus]()
	count := &jsonschema.Schema{Type: "integer"}
	usage := open(map[string]*jsonschema.Schema{"prompt_tokens": count, "completion_tokens": count})
	list := &jsonschema.Schema{Type: "array"}
	completion := open(map[string]*jsonschema.Schema{"choices": list, "usage": usage})
	text := &jsonschema.Schema{Type: "string"}
	response := open(map[string]*jsonschema.Schema{"id": text, "object": text, "status": text, "model": text, "output": list})
	ranked := &jsonschema.Schema{Types: []string{"object", "array"}}
	return api.Answers{
		"live": status, "health_plain": status, "ready": status,
		"health": schemaOf[healthReport](), "system_info": schemaOf[systemReport](), "running": schemaOf[runningList](),
		"load": open(schemaOf[doneAnswer]().Properties), "pin": schemaOf[pinAnswer](), "delete": schemaOf[doneAnswer](),
		"unload":   open(schemaOf[doneAnswer]().Properties),
		"register": schemaOf[registerAnswer](), "model_status": schemaOf[statusAnswer](),
		"options_get": schemaOf[optionsAnswer](), "options_set": schemaOf[optionsAnswer](), "options_delete": schemaOf[optionsAnswer](),
		"config_set": schemaOf[configSetAnswer](), "aliases": schemaOf[aliasList](), "alias_get": schemaOf[alias](), "alias_set": schemaOf[alias](),
		"alias_set_one": schemaOf[alias](),
		"host_wake":     schemaOf[hostAnswer](), "host_forget": schemaOf[hostAnswer](), "host_sleep": schemaOf[hostAnswer](),
		"models": anyOf(schemaOf[modelList](), schemaOf[anthropicList]()), "model": anyOf(schemaOf[modelItem](), schemaOf[anthropicModel]()),
		"ollama_tags": schemaOf[ollamaList[ollamaTag]](), "ollama_ps": schemaOf[ollamaList[ollamaLoaded]](), "ollama_show": schemaOf[ollamaShown](),
		"responses": response, "response": response, "chat": completion, "completions": completion, "embeddings": open(map[string]*jsonschema.Schema{"data": list, "usage": usage}), "rerank": ranked,
		"response_delete": schemaOf[deletedResponse](), "cohere_embed": schemaOf[cohereEmbeddings](),
	}
}

// doneStatus is the answer of probes.
type doneStatus struct {
	Status string `json:"status"`
}

func anyOf(schemas ...*jsonschema.Schema) *jsonschema.Schema {
	return &jsonschema.Schema{AnyOf: schemas}
}

// open is the schema of an object that may have these members and others.
func open(members map[string]*jsonschema.Schema) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "object", Properties: members}
}

// schemaOf describes the JSON text of a T.
func schemaOf[T any]() *jsonschema.Schema {
	s, err := jsonschema.For[T](&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[json.RawMessage](): {},
		reflect.TypeFor[recipe.Options]():  {Types: []string{"object", "null"}},
	}})
	if err != nil {
		panic("httpapi: " + err.Error()) // a mistake in T, which the tests find
	}
	return s
}
