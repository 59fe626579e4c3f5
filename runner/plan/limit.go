package plan

import (
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

// Host memory that llama-server uses besides the planned memory.
const (
	promptCache = 8 << 30 // of prompts that lost their sequence to another, unless --cache-ram says otherwise
	checkpoints = 32      // of a sequence's windowed cache, at most:
	spacing     = 8192    // one in this many tokens, and two more
	baseMargin  = 4 << 30 // libraries, grammars, bodies, fragmentation
	gpuMargin   = 8 << 30 // contexts and staging buffers of GPU drivers
	mediaMargin = 4 << 30 // buffers of a media encoder
	mediaBytes  = 1 << 30 // decoded images and audio of one request
)

// attentionOnly are the architectures whose only memory between requests is the KV cache. Others keep states of
// unknown size.
var attentionOnly = map[string]bool{
	"llama": true, "llama4": true, "mistral3": true, "qwen2": true, "qwen2moe": true, "qwen2vl": true, "qwen3": true, "qwen3moe": true, "qwen3vl": true,
	"qwen3vlmoe": true, "gemma": true, "gemma2": true, "gemma3": true, "gemma-embedding": true, "phi2": true, "phi3": true, "phimoe": true, "gpt-oss": true,
	"glm4": true, "glm4moe": true, "deepseek2": true, "command-r": true, "cohere2": true, "granite": true, "granitemoe": true, "olmo2": true, "olmoe": true,
	"smollm3": true, "starcoder2": true, "stablelm": true, "internlm2": true, "exaone4": true, "bert": true, "nomic-bert": true, "nomic-bert-moe": true,
	"jina-bert-v2": true, "jina-bert-v3": true, "modern-bert": true,
}

// limit returns the most host memory in bytes that a plan's engine uses while it is healthy, 0 if unknown. It counts
// weights, cache and buffers twice: weights repacked for a CPU exist beside the mapped file, and the other two are
// estimates.
func (p *Plan) limit(m *Meta, o *Options) int64 {
	if !o.Tuned || !attentionOnly[m.Arch] || m.Weights == 0 || o.Media && o.Projector == 0 {
		return 0
	}
	context, physical := float64(p.Context), float64(p.Physical)
	full := Elements{K: m.Cache.K + m.Windowed.K, V: m.Cache.V + m.Windowed.V} // with --swa-full
	kv := float64(full.bytes(o.CacheK, o.CacheV)) * context
	planned := max(float64(p.WeightsBytes)+kv+float64(p.ComputeBytes), float64(p.Need))
	scores := float64(m.Heads) * physical * context * 4 // without flash attention
	sum := 2*planned + scores + baseMargin
	if o.Devices != policy.CPU {
		sum += gpuMargin
	}
	if o.Type == policy.LLM {
		cache := float64(promptCache)
		if o.PromptCache != nil {
			cache = float64(*o.PromptCache)
		}
		window := min(context, float64(m.Window*p.Parallel)+physical)
		each := float64(m.Windowed.bytes(o.CacheK, o.CacheV)) * window
		sum += cache + each*float64(p.Parallel)*min(checkpoints, float64(p.Longest/spacing+2))
	}
	if o.Media {
		sum += mediaMargin + mediaBytes*float64(p.Parallel+1)
	}
	if sum > math.MaxInt64/4 {
		return 0
	}
	return int64(sum)
}

// llamacpp returns the shipped recipe.
var llamacpp = sync.OnceValue(func() recipe.Recipe { return recipe.Shipped()[recipe.LlamaCpp] })

// tunedArgs are llama-server's arguments that the plan heeds, and common ones that change nothing about its memory.
var tunedArgs = strings.Fields(`-b --batch-size -ub --ubatch-size -np --parallel -ctk --cache-type-k -ctv --cache-type-v
	-cram --cache-ram --swa-full --cache-prompt --no-cache-prompt --rope-scaling -t --threads -tb --threads-batch
	-n --predict --keep -fa --flash-attn -cb --cont-batching --cache-reuse --mmap --no-mmap --mlock --numa --poll
	--no-warmup -s --seed --temp --top-k --top-p --min-p --repeat-penalty --pooling --embd-normalize -to --timeout
	--threads-http --reasoning-format --reasoning-budget -sps --slot-prompt-similarity --context-shift
	--no-context-shift --cache-idle-slots --no-cache-idle-slots`)

// tuned reports whether llama-server runs as in the shipped recipe, and every extra argument has a known effect on
// memory.
func tuned(r *recipe.Recipe, opts recipe.Options) bool {
	if r.Family() != recipe.LlamaCpp {
		return false
	}
	shipped := llamacpp()
	line := func(r *recipe.Recipe) []any { return []any{r.Command, r.Env, r.TypeFlags, r.Backends, r.Options} }
	if !reflect.DeepEqual(line(r), line(&shipped)) {
		return false
	}
	for name, spec := range r.Options {
		if spec.Kind != recipe.KindArgs {
			continue
		}
		args, err := recipe.SplitArgs(text(opts[name]))
		if err != nil {
			return false
		}
		for _, a := range args {
			flag, _, _ := strings.Cut(a, "=")
			_, err := strconv.ParseFloat(a, 64)
			if strings.HasPrefix(a, "-") && err != nil && !slices.Contains(tunedArgs, strings.ReplaceAll(flag, "_", "-")) {
				return false
			}
		}
	}
	return true
}

// mebibytes parses a non-negative number of MiB.
func mebibytes(text string) *int64 {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 {
		return nil
	}
	n <<= 20
	return &n
}
