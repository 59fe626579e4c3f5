package manage

import (
	"github.com/google/jsonschema-go/jsonschema"

	"reveille/gateway/api"
	"reveille/gateway/keys"
)

// Answers describes the answers of the routes, from their types.
func Answers() api.Answers {
	return api.Answers{
		"health": api.SchemaOf[healthReport](), "system_info": api.SchemaOf[systemReport](), "running": api.SchemaOf[runningList](),
		"load": api.OpenSchema(api.SchemaOf[doneAnswer]().Properties), "pin": api.SchemaOf[pinAnswer](), "delete": api.SchemaOf[doneAnswer](),
		"unload":   api.OpenSchema(api.SchemaOf[doneAnswer]().Properties),
		"register": api.SchemaOf[registerAnswer](), "model_status": api.SchemaOf[statusAnswer](),
		"options_get": api.SchemaOf[optionsAnswer](), "options_set": api.SchemaOf[optionsAnswer](), "options_delete": api.SchemaOf[optionsAnswer](),
		"config_set": api.SchemaOf[configSetAnswer](), "aliases": api.SchemaOf[aliasList](), "alias_get": api.SchemaOf[alias](), "alias_set": api.SchemaOf[alias](),
		"alias_set_one": api.SchemaOf[alias](), "keys_list": api.SchemaOf[keyList](), "keys_add": api.SchemaOf[keys.Entry](), "keys_revoke": api.SchemaOf[keys.Entry](),
		"host_wake": api.SchemaOf[hostAnswer](), "host_forget": api.SchemaOf[hostAnswer](), "host_sleep": api.SchemaOf[hostAnswer](),
		"conversations": api.SchemaOf[conversationList](), "conversations_forget": api.SchemaOf[forgottenAnswer](), "conversations_forget_all": api.SchemaOf[forgottenAnswer](),
		"models": anyOf(api.SchemaOf[modelList](), api.SchemaOf[anthropicList]()), "model": anyOf(api.SchemaOf[modelItem](), api.SchemaOf[anthropicModel]()),
		"ollama_tags": api.SchemaOf[ollamaList[ollamaTag]](), "ollama_ps": api.SchemaOf[ollamaList[ollamaLoaded]](), "ollama_show": api.SchemaOf[ollamaShown](),
	}
}

func anyOf(schemas ...*jsonschema.Schema) *jsonschema.Schema {
	return &jsonschema.Schema{AnyOf: schemas}
}
