package plan

import (
	"cmp"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

// OptionsOf reads the options that matter to a plan from effective load options, extra arguments included: an extra
// argument overrides an option for the engine and therefore for the plan.
func OptionsOf(r *recipe.Recipe, t policy.Type, d policy.Devices, memory int64, opts recipe.Options) Options {
	o := Options{Type: t, Devices: d, Engine: r.Family(), Memory: memory, Process: r.ProcessMiB << 20}
	if o.Engine == recipe.LlamaCpp && !reflect.DeepEqual(r.Command, llamacpp().Command) {
		o.Unsaved = "the engine's command is not the built-in one"
	}
	o.Context = number(opts["ctx_size"])
	o.NBatch, o.NUBatch, o.Parallel = number(opts["n_batch"]), number(opts["n_ubatch"]), number(opts["n_parallel"])
	o.CacheK, o.CacheV = text(opts["cache_type_k"]), text(opts["cache_type_v"])
	o.ExactKV, o.Fraction = opts["kv_cache_bytes"] != nil, opts["gpu_memory_utilization"] != nil
	args, _ := r.ExtraArgs(opts) // checked when the options were read
	o.applyArgs(args)
	if o.Engine == recipe.VLLM && d == policy.CPU && !o.Fraction {
		o.ExactKV = true // a share of the machine's memory is more than a cache needs; vLLMs for a CPU know the flag
	}
	return o
}

// llamacpp returns the built-in recipe.
var llamacpp = sync.OnceValue(func() recipe.Recipe { return recipe.Shipped()[recipe.LlamaCpp] })

// applyArgs applies the last value of each argument that matters.
func (o *Options) applyArgs(args []string) {
	for i := range args {
		flag, value, joined := strings.Cut(args[i], "=")
		if !joined && i+1 < len(args) {
			value = args[i+1]
		}
		set := func(to *int) {
			if n, err := strconv.Atoi(value); err == nil && n > 0 {
				*to = n
			}
		}
		switch strings.ReplaceAll(flag, "_", "-") { // as llama-server reads it
		case "-c", "--ctx-size", "--max-model-len":
			set(&o.Context)
		case "-b", "--batch-size", "--max-num-batched-tokens", "--max-batch-tokens":
			set(&o.NBatch)
		case "-ub", "--ubatch-size":
			set(&o.NUBatch)
		case "-np", "--parallel", "--max-num-seqs":
			set(&o.Parallel)
		case "-ctk", "--cache-type-k", "--kv-cache-dtype":
			o.CacheK = value
		case "-ctv", "--cache-type-v":
			o.CacheV = value
		case "--swa-full":
			o.FullWindows = true
		case "--no-cache-prompt", "--lora", "--lora-scaled", "--control-vector", "--control-vector-scaled",
			"-md", "--model-draft", "--spec-draft-model":
			o.Unsaved = flag
		case "--gpu-memory-utilization":
			o.Fraction = true
		case "--rope-scaling", "--hf-overrides":
			o.Scaled = true
		}
	}
	if o.Engine == recipe.VLLM {
		o.CacheV = o.CacheK
	}
}

// Apply returns the effective options with the plan's values for options that are unset or that only the runner sets;
// nil leaves the choice to the engine. It leaves out options that the recipe does not have or that extra arguments
// set.
func (p *Plan) Apply(r *recipe.Recipe, opts recipe.Options) recipe.Options {
	out := maps.Clone(opts)
	if out == nil {
		out = recipe.Options{}
	}
	inArgs := map[string]bool{}
	args, _ := r.ExtraArgs(opts)
	for _, a := range args {
		flag, _, _ := strings.Cut(a, "=")
		inArgs[flag] = true
	}
	for name, v := range p.values(r.Family(), opts) {
		spec, known := r.Options[name]
		if !known || inArgs[spec.Flag] || inArgs[shortFlags[spec.Flag]] {
			continue
		}
		value, set := out[name]
		if set && !isAutomatic(spec, value) && !p.overrides(r.Family(), name) {
			continue
		}
		out[name] = v
	}
	return out
}

// overrides reports whether the plan's value replaces a configured one: the configured value means something else to
// the runner (the size of its batches, the context of one sequence), or is more than the engine accepts.
func (p *Plan) overrides(engine, option string) bool {
	switch engine {
	case recipe.LlamaCpp:
		return p.Kind == Plain && (option == "n_batch" || option == "n_ubatch") || option == "n_parallel" || p.Divided && (option == "kv_unified" || option == "ctx_size")
	case recipe.VLLM:
		return option == "ctx_size"
	case recipe.TEI:
		return option == "n_batch"
	}
	return false
}

// shortFlags are the short forms of llama-server's flags.
var shortFlags = map[string]string{
	"--ctx-size": "-c", "--batch-size": "-b", "--ubatch-size": "-ub", "--parallel": "-np", "--kv-unified": "-kvu", "--cache-type-k": "-ctk", "--cache-type-v": "-ctv",
}

// values returns the plan as options of an engine.
func (p *Plan) values(engine string, opts recipe.Options) recipe.Options {
	v := recipe.Options{}
	set := func(name string, n int) {
		if n > 0 {
			v[name] = int64(n)
		}
	}
	switch engine {
	case recipe.LlamaCpp:
		set("ctx_size", p.Context) // of all sequences together
		set("n_batch", p.NBatch)
		set("n_ubatch", p.Physical)
		set("n_parallel", p.Parallel)
		if p.Parallel > 1 {
			v["kv_unified"] = !p.Divided // one pool for all sequences, each of any length up to it
		}
		if p.Kind == Plain && p.Physical > 0 {
			// n_batch is the runner's packing capacity. llama-server accepts only one physical batch of embeddings at a
			// time and would lower its own n_batch to that with a warning.
			v["n_batch"] = int64(p.Physical)
		}
	case recipe.VLLM:
		memory, share := cmp.Or(p.Total, p.Budget), p.Share
		if p.Kind == Plain && p.Need > 0 { // by default vLLM starts only if almost all of the device is free
			share = p.Need + memory/100 // ratio rounds down
		}
		if memory > 0 && share > 0 && p.Longest > 0 {
			v["gpu_memory_utilization"] = ratio(share, memory)
		}
		switch {
		case p.Kind == Paged:
			set("ctx_size", p.Longest)
			if n, _ := opts["kv_cache_bytes"].(int64); p.exactKV && n <= 0 && p.KVBytes > 0 {
				v["kv_cache_bytes"] = p.KVBytes + 2*contextStep*p.KVBytesPerToken // whole blocks, one of which it never uses
			}
		case p.Longest > 0 && p.Positions > 0: // an embedding model
			set("ctx_size", p.Longest)
			set("n_batch", p.NBatch)
			set("n_parallel", p.Parallel)
		case p.Longest > 0:
			v["ctx_size"] = nil // tokens in flight do not limit the length of a sequence; the engine knows that limit
		}
	case recipe.TEI:
		if p.Positions > 0 {
			set("n_batch", p.Physical)
		}
	case "openvino":
		if p.Kind == Paged {
			set("n_parallel", p.Parallel)
			if p.KVBytes > 0 {
				v["cache_gb"] = (p.KVBytes + 1<<30 - 1) >> 30
			}
		}
	case "mlx-lm":
		if p.Kind == Paged { // by default it computes 32 sequences, and keeps ten more
			set("n_parallel", p.Parallel)
			if p.KVBytes > 0 {
				v["prompt_cache_bytes"] = p.KVBytes
			}
		}
	case "mistralrs":
		if p.Kind == Paged && p.KVBytes > 0 {
			v["kv_cache_mb"] = max(p.KVBytes>>20, 1)
		}
	}
	return v
}

// ratio returns share / memory, rounded down to hundredths, from 0.01 to 0.95.
func ratio(share, memory int64) float64 {
	hundredths := max(min(int64(float64(share)/float64(memory)*100), 95), 1)
	return float64(hundredths) / 100
}

// isAutomatic reports whether a value leaves the choice to the plan.
func isAutomatic(spec recipe.OptionSpec, v any) bool {
	n, ok := v.(int64)
	return v == nil || ok && spec.Auto != nil && float64(n) == *spec.Auto
}

func number(v any) int {
	n, _ := v.(int64)
	return int(min(max(n, -1), maxInt))
}

func text(v any) string {
	s, _ := v.(string)
	return s
}
