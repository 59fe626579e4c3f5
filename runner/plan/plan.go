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
	cpuUBatch       = 512      // tokens; attention over a larger batch costs a CPU more than the call saves
	contextStep     = 256      // tokens that contexts are rounded down to
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
	// ExactKV means that the engine gets the size of its KV pool in bytes; otherwise it takes all of its share.
	ExactKV bool
	// Fraction means that the engine's part of the device's memory is configured.
	Fraction bool
	// Scaled means that arguments may stretch the model's positions.
	Scaled bool
	// Media means that the model has a projector for images or audio, of Projector bytes; 0 if unknown.
	Media     bool
	Projector int64
	// Memory overrides the share, in bytes.
	Memory int64
	// Unsaved is what in the engine's command keeps it from going on with conversations that were saved, "" for nothing.
	Unsaved string
	// FullWindows means that layers with a sliding window keep all tokens.
	FullWindows bool
	// Conversations means that those of the engine are to be saved, for which layers with a sliding window keep all
	// tokens if that fits.
	Conversations bool

	beyond int64 // of the share
}

// Validate reports configured sizes that contradict each other: n_batch ≥ n_ubatch, and for a model that embeds
// context ≥ n_batch.
func (o Options) Validate() error {
	var errs []error
	if o.NBatch > 0 && o.NUBatch > o.NBatch {
		errs = append(errs, fmt.Errorf("n_ubatch %d: want at most n_batch, %d", o.NUBatch, o.NBatch))
	}
	if least := max(o.NBatch, o.NUBatch); o.Type != policy.LLM && o.Context > 0 && o.Context < least {
		errs = append(errs, fmt.Errorf("ctx_size %d: want at least n_batch and n_ubatch, %d", o.Context, least))
	}
	return errors.Join(errs...)
}

// divided reports whether each sequence must have its own part of the pool, because llama-server ends when images find
// no room in a pool that others have filled.
func (o *Options) divided() bool { return o.Engine == recipe.LlamaCpp && o.Media }

// A Plan is how one load of a model is scheduled. Sizes are bytes, lengths tokens.
type Plan struct {
	Kind Kind `json:"kind"`

	Context  int `json:"context"`  // sum over all sequences
	NBatch   int `json:"n_batch"`  // packed into one call
	NUBatch  int `json:"n_ubatch"` // largest single sequence (plain), physical batch (paged)
	Physical int `json:"physical"` // what the engine computes at once
	Parallel int `json:"parallel"` // sequences at once
	// Divided means that each sequence has its own part of the pool; otherwise all share it.
	Divided bool `json:"divided,omitempty"`
	Longest int  `json:"longest"` // of one sequence, 0 if unknown
	// Positions is the model's own bound on a sequence, 0 if unknown.
	Positions int `json:"positions,omitempty"`

	CacheK          string `json:"cache_type_k,omitempty"`
	CacheV          string `json:"cache_type_v,omitempty"`
	KVBytesPerToken int64  `json:"kv_bytes_per_token"` // of a short context
	KVBytes         int64  `json:"kv_bytes"`
	WeightsBytes    int64  `json:"weights_bytes"`
	ComputeBytes    int64  `json:"compute_bytes"`      // buffers of the engine, estimated
	Estimate        int64  `json:"estimate,omitempty"` // the sum of all parts, and of vLLM all of its share; 0 if unknown
	Need            int64  `json:"need"`               // what counts: Estimate unless Ruled says otherwise
	Ruled           string `json:"ruled,omitempty"`    // where Need comes from
	Measured        int64  `json:"measured,omitempty"` // the most that the engine was seen to take, 0 if unknown
	Share           int64  `json:"share"`              // of the device, 0 without a budget
	Budget          int64  `json:"budget"`             // of the device, 0 if it has none
	Total           int64  `json:"total,omitempty"`    // that the device has, 0 if unknown
	// GPUs are the indexes of the GPUs that the engine uses, nil if it may use any.
	GPUs []int `json:"gpus,omitempty"`
	// Forgets says why conversations of llama-server do not survive an unload, "" if they can.
	Forgets string `json:"forgets,omitempty"`
	// Widened is how many bytes it takes to keep all tokens in layers with a sliding window, for conversations to survive
	// an unload; 0 if the plan does not make the engine do so.
	Widened int64 `json:"widened,omitempty"`

	// Signature identifies all that determines what the engine takes, but for the devices; "" if too little is known.
	Signature string `json:"-"`
	// Key is the key of the need that is measured, "" for none. The host sets it.
	Key string `json:"-"`

	Reason   string   `json:"reason"` // why this kind and this context
	Warnings []string `json:"warnings,omitempty"`
}

