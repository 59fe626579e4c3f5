package plan

import (
	"math"
	"testing"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

// The limit of an engine's host memory is known if everything that takes memory is known, and grows with it.
func TestHostLimit(t *testing.T) {
	over, err := recipe.Parse([]byte("wrapped: {inherit: llamacpp, command: [numactl, llama-server, [--model, '{model}']]}\nsame: {inherit: llamacpp, stop_grace: 1s}\n" +
		"env: {inherit: llamacpp, env: {LLAMA_ARG_CACHE_RAM: '-1'}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	set, err := recipe.Shipped().With(over)
	if err != nil {
		t.Fatal(err)
	}
	limit := func(name string, m Meta, typ policy.Type, d policy.Devices, memory int64, args string) int64 {
		t.Helper()
		r := set[name]
		opts := recipe.Options{"ctx_size": int64(4096)}
		if args != "" {
			opts["llamacpp_args"] = args
		}
		o := OptionsOf(&r, typ, d, memory, opts)
		return Make(m, o, Share{}).HostLimit
	}
	hybrid := gemma
	hybrid.Arch = "jamba"
	huge := gemma
	huge.Heads, huge.Weights, huge.Cache.K = math.MaxInt32, math.MaxInt64/2, 1<<60
	for name, c := range map[string]struct {
		recipe string
		meta   Meta
		args   string
	}{
		"another engine":             {"vllm", llama8b, ""},
		"a state of unknown size":    {"llamacpp", hybrid, ""},
		"nothing read":               {"llamacpp", Meta{}, ""},
		"a command of the owner's":   {"wrapped", gemma, ""},
		"an environment of his own":  {"env", gemma, ""},
		"a second model":             {"llamacpp", gemma, "-md /draft.gguf"},
		"a prompt cache of any size": {"llamacpp", gemma, "-cram -1"},
		"any number of checkpoints":  {"llamacpp", gemma, "--ctx_checkpoints=900"},
		"pictures of any size":       {"llamacpp", gemma, "--image-max-tokens 900000"},
		"numbers out of a fuzzer":    {"llamacpp", huge, ""},
	} {
		if got := limit(c.recipe, c.meta, policy.LLM, policy.CPU, 0, c.args); got != 0 {
			t.Errorf("%s: %d, want none", name, got)
		}
	}
	usual := limit("llamacpp", gemma, policy.LLM, policy.CPU, 0, "-np 4")
	if least := 2*gemma.Weights + promptCache + baseMargin; usual < least || usual > least+4*gib {
		t.Errorf("usual %d, want a little above %d", usual, least)
	}
	if got := limit("same", gemma, policy.LLM, policy.CPU, 0, "-np 4"); got != usual {
		t.Errorf("inherited: %d, want %d", got, usual)
	}
	if got := limit("llamacpp", gemma, policy.LLM, policy.CPU, 0, "-np 4 --cache-ram=1024"); got != usual-7*gib {
		t.Errorf("with 1 GiB of prompt cache: %d, want %d", got, usual-7*gib)
	}
	if got := limit("llamacpp", gemma, policy.LLM, policy.CPU, 0, "-np 4 -cram 0"); got != usual-8*gib {
		t.Errorf("without a prompt cache: %d, want %d", got, usual-8*gib)
	}
	if got := limit("llamacpp", gemma, policy.LLM, policy.GPU, 0, "-np 4"); got != usual+gpuMargin {
		t.Errorf("with a GPU: %d, want %d", got, usual+gpuMargin)
	}
	if got := limit("llamacpp", gemma, policy.LLM, policy.CPU, 20*gib, ""); got < 40*gib {
		t.Errorf("of a model that is said to need 20 GiB: %d", got)
	}
	if got := limit("llamacpp", gemma, policy.LLM, policy.CPU, 1, "-np 4"); got != usual {
		t.Errorf("of a model that is said to need nothing: %d, want %d", got, usual)
	}
	if got := limit("llamacpp", minilm, policy.Embedding, policy.CPU, 0, ""); got < baseMargin || got > baseMargin+gib {
		t.Errorf("of a small embedding model: %d", got)
	}

	r := set["llamacpp"]
	with := func(media bool, projector int64) Plan {
		o := OptionsOf(&r, policy.LLM, policy.CPU, 0, recipe.Options{"ctx_size": int64(1024), "llamacpp_args": "-np 4"})
		o.Media, o.Projector = media, projector
		return Make(gemma, o, Share{})
	}
	text, seeing := with(false, 0), with(true, 100)
	if least := text.HostLimit + 200 + mediaMargin + 5*mediaBytes; seeing.HostLimit < least || seeing.HostLimit > least+gib {
		t.Errorf("with a projector: %d, want a little above %d", seeing.HostLimit, least)
	}
	if got := with(true, 0).HostLimit; got != 0 {
		t.Errorf("with a projector of unknown size: %d, want none", got)
	}
}

// Conversations survive an unload where all that the engine keeps between requests is a KV cache of whole prompts.
func TestForgets(t *testing.T) {
	llamacpp := recipe.Shipped()["llamacpp"]
	vllm := recipe.Shipped()["vllm"]
	hybrid := llama8b
	hybrid.Arch = "jamba"
	for _, c := range []struct {
		name  string
		r     *recipe.Recipe
		m     Meta
		args  string
		media bool
		keeps bool
	}{
		{"usual", &llamacpp, llama8b, "", false, true},
		{"tuned", &llamacpp, llama8b, "-np 4 -t 8", false, true},
		{"another engine", &vllm, llama8b, "", false, true},
		{"a sliding window", &llamacpp, gemma, "", false, false},
		{"a whole window", &llamacpp, gemma, "--swa-full", false, true},
		{"a whole window, spelled otherwise", &llamacpp, gemma, "--swa_full", false, true},
		{"no prompt cache", &llamacpp, llama8b, "--no-cache-prompt", false, false},
		{"no prompt cache, spelled otherwise", &llamacpp, llama8b, "--no_cache_prompt", false, false},
		{"a projector", &llamacpp, llama8b, "", true, false},
		{"a state of unknown size", &llamacpp, hybrid, "", false, false},
		{"arguments of the owner's", &llamacpp, llama8b, "--lora x.gguf", false, false},
		{"nothing read", &llamacpp, Meta{}, "", false, false},
	} {
		opts := recipe.Options{}
		if c.args != "" {
			opts["llamacpp_args"] = c.args
		}
		o := OptionsOf(c.r, policy.LLM, policy.CPU, 0, opts)
		o.Media = c.media
		if why := Make(c.m, o, Share{}).Forgets; (why == "") != c.keeps {
			t.Errorf("%s: forgets %q, want conversations kept: %v", c.name, why, c.keeps)
		}
	}
	whole, part := OptionsOf(&llamacpp, policy.LLM, policy.CPU, 0, recipe.Options{"ctx_size": int64(32768), "llamacpp_args": "--swa-full"}), OptionsOf(&llamacpp, policy.LLM, policy.CPU, 0, recipe.Options{"ctx_size": int64(32768)})
	if a, b := Make(gemma, whole, Share{}).KVBytes, Make(gemma, part, Share{}).KVBytes; a <= b {
		t.Errorf("whole windows take %d bytes, less than %d", a, b)
	}
}
