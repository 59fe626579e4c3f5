package catalog

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

// A Model is one entry of the catalog. The first paragraphs of these comments are also the descriptions in the JSON
// Schema of a models file.
type Model struct {
	// ID is the canonical name, unique in the catalog and never equal to another model's alias.
	ID string `json:"id" yaml:"-"`
	// Type is the kind of model; each has its own slots. The default is llm.
	Type policy.Type `json:"type,omitempty"`
	// Recipe is the name of the recipe that says how the engine is started. A checkpoint that ends in .gguf needs none.
	Recipe string `json:"recipe,omitempty"`
	// Checkpoint is where the weights are: a path on the hosts, hf://org/repo/file@revision or s3://bucket/key.
	//
	// It may be a name that the engine itself understands, or empty, where the recipe allows it.
	Checkpoint string `json:"checkpoint,omitempty"`
	// SHA256 is the checksum, in hex, of the one file that checkpoint names. It is checked when the file is fetched.
	SHA256 string `json:"sha256,omitempty"`
	// MMProj is the projector of a model that takes images or audio.
	MMProj string `json:"mmproj,omitempty"`
	// Aliases are other names for the model.
	Aliases []string `json:"aliases,omitempty" yaml:"-"`
	// Presets are what aliases add to requests, by alias.
	Presets map[string]Preset `json:"presets,omitempty" yaml:"-"`
	// Named are other names for the model: a list, or a mapping to members of request bodies.
	//
	// Such a member is set where a request that uses the name leaves it out; those below force, always. It is how a
	// file writes Aliases and Presets.
	Named aliases `json:"-" yaml:"aliases"`
	// Device is what the model runs on, where the recipe leaves it open; gpu:0, gpu:1, … are single GPUs.
	//
	// It is how a file writes Devices and Cards.
	Device recipe.List[string] `json:"-" yaml:"device"`
	// Devices are those that the model occupies while it is loaded, all together; never empty. They come from Device,
	// else from its options and recipe.
	Devices policy.Devices `json:"devices,omitempty" yaml:"-"`
	// Cards are the indexes of the GPUs that it may run on, from Device; empty for any.
	Cards []int `json:"cards,omitempty" yaml:"-"`
	// GPUs is how many GPUs of a host the model runs on; by default the fewest that hold it.
	GPUs int `json:"gpus,omitempty"`
	// Options are options of the recipe, such as ctx_size and llamacpp_args.
	//
	// They are checked and normalized. They rank below saved and requested ones and above the runner's.
	Options recipe.Options `json:"options,omitempty"`
	// Pin prevents the model from ever being evicted.
	Pin bool `json:"pin,omitempty"`
	// Idle is the time without requests after which the model is unloaded.
	Idle *Duration `json:"idle,omitempty"`
	// MinLoaded is how long a loaded model makes no room for others; by default not at all.
	MinLoaded *Duration `json:"min_loaded,omitempty"`
	// Hosts are names or labels of the hosts that may run the model, in order of preference; by default any.
	Hosts recipe.List[string] `json:"hosts,omitempty"`
	// Fallback are models of the same type that can serve requests while this one is cold, if a request allows it.
	Fallback recipe.List[string] `json:"fallback,omitempty"`
	// FallbackWhen says when a fallback is used: only for requests that ask for it (asked, the default), or also for all
	// others while this model is not loaded (waking). Its load then starts as well.
	FallbackWhen When `json:"fallback_when,omitempty"`
	// Cloud means that requests to the model leave the owner's machines. Of API keys only those with cloud=yes may use it.
	Cloud bool `json:"cloud,omitempty"`
	// Replicas bounds the copies of the model in the pool.
	Replicas Replicas `json:"replicas,omitzero"`
	// Memory is what the model needs on its device, in bytes or with a unit such as 4GiB; by default it is estimated.
	Memory Size `json:"memory,omitempty"`
	// MMCache says who shares encoder outputs: requests of the same API key (key), the whole pool, or nobody (none).
	MMCache Sharing `json:"mm_cache,omitempty"`
	// Conversations says who shares saved conversations: the whole pool, the default, or requests of the same API key
	// (key); none saves nothing.
	Conversations Sharing `json:"conversations,omitempty"`
	// Dimensions means that embeddings may be cut to the length that a request asks for.
	Dimensions bool `json:"dimensions,omitempty"`
	// NormalizeScores maps rerank scores to 0 to 1.
	NormalizeScores bool `json:"normalize_scores,omitempty"`
	// Registered means that the entry came through the API and not from the models file: its options may only tune, and
	// its weights must be stored where the operator allows it for registered models.
	Registered bool `json:"registered,omitempty" yaml:"-"`
	// Within are the folders in which the weights of a registered model must be if they are paths: see [Below].
	Within []string `json:"within,omitempty" yaml:"-"`
	// Labels are shown in listings.
	Labels recipe.List[string] `json:"labels,omitempty"`
	// Description is shown in listings.
	Description string `json:"description,omitempty"`
}