// Where a plan's need comes from.
const (
	ByEstimate = "estimate"
	ByMemory   = "memory:"       // of the models file
	ByMeasure  = "measured"      // by an earlier load, or the present one
	ByFailure  = "out of memory" // an engine of this plan ran out of memory
)

// Took returns the need of a plan whose engine was measured. A processor's memory is taken as it is used, so there the
// need is never less than the estimate. Of other devices' memory the log tells all but what drivers take.
func (p *Plan) Took(measured int64, d policy.Devices) int64 {
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
	p := makeAs(m, o, s)
	if !o.Conversations || o.Engine != recipe.LlamaCpp || o.FullWindows || m.Windowed == (Elements{}) || p.Kind != Paged {
		return p
	}
	o.FullWindows = true
	wide := makeAs(m, o, s)
	switch {
	case wide.Forgets != "" || p.Estimate == 0:
	case wide.Share > 0 && wide.Estimate <= wide.Share && wide.Context == p.Context && wide.Parallel == p.Parallel:
		wide.Widened = wide.KVBytes - p.KVBytes
		return wide
	default:
		p.Forgets = fmt.Sprintf("a sliding window forgets the beginning; keeping it takes %d bytes more, which its share lacks; llamacpp_args: --swa-full keeps it all the same", wide.KVBytes-p.KVBytes)
	}
	return p
}

