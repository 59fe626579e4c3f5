package plan

import (
	"strings"
	"testing"

	"reveille/infra/policy"
)

// Layers with a sliding window keep all tokens, so that conversations survive, if that fits the share and takes no
// context.
func TestWiden(t *testing.T) {
	const extra = 3840 * 2 * 2 * (4096 - 4*512 - 512) // bytes, at a context of 4096
	usual := Options{Type: policy.LLM, Engine: "llamacpp", Devices: policy.CPU, Context: 4096, Tuned: true, Conversations: true}
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
		{"a byte less", usual, ShareOf(narrow.Estimate+extra-1, 1, 0, 0), 0, "its share lacks"},
		{"no budget", usual, Share{}, 0, "its share lacks"},
		{"the owner did it", with(func(o *Options) { o.FullWindows = true }), Share{}, 0, ""},
		{"the owner's memory", with(func(o *Options) { o.Memory = narrow.Estimate }), ShareOf(4*gib, 1, 0, 0), 0, "its share lacks"},
		{"nothing is saved", with(func(o *Options) { o.Conversations = false }), ShareOf(4*gib, 1, 0, 0), 0, "sliding window"},
		{"no prompt is reused", with(func(o *Options) { o.NoPromptCache = true }), ShareOf(4*gib, 1, 0, 0), 0, "--no-cache-prompt"},
		{"a projector", with(func(o *Options) { o.Media = true }), ShareOf(4*gib, 1, 0, 0), 0, "images"},
		{"another engine", with(func(o *Options) { o.Engine = "vllm" }), ShareOf(4*gib, 1, 0, 0), 0, ""},
		{"an automatic context that would shrink", with(func(o *Options) { o.Context, o.Devices = 0, policy.GPU }), ShareOf(gib/2, 1, 0, 0), 0, "its share lacks"},
	} {
		p := Make(gemma, tt.opts, tt.share)
		if p.Widened != tt.widened || (p.Forgets == "") != (tt.forgets == "") || !strings.Contains(p.Forgets, tt.forgets) {
			t.Errorf("%s: widened by %d, want %d; forgets %q, want %q", tt.name, p.Widened, tt.widened, p.Forgets, tt.forgets)
		}
		if tt.widened > 0 && p.KVBytes != narrow.KVBytes+extra {
			t.Errorf("%s: a KV cache of %d bytes, want %d", tt.name, p.KVBytes, narrow.KVBytes+extra)
		}
	}
}