// Replicas limits the number of copies of a model in the pool.
type Replicas struct {
	// Max is the number of copies, each on another host; at least 1.
	Max int `json:"max,omitempty"`
}

// When says when a fallback is used.
type When string

// Values of [Model.FallbackWhen].
const (
	WhenAsked  When = "asked"
	WhenWaking When = "waking"
)

// Sharing says who shares what engines have computed for a model.
type Sharing string

// Each API key has its own (without configured keys all requests share them), all keys of the pool share them, or
// nothing is kept.
const (
	SharePerKey Sharing = "key"
	ShareAll    Sharing = "pool"
	ShareNone   Sharing = "none"
)

// signatureSeed is the xxh3 seed that sets model signatures apart from every other hash of the project.
const signatureSeed = 0x4D4D5349475F3031

// StableID identifies the model's weights independently of their location and of the catalog's name for them: the
// registry id (org/repo/file) or else the checkpoint's base name and, for a model with a projector, "+" and that file's
// base name; each includes a pinned revision. Two models with equal StableID produce the same encoder outputs.
func (m *Model) StableID() string {
	id := ParseCheckpoint(m.Checkpoint).stableID()
	if c := ParseCheckpoint(m.MMProj); m.MMProj != "" {
		id += "+" + baseName(c.Path)
		if c.Revision != "" {
			id += "@" + c.Revision
		}
	}
	return id
}

// Signature returns the 64-bit model signature: xxh3-64 of [Model.StableID] under its own seed.
func (m *Model) Signature() uint64 { return xxh3.HashStringSeed(m.StableID(), signatureSeed) }

// GPUConstraint returns which GPUs of a host the model asks for.
func (m *Model) GPUConstraint() policy.GPUConstraint {
	g := policy.GPUConstraint{Min: m.GPUs, Max: m.GPUs}
	for _, card := range m.Cards {
		if card >= 0 && card < policy.MaxGPUs {
			g.Only |= 1 << card
		}
	}
	return g
}

// DeviceText returns the model's devices as an entry names them.
func (m *Model) DeviceText() string {
	if len(m.Cards) == 0 {
		return m.Devices.String()
	}
	out := strings.Fields((m.Devices &^ policy.GPU).String())
	for _, card := range m.Cards {
		out = append(out, fmt.Sprintf("gpu:%d", card))
	}
	return strings.Join(out, " ")
}

// clone returns a copy that a check may write to without changing the original.
func (m *Model) clone() *Model {
	out := *m
	out.Options = m.Options.Clone()
	out.Fallback = slices.Clone(m.Fallback)
	return &out
}

// typeOfLabels returns the type that a registered model's labels decide; the first of this order counts.
func typeOfLabels(labels []string) policy.Type {
	for _, l := range []struct {
		label string
		t     policy.Type
	}{
		{"embeddings", policy.Embedding},
		{"embedding", policy.Embedding},
		{"reranking", policy.Reranking},
		{"transcription", policy.Audio},
		{"audio", policy.Audio},
		{"tts", policy.TTS},
		{"image", policy.Image},
	} {
		if slices.Contains(labels, l.label) {
			return l.t
		}
	}
	return policy.LLM
}

// baseName returns the last part of a path or URL, with either separator.
func baseName(s string) string {
	if s == "" {
		return ""
	}
	return path.Base(strings.ReplaceAll(s, `\`, "/"))
}
