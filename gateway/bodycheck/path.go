package bodycheck

import (
	"net/url"
	"path"
	"strings"
)

// enginePaths are the paths of engines that run models, without a version before them, and the rules of their bodies.
var enginePaths = map[string]*Spec{
	"chat/completions": Chat, "chat/completions/input_tokens": Chat, "apply-template": Chat,
	"completion": Completions, "completions": Completions, "infill": Completions,
	"messages": Messages, "messages/count_tokens": Messages,
	"embedding": Embeddings, "embeddings": Embeddings, "tokenize": Tokenize, "detokenize": Detokenize,
	"rerank": engineRerankSpec, "reranking": engineRerankSpec, "audio/speech": Speech, "images/generations": Image,
}

// closedPaths are paths of engines whose bodies are in forms that are not checked: they take what the paths above take,
// or more, or name files to open.
var closedPaths = map[string]bool{
	"invocations": true, "pooling": true, "classify": true, "score": true, "inference/v1/generate": true, "generate": true,
	"chat/completions/batch": true, "responses": true, "responses/input_tokens": true, "responses/render": true, "messages/render": true, "generative_scoring": true, "cohere/v2/chat": true, "embed": true,
	"sdapi/v1/txt2img": true, "sdapi/v1/img2img": true, "sdcpp/v1/img_gen": true, "sdcpp/v1/vid_gen": true,
	"load": true, "load_lora_adapter": true, "unload_lora_adapter": true, "collective_rpc": true, "update_weights": true,
	"api/chat": true, "api/generate": true, "api/embed": true, "api/embeddings": true, "render": true, "chat/completions/render": true, "completions/render": true,
}

// Kind of an engine's path.
type Kind uint8

// The kinds.
const (
	Other  Kind = iota // does not run the model
	JSON               // runs it, with a body that Spec is for
	Files              // runs it, with a form that holds audio or images
	Closed             // runs it with a body that cannot be checked, or opens files
)

// PlainPath returns a path of an engine, which starts with a slash, as it would be spelled honestly.
func PlainPath(raw string) string {
	raw, _, _ = strings.Cut(raw, "?")
	raw, _, _ = strings.Cut(raw, "#")
	for range 3 { // engines decode once; what decodes further is not spelled honestly
		plain, err := url.PathUnescape(raw)
		if err != nil || plain == raw {
			break
		}
		raw = plain
	}
	return strings.ToLower(path.Clean("/" + strings.ReplaceAll(raw, `\`, "/")))
}

// ForPath returns what an engine's path does, however the path is spelled, and the rules of its body.
func ForPath(raw string) (Kind, *Spec) {
	p := PlainPath(raw)[1:]
	for _, version := range [...]string{"api/v1/", "v1/", "v2/", "openai/v1/"} {
		if rest, ok := strings.CutPrefix(p, version); ok {
			p = rest
			break
		}
	}
	switch p {
	case "audio/transcriptions", "audio/translations", "inference", "images/edits", "images/variations":
		return Files, nil
	}
	if closedPaths[p] || strings.HasPrefix(p, "slots/") { // the runner saves, restores and erases conversations
		return Closed, nil
	}
	if s := enginePaths[p]; s != nil {
		return JSON, s
	}
	return Other, nil
}