// makeAs is Make without a choice about sliding windows.
func makeAs(m Meta, o Options, s Share) Plan {
	if o.FullWindows {
		m.Cache.K, m.Cache.V = m.Cache.K+m.Windowed.K, m.Cache.V+m.Windowed.V
		m.Windowed, m.Window = Elements{}, 0
	}
	o.beyond = s.AboveEstimate
	p := Plan{WeightsBytes: m.Weights, Positions: m.Positions, Budget: s.Budget, Total: s.Total, Share: s.of(o.Memory)}
	if m.Weights > 0 {
		p.WeightsBytes += o.Projector
	}
	switch {
	case o.Type != policy.LLM:
		p.plain(&m, &o, fmt.Sprintf("models of type %s have no KV pool", o.Type))
	case m.Format == "":
		p.plain(&m, &o, "no metadata: no KV pool is planned, the engine's own settings count")
		p.Context, p.NBatch, p.NUBatch, p.Physical, p.Parallel = max(o.Context, 0), o.NBatch, o.NUBatch, o.NUBatch, o.Parallel
		if p.Divided {
			p.Parallel = orInt(o.Parallel, 1)
			p.Context *= p.Parallel
		}
		p.Longest = 0
		p.ComputeBytes = p.WeightsBytes/5 + s.AboveEstimate
	case !m.kept():
		p.plain(&m, &o, fmt.Sprintf("architecture %s keeps no KV cache", m.Arch))
		p.Longest = 0 // batches do not bound the length of what it generates
	default:
		p.paged(&m, &o)
	}
	p.Estimate, p.Ruled = p.WeightsBytes+p.KVBytes+p.ComputeBytes, ByEstimate
	switch {
	case p.WeightsBytes == 0:
		p.Estimate, p.Ruled = 0, "" // nothing is known
	case p.Kind == Paged && o.Engine == recipe.VLLM && !o.ExactKV:
		p.Estimate = max(p.Estimate, p.Share)
	}
	if p.Need = p.Estimate; o.Memory > 0 {
		p.Need, p.Ruled = o.Memory, ByMemory
	}
	p.Forgets = forgets(&m, &o)
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

// forgets returns why a new process of llama-server cannot go on with the state that an earlier one saved of its
// conversations, or "" if it can, or there are none or another engine runs the model.
func forgets(m *Meta, o *Options) string {
	switch {
	case o.Type != policy.LLM, o.Engine != recipe.LlamaCpp:
		return ""
	case o.Media:
		return "llama-server saves none with images or audio"
	case o.Unsaved != "":
		return o.Unsaved
	case !attentionOnly[m.Arch] || !m.Causal:
		return "its architecture may keep more than a KV cache"
	case m.Windowed != (Elements{}):
		return "a sliding window forgets the beginning; llamacpp_args: --swa-full keeps it, for more memory"
	}
	return ""
}

// Parts lists the parts of Need in bytes, and what makes it another one than their sum; "" if they were not computed.
func (p *Plan) Parts() string {
	if p.WeightsBytes == 0 || p.Ruled == ByMemory || p.Estimate != p.WeightsBytes+p.KVBytes+p.ComputeBytes {
		return ""
	}
	parts := fmt.Sprintf("weights %d, KV cache %d, buffers %d", p.WeightsBytes, p.KVBytes, p.ComputeBytes)
	switch p.Ruled {
	case ByMeasure:
		parts += fmt.Sprintf("; measured %d", p.Need)
	case ByFailure:
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
	usual := max(defaultBatch, o.NUBatch) // a configured value overrides a default
	if o.Context > 0 {
		usual = min(usual, o.Context)
	}
	p.NBatch = orInt(o.NBatch, usual)
	p.NUBatch = orInt(o.NUBatch, p.NBatch)
	if p.NUBatch > p.NBatch {
		p.warn("n_ubatch %d is more than n_batch %d and was lowered to it", p.NUBatch, p.NBatch)
		p.NUBatch = p.NBatch
	}
	p.Context = 2 * p.NBatch
	if o.Context > 0 {
		p.Context = o.Context
	}
	if p.Context < p.NBatch {
		p.warn("context %d is less than n_batch %d and was raised to it", p.Context, p.NBatch)
		p.Context = p.NBatch
	}
	p.Parallel = orInt(o.Parallel, plainParallel)
	if p.Divided = o.divided(); p.Divided {
		p.Parallel = orInt(o.Parallel, max(min(p.Context/p.NUBatch, plainParallel), 1))
		p.Context = max(p.Context, p.Parallel*p.NUBatch)
	}
	p.Longest = p.NUBatch
	if m.Positions > 0 {
		p.Longest = min(p.Longest, m.Positions)
	}
	p.Physical = p.NUBatch
	switch {
	case o.Engine == recipe.TEI:
		p.Physical = max(p.NBatch, m.Positions) // it does not start with less than the longest sequence
	case o.Devices == policy.CPU && o.NUBatch == 0:
		p.Physical = min(p.NUBatch, max(cpuUBatch, p.Longest))
	}
	if o.Engine == recipe.LlamaCpp {
		p.fitSequences()
		p.Physical = (p.Physical + p.Parallel - 1) / p.Parallel * p.Parallel // the mean over each sequence needs equal parts
		p.Context = max(p.Context, p.Physical)
	}
	if p.WeightsBytes > 0 {
		p.ComputeBytes = fixedBytes + o.beyond + buffers(m, p.Physical, 0)
		if m.kept() { // a generative model that embeds still keeps the tokens in flight
			p.ComputeBytes += m.Cache.bytes("f16", "f16")*int64(p.Context) + m.Windowed.bytes("f16", "f16")*int64(p.Context)
		}
	}
}

// fitSequences lowers the number of sequences to the tokens of a physical batch. llama-server aborts when it cannot
// compute a token of each at once.
func (p *Plan) fitSequences() {
	if p.Parallel > p.Physical {
		p.warn("n_parallel %d is more than a physical batch of %d tokens and was lowered to it", p.Parallel, p.Physical)
		p.Parallel = p.Physical
	}
}

// usualBatch returns how many prompt tokens a paged model reads between two checks for clients that left. On a CPU
// llama-server reads them no faster in batches larger than its physical one (measured), and each takes seconds.
func usualBatch(o *Options) int {
	if o.Engine == recipe.LlamaCpp && o.Devices == policy.CPU {
		return max(cpuUBatch, o.NUBatch)
	}
	return defaultBatch
}

// paged plans a model with a KV pool.
func (p *Plan) paged(m *Meta, o *Options) {
	p.Kind = Paged
	p.CacheK, p.CacheV = o.CacheK, o.CacheV
	p.Parallel = orInt(o.Parallel, defaultParallel)
	p.NBatch = orInt(o.NBatch, usualBatch(o))
	p.NUBatch = min(orInt(o.NUBatch, defaultUBatch), p.NBatch)
	p.Physical = p.NUBatch
	if o.Engine == recipe.LlamaCpp {
		p.fitSequences()
	}
	p.Divided = o.divided()
	p.KVBytesPerToken = p.kv(m, 1)
	p.ComputeBytes = fixedBytes + o.beyond + buffers(m, p.Physical, p.Parallel)
	whole := m.Positions
	switch {
	case o.Context > 0:
		p.Context, p.Reason = o.Context, "context as asked for"
	case p.Share > 0:
		p.fill(m, o, whole)
	default:
		p.Context, p.Reason = defaultContext, "no budget: the usual context"
		if whole > 0 {
			p.Context = min(p.Context, whole)
		}
	}
	p.Longest = p.Context
	if p.Divided {
		p.divide(m, o)
	}
	if stretched := o.Context > 0 && (m.Scaled || o.Scaled); whole > 0 && !stretched {
		p.Longest = min(p.Longest, whole)
	}
	p.KVBytes = p.kv(m, p.Context)
	if need := p.WeightsBytes + p.KVBytes + p.ComputeBytes; p.Share > 0 && need > p.Share {
		p.warn("needs %d bytes, more than its share of %d: others make room for it", need, p.Share)
	}
	if o.Engine == recipe.VLLM && !o.Fraction && !o.ExactKV && p.Share > 0 && p.Budget > 0 && p.Total == 0 {
		p.warn("the memory of the device is not known: gpu_memory_utilization is the share's part of the budget, %d bytes", p.Budget)
	}
}

// divide gives each sequence its own part of the pool: the configured context, or an equal part of the one that fills
// the share. If the number of sequences is not configured, it is limited to as many as fit into the share with that
// context or the usual one.
func (p *Plan) divide(m *Meta, o *Options) {
	filled := o.Context <= 0 && p.Share > 0
	for whole := p.Context; ; p.Parallel-- {
		enough := true
		if filled {
			p.fill(m, o, m.Positions)
			p.Longest = max(p.Context/p.Parallel/contextStep, 1) * contextStep
			enough = p.Longest >= min(p.Context, defaultContext)
		} else {
			p.Longest = (whole + contextStep - 1) / contextStep * contextStep
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
// On a CPU it is at most a few usual contexts, because the engine writes to the whole pool while it loads.
func (p *Plan) fill(m *Meta, o *Options, whole int) {
	most := whole
	switch {
	case whole == 0:
		most = defaultContext
	case o.Engine != recipe.LlamaCpp || p.Divided:
		most = whole * p.Parallel
	}
	if o.Devices == policy.CPU {
		most = min(most, defaultContext*p.Parallel)
	}
	free := p.Share - p.WeightsBytes - p.ComputeBytes
	lo, hi := 0, most/contextStep
	for lo < hi { // kv grows with the context
		mid := (lo + hi + 1) / 2
		if p.kv(m, mid*contextStep) <= free {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	p.Context, p.Reason = lo*contextStep, fmt.Sprintf("the largest context that fits the share of %d bytes", p.Share)
	if lo == most/contextStep {
		p.Context, p.Reason = most, "all the context that the model can use here"
	}
	if least := min(minContext, most); p.Context < least {
		p.Context, p.Reason = least, fmt.Sprintf("the least useful context: the share of %d bytes holds less", p.Share)
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
	const perHidden = 24 // activations of a token that live together, in widths of the model
	perToken := int64(m.Hidden)*perHidden + int64(physical)
	return 4 * (perToken*int64(physical) + int64(m.Vocab)*int64(generate))
}

func orInt(n, otherwise int) int {
	if n > 0 {
		return n
	}
	return otherwise
}
