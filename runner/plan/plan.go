package plan

import (
	"errors"
	"fmt"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

// A Kind is how an engine schedules a model.
type Kind string

// The kinds.
const (
	Paged Kind = "paged" // generative, with a pool of KV memory
	Plain Kind = "plain" // without one
)

const (
	defaultContext  = 8192     // tokens of a paged model, if neither an option nor a budget sets it
	minContext      = 4096     // tokens of a paged model, even if its share is too small
	defaultParallel = 4        // sequences of a paged model
	plainParallel   = 64       // sequences of a plain model
	defaultBatch    = 2048     // tokens
	defaultUBatch   = 512      // tokens of a paged model
	cpuUBatch       = 512      // tokens; on a CPU attention over a larger batch costs more than it saves
	contextStep     = 256      // contexts are rounded down to a multiple of these tokens
	fixedBytes      = 64 << 20 // of any engine process
)

// Options are the load options that matter to a plan. Zero means unset.
type Options struct {
	Type    policy.Type
	Devices policy.Devices
	// Engine is the recipe's family, see recipe.Recipe.Family. It determines what the engine does on its own.
	Engine string

	Context  int // tokens; -1 automatic
	NBatch   int
	NUBatch  int
	Parallel int
	// CacheK and CacheV are the types of the cache's elements, default f16.
	CacheK, CacheV string
	// ExactKV means that the KV pool has a size in bytes, configured or as planned; otherwise the engine takes all of its
	// share.
	ExactKV bool
	// Fraction means that the engine's part of the device's memory is configured.
	Fraction bool
	// Scaled means that arguments can extend the model's positions.
	Scaled bool
	// Media means that the model has a projector for images or audio, of Projector bytes; 0 if unknown.
	Media     bool
	Projector int64
	// Memory overrides the share, in bytes.
	Memory int64
	// Unsaved is the part of the engine's command that prevents it from restoring saved conversations, "" for none.
	Unsaved string
	// FullWindows means that layers with a sliding window keep all tokens.
	FullWindows bool
	// Conversations means that the engine's conversations are saved. Layers with a sliding window then keep all tokens
	// if that fits.
	Conversations bool

	// Process is the memory of the engine's process itself, in bytes, see recipe.Recipe.ProcessMiB.
	Process int64

	overhead int64 // Process, and what an earlier engine of the model took above its estimate
}

// Validate reports configured sizes that contradict each other: n_batch ≥ n_ubatch, and for a model that embeds
// context ≥ n_batch.
func (o Options) Validate() error {
	var errs []error
	if o.NBatch > 0 && o.NUBatch > o.NBatch {
		errs = append(errs, fmt.Errorf("n_ubatch %d: want at most n_batch, %d", o.NUBatch, o.NBatch))
	}
	if minimum := max(o.NBatch, o.NUBatch); o.Type != policy.LLM && o.Context > 0 && o.Context < minimum {
		errs = append(errs, fmt.Errorf("ctx_size %d: want at least n_batch and n_ubatch, %d", o.Context, minimum))
	}
	return errors.Join(errs...)
}

// isDivided reports whether each sequence must have its own part of the pool, because llama-server exits if an image
// does not fit into a pool that other sequences have filled.
func (o *Options) isDivided() bool { return o.Engine == recipe.LlamaCpp && o.Media }

// A Plan is how one load of a model is scheduled. Sizes are bytes, lengths tokens.
type Plan struct {
	Kind Kind `json:"kind"`

	Context  int `json:"context"`  // sum over all sequences
	NBatch   int `json:"n_batch"`  // packed into one call
	NUBatch  int `json:"n_ubatch"` // largest single sequence (plain), physical batch (paged)
	Physical int `json:"physical"` // tokens that the engine computes in one step
	Parallel int `json:"parallel"` // parallel sequences
	// Divided means that each sequence has its own part of the pool; otherwise all share it.
	Divided bool `json:"divided,omitempty"`
	Longest int  `json:"longest"` // maximum length of one sequence, 0 if unknown
	// Positions is the model's own bound on a sequence, 0 if unknown.
	Positions int `json:"positions,omitempty"`

	CacheK          string `json:"cache_type_k,omitempty"`
	CacheV          string `json:"cache_type_v,omitempty"`
	KVBytesPerToken int64  `json:"kv_bytes_per_token"` // of a short context
	KVBytes         int64  `json:"kv_bytes"`
	WeightsBytes    int64  `json:"weights_bytes"`
	ComputeBytes    int64  `json:"compute_bytes"`      // buffers of the engine and its process itself, estimated
	Estimate        int64  `json:"estimate,omitempty"` // the sum of all parts; for vLLM all of its share; 0 if unknown
	Need            int64  `json:"need"`               // the need that counts; NeedSource says where it comes from
	NeedSource      string `json:"ruled,omitempty"`    // where Need comes from
	Measured        int64  `json:"measured,omitempty"` // the maximum that the engine was measured to take, 0 if unknown
	Share           int64  `json:"share"`              // of the device, 0 without a budget
	Budget          int64  `json:"budget"`             // of the device, 0 if it has none
	Total           int64  `json:"total,omitempty"`    // of the device's memory, 0 if unknown
	// GPUs are the indexes of the GPUs that the engine uses, nil if it may use any.
	GPUs []int `json:"gpus,omitempty"`
	// CannotSave is why llama-server's conversations do not survive an unload, "" if they do.
	CannotSave string `json:"forgets,omitempty"`
	// OnlySealed means that its states cannot go back: only one that ends exactly where the next turn goes on is of use.
	OnlySealed bool `json:"-"`
	// ExtraSWABytes is the memory, in bytes, for keeping all tokens in layers with a sliding window, so that
	// conversations survive an unload; 0 if the engine does not do that.
	ExtraSWABytes int64 `json:"widened,omitempty"`

	// Signature identifies everything that determines the engine's memory, except for the devices; "" if too little is
	// known.
	Signature string `json:"-"`
	// exactKV is [Options.ExactKV].
	exactKV bool
	// Key identifies the measured need, "" for none. The host sets it.
	Key string `json:"-"`

	Reason   string   `json:"reason"` // why this kind and this context
	Warnings []string `json:"warnings,omitempty"`
}

// Where a plan's need comes from.
const (
	FromEstimate    = "estimate"
	FromModelsFile  = "memory:"       // set in the models file
	FromMeasurement = "measured"      // by an earlier load, or this one
	FromOOM         = "out of memory" // an engine with this plan ran out of memory
)

// NeedFromMeasurement returns the need of a plan whose engine was measured. Main memory is taken only when it is used,
// so on a CPU the need is never less than the estimate. For other devices the log reports everything except the
// drivers' memory.
func (p *Plan) NeedFromMeasurement(measured int64, d policy.Devices) int64 {
	switch {
	case measured <= 0:
		return p.Estimate
	case d == policy.CPU:
		return max(measured, p.Estimate)
	}
	return measured + fixedBytes
}

// Make computes the plan of a load. It is a pure function.
func Make(m Meta, o Options, s Share) Plan {
	p := makeFixed(m, o, s)
	if !o.Conversations || o.Engine != recipe.LlamaCpp || o.FullWindows || m.Windowed == (Elements{}) || p.Kind != Paged {
		return p
	}
	o.FullWindows = true
	full := makeFixed(m, o, s)
	switch {
	case full.CannotSave != "" || p.Estimate == 0:
	case full.Share > 0 && full.Estimate <= full.Share && full.Context == p.Context && full.Parallel == p.Parallel:
		full.ExtraSWABytes = full.KVBytes - p.KVBytes
		return full
	default:
		p.CannotSave = fmt.Sprintf("a sliding window drops the start of the conversation; keeping it needs %d more bytes than the share has; llamacpp_args: --swa-full keeps it anyway", full.KVBytes-p.KVBytes)
	}
	return p
}

// makeFixed is Make without the choice about sliding windows.
func makeFixed(m Meta, o Options, s Share) Plan {
	if o.FullWindows {
		m.Cache.K, m.Cache.V = m.Cache.K+m.Windowed.K, m.Cache.V+m.Windowed.V
		m.Windowed, m.Window = Elements{}, 0
	}
	o.overhead = o.Process + s.AboveEstimate
	p := Plan{WeightsBytes: m.Weights, Positions: m.Positions, Budget: s.Budget, Total: s.Total, Share: s.of(o.Memory)}
	if m.Weights > 0 {
		p.WeightsBytes += o.Projector
	}
	switch {
	case o.Type != policy.LLM:
		p.plain(&m, &o, fmt.Sprintf("models of type %s have no KV pool", o.Type))
	case m.Format == "":
		p.plain(&m, &o, "no metadata: no KV pool is planned, the engine's settings apply")
		p.Context, p.NBatch, p.NUBatch, p.Physical, p.Parallel = max(o.Context, 0), o.NBatch, o.NUBatch, o.NUBatch, o.Parallel
		if p.Divided {
			p.Parallel = orDefault(o.Parallel, 1)
			p.Context *= p.Parallel
		}
		p.Longest = 0
		p.ComputeBytes = p.WeightsBytes/5 + o.overhead
	case !m.hasKVCache():
		p.plain(&m, &o, fmt.Sprintf("architecture %s keeps no KV cache", m.Arch))
		p.Longest = 0 // batches do not limit the length of what it generates
	default:
		p.paged(&m, &o)
	}
	p.exactKV = o.ExactKV
	p.Estimate, p.NeedSource = p.WeightsBytes+p.KVBytes+p.ComputeBytes, FromEstimate
	switch {
	case p.WeightsBytes == 0:
		p.Estimate, p.NeedSource = 0, "" // nothing is known
	case p.Kind == Paged && o.Engine == recipe.VLLM && !o.ExactKV:
		p.Estimate = max(p.Estimate, p.Share)
	}
	if p.Need = p.Estimate; o.Memory > 0 {
		p.Need, p.NeedSource = o.Memory, FromModelsFile
	}
	p.CannotSave, p.OnlySealed = cannotSave(&m, &o), recurrent[m.Arch]
	return p
}

// attentionOnly are the architectures whose only memory between requests is the KV cache. Others keep states of
// unknown size.
var attentionOnly = map[string]bool{
	"llama": true, "llama4": true, "mistral3": true, "qwen2": true, "qwen2moe": true, "qwen2vl": true, "qwen3": true, "qwen3moe": true, "qwen3vl": true,
	"qwen3vlmoe": true, "gemma": true, "gemma2": true, "gemma3": true, "gemma-embedding": true, "phi2": true, "phi3": true, "phimoe": true, "gpt-oss": true,
	"glm4": true, "glm4moe": true, "deepseek2": true, "command-r": true, "cohere2": true, "granite": true, "granitemoe": true, "olmo2": true, "olmoe": true,
	"smollm3": true, "starcoder2": true, "stablelm": true, "internlm2": true, "exaone4": true, "bert": true, "nomic-bert": true, "nomic-bert-moe": true,
	"jina-bert-v2": true, "jina-bert-v3": true, "modern-bert": true,
}

// recurrent are the architectures with states that cannot go back, besides a KV cache or instead of one. They, or
// others with the same states, were saved and restored with the results of an engine that never ended.
var recurrent = map[string]bool{
	"mamba": true, "mamba2": true, "falcon-h1": true, "granitehybrid": true, "lfm2": true, "lfm2moe": true, "qwen35": true, "qwen35moe": true,
	"qwen3next": true,
}

// cannotSave returns why a new llama-server process cannot restore the conversations that an earlier one saved. It
// returns "" if it can, or if the model has no conversations or another engine.
func cannotSave(m *Meta, o *Options) string {
	switch {
	case o.Type != policy.LLM, o.Engine != recipe.LlamaCpp:
		return ""
	case o.Media:
		return "llama-server cannot save conversations with images or audio"
	case o.Unsaved != "":
		return o.Unsaved
	case !attentionOnly[m.Arch] && !recurrent[m.Arch] || !m.Causal:
		return "its architecture may have more state than a KV cache"
	case m.Windowed != (Elements{}):
		return "a sliding window drops the start of the conversation; llamacpp_args: --swa-full keeps it and needs more memory"
	}
	return ""
}

// Parts lists the parts of Need in bytes, and why Need differs from their sum; "" if they were not computed.
func (p *Plan) Parts() string {
	if p.WeightsBytes == 0 || p.NeedSource == FromModelsFile || p.Estimate != p.WeightsBytes+p.KVBytes+p.ComputeBytes {
		return ""
	}
	parts := fmt.Sprintf("weights %d, KV cache %d, buffers %d", p.WeightsBytes, p.KVBytes, p.ComputeBytes)
	switch p.NeedSource {
	case FromMeasurement:
		parts += fmt.Sprintf("; measured %d", p.Need)
	case FromOOM:
		parts += fmt.Sprintf("; an engine ran out of memory, counted as %d", p.Need)
	}
	return parts
}

func (p *Plan) warn(format string, args ...any) {
	p.Warnings = append(p.Warnings, fmt.Sprintf(format, args...))
}

// plain plans a model without a KV pool.
func (p *Plan) plain(m *Meta, o *Options, reason string) {
	p.Kind, p.Reason = Plain, reason
	batch := max(defaultBatch, o.NUBatch) // a configured value overrides a default
	if o.Context > 0 {
		batch = min(batch, o.Context)
	}
	p.NBatch = orDefault(o.NBatch, batch)
	p.NUBatch = min(orDefault(o.NUBatch, p.NBatch), p.NBatch)
	p.Context = max(orDefault(o.Context, 2*p.NBatch), p.NBatch)
	p.Parallel = orDefault(o.Parallel, plainParallel)
	if p.Divided = o.isDivided(); p.Divided {
		p.Parallel = orDefault(o.Parallel, max(min(p.Context/p.NUBatch, plainParallel), 1))
		p.Context = max(p.Context, p.Parallel*p.NUBatch)
	}
	p.Longest = p.NUBatch
	if m.Positions > 0 {
		p.Longest = min(p.Longest, m.Positions)
	}
	p.Physical = p.NUBatch
	switch {
	case o.Engine == recipe.TEI:
		p.Physical = max(p.NBatch, m.Positions) // it does not start with less than its maximum sequence
	case o.Devices == policy.CPU && o.NUBatch == 0:
		p.Physical = min(p.NUBatch, max(cpuUBatch, p.Longest))
	}
	if o.Engine == recipe.LlamaCpp {
		p.fitSequences()
		p.Physical = (p.Physical + p.Parallel - 1) / p.Parallel * p.Parallel // pooling by the mean needs equal parts for all sequences
		p.Context = max(p.Context, p.Physical)
	}
	if p.WeightsBytes > 0 {
		p.ComputeBytes = fixedBytes + o.overhead + buffers(m, p.Physical, 0)
		if m.hasKVCache() { // a generative model that embeds still keeps the tokens in flight
			p.ComputeBytes += m.Cache.bytes("f16", "f16")*int64(p.Context) + m.Windowed.bytes("f16", "f16")*int64(p.Context)
		}
	}
}

// fitSequences lowers the number of sequences to the tokens of a physical batch. llama-server aborts if it cannot
// compute one token of each in one step.
func (p *Plan) fitSequences() {
	if p.Parallel > p.Physical {
		p.warn("n_parallel %d is more than a physical batch of %d tokens and was lowered to it", p.Parallel, p.Physical)
		p.Parallel = p.Physical
	}
}

// defaultNBatch returns how many prompt tokens a paged model processes between two checks for disconnected clients. On
// a CPU llama-server processes them no faster in batches larger than its physical one (measured), and each takes
// seconds.
func defaultNBatch(o *Options) int {
	if o.Engine == recipe.LlamaCpp && o.Devices == policy.CPU {
		return max(cpuUBatch, o.NUBatch)
	}
	return defaultBatch
}

// paged plans a model with a KV pool.
func (p *Plan) paged(m *Meta, o *Options) {
	p.Kind = Paged
	p.CacheK, p.CacheV = o.CacheK, o.CacheV
	p.Parallel = orDefault(o.Parallel, defaultParallel)
	p.NBatch = orDefault(o.NBatch, defaultNBatch(o))
	p.NUBatch = min(orDefault(o.NUBatch, defaultUBatch), p.NBatch)
	p.Physical = p.NUBatch
	if o.Engine == recipe.LlamaCpp {
		p.fitSequences()
	}
	p.Divided = o.isDivided()
	p.KVBytesPerToken = p.kv(m, 1)
	p.ComputeBytes = fixedBytes + o.overhead + buffers(m, p.Physical, p.Parallel)
	modelContext := m.Positions
	switch {
	case o.Context > 0:
		p.Context, p.Reason = o.Context, "configured context"
	case p.Share > 0:
		p.fill(m, o, modelContext)
	default:
		p.Context, p.Reason = defaultContext, "no budget: the default context"
		if modelContext > 0 {
			p.Context = min(p.Context, modelContext)
		}
	}
	p.Longest = p.Context
	if p.Divided {
		p.divide(m, o)
	}
	if extended := o.Context > 0 && (m.Scaled || o.Scaled); modelContext > 0 && !extended {
		p.Longest = min(p.Longest, modelContext)
	}
	p.KVBytes = p.kv(m, p.Context)
	if need := p.WeightsBytes + p.KVBytes + p.ComputeBytes; p.Share > 0 && need > p.Share {
		p.warn("needs %d bytes, more than its share of %d: other models are evicted for it", need, p.Share)
	}
	if o.Engine == recipe.VLLM && !o.Fraction && !o.ExactKV && p.Share > 0 && p.Budget > 0 && p.Total == 0 {
		p.warn("the memory of the device is unknown: gpu_memory_utilization is the share's part of the budget, %d bytes", p.Budget)
	}
}

// divide gives each sequence its own part of the pool: the configured context, or an equal part of the one that fills
// the share. If the number of sequences is not configured, it is limited to as many as fit into the share with that
// context or the default one.
func (p *Plan) divide(m *Meta, o *Options) {
	filled := o.Context <= 0 && p.Share > 0
	for configured := p.Context; ; p.Parallel-- {
		enough := true
		if filled {
			p.fill(m, o, m.Positions)
			p.Longest = max(p.Context/p.Parallel/contextStep, 1) * contextStep
			enough = p.Longest >= min(p.Context, defaultContext)
		} else {
			p.Longest = (configured + contextStep - 1) / contextStep * contextStep
			enough = p.Share <= 0 || p.WeightsBytes+p.ComputeBytes+p.kv(m, p.Longest*p.Parallel) <= p.Share
		}
		p.Context = p.Longest * p.Parallel
		if enough || p.Parallel == 1 || o.Parallel > 0 {
			return
		}
	}
}

// fill chooses the largest context that fits the share, up to what the model can use. On llama-server that is the
// model's own context, which all sequences share; elsewhere, and in a divided pool, it is that much for each sequence.
// On a CPU it is at most a few default contexts, because the engine writes to the whole pool while it loads.
func (p *Plan) fill(m *Meta, o *Options, modelContext int) {
	limit := modelContext
	switch {
	case modelContext == 0:
		limit = defaultContext
	case o.Engine != recipe.LlamaCpp || p.Divided:
		limit = modelContext * p.Parallel
	}
	if o.Devices == policy.CPU {
		limit = min(limit, defaultContext*p.Parallel)
	}
	free := p.Share - p.WeightsBytes - p.ComputeBytes
	lo, hi := 0, limit/contextStep
	for lo < hi { // kv grows with the context
		mid := (lo + hi + 1) / 2
		if p.kv(m, mid*contextStep) <= free {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	p.Context, p.Reason = lo*contextStep, fmt.Sprintf("the largest context that fits the share of %d bytes", p.Share)
	if lo == limit/contextStep {
		p.Context, p.Reason = limit, "the largest context that the model can use"
	}
	if minimum := min(minContext, limit); p.Context < minimum {
		p.Context, p.Reason = minimum, fmt.Sprintf("the minimum context, which the share of %d bytes cannot hold", p.Share)
	}
}

// kv returns the size of a KV pool for the given number of tokens.
func (p *Plan) kv(m *Meta, tokens int) int64 {
	windowed := tokens
	if m.Window > 0 { // each sequence keeps its window and the batch being computed
		windowed = m.Window*p.Parallel + p.Physical
		if p.Divided {
			windowed = (m.Window + p.Physical) * p.Parallel
		}
		windowed = min(tokens, windowed)
	}
	return m.Cache.bytes(p.CacheK, p.CacheV)*int64(tokens) + m.Windowed.bytes(p.CacheK, p.CacheV)*int64(windowed)
}

// buffers estimates an engine's compute buffers: the activations of a physical batch with its attention mask, and the
// logits of the generating sequences.
func buffers(m *Meta, physical, generate int) int64 {
	const perHidden = 24 // activations of a token that exist at the same time, in widths of the model
	perToken := int64(m.Hidden)*perHidden + int64(physical)
	return 4 * (perToken*int64(physical) + int64(m.Vocab)*int64(generate))
}

func orDefault(n, otherwise int) int {
	if n > 0 {
		return n
	}
	return otherwise
}
