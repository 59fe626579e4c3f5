package mmcache

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// A Sig is a model's signature. infra/catalog computes it from the model's stable id, once per load.
type Sig uint64

// A Kind is the kind of a medium.
type Kind uint8

// Kinds, with their numbers in PROTOCOL.md.
const (
	Image Kind = 1 // RGB8, row by row
	Audio Kind = 2 // 32-bit little-endian floats
)

// Media describes raw media bytes. A and B are the width and height of an image, or the sample rate and channels of a
// sound.
type Media struct {
	Kind Kind
	A, B uint32
}

// redisKey returns the name of a medium's entry.
func redisKey(pool string, sig Sig, id Ident) string {
	return fmt.Sprintf("mm:%s:%016x:%x", pool, uint64(sig), id[:])
}

// A Layout is the shape of an encoder's output for one medium: Width is the floats per token, Tokens the tokens of
// each chunk (a medium is one chunk or several).
type Layout struct {
	Width  uint32
	Tokens []uint32
}

// Limits of a layout. Anything beyond them is not cached.
const (
	maxWidth  = 1 << 16
	maxTokens = 1 << 20
	maxChunks = 4096
)

// Bytes returns the size of the floats, or 0 for an impossible layout.
func (l Layout) Bytes() int64 {
	var sum int64
	if l.Width == 0 || l.Width > maxWidth || len(l.Tokens) == 0 || len(l.Tokens) > maxChunks {
		return 0
	}
	for _, t := range l.Tokens {
		if t == 0 || t > maxTokens {
			return 0
		}
		sum += int64(t)
	}
	return sum * int64(l.Width) * 4
}

// A Namespace is a set of entries that requests may share: its media are encoded in the same way, and their senders are
// allowed to learn of each other's media.
type Namespace struct {
	Pool    string // pools share nothing
	Tenant  string // tenant, "" if all requests share entries
	Model   string // stable id, including the projector
	Encoder Digest // content of the projector, the engine's build and everything else that affects the encoder's numbers
	Sig     Sig    // of Model
}

// An Ident names one medium's entry: a SHA-256 over everything that must be equal before a result can be reused.
type Ident [sha256.Size]byte

// identFormat is the version in an identity. A new version separates new entries from old ones.
const identFormat = 2

// Ident returns the identity of a medium, given the SHA-256 of its raw bytes.
func (n Namespace) Ident(m Media, content [sha256.Size]byte, l Layout) Ident {
	h := sha256.New()
	part := func(tag byte, data []byte) { writePart(h, tag, data) }
	u32 := func(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }
	part(1, []byte{identFormat})
	part(2, []byte(n.Pool))
	part(3, []byte(n.Model))
	part(4, n.Encoder[:])
	part(5, []byte{byte(m.Kind)})
	part(6, u32(m.A))
	part(7, u32(m.B))
	part(8, content[:])
	part(9, u32(l.Width))
	tokens := make([]byte, 0, 4*len(l.Tokens))
	for _, t := range l.Tokens {
		tokens = binary.LittleEndian.AppendUint32(tokens, t)
	}
	part(10, tokens)
	part(11, []byte(n.Tenant))
	return Ident(h.Sum(nil))
}
