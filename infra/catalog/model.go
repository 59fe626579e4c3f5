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
	// the last two with @revision if one is pinned; or a name that the engine itself understands, for recipes that
	// accept one. It is empty only if the recipe allows that.
	Checkpoint string `json:"checkpoint,omitempty"`
	// SHA256 is the checksum of the checkpoint's bytes, in hex, checked when they are fetched; empty leaves it to their
	// source. Only for a checkpoint that is one file of s3:// or hf://.
	SHA256 string `json:"sha256,omitempty"`
	// MMProj is the file of the projector for vision or audio input, in the same forms; empty for none.
	MMProj string `json:"mmproj,omitempty"`
	// Aliases are further names, each owned by one model only.
	Aliases []string `json:"aliases,omitempty"`
	// Devices are the devices that the model occupies while it is loaded, all together; never empty. They come from the
	// entry, else from its options and recipe.
	Devices policy.Devices `json:"-"`
	// GPUs is how many GPUs of a host it runs on; 0: as few as hold it.
	GPUs int `json:"gpus,omitempty"`
	// Cards are the indexes of the GPUs that it may run on; empty for any.
	Cards []int `json:"cards,omitempty"`
	// Options are load options, checked and normalised by the recipe. They rank below saved and requested ones and
	// above the runner's.
	Options recipe.Options `json:"options,omitempty"`
	// Pin prevents the model from ever being evicted.
	Pin bool `json:"pin,omitempty"`
	// Idle is how long the model may be without traffic before it is unloaded, 0 or more; nil leaves it to the
	// defaults.
	Idle *time.Duration `json:"-"`
	// Hosts are names or labels of hosts in the order to try; empty for any host that has the devices.
	Hosts []string `json:"hosts,omitempty"`
	// Fallback are the ids of models of the same type that may answer in its place when a request allows it, in order.
	Fallback []string `json:"fallback,omitempty"`
	// Replicas bounds the copies in the pool.
	Replicas Replicas `json:"replicas"`
	// Memory is what the model needs on its device in bytes; 0 leaves it to the runner's estimate.
	Memory int64 `json:"memory,omitempty"`
	// MMCache says who shares encoder outputs.
	MMCache Sharing `json:"mm_cache"`
	// Conversations says who shares saved conversations. Empty means ShareAll.
	Conversations Sharing `json:"conversations,omitempty"`
	// Dimensions means that embeddings may be cut to the length that a request asks for.
	Dimensions bool `json:"dimensions,omitempty"`
	// NormalizeScores means that rerank scores are mapped to 0..1 before they are sent.
	NormalizeScores bool `json:"normalize_scores,omitempty"`
	// Registered means that the entry came through the API and not from the models file: its options may only tune, and
	// its weights must be stored where the operator allows it for registered models.
	Registered bool `json:"registered,omitempty"`
	// Within are the folders in which the weights of a registered model must be if they are paths: see [Below].
	Within []string `json:"within,omitempty"`
	// Labels and Description are shown in listings.
	Labels      []string `json:"labels,omitempty"`
	Description string   `json:"description,omitempty"`
}

// Replicas bounds how many copies of a model a pool may hold at once.
type Replicas struct {
	Max int `json:"max"` // 1 or more
}

// Sharing says who shares what engines have computed for a model.
type Sharing string

// Each API key has its own (without configured keys all requests share them), all keys of the pool share them, or nothing is
// kept.
const (
	SharePerKey Sharing = "key"
	ShareAll    Sharing = "pool"
	ShareNone   Sharing = "none"
)

// signatureSeed is the xxh3 seed that sets model signatures apart from every other hash of the project.
const signatureSeed = 0x4D4D5349475F3031

// StableID identifies the model's weights independently of their location and of the catalogue's name for them: the
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

// Choice returns which GPUs of a host the model asks for.
func (m *Model) Choice() policy.GPUChoice {
	g := policy.GPUChoice{Min: m.GPUs, Max: m.GPUs}
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

// names returns the id and the aliases.
func (m *Model) names() []string { return append([]string{m.ID}, m.Aliases...) }

// typeOfLabels returns the type that a registered model's labels decide: embeddings, reranking, transcription or audio,
// tts, image, in this order. A model with none of these labels is an llm.
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
