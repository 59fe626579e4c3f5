package plan

// Meta is the metadata in a model's files. The zero value means that nothing is known.
type Meta struct {
	Format  string `json:"format,omitempty"` // "gguf" or "safetensors"
	Arch    string `json:"arch,omitempty"`
	Weights int64  `json:"weights"` // bytes of the tensors, or of the files

	Layers    int `json:"layers,omitempty"`
	Hidden    int `json:"hidden,omitempty"`
	Heads     int `json:"heads,omitempty"`
	Vocab     int `json:"vocab,omitempty"`
	Positions int `json:"positions,omitempty"` // maximum sequence it was trained for, 0 if unknown
	// Scaled models extend their positions, so that an engine may accept sequences longer than Positions.
	Scaled bool `json:"scaled,omitempty"`
	// Causal models attend only to earlier tokens, and can therefore keep keys and values.
	Causal bool `json:"causal"`
	// Cache is what a token takes in the KV cache, summed over the layers that keep all tokens; Windowed is the sum
	// over those that keep only the last Window tokens of a sequence.
	Cache    Elements `json:"cache"`
	Windowed Elements `json:"windowed"`
	Window   int      `json:"window,omitempty"`

	Pooling   Pooling `json:"pooling,omitempty"`
	Tokenizer string  `json:"tokenizer,omitempty"` // "bert", "gpt2", "llama", …
}

// Pooling is how a model turns the outputs of its tokens into one, by GGUF's numbers; 0 for a model that generates.
type Pooling uint32

// PoolingRank is the pooling of a model that scores documents.
const PoolingRank Pooling = 4

// Elements counts the numbers that the cache keeps for a token.
type Elements struct {
	K int64 `json:"k"`
	V int64 `json:"v"`
}

// elementBits gives the size of an element by cache type, in 256ths of a byte so that block formats are exact.
var elementBits = map[string]int64{
	"f32": 4 * 256, "f16": 2 * 256, "bf16": 2 * 256, "q8_0": 34 * 8, "q5_1": 24 * 8, "q5_0": 22 * 8, "q4_1": 20 * 8, "q4_0": 18 * 8, "iq4_nl": 18 * 8,
	"auto": 2 * 256, "fp8": 256,
}

// bytes returns the size of e with the given cache types; unknown ones count as f16.
func (e Elements) bytes(k, v string) int64 {
	per := func(t string) int64 {
		if b, ok := elementBits[t]; ok {
			return b
		}
		return elementBits["f16"]
	}
	return (e.K*per(k) + e.V*per(v) + 255) / 256
}

// hasKVCache reports whether the model has a KV cache.
func (m *Meta) hasKVCache() bool {
	return m.Causal && m.Layers > 0 && m.Cache.K+m.Cache.V+m.Windowed.K+m.Windowed.V > 0
}
