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
