package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	gguf "github.com/gpustack/gguf-parser-go"

	"reveille/infra/modelfile"
)

// Bounds on a model's metadata.
const (
	maxLayers   = 1 << 12
	maxVocab    = 1 << 20
	maxElements = 1 << 40
	maxInt      = 1 << 31
)

var errHeader = errors.New("not a GGUF header within the usual bounds")

// ErrProjector is the error for a GGUF file with a projector for images or audio (mmproj).
var ErrProjector = errors.New("contains a projector, not a model")

// readGGUF reads the header of a GGUF file. Of a projector, it returns ErrProjector, and in Hidden the dimension of the
// model that it is for, 0 if unknown. The file is mapped, and neither tensors nor vocabulary are read.
func readGGUF(path string) (m Meta, err error) {
	f, err := parseGGUF(path, gguf.UseMMap(), gguf.SkipLargeMetadata())
	if err != nil {
		return Meta{}, err
	}
	defer recoverParser(&err)
	a := f.Architecture()
	if a.Type == "projector" {
		// For other types, some converters write the dimension of the vision model here.
		if slices.Contains([]string{"gemma3", "idefics3", "internvl", "lfm2", "llama4", "pixtral", "qwen3vl_merger"}, a.ClipProjectorType) {
			m.Hidden = int(a.ClipVisionProjectionDim)
		}
		return m, ErrProjector
	}
	if a.Type != "" && a.Type != "model" {
		return Meta{}, fmt.Errorf("contains a %s, not a model", a.Type)
	}
	t := f.Tokenizer()
	m = Meta{Format: "gguf", Arch: a.Architecture, Weights: int64(f.ModelSize), Causal: a.AttentionCausal, Pooling: Pooling(a.PoolingType), Tokenizer: t.Model}
	vocab := max(t.TokensLength, a.VocabularyLength)
	for _, n := range []struct {
		to   *int
		from uint64
		max  uint64
	}{
		{&m.Layers, a.BlockCount, maxLayers}, {&m.Hidden, a.EmbeddingLength, maxInt}, {&m.Heads, a.AttentionHeadCount, maxInt},
		{&m.Vocab, vocab, maxInt}, {&m.Positions, a.MaximumContextLength, maxInt}, {&m.Window, a.AttentionSlidingWindow, maxInt},
	} {
		if n.from > n.max {
			return Meta{}, errHeader
		}
		*n.to = int(n.from)
	}
	if m.Weights < 0 {
		return Meta{}, errHeader
	}
	return m, setCacheSizes(&m, &a)
}

// setCacheSizes computes what a token takes in the cache, layer by layer.
func setCacheSizes(m *Meta, a *gguf.GGUFArchitecture) error {
	if a.AttentionRecurrent && !a.AttentionHybrid {
		return nil // its state does not grow with the context
	}
	for i := range m.Layers {
		if n := a.AttentionKVFromStartLayerCount; n > 0 && i >= int(n) {
			break // later layers use the caches of earlier ones
		}
		heads := a.AttentionHeadCountKV
		switch {
		case i < len(a.AttentionHeadCountKVs):
			heads = a.AttentionHeadCountKVs[i]
		case a.FullAttentionInterval > 0 && (i+1)%int(a.FullAttentionInterval) != 0:
			heads = 0
		}
		k, v := uint64(a.AttentionKeyLength), uint64(a.AttentionValueLength)
		windowed := i < len(a.AttentionSlidingWindowLayers) && a.AttentionSlidingWindowLayers[i]
		if windowed {
			k, v = cmp.Or(uint64(a.AttentionKeyLengthSWA), k), cmp.Or(uint64(a.AttentionValueLengthSWA), v)
		}
		if heads > maxInt || k > maxInt || v > maxInt || heads*max(k, v) > maxElements {
			return errHeader
		}
		to := &m.Cache
		if windowed && m.Window > 0 {
			to = &m.Windowed
		}
		if a.AttentionKeyValueLORARank > 0 { // one latent vector and the rotated part serve all heads
			to.K += int64(a.AttentionKeyValueLORARank) + int64(min(a.RoPEDimensionCount, maxInt))
			continue
		}
		to.K += int64(heads * k)
		to.V += int64(heads * v)
	}
	return nil
}

// parseGGUF checks the file before it calls the parser, which allocates by the file's lengths, and turns the parser's
// panics into errors.
func parseGGUF(path string, opts ...gguf.GGUFReadOption) (f *gguf.GGUFFile, err error) {
	defer recoverParser(&err)
	if err := modelfile.Check(path); err != nil {
		return nil, err
	}
	return gguf.ParseGGUFFile(path, opts...)
}

// recoverParser turns a panic of the parser into an error.
func recoverParser(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w: %v", errHeader, p)
	}
}

// Vocabulary returns the tokens of a GGUF file whose tokenizer is BERT's, nil for any other.
func Vocabulary(path string) (tokens []string, err error) {
	m, err := readGGUF(path)
	if err != nil || m.Tokenizer != "bert" || m.Vocab > maxVocab {
		return nil, err
	}
	f, err := parseGGUF(path, gguf.UseMMap())
	if err != nil {
		return nil, err
	}
	defer recoverParser(&err)
	kv, ok := f.Header.MetadataKV.Get("tokenizer.ggml.tokens")
	if !ok {
		return nil, nil
	}
	return kv.ValueArray().ValuesString(), nil
}
