package plan

import (
	"strings"
	"testing"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

// Layers with a sliding window keep all tokens, so that conversations survive, if that fits the share and takes no
// context.
func TestSlidingWindowIsKeptIfItFits(t *testing.T) {
	const extra = 3840 * 2 * 2 * (4096 - 4*512 - 512) // bytes, at a context of 4096
	usual := Options{Type: policy.LLM, Engine: "llamacpp", Devices: policy.CPU, Context: 4096, Conversations: true}
	with := func(change func(*Options)) Options { o := usual; change(&o); return o }
	narrow := Make(gemma, with(func(o *Options) { o.Conversations = false }), ShareOf(4*gib, 1, 0, 0))
	for _, tt := range []struct {
		name    string
		opts    Options
		share   Share
		widened int64
		forgets string
	}{
		{"room", usual, ShareOf(4*gib, 1, 0, 0), extra, ""},
		{"just enough", usual, ShareOf(narrow.Estimate+extra, 1, 0, 0), extra, ""},
		{"a byte less", usual, ShareOf(narrow.Estimate+extra-1, 1, 0, 0), 0, "than the share has"},
		{"no budget", usual, Share{}, 0, "than the share has"},
		{"the owner did it", with(func(o *Options) { o.FullWindows = true }), Share{}, 0, ""},
		{"the owner's memory", with(func(o *Options) { o.Memory = narrow.Estimate }), ShareOf(4*gib, 1, 0, 0), 0, "than the share has"},
		{"nothing is saved", with(func(o *Options) { o.Conversations = false }), ShareOf(4*gib, 1, 0, 0), 0, "sliding window"},
		{"no prompt is reused", with(func(o *Options) { o.Unsaved = "--no-cache-prompt" }), ShareOf(4*gib, 1, 0, 0), 0, "--no-cache-prompt"},
		{"a projector", with(func(o *Options) { o.Media = true }), ShareOf(4*gib, 1, 0, 0), 0, "images"},
		{"another engine", with(func(o *Options) { o.Engine = "vllm" }), ShareOf(4*gib, 1, 0, 0), 0, ""},
		{"an automatic context that would shrink", with(func(o *Options) { o.Context, o.Devices = 0, policy.GPU }), ShareOf(gib/2, 1, 0, 0), 0, "than the share has"},
	} {
		p := Make(gemma, tt.opts, tt.share)
		if p.ExtraSWABytes != tt.widened || (p.CannotSave == "") != (tt.forgets == "") || !strings.Contains(p.CannotSave, tt.forgets) {
			t.Errorf("%s: widened by %d, want %d; forgets %q, want %q", tt.name, p.ExtraSWABytes, tt.widened, p.CannotSave, tt.forgets)
		}
		if tt.widened > 0 && p.KVBytes != narrow.KVBytes+extra {
			t.Errorf("%s: a KV cache of %d bytes, want %d", tt.name, p.KVBytes, narrow.KVBytes+extra)
		}
	}
}

// Conversations survive an unload where all that the engine keeps between requests is a KV cache of whole prompts.
func TestPlanReportsWhyConversationsCannotBeSaved(t *testing.T) {
	llamacpp := recipe.Shipped()["llamacpp"]
	vllm := recipe.Shipped()["vllm"]
	hybrid := llama8b
	hybrid.Arch = "jamba"
	qwen := llama8b
	qwen.Arch = "qwen35"
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
		{"a state that cannot go back", &llamacpp, qwen, "", false, true},
		{"arguments of the owner's", &llamacpp, llama8b, "--lora x.gguf", false, false},
		{"a draft model", &llamacpp, llama8b, "--spec-draft-model x.gguf", false, false},
		{"nothing read", &llamacpp, Meta{}, "", false, false},
	} {
		opts := recipe.Options{}
		if c.args != "" {
			opts["llamacpp_args"] = c.args
		}
		o := OptionsOf(c.r, policy.LLM, policy.CPU, 0, opts)
		o.Media = c.media
		p := Make(c.m, o, Share{})
		if p.OnlySealed != (c.m.Arch == "qwen35") {
			t.Errorf("%s: only sealed states are of use: %v", c.name, p.OnlySealed)
		}
		if why := p.CannotSave; (why == "") != c.keeps {
			t.Errorf("%s: forgets %q, want conversations kept: %v", c.name, why, c.keeps)
		}
	}
	whole, part := OptionsOf(&llamacpp, policy.LLM, policy.CPU, 0, recipe.Options{"ctx_size": int64(32768), "llamacpp_args": "--swa-full"}), OptionsOf(&llamacpp, policy.LLM, policy.CPU, 0, recipe.Options{"ctx_size": int64(32768)})
	if a, b := Make(gemma, whole, Share{}).KVBytes, Make(gemma, part, Share{}).KVBytes; a <= b {
		t.Errorf("whole windows take %d bytes, less than %d", a, b)
	}
}
