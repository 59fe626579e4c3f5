package httpapi

import (
	"maps"

	"reveille/gateway/api"
)

// handler serves one route of the table. An error is answered in the dialect of the path.
type handler func(*Server, *request) error

// handlers holds the handler of each route, by its name in the route table.
var handlers = map[string]handler{
	// Routes that run models.
	"chat":              infer("/v1/chat/completions"),
	"completions":       (*Server).completions,
	"responses":         (*Server).responses,
	"response":          (*Server).responseGet,
	"response_delete":   (*Server).responseDelete,
	"input_tokens":      (*Server).inputTokens,
	"messages":          infer("/v1/messages"),
	"count_tokens":      infer("/v1/messages/count_tokens"),
	"embeddings":        (*Server).embeddings,
	"rerank":            (*Server).rerank,
	"transcriptions":    infer("/v1/audio/transcriptions"),
	"translations":      infer("/v1/audio/translations"),
	"speech":            infer("/v1/audio/speech"),
	"image_generations": infer("/v1/images/generations"),
	"image_edits":       infer("/v1/images/edits"),
	"image_variations":  infer("/v1/images/variations"),
	"tokenize":          infer("/tokenize"),
	"detokenize":        infer("/detokenize"),
	"apply_template":    infer("/apply-template"),
	"infill":            infer("/infill"),
	"ollama_chat":       (*Server).ollamaChat,
	"ollama_generate":   (*Server).ollamaGenerate,
	"ollama_embed":      (*Server).ollamaEmbed,
	"ollama_embeddings": (*Server).ollamaEmbeddings,
	"tei_embed":         (*Server).teiEmbed,
	"cohere_chat":       (*Server).cohereChat,
	"cohere_embed":      (*Server).cohereEmbed,

	// Probes, listings, management and operator routes. Those that only read do not use a model and wake nothing.
	"root":         (*Server).root,
	"live":         (*Server).live,
	"ready":        (*Server).ready,
	"health_plain": (*Server).live,
	"metrics":      (*Server).metrics,
	"health":       (*Server).health,
	"openapi":      (*Server).openapi,

	"load":           (*Server).load,
	"unload":         (*Server).unload,
	"unload_all":     (*Server).unloadAll,
	"api_unload_all": (*Server).apiUnloadAll,
	"api_unload":     (*Server).apiUnload,
	"pin":            (*Server).pin,

	"host_wake":   (*Server).hostWake,
	"host_forget": (*Server).hostForget,
	"host_sleep":  (*Server).hostSleep,

	"models":         (*Server).models,
	"model":          (*Server).modelOne,
	"model_status":   (*Server).modelStatus,
	"register":       (*Server).register,
	"pull":           (*Server).pull,
	"delete":         (*Server).deleteModel,
	"options_get":    (*Server).optionsGet,
	"options_set":    (*Server).optionsSet,
	"options_delete": (*Server).optionsDelete,

	"config_set":    (*Server).configSet,
	"config_get":    (*Server).configGet,
	"aliases":       (*Server).aliases,
	"alias_get":     (*Server).aliasGet,
	"alias_set":     (*Server).aliasSet,
	"alias_set_one": (*Server).aliasSet,
	"alias_delete":  (*Server).aliasDelete,

	"stats":        (*Server).stats,
	"system_info":  (*Server).systemInfo,
	"system_stats": (*Server).systemStats,

	"running":           (*Server).running,
	"logs":              (*Server).logs,
	"logs_stream":       (*Server).logsStream,
	"logs_stream_model": (*Server).logsStreamModel,
	"upstream":          (*Server).upstream,
	"props":             inspect("/props"),
	"slots":             inspect("/slots"),

	"ollama_version": (*Server).ollamaVersion,
	"ollama_tags":    (*Server).ollamaTags,
	"ollama_ps":      (*Server).ollamaPS,
	"ollama_show":    (*Server).ollamaShow,
	"ollama_pull":    (*Server).ollamaPull,
	"ollama_delete":  (*Server).ollamaDelete,

	"tei_info": (*Server).teiInfo,
}

// served returns the handlers. Every route has one.
func served() map[string]handler {
	all := maps.Clone(handlers)
	for _, r := range api.Routes() {
		if r.Unserved {
			all[r.Name] = notServed
		}
		if all[r.Name] == nil {
			panic("httpapi: there is no handler for the route " + r.Name)
		}
	}
	return all
}

func notServed(*Server, *request) error {
	return api.New(api.NotSupported, "This route is known but not served by this gateway.")
}
