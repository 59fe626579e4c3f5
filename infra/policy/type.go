package policy

import "slices"

// A Type is the class of work a model does. Each type has its own LRU order and its own slot limit on a host.
type Type string

// The types, in the order in which slot limits are listed (`--max-loaded-models "5 2 4"`).
const (
	LLM       Type = "llm"
	Embedding Type = "embedding"
	Reranking Type = "reranking"
	Audio     Type = "audio"
	Image     Type = "image"
	TTS       Type = "tts"
)

var types = [...]Type{LLM, Embedding, Reranking, Audio, Image, TTS}

// Types returns all types in the order of slot limit lists. The caller may change the slice.
func Types() []Type { return slices.Clone(types[:]) }

// Valid reports whether t is one of the known types.
func (t Type) Valid() bool { return slices.Contains(types[:], t) }

// index is the position of t in a limit list, -1 for an unknown type.
func (t Type) index() int { return slices.Index(types[:], t) }
