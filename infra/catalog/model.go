package catalog

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

// A Model is one entry of the catalogue.
type Model struct {
	// ID is the canonical name, unique in the catalogue and never equal to another model's alias.
	ID string `json:"id"`
	// Type is the class of work; always valid.
	Type policy.Type `json:"type"`
	// Recipe is the name of the recipe that starts it; always one of the catalogue's.
	Recipe string `json:"recipe"`
	// Checkpoint is where its weights are, as written: a path, s3://bucket/key, hf://org/repo or hf://org/repo/file,
	// these two with @revision where one is pinned; or a name that the engine itself understands, for recipes that take
	// one. Empty only where the recipe allows it.
	Checkpoint string `json:"checkpoint,omitempty"`
	// SHA256 is what the checkpoint's bytes come to, in hex, checked when they are fetched; empty leaves it to what their
	// source says. Only of a checkpoint that is one file of s3:// or hf://.
	SHA256 string `json:"sha256,omitempty"`
	// MMProj is the file of the projector for vision or audio input, in the same forms; empty for none.
	MMProj string `json:"mmproj,omitempty"`
	// Aliases are further names, each owned by one model only.
	Aliases []string `json:"aliases,omitempty"`
	// Devices is what the model occupies while it is loaded, all of them together; never empty. It is what the entry
	// says, else what its options and recipe say.
	Devices policy.Devices `json:"-"`
	// GPUs is how many GPUs of a host it runs on; 0: as few as hold it.
	GPUs int `json:"gpus,omitempty"`
	// Cards are the indexes of the GPUs that it may run on; empty for any.
	Cards []int `json:"cards,omitempty"`
	// Options are load options, checked and normalised by the recipe. They rank below saved and requested ones and
	// above the runner's.
	Options recipe.Options `json:"options,omitempty"`
	// Pin keeps the model from ever being chosen to make room.
	Pin bool `json:"pin,omitempty"`
	// Idle is the time without traffic after which the model is unloaded, 0 or more; nil leaves it to the defaults.
	Idle *time.Duration `json:"-"`
	// Hosts are names or labels of hosts in the order to try; empty for any host that has the devices.
	Hosts []string `json:"hosts,omitempty"`
	// Fallback are the ids of models of the same type that may answer in its place when a request allows it, in order.
	Fallback []string `json:"fallback,omitempty"`
	// Replicas bounds the copies in the pool.
	Replicas Replicas `json:"replicas"`
	// Memory is what the model needs on its device in bytes; 0 leaves it to the runner's estimate.
	Memory int64 `json:"memory,omitempty"`
	// MMCache is the scope in which encoder outputs are shared.
	MMCache MMCache `json:"mm_cache"`
	// Dimensions means that embeddings may be cut to the length that a request asks for.
	Dimensions bool `json:"dimensions,omitempty"`
	// NormalizeScores means that rerank scores are mapped to 0..1 before they are sent.
	NormalizeScores bool `json:"normalize_scores,omitempty"`
	// Registered means that the entry came through the API and not from the models file: its options may only tune, and
	// its weights lie where the operator lets registered models lie.
	Registered bool `json:"registered,omitempty"`
	// Within are the folders that the weights of a registered model must lie in where they are paths: see [Below].
	Within []string `json:"within,omitempty"`
	// Labels and Description are shown in listings.
	Labels      []string `json:"labels,omitempty"`
	Description string   `json:"description,omitempty"`
}

// Replicas bounds how many copies of a model a pool may hold at once.
type Replicas struct {
	Max int `json:"max"` // 1 or more
}

// MMCache is the scope of a model's encoder cache.
type MMCache string

// The scopes: each API key has entries of its own (the default; without keys configured all requests share them), all keys
// of the pool share them, or there are none.
const (
	MMCacheKey  MMCache = "key"
	MMCachePool MMCache = "pool"
	MMCacheNone MMCache = "none"
)

// signatureSeed is the xxh3 seed that sets model signatures apart from every other hash of the project.
const signatureSeed = 0x4D4D5349475F3031

// StableID names the model's weights independently of where they lie and of the catalogue's name for them: the registry
// id (org/repo/file) or else the checkpoint's base name, and, for a model with a projector, "+" and that file's base
// name; a pinned revision belongs to either. Two models with equal StableID produce the same encoder outputs.
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

// Signature is the 64-bit model signature: xxh3-64 of [Model.StableID] under a seed of its own.
func (m *Model) Signature() uint64 { return xxh3.HashStringSeed(m.StableID(), signatureSeed) }

// Choice is which GPUs of a host the model asks for.
func (m *Model) Choice() policy.GPUs {
	g := policy.GPUs{Min: m.GPUs, Max: m.GPUs}
	for _, card := range m.Cards {
		if card >= 0 && card < policy.MaxCards {
			g.Only |= 1 << card
		}
	}
	return g
}

// DeviceText is the model's devices as an entry names them.
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

// names returns the id and the aliases.
func (m *Model) names() []string { return append([]string{m.ID}, m.Aliases...) }

// TypeOfLabels is the type that a registered model's labels decide: embeddings, reranking, transcription or audio, tts,
// image, in this order; a model with none of these labels is an llm.
func TypeOfLabels(labels []string) policy.Type {
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

// baseName is the last part of a path or URL, whatever the system's separator.
func baseName(s string) string {
	if s == "" {
		return ""
	}
	return path.Base(strings.ReplaceAll(s, `\`, "/"))
}
